"""Find the user of a request, and refuse requests without one.

There are four kinds of access, each an `Authenticator`. `LoopbackAccess`: a dashboard that only this host can reach has
one user. `BasicAccess`: users and passwords of the settings. `ProxyAccess`: a reverse proxy names the user in a header.
`MountedAccess`: the application that the dashboard is mounted in names the user.

`check_access` refuses to serve other hosts without users. `AccessControl` is the middleware; TLS is left to a proxy.
"""

import base64
import ipaddress
import socket
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Protocol
from unicodedata import normalize
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.config import Settings
from penstock.config.settings import is_user_name
from penstock.errors import ConfigurationError
from penstock.messaging.clock import Clock
from penstock.monitoring.endpoint import Address
from penstock.web.logins import Logins
from penstock.web.passwords import parsed_hash
from penstock.web.security import COOKIE, VISIT, AccessRefused, CsrfTokens, Visit, WebUser, visit_by

UserFunction = Callable[[Request], "str | WebUser | Awaitable[str | WebUser | None] | None"]

CHALLENGE = 'Basic realm="Penstock", charset="UTF-8"'
CREDENTIALS_BYTES_MAX = 8_192
# Added by proxies and tunnels that make a port of this host reachable from elsewhere.
FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
LOCAL, VISITOR = "local", "visitor"  # the names of users that are not known


class Authenticator(Protocol):
    """One kind of access."""

    async def user(self, request: Request) -> WebUser:
        """Return the user of a request. Raises `AccessRefused`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Which users may act."""

    operators: frozenset[str] | None  # None: all
    read_only: bool

    @classmethod
    def of(cls, settings: Settings) -> "Roles":
        """Return the roles of the settings."""
        operators = None if settings.web_operators is None else frozenset(settings.web_operators)
        return cls(operators=operators, read_only=settings.web_read_only)

    def applied_to(self, user: WebUser) -> WebUser:
        """Return the user, who may act if neither the settings nor the user's own flag forbid it."""
        is_operator = self.operators is None or user.name in self.operators
        return WebUser(name=user.name, may_act=user.may_act and is_operator and not self.read_only)


class LoopbackAccess:
    """One user, for a dashboard that listens on a loopback address.

    The Host header has to name this host: a web page can make its own name point to a loopback address, and its scripts
    could then use the dashboard (DNS rebinding). Requests that were forwarded from elsewhere are refused too.
    """

    async def user(self, request: Request) -> WebUser:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not names_loopback(hosts[0]):
            raise AccessRefused(403, "wrong_host", "Without users, the dashboard serves localhost and 127.0.0.1 only.")
        if any(name in request.headers for name in FORWARDING_HEADERS):
            raise AccessRefused(403, "forwarded", "A proxy forwarded this request, and the dashboard has no users.")
        return WebUser(name=LOCAL)


class BasicAccess:
    """Users and passwords, by HTTP's basic authentication."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins

    async def user(self, request: Request) -> WebUser:
        given = request.headers.getlist("authorization")
        if not given:
            raise _login_needed()
        credentials = _credentials(given[0]) if len(given) == 1 else None
        if credentials is None:
            raise _login_needed()
        name, password = credentials
        result = await self._logins.verify(name, password, client=_client(request))
        if result.accepted:
            return WebUser(name=name)
        if result.wait_seconds:
            seconds = max(1, round(result.wait_seconds + 0.5))
            raise AccessRefused(429, "too_many_logins", "Too many failed logins.", {"Retry-After": str(seconds)})
        raise _login_needed()


class ProxyAccess:
    """Users that a reverse proxy names in a header. Only the peers of the settings are believed."""

    def __init__(self, *, header: str, addresses: Sequence[str]) -> None:
        self._header = header
        self._networks = [ipaddress.ip_network(text, strict=False) for text in addresses]

    async def user(self, request: Request) -> WebUser:
        if not self._is_trusted(_client(request)):
            raise AccessRefused(401, "unknown_proxy", "The request did not come from the proxy.", _PROXY_CHALLENGE)
        names = [value for key, value in request.scope["headers"] if key == self._header.lower().encode()]
        if len(names) != 1:
            raise AccessRefused(401, "no_user", "The proxy did not name one user.", _PROXY_CHALLENGE)
        try:
            name = names[0].decode("utf-8")
        except UnicodeDecodeError:
            name = ""
        if not is_user_name(name) or "," in name:  # a comma: the proxy appended to a header of the client
            raise AccessRefused(401, "no_user", "The proxy did not name one user.", _PROXY_CHALLENGE)
        return WebUser(name=name)

    def _is_trusted(self, client: str) -> bool:
        address = parsed_address(client)
        return address is not None and any(address in network for network in self._networks)


class MountedAccess:
    """Users that the surrounding application names. Without a function, everyone may look and no user may act."""

    def __init__(self, user: UserFunction | None) -> None:
        self._user = user

    async def user(self, request: Request) -> WebUser:
        if self._user is None:
            return WebUser(name=VISITOR, may_act=False)
        found = await run_in_threadpool(self._user, request)
        named = await found if isawaitable(found) else found
        if named is None:
            raise AccessRefused(403, "no_user", "The application named no user.")
        user: object = WebUser(name=named) if isinstance(named, str) else named  # untyped apps return anything
        if not isinstance(user, WebUser) or not is_user_name(user.name):
            raise AccessRefused(403, "no_user", "The application named no valid user.")
        return user


def authenticator(settings: Settings, *, clock: Clock) -> Authenticator:
    """Return the kind of access that the settings ask for. Raises `ConfigurationError` for an unusable hash."""
    if settings.web_proxy_header is not None:
        return ProxyAccess(header=settings.web_proxy_header, addresses=settings.web_proxy_addresses)
    if settings.web_users:
        return BasicAccess(Logins(settings.web_users, clock=clock))
    return LoopbackAccess()


class AccessControl:
    """ASGI middleware that puts a `Visit` into each request, or refuses it. It buffers nothing.

    ``refuse`` makes the response to a refused request. Web sockets are closed: the dashboard has none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Authenticator,
        roles: Roles,
        tokens: CsrfTokens,
        refuse: Callable[[Request, HTTPException], Response],
    ) -> None:
        self._app = app
        self._access = access
        self._roles = roles
        self._tokens = tokens
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            user = self._roles.applied_to(await self._access.user(request))
        except HTTPException as error:  # of ours, or of the function of the surrounding application
            await self._refuse(request, error)(scope, receive, send)
            return
        visit = visit_by(user, request, self._tokens)
        scope[VISIT] = visit

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and visit.issued and visit.is_new:
                MutableHeaders(scope=message).append("Set-Cookie", _cookie(request, visit))
            await send(message)

        await self._app(scope, receive, send_with_cookie)


