"""The headers of every response, whatever its status; the cookie of forms; the event stream, which is not buffered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from tests.web.clients import ADDRESS, client_of, token_in

from penstock import App
from penstock.config import Settings
from penstock.errors import TemporaryError, UsageError
from penstock.web import dashboard
from penstock.web.headers import HEADERS, POLICY
from penstock.web.security import COOKIE

SECONDS = 120.0


@pytest.fixture
def app(tmp_path: Path) -> App:
    settings = Settings(
        broker=f"sqlite:///{tmp_path}/queue.db", ledger=f"sqlite:///{tmp_path}/ledger.db", data_dir=str(tmp_path)
    )
    return App(name="shop", settings=settings)


def fail(_: Request) -> Response:
    raise RuntimeError("hush")


def away(_: Request) -> Response:
    raise TemporaryError("the broker is away")


def wrong(_: Request) -> Response:
    raise UsageError("There is no queue x.")


@pytest.fixture
def client(app: App) -> Iterator[TestClient]:
    def named(request: Request) -> str | None:
        return None if "x-nobody" in request.headers else "ann"

    pages = dashboard(app, user=named)
    pages.router.routes[:0] = [Route("/bug", fail), Route("/away", away), Route("/wrong", wrong)]
    with TestClient(pages, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    ("status", "method", "path", "options"),
    [
        (200, "GET", "/", {}),
        (200, "HEAD", "/", {}),
        (200, "GET", "/static/app.js", {}),
        (206, "GET", "/static/app.js", {"headers": {"Range": "bytes=0-3"}}),
        (404, "GET", "/static/nothing.js", {}),
        (405, "POST", "/static/app.js", {}),
        (303, "POST", "/preferences", {"data": {"next": "/"}}),
        (400, "GET", "/wrong", {}),
        (403, "POST", "/preferences", {"data": {"csrf": "x"}}),
        (403, "GET", "/", {"headers": {"X-Nobody": "1"}}),
        (403, "GET", "/static/app.js", {"headers": {"X-Nobody": "1"}}),
        (404, "GET", "/nothing", {}),
        (405, "GET", "/workers/drain", {}),
        (405, "DELETE", "/", {}),
        (413, "POST", "/preferences", {"data": {"x": "y" * 1024**2}}),
        (500, "GET", "/bug", {}),
        (503, "GET", "/away", {}),
    ],
)
def test_every_response_has_the_headers(
    status: int, method: str, path: str, options: dict[str, Any], client: TestClient
) -> None:
    if status == 303:
        options = {"data": {**options["data"], "csrf": token_in(client.get("/").text)}}
    response = client.request(method, path, follow_redirects=False, **options)
    assert response.status_code == status
    assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
    assert response.headers["cache-control"] == "no-store"
    assert "hush" not in response.text
    assert "Traceback" not in response.text


def test_the_policy_allows_no_inline_code_and_no_other_site() -> None:
    assert POLICY.startswith("default-src 'none'; ")
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} <= set(POLICY.split("; "))


def test_browsers_send_the_origin_with_forms_of_the_dashboard() -> None:
    """With `no-referrer` they send `Origin: null`, and over plain HTTP no Sec-Fetch-Site either."""
    assert HEADERS["Referrer-Policy"] == "same-origin"


def test_only_versioned_static_files_are_kept(client: TestClient) -> None:
    kept = client.get("/static/app.js?v=1")
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert HEADERS.items() <= {name: kept.headers[name] for name in HEADERS}.items()
    assert client.get("/static/none.js?v=1").headers["cache-control"] == "no-store"
    assert client.get("/?v=1").headers["cache-control"] == "no-store"


def test_too_many_event_streams_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.web.sampling.Sampler.streams", 200)
    response = client.get("/events")
    assert (response.status_code, response.headers["retry-after"]) == (503, "30")
    assert {name: response.headers.get(name) for name in HEADERS} == HEADERS


async def first_messages(app: Any, path: str, *, until: bytes) -> list[dict[str, Any]]:
    """Return the ASGI messages of a response until one of its bodies contains ``until``; then disconnect."""
    messages: list[dict[str, Any]] = []
    seen = anyio.Event()

    async def receive() -> dict[str, Any]:
        await seen.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)
        if until in message.get("body", b""):
            seen.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    with anyio.fail_after(SECONDS):
        await app(scope, receive, send)
    return messages


def test_events_are_sent_at_once_through_all_middleware(app: App) -> None:
    pages = dashboard(app, user=lambda _: "ann")

    async def stream() -> list[dict[str, Any]]:
        async with pages.router.lifespan_context(pages):
            return await first_messages(pages, "/events", until=b"event: changed")

    start, *bodies = anyio.run(stream)
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    assert headers["content-type"].startswith("text/event-stream")
    assert {name: headers.get(name.lower()) for name in HEADERS} == HEADERS
    assert any(b"event: changed" in message.get("body", b"") for message in bodies)


# The cookie


def cookie_of(response: Any) -> str:
    return str(response.headers.get("set-cookie", ""))


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(app: App) -> None:
    with client_of(app) as client:
        cookie = cookie_of(client.get("/"))
        assert cookie.startswith(f"{COOKIE}=")
        assert cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Strict"
        assert cookie_of(client.get("/")) == ""  # it has one


def test_pages_without_a_form_set_no_cookie(client: TestClient) -> None:
    for path in ("/static/app.js", "/bug"):
        assert cookie_of(client.get(path)) == ""
    assert cookie_of(client.get("/", headers={"X-Nobody": "1"})) == ""


@pytest.mark.parametrize("sent", ["", "x", "A" * 42, "A" * 44, "A" * 42 + "!", 'a"; Path=/x'])
def test_a_cookie_that_is_none_of_ours_is_replaced(sent: str, app: App) -> None:
    with client_of(app) as client:
        new = cookie_of(client.get("/", headers={"Cookie": f"{COOKIE}={sent}"}))
    assert len(new.partition("=")[2].partition(";")[0]) == 43
    assert not new.startswith(f"{COOKIE}={sent};")


@pytest.mark.parametrize(
    ("base_url", "headers"),
    [("https://dash.example", {}), ("http://dash.example", {"X-Forwarded-Proto": "https"})],
)
def test_with_tls_the_cookie_is_never_sent_without(base_url: str, headers: dict[str, str], app: App) -> None:
    pages = dashboard(app, user=lambda _: "ann")
    with TestClient(pages, base_url=base_url) as client:
        assert cookie_of(client.get("/", headers=headers)).endswith("; Secure")


def test_the_cookie_of_a_mounted_dashboard_is_of_its_path(app: App) -> None:
    with TestClient(dashboard(app, user=lambda _: "ann"), base_url=ADDRESS, root_path="/tools/penstock") as client:
        assert "; Path=/tools/penstock;" in cookie_of(client.get("/tools/penstock/"))


def test_a_part_of_the_path_adds_no_attribute_to_the_cookie(app: App) -> None:
    pages = dashboard(app, user=lambda _: "ann")
    with TestClient(pages, base_url=ADDRESS, root_path="/a; Domain=example/penstock") as client:
        cookie = cookie_of(client.get("/a; Domain=example/penstock/"))
    assert cookie.endswith("; Path=/a%3B%20Domain%3Dexample/penstock; HttpOnly; SameSite=Strict")
