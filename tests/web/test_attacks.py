"""Attacks on every route of the dashboard, found from the application itself, so that a new route is attacked too.

No request without a user, without the right to act, or without a valid form reaches a handler that changes something;
and no GET changes anything at all.
"""

import base64
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient
from tests.web.clients import ADDRESS, token_in

from penstock import App
from penstock.app.history.file import HISTORY_FILE
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.web import dashboard, security
from penstock.web.access import Authenticator, BasicAccess, LoopbackAccess, MountedAccess, ProxyAccess
from penstock.web.dashboard import routes
from penstock.web.headers import HEADERS
from penstock.web.logins import Logins
from penstock.web.passwords import hashed
from penstock.web.security import TOKEN_SECONDS, WebUser

QUERY = "?queue=orders&name=orders&id=x&address=s3://a/b&pipeline=p&seq=1&state=visible&error=e&before=x&worker=w"
STREAMS = {"/events"}  # do not end


def flattened(found: Sequence[BaseRoute]) -> Iterator[Route]:
    for route in found:
        if isinstance(route, Route):
            yield route
        elif not isinstance(route, Mount) or route.path != "/static":
            raise AssertionError(f"{route} is of a kind that these tests do not attack")


ROUTES = list(flattened(routes()))
PAGES = sorted(route.path for route in ROUTES if "GET" in (route.methods or ()))
FORMS = sorted(route.path for route in ROUTES if "POST" in (route.methods or ()))
ACTIONS = sorted(path for path in FORMS if path != "/preferences")


@dataclass
class Calls:
    """The handlers that were called after all checks, instead of being executed."""

    made: list[str] = field(default_factory=list)

    async def record(self, handler: Any, request: Request) -> Response:
        self.made.append(request.url.path)
        return Response("done")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(security, "_call", found.record)
    return found