def check_access(settings: Settings, address: Address) -> Sequence[str]:
    """Check that the dashboard may be served at an address; return warnings for the person who starts it.

    Raises `ConfigurationError` if other hosts could use it without a user, or if the settings contradict each other.
    """
    _check_settings(settings)
    if is_loopback(address.host):
        return ()
    if settings.web_proxy_header is not None:
        return ()
    if not settings.web_users:
        raise ConfigurationError(
            f"Every host that reaches {address} could use the dashboard: name users in web.users, or the header of a "
            "proxy that knows them in web.proxy_header, or listen on 127.0.0.1 and come through an SSH tunnel."
        )
    return [
        f"The dashboard at {address} is served without TLS, so passwords can be read on the way. Use a proxy with TLS."
    ]


def is_loopback(host: str) -> bool:
    """Return True if only this host can reach a server that listens on ``host``, an address or a name.

    A name that has also another address, or none, is no loopback name.
    """
    address = parsed_address(host)
    if address is not None:
        return address.is_loopback
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    addresses = [parsed_address(str(one[4][0])) for one in found]
    return bool(addresses) and all(one is not None and one.is_loopback for one in addresses)


def names_loopback(host_header: str) -> bool:
    """Return True for a Host header with `localhost` or a loopback address, with any port."""
    name = host_header.strip().lower()
    if name.startswith("["):
        name, bracket, port = name[1:].partition("]")
        is_complete = bracket == "]" and (port == "" or (port[0] == ":" and port[1:].isdigit()))
    else:
        name, colon, port = name.partition(":")
        is_complete = not colon or port.isdigit()
    address = parsed_address(name)
    return is_complete and (name == "localhost" or (address is not None and address.is_loopback))


def parsed_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, an IPv4 address inside an IPv6 one as itself; None for any other text."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


_PROXY_CHALLENGE = {"WWW-Authenticate": "Proxy"}


def _check_settings(settings: Settings) -> None:
    for user, text in settings.web_users.items():
        parsed_hash(text, user=user)
    header, addresses = settings.web_proxy_header, settings.web_proxy_addresses
    if header is not None and settings.web_users:
        raise ConfigurationError(
            "web.users and web.proxy_header are both set, and only one of them can name the user: remove one."
        )
    believes_all = any(ipaddress.ip_network(one, strict=False).prefixlen == 0 for one in addresses)
    if header is not None and (believes_all or not addresses):
        raise ConfigurationError(
            f"web.proxy_addresses has to name the proxies whose {header} is believed, and not all addresses: any "
            "client could name any user."
        )
    if settings.web_operators is None:
        return
    if header is None and not settings.web_users:
        raise ConfigurationError(
            "web.operators is set, and nothing names the user: set web.users or web.proxy_header as well, or "
            "web.read_only instead."
        )
    if unknown := sorted({*settings.web_operators} - settings.web_users.keys()) if settings.web_users else []:
        raise ConfigurationError(f"web.operators names {', '.join(unknown)}, and web.users has no such user.")


def _login_needed() -> AccessRefused:
    return AccessRefused(401, "login_needed", "A user name and a password are needed.", {"WWW-Authenticate": CHALLENGE})


def _credentials(header: str) -> tuple[str, str] | None:
    """Return name and password of an Authorization header; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > CREDENTIALS_BYTES_MAX:
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
    except (Base64Error, ValueError):
        return None
    name, colon, password = text.partition(":")
    name = normalize("NFC", name)
    return (name, password) if colon and is_user_name(name) else None


def _client(request: Request) -> str:
    """Return the address of the peer; empty if the server does not know it, as on a Unix socket."""
    return "" if request.client is None else request.client.host


def _cookie(request: Request, visit: Visit) -> str:
    """Return the Set-Cookie header of a new visitor. It ends with the browser's session."""
    path = quote(request.scope.get("root_path", ""), safe="/") or "/"  # may contain parts of the request's path
    # A client that forges the header of a TLS proxy only loses its own cookie.
    is_secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"
    return f"{COOKIE}={visit.cookie}; Path={path}; HttpOnly; SameSite=Strict{'; Secure' if is_secure else ''}"
