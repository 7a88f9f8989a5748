"""The user of a request, and the forms that change something.

`AccessControl` in `penstock.web.access` finds the user and puts a `Visit` into the request; without one,
everything here refuses. A form carries a token that is bound to the user and to a random cookie; other sites can read
neither. `action` declares the handlers that change something: POST only, users who may act, valid token.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from secrets import token_bytes, token_urlsafe
from typing import cast
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.messaging.clock import Clock

TOKEN_SECONDS = 12 * 3_600.0
TOKEN_FIELD = "csrf"
COOKIE = "penstock_csrf"
FIELDS_MAX = 1_000  # of a form
VISIT = "penstock.visit"  # the key in the ASGI scope; other packages cannot set it by accident

Handler = Callable[[Request], Response] | Callable[[Request], Awaitable[Response]]

_TOKEN = re.compile(r"(\d{1,15})\.([0-9a-f]{64})")
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebUser:
    """A person who uses a dashboard. ``may_act``: may change something, unless the settings forbid it."""

    name: str
    may_act: bool = True


class AccessRefused(HTTPException):
    """A request that is not allowed. ``kind`` selects the text of its page."""

    def __init__(self, status: int, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.kind = kind


class CsrfTokens:
    """Tokens against forged forms, valid for one user, one cookie and some hours. They end with the process."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._secret = token_bytes(32)

    def issue(self, user: str, cookie: str) -> str:
        """Return a new token."""
        expires_at = int(self._clock.monotonic() + TOKEN_SECONDS)
        return f"{expires_at}.{self._digest(user, cookie, expires_at)}"

    def is_valid(self, token: str, user: str, cookie: str) -> bool:
        """Return True for a token that was issued to this user with this cookie, and has not expired."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return False
        expires_at = int(found[1])
        genuine = hmac.compare_digest(self._digest(user, cookie, expires_at), found[2])
        return genuine and self._clock.monotonic() < expires_at

    def _digest(self, user: str, cookie: str, expires_at: int) -> str:
        text = f"{expires_at}|{cookie}|{user}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, text, hashlib.sha256).hex()


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request's user and cookie. Written by the thread that serves the request."""

    user: WebUser
    tokens: CsrfTokens
    cookie: str  # as sent, or new
    is_new: bool
    issued: bool = field(default=False)  # a token was issued, so a new cookie has to be set

    def issue_token(self) -> str:
        """Return a token for a form of this page."""
        self.issued = True
        return self.tokens.issue(self.user.name, self.cookie)


def visit_by(user: WebUser, request: Request, tokens: CsrfTokens) -> Visit:
    """Return the visit of a user, with the cookie that the request has, or a new one."""
    sent = request.cookies.get(COOKIE, "")
    is_new = _COOKIE.fullmatch(sent) is None
    return Visit(user=user, tokens=tokens, cookie=token_urlsafe(32) if is_new else sent, is_new=is_new)


def user_of(request: Request) -> WebUser | None:
    """Return the user of a request; None if there is none."""
    visit = request.scope.get(VISIT)
    return visit.user if isinstance(visit, Visit) else None


def audit_name(request: Request) -> str:
    """Return the name of the user for the audit log, in a handler of `action`."""
    return f"{user_name(request)} via the dashboard"


def user_name(request: Request) -> str:
    """Return the name of the user, as pages show it, in a handler of `action`."""
    return cast("Visit", request.scope[VISIT]).user.name


def csrf_token(request: Request) -> str:
    """Return the token that the forms of this page carry; empty without a user, so that they are refused."""
    visit = request.scope.get(VISIT)
    return visit.issue_token() if isinstance(visit, Visit) else ""


def action(path: str, handler: Handler) -> Route:
    """Return the route of a handler that changes something.

    It accepts POST only, from users who may act and with a valid token. A plain function is called in a thread;
    `form_of` returns the fields.
    """
    return Route(path, _checked(handler, acts=True), methods=["POST"], name=handler.__name__)


def form_route(path: str, handler: Handler) -> Route:
    """Return the route of a form that any user may send, because it changes nothing of the app. See `action`."""
    return Route(path, _checked(handler, acts=False), methods=["POST"], name=handler.__name__)


def form_of(request: Request) -> FormData:
    """Return the fields of the form, in a handler of `action` or `form_route`."""
    return cast("FormData", request.state.form)


def fields_of(request: Request) -> Mapping[str, object]:
    """Return the fields of the form and of its address, in a handler of `action` or `form_route`.

    Foreign names belong into the address: an input loses line ends and control characters.
    """
    return {**request.query_params, **form_of(request)}


def _checked(handler: Handler, *, acts: bool) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        user = user_of(request)
        if user is None or (acts and not user.may_act):
            raise AccessRefused(403, "may_not_act", "You may look at this dashboard, and change nothing.")
        check_origin(request)
        form = await request.form(max_files=0, max_fields=FIELDS_MAX)
        _check_token(request, form)
        request.state.form = form
        return await _call(handler, request)

    return endpoint


async def _call(handler: Handler, request: Request) -> Response:
    """Call a handler after all checks. Nothing else calls one that changes something."""
    if iscoroutinefunction(handler):
        return await cast("Callable[[Request], Awaitable[Response]]", handler)(request)
    return await run_in_threadpool(cast("Callable[[Request], Response]", handler), request)


def check_origin(request: Request) -> None:
    """Raise `AccessRefused` if a browser sent the form from another site.

    Browsers say so in Sec-Fetch-Site, or at least in Origin; neither can be set by scripts. Programs send neither.
    """
    headers = request.headers
    sites, origins, hosts = (headers.getlist(name) for name in ("sec-fetch-site", "origin", "host"))
    if len(sites) > 1 or len(origins) > 1 or len(hosts) != 1:
        raise _foreign()
    if sites:
        if sites[0] != "same-origin":
            raise _foreign()
    elif origins and _host_of(origins[0]) != hosts[0].lower():
        raise _foreign()


def _check_token(request: Request, form: FormData) -> None:
    visit = request.scope[VISIT]
    tokens = form.getlist(TOKEN_FIELD)
    token = tokens[0] if len(tokens) == 1 else ""
    if not isinstance(token, str) or not visit.tokens.is_valid(token, visit.user.name, visit.cookie):
        raise AccessRefused(403, "form_expired", "This form is no longer valid. Nothing was done.")


def _host_of(origin: str) -> str | None:
    """Return the HOST:PORT of an origin; None for `null` and for anything else that is no origin."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") and parts.netloc else None


def _foreign() -> AccessRefused:
    return AccessRefused(403, "foreign_form", "The form was sent by another site. Nothing was done.")