class ShiftedClock(SystemClock):
    """The system's clock, moved forward by a test."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


@pytest.fixture
def app(tmp_path: Path) -> App:
    folder = tmp_path / "state"
    folder.mkdir()
    settings = Settings(
        broker=f"sqlite:///{folder}/queue.db", ledger=f"sqlite:///{folder}/ledger.db", data_dir=str(folder)
    )
    app = App(name="shop", settings=settings)

    @app.handler(queue="orders", idempotency=str)
    def order(body: dict[str, int]) -> None: ...

    app.send("orders", {"n": 1})
    with closing(Ledger.open(settings.ledger)) as ledger:
        ledger.audits.begin("replay", queue="orders", who="<script>alert(1)</script>", details={"error": "</td>"})
    return app


Dashboards = Callable[..., TestClient]


@pytest.fixture
def browser(app: App) -> Iterator[Dashboards]:
    """Return clients of one dashboard process each; ``user`` is fixed, or chosen by the header X-Test."""
    open_clients: list[TestClient] = []

    def make(
        user: WebUser | None = None, *, access: Authenticator | None = None, client: str = "127.0.0.1", **options: Any
    ) -> TestClient:
        def named(request: Request) -> WebUser | str | None:
            return user or request.headers.get("x-test")

        pages = dashboard(app, access=access or MountedAccess(named), **options)
        made = TestClient(pages, base_url=ADDRESS, client=(client, 50_000), raise_server_exceptions=False)
        made.__enter__()
        open_clients.append(made)
        return made

    yield make
    for made in open_clients:
        made.__exit__()


ANN = WebUser(name="ann")
ONLOOKER = WebUser(name="ann", may_act=False)


def token_of(client: TestClient, **headers: str) -> str:
    return token_in(client.get("/", headers=headers).text)


def test_there_are_actions_and_each_route_that_changes_something_is_checked() -> None:
    assert "/workers/drain" in ACTIONS
    for route in ROUTES:
        if set(route.methods or ()) - {"GET", "HEAD"}:
            assert route.methods == {"POST"}, route.path
            assert route.endpoint.__qualname__ == "_checked.<locals>.endpoint", route.path


@pytest.mark.parametrize("path", FORMS)
def test_a_valid_form_reaches_its_handler_once(path: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ANN)
    response = client.post(path, data={"csrf": token_of(client)}, headers={"Sec-Fetch-Site": "same-origin"})
    assert (response.text, calls.made) == ("done", [path])


@pytest.mark.parametrize("path", FORMS)
def test_programs_without_fetch_metadata_may_send_valid_forms(path: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ANN)
    client.post(path, data={"csrf": token_of(client)})
    client.post(path, data={"csrf": token_of(client)}, headers={"Origin": ADDRESS})
    assert calls.made == [path, path]


# Without a user


class NotNamed:
    """Requests that name no user, by kind of access."""

    def __init__(self) -> None:
        users = {"ann": str(hashed("correct horse"))}
        wrong = {"Authorization": "Basic " + base64.b64encode(b"ann:wrong").decode()}
        proxy = ProxyAccess(header="X-User", addresses=["10.0.0.0/8"])
        two = [("X-User", "ann"), ("X-User", "ann")]
        self.cases: Mapping[str, tuple[Authenticator, Any, str]] = {
            "mounted, no user": (MountedAccess(lambda _: None), {}, "127.0.0.1"),
            "loopback, wrong host": (LoopbackAccess(), {"Host": "rebound.example"}, "127.0.0.1"),
            "loopback, forwarded": (LoopbackAccess(), {"X-Forwarded-For": "192.0.2.1"}, "127.0.0.1"),
            "basic, no credentials": (BasicAccess(Logins(users, clock=SystemClock())), {}, "192.0.2.1"),
            "basic, wrong password": (BasicAccess(Logins(users, clock=SystemClock())), wrong, "192.0.2.1"),
            "proxy, no header": (proxy, {}, "10.0.0.1"),
            "proxy, two headers": (proxy, two, "10.0.0.1"),
            "proxy, empty header": (proxy, {"X-User": ""}, "10.0.0.1"),
            "proxy, other peer": (proxy, {"X-User": "ann"}, "192.0.2.1"),
            "proxy, other peer that claims to be one": (
                proxy,
                {"X-User": "ann", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"},
                "192.0.2.1",
            ),
        }


NOT_NAMED = NotNamed().cases


@pytest.mark.parametrize("case", NOT_NAMED)
def test_without_a_user_no_page_is_shown_and_nothing_is_done(case: str, calls: Calls, browser: Dashboards) -> None:
    access, headers, peer = NOT_NAMED[case]
    client = browser(access=access, client=peer)
    token = browser(ANN).get("/").text
    for path in [*PAGES, *FORMS, "/static/app.js", "/nothing"]:
        response = client.get(path + QUERY, headers=headers, follow_redirects=False)
        assert response.status_code in (401, 403, 429), path
        assert "shop" not in response.text
        assert "orders" not in response.text
    for path in [*FORMS, *PAGES]:
        for data in ({}, {"csrf": token_in(token)}):
            assert client.post(path, data=data, headers=headers).status_code in (401, 403, 429), path
    assert calls.made == []


# Without the right to act


@pytest.mark.parametrize("path", ACTIONS)
def test_an_onlooker_can_look_and_do_nothing(path: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ONLOOKER)
    response = client.post(path, data={"csrf": token_of(client)})
    assert (response.status_code, calls.made) == (403, [])
    assert "You may not change anything here" in response.text


def test_no_page_shows_an_onlooker_a_form_of_an_action(browser: Dashboards) -> None:
    client = browser(ONLOOKER)
    for path in PAGES:
        if path not in STREAMS:
            page = client.get(path + QUERY).text
            assert [action for action in ACTIONS if f'action="{action}"' in page] == [], path


# Forged forms


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:9"},
    {"Origin": "null"},
    {"Origin": "file://"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site", "Origin": ADDRESS},
]


@pytest.mark.parametrize("path", FORMS)
def test_a_form_of_another_site_is_refused(path: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ANN)
    token = token_of(client)
    for headers in FOREIGN:
        response = client.post(path, data={"csrf": token}, headers=headers)
        assert (response.status_code, calls.made) == (403, []), headers


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
def test_doubled_headers_of_a_form_are_refused(name: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ANN)
    value = ADDRESS if name == "Origin" else "same-origin"
    response = client.post(FORMS[0], data={"csrf": token_of(client)}, headers=[(name, value), (name, value)])
    assert (response.status_code, calls.made) == (403, [])


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_a_valid_token_is_refused(path: str, calls: Calls, browser: Dashboards) -> None:
    clock = ShiftedClock()
    client, other_process = browser(clock=clock), browser(ANN)
    mine = token_of(client, **{"X-Test": "ann"})
    cookie = client.cookies.get("penstock_csrf")
    expires_at, _, digest = mine.partition(".")
    forged: list[Any] = [
        {},
        {"csrf": ""},
        {"csrf": "x"},
        {"csrf": mine[:-1]},
        {"csrf": mine + "0"},
        {"csrf": f"{int(expires_at) + 1}.{digest}"},
        {"csrf": f"{expires_at}.{'0' * 64}"},
        {"csrf": [mine, mine]},
        {"CSRF": mine},
        {"csrf": token_of(client, **{"X-Test": "bob"})},  # of another user of this browser
        {"csrf": token_of(other_process)},
    ]
    for data in forged:
        response = client.post(path, data=data, headers={"X-Test": "ann"})
        assert (response.status_code, "no longer valid" in response.text) == (403, True), data
    assert client.post(path + f"?csrf={mine}", headers={"X-Test": "ann"}).status_code == 403
    assert client.post(path, json={"csrf": mine}, headers={"X-Test": "ann"}).status_code == 403
    for sent in ("", "penstock_csrf=", "penstock_csrf=" + "A" * 43, "penstock_csrf=x; other=y"):
        client.cookies.clear()
        response = client.post(path, data={"csrf": mine}, headers={"X-Test": "ann", "Cookie": sent})
        assert response.status_code == 403
    assert calls.made == []
    client.cookies.clear()
    good = {"X-Test": "ann", "Cookie": f"penstock_csrf={cookie}"}
    clock.seconds = TOKEN_SECONDS - 60
    assert client.post(path, data={"csrf": mine}, headers=good).text == "done"
    clock.seconds = TOKEN_SECONDS + 1
    assert client.post(path, data={"csrf": mine}, headers=good).status_code == 403
    assert calls.made == [path]


METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "PROPFIND")


@pytest.mark.parametrize("path", FORMS)
def test_other_methods_do_nothing(path: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ANN)
    token = token_of(client)
    override = {"X-HTTP-Method-Override": "POST", "X-HTTP-Method": "POST", "X-Method-Override": "POST"}
    for method in METHODS:
        for headers in ({}, override):
            data = {"csrf": token, "_method": "POST"}
            client.request(method, f"{path}?csrf={token}&_method=POST", headers=headers, data=data)
            assert calls.made == [], method
    if path not in PAGES:
        response = client.get(path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ACTIONS)
def test_files_and_bodies_that_are_too_large_are_refused(path: str, calls: Calls, browser: Dashboards) -> None:
    client = browser(ANN)
    token = token_of(client)
    assert client.post(path, data={"csrf": token, "x": "y" * 1024**2}).status_code == 413
    chunks = (b"csrf=" + token.encode() + b"&x=" + b"y" * 600_000 for _ in range(2))
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post(path, content=chunks, headers=form).status_code == 413
    assert client.post(path, data={"csrf": token}, files={"file": b"x"}).status_code == 400
    for length in ("-1", "x", "9" * 5_000):
        assert client.post(path, data={"csrf": token}, headers={"Content-Length": length}).status_code == 413
    assert calls.made == []


# Mounted


@pytest.mark.parametrize("action", ACTIONS)
def test_tricks_with_the_path_of_a_mount_do_nothing(action: str, calls: Calls, app: App) -> None:
    pages = dashboard(app, user=lambda request: request.headers.get("x-test"))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        async with pages.router.lifespan_context(pages):
            yield

    parent = Starlette(routes=[Mount("/tools/penstock", pages)], lifespan=lifespan)
    with TestClient(parent, base_url=ADDRESS) as client:
        token = token_in(client.get("/tools/penstock/", headers={"X-Test": "ann"}).text)
        root, name = action.rsplit("/", 1)
        for path in (
            f"/tools/penstock{action}",
            f"/tools/penstock/{action}",
            f"/tools/penstock{action}/",
            f"/tools/penstock/static/..{action}",
            f"/tools/penstock/static/%2e%2e{action}",
            f"/tools/penstock/static/..%2f{action[1:]}",
            f"/tools/penstock/.{action}",
            f"/tools//penstock{action}",
            f"/tools/penstock%2f{action[1:]}",
            f"/tools/penstock{root}//{name}",
            f"/tools/penstock{action};a=b",
            f"/tools/penstock{action}%00",
            f"/tools/penstock{action.upper()}",
            f"/tools/penstock/tools/penstock{action}",
            action,
        ):
            client.post(path, data={"csrf": token})
            client.get(path)
        assert calls.made == []
        response = client.post(f"/tools/penstock{action}", data={"csrf": token}, headers={"X-Test": "ann"})
        assert (response.text, calls.made) == ("done", [f"/tools/penstock{action}"])


def test_no_path_leads_out_of_the_static_files(browser: Dashboards) -> None:
    client = browser(ANN)
    for path in ("../security.py", "..%2fsecurity.py", "%2e%2e/security.py", "//etc/passwd", "..\\security.py", "a%00"):
        assert client.get(f"/static/{path}").status_code in (404, 400), path


# GET changes nothing


def stored(folder: Path) -> dict[str, list[str]]:
    """Return everything that is stored in the databases of a folder, and the names of its files.

    Without the history, which the sampler's thread writes whether or not anyone sends a request.
    """
    files = [path for path in folder.iterdir() if not path.name.startswith(HISTORY_FILE)]
    found = {"files": sorted(path.name for path in files if path.suffix not in (".db-wal", ".db-shm"))}
    for path in sorted(path for path in files if path.suffix == ".db"):
        with closing(sqlite3.connect(path)) as connection:
            found[path.name] = list(connection.iterdump())
    return found


@pytest.mark.parametrize("path", [path for path in PAGES if path not in STREAMS])
def test_a_get_changes_nothing(path: str, app: App, browser: Dashboards) -> None:
    folder = Path(app.settings.data_dir)
    client = browser(ANN)
    before = stored(folder)
    for query in ("", QUERY, "?queue=orders&state=in_flight", "?id=%00%ff%22%3Cscript%3E"):
        response = client.get(path + query)
        assert response.status_code in (200, 303, 400, 404), response.text
        assert "<script>" not in response.text.replace('<script src="', "")
    assert stored(folder) == before


# Headers


@pytest.mark.parametrize("path", [path for path in PAGES if path not in STREAMS])
def test_every_page_has_the_headers_and_no_inline_code(path: str, browser: Dashboards) -> None:
    response = browser(ANN).get(path + QUERY)
    assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
    assert response.headers["cache-control"] == "no-store"
    for forbidden in (" style=", " onclick=", " onload=", " onsubmit=", "javascript:", "<style"):
        assert forbidden not in response.text
