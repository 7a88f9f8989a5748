"""Access to a dashboard: its kinds, roles, and the addresses at which it may be served."""

import base64
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from tests.web.clients import ADDRESS, FormClient, client_of

from penstock import App
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.messaging.clock import SystemClock
from penstock.monitoring.endpoint import address_of
from penstock.web import dashboard, passwords
from penstock.web.access import ProxyAccess, authenticator, check_access, is_loopback, names_loopback
from penstock.web.passwords import hashed
from penstock.web.security import WebUser, user_of

EVERYWHERE = address_of("0.0.0.0:8321", setting="web.address")


@pytest.fixture(scope="module")
def ann() -> str:
    """The hash of ann's password, which is `correct horse`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "COST", 2**14)
        patch.setattr(passwords, "PARALLEL", 1)
        return str(hashed("correct horse"))


@pytest.fixture
def app_with(tmp_path: Path) -> Callable[..., App]:
    def make(**settings: Any) -> App:
        return App(
            name="shop",
            settings=Settings(
                broker=f"sqlite:///{tmp_path}/queue.db",
                ledger=f"sqlite:///{tmp_path}/ledger.db",
                data_dir=str(tmp_path),
                **settings,
            ),
        )

    return make


def served(app: App, *, client: str = "127.0.0.1", base_url: str = ADDRESS) -> FormClient:
    """Return a client of the dashboard as `penstock web` serves it."""
    pages = dashboard(app, access=authenticator(app.settings, clock=SystemClock()))
    return FormClient(pages, base_url=base_url, client=(client, 50_000))


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def shows_user(client: TestClient, name: str, **options: Any) -> bool:
    response = client.get("/audit", **options)
    return response.status_code == 200 and f'class="user">{name}' in response.text


# Addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "0:0:0:0:0:0:0:1"])
def test_loopback_addresses_may_be_served_without_users(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "", "::ffff:0.0.0.0", "::ffff:192.0.2.1", "192.0.2.1", "10.0.0.1", "fe80::1", "no.such.invalid"],
)
def test_other_addresses_may_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("found", "loopback"),
    [(["127.0.0.1", "::1"], True), (["127.0.0.1", "192.0.2.7"], False), (["192.0.2.7"], False), ([], False)],
)
def test_a_name_is_loopback_if_all_its_addresses_are(
    found: list[str], loopback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: answers)
    assert is_loopback("dash") is loopback


def test_a_name_that_is_not_found_is_no_loopback_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror("away")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    assert not is_loopback("dash")


def test_serving_other_hosts_without_users_is_refused_with_the_ways_out() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_access(Settings(), EVERYWHERE)
    assert str(caught.value) == (
        "Every host that reaches 0.0.0.0:8321 could use the dashboard: name users in web.users, or the header of a "
        "proxy that knows them in web.proxy_header, or listen on 127.0.0.1 and come through an SSH tunnel."
    )


def test_read_only_is_no_reason_to_serve_other_hosts_without_users() -> None:
    with pytest.raises(ConfigurationError, match="Every host"):
        check_access(Settings(web_read_only=True), EVERYWHERE)


def test_users_without_tls_are_a_warning_on_other_hosts_only(ann: str) -> None:
    settings = Settings(web_users={"ann": ann})
    assert ["without TLS" in warning for warning in check_access(settings, EVERYWHERE)] == [True]
    assert check_access(settings, address_of("127.0.0.1:1", setting="x")) == ()
    assert check_access(Settings(web_proxy_header="X-User"), EVERYWHERE) == ()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"web_users": {"ann": "ANN"}, "web_proxy_header": "X-User"}, "are both set"),
        ({"web_proxy_header": "X-User", "web_proxy_addresses": []}, "has to name the proxies"),
        ({"web_proxy_header": "X-User", "web_proxy_addresses": ["0.0.0.0/0"]}, "has to name the proxies"),
        ({"web_proxy_header": "X-User", "web_proxy_addresses": ["::/0"]}, "has to name the proxies"),
        ({"web_operators": ["ann"]}, "nothing names the user"),
        ({"web_users": {"ann": "ANN"}, "web_operators": ["ann", "eve"]}, "names eve, and web.users has no such user"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str, ann: str) -> None:
    if "web_users" in settings:
        settings = {**settings, "web_users": {"ann": ann}}
    with pytest.raises(ConfigurationError, match=sentence):
        check_access(Settings(**settings), address_of("127.0.0.1:1", setting="x"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("web_users", {"ann": "correct horse"}),
        ("web_users", {"a:b": "HASH"}),
        ("web_users", {"": "HASH"}),
        ("web_users", {"a\nb": "HASH"}),
        ("web_users", {"x" * 201: "HASH"}),
        ("web_proxy_header", "X User"),
        ("web_proxy_header", ""),
        ("web_proxy_addresses", ["proxy.internal"]),
    ],
)
def test_invalid_settings_are_refused(name: str, value: Any, ann: str) -> None:
    if name == "web_users":
        value = {user: ann if text == "HASH" else text for user, text in value.items()}
    with pytest.raises(ValueError, match="should"):
        Settings(**{name: value})


# Loopback


def test_a_loopback_dashboard_has_one_acting_user(app_with: Callable[..., App]) -> None:
    with served(app_with()) as client:
        assert shows_user(client, "local")
        assert "read-only" not in client.get("/").text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8321", "127.0.0.1:8321", "127.1.2.3", "[::1]:8321", "[::ffff:127.0.0.1]"]
)
def test_names_of_this_host_are_accepted(host: str) -> None:
    assert names_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "127.0.0.1.example",
        "localhost.example",
        "127.0.0.1@rebound.example",
        "localhost:80@rebound.example",
        "[::1",
        "[::1].example",
        "[::2]",
        "0.0.0.0",
        "127.0.0.1:x",
        "::1",
        "",
    ],
)
def test_other_names_are_refused_because_of_dns_rebinding(host: str, app_with: Callable[..., App]) -> None:
    assert not names_loopback(host)
    with served(app_with()) as client:
        assert client.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"])
def test_a_forwarded_request_without_users_is_refused(header: str, app_with: Callable[..., App]) -> None:
    with served(app_with()) as client:
        response = client.get("/", headers={header: "192.0.2.1"})
    assert (response.status_code, "came through a proxy" in response.text) == (403, True)


def test_the_header_of_a_proxy_names_no_user_without_its_setting(app_with: Callable[..., App]) -> None:
    with served(app_with()) as client:
        assert shows_user(client, "local", headers={"X-Forwarded-User": "root", "Remote-User": "root"})


# Basic authentication


def test_a_user_logs_in_with_a_password(app_with: Callable[..., App], ann: str) -> None:
    with served(app_with(web_users={"ann": ann}), client="192.0.2.1", base_url="http://dash.example") as client:
        assert shows_user(client, "ann", headers=basic("ann", "correct horse"))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"ann").decode(),
        "Basic " + base64.b64encode(b"ann:wrong").decode(),
        "Basic " + base64.b64encode(b":correct horse").decode(),
        "Basic " + base64.b64encode(b"ann\n:correct horse").decode(),
        "Basic " + base64.b64encode(b"\xff:correct horse").decode(),
        "Basic " + base64.b64encode(b"ann:" + b"x" * 9_000).decode(),
        "Bearer " + base64.b64encode(b"ann:correct horse").decode(),
    ],
)
def test_other_credentials_are_refused(header: str | None, app_with: Callable[..., App], ann: str) -> None:
    with served(app_with(web_users={"ann": ann})) as client:
        response = client.get("/", headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Basic realm="Penstock", charset="UTF-8"'
    assert "shop" not in response.text


def test_two_authorization_headers_are_refused(app_with: Callable[..., App], ann: str) -> None:
    good = basic("ann", "correct horse")["Authorization"]
    with served(app_with(web_users={"ann": ann})) as client:
        assert client.get("/", headers=[("Authorization", good), ("Authorization", good)]).status_code == 401


def test_guessing_is_refused_for_a_while(app_with: Callable[..., App], ann: str) -> None:
    with served(app_with(web_users={"ann": ann})) as client:
        for number in range(3):
            assert client.get("/", headers=basic("ann", f"guess {number}")).status_code == 401
        response = client.get("/", headers=basic("ann", "correct horse"))
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 2


# A proxy's header


PROXIED = {"web_proxy_header": "X-Forwarded-User", "web_proxy_addresses": ["10.1.0.0/16", "::1"]}


@pytest.mark.parametrize("proxy", ["10.1.2.3", "::ffff:10.1.2.3", "::1"])
def test_the_header_of_a_named_proxy_names_the_user(proxy: str, app_with: Callable[..., App]) -> None:
    with served(app_with(**PROXIED), client=proxy, base_url="https://dash.example") as client:
        assert shows_user(client, "ann@example.com", headers={"X-Forwarded-User": "ann@example.com"})


@pytest.mark.parametrize("peer", ["10.2.0.1", "127.0.0.1", "::ffff:10.2.0.1", "testclient", ""])
def test_the_header_of_any_other_peer_is_refused(peer: str, app_with: Callable[..., App]) -> None:
    with served(app_with(**PROXIED), client=peer) as client:
        assert client.get("/", headers={"X-Forwarded-User": "ann"}).status_code == 401
        assert client.get("/", headers={"X-Forwarded-User": "ann", "X-Forwarded-For": "10.1.2.3"}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-Forwarded-User", "")],
        [("X-Forwarded-User", " ")],
        [("X-Forwarded-User", "x" * 201)],
        [("X-Forwarded-User", "eve, ann")],
        [("X-Forwarded-User", b"ann\x01")],
        [("X-Forwarded-User", b"ann\x7f")],
        [("X-Forwarded-User", "ann\u202e".encode())],
        [("X-Forwarded-User", "eve"), ("X-Forwarded-User", "ann")],
        [("X-Forwarded-User", "ann"), ("x-forwarded-user", "ann")],
        [("X_Forwarded_User", "ann")],
    ],
)
def test_a_proxy_that_names_no_one_user_is_refused(headers: Any, app_with: Callable[..., App]) -> None:
    with served(app_with(**PROXIED), client="10.1.2.3") as client:
        response = client.get("/", headers=headers)
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    scope = {"type": "http", "client": ("10.1.2.3", 1), "headers": [(b"x-user", b"\xff\xfe")]}
    with pytest.raises(HTTPException, match="401"):
        anyio.run(ProxyAccess(header="X-User", addresses=["10.1.2.3"]).user, Request(scope))


# Mounted


def test_a_mounted_dashboard_without_a_user_function_is_read_only(app_with: Callable[..., App]) -> None:
    with client_of(app_with(), user=None) as client:
        page = client.get("/").text
    assert 'class="user">visitor · read-only' in page


async def user_later(_: Request) -> str:
    return "ann"


@pytest.mark.parametrize(
    ("user", "name"),
    [
        (lambda request: request.headers.get("x-test"), "ann"),
        (lambda _: WebUser(name="ann"), "ann"),
        (lambda _: WebUser(name="ann", may_act=False), "ann · read-only"),
        (user_later, "ann"),
    ],
)
def test_the_application_names_the_user(user: Any, name: str, app_with: Callable[..., App]) -> None:
    pages = dashboard(app_with(), user=user)
    with TestClient(pages, base_url=ADDRESS, headers={"X-Test": "ann"}) as client:
        assert f'class="user">{name}</span>' in client.get("/").text


@pytest.mark.parametrize("named", [None, "", "a\nb", "x" * 201, 3, WebUser(name="")])
def test_a_request_without_a_valid_user_of_the_application_is_refused(named: Any, app_with: Callable[..., App]) -> None:
    with TestClient(dashboard(app_with(), user=lambda _: named), base_url=ADDRESS) as client:
        response = client.get("/")
    assert response.status_code == 403
    assert "shop" not in response.text


def test_the_application_may_answer_itself(app_with: Callable[..., App]) -> None:
    def user(_: Request) -> str:
        raise HTTPException(307, "log in", {"Location": "/login"})

    with TestClient(dashboard(app_with(), user=user), base_url=ADDRESS) as client:
        response = client.get("/", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "/login")


def test_a_defect_of_the_users_function_refuses_all(app_with: Callable[..., App]) -> None:
    def user(_: Request) -> str:
        raise RuntimeError("hush")

    pages = dashboard(app_with(), user=user)
    with TestClient(pages, base_url=ADDRESS, raise_server_exceptions=False) as client:
        response = client.get("/")
    assert response.status_code == 500
    assert "hush" not in response.text


# Roles


@pytest.mark.parametrize(
    ("settings", "acting"),
    [
        ({}, {"ann", "bob"}),
        ({"web_operators": ["ann"]}, {"ann"}),
        ({"web_operators": []}, set()),
        ({"web_operators": ["Ann", "ann "]}, set()),
        ({"web_read_only": True}, set()),
        ({"web_read_only": True, "web_operators": ["ann"]}, set()),
    ],
)
def test_roles(settings: dict[str, Any], acting: set[str], app_with: Callable[..., App]) -> None:
    found = set()
    for name in ("ann", "bob"):
        with client_of(app_with(**settings), user=name) as client:
            if "read-only" not in client.get("/").text:
                found.add(name)
    assert found == acting


def test_web_sockets_are_closed(app_with: Callable[..., App]) -> None:
    with client_of(app_with()) as client, pytest.raises(WebSocketDisconnect), client.websocket_connect("/events"):
        pass


def test_a_request_that_no_middleware_saw_has_no_user() -> None:
    assert user_of(Request({"type": "http", "app": Starlette()})) is None
