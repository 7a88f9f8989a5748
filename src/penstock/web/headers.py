"""Add the security headers to every response, and refuse request bodies that are too large."""

from collections.abc import Mapping
from types import MappingProxyType

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1024**2
DIGITS_MAX = 20  # of a declared length
STATIC = "/static/"
STATIC_SECONDS = 365 * 86_400

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        # `no-referrer` would also take the origin out of the dashboard's own forms: browsers send `Origin: null` then.
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
        "X-Robots-Tag": "noindex",
    }
)


class SecurityHeaders:
    """ASGI middleware around the whole dashboard, outside of its error pages. It buffers nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        kept = path.startswith(STATIC) and b"v=" in scope.get("query_string", b"")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if kept and message["status"] in (200, 206, 304):
                    headers["Cache-Control"] = f"public, max-age={STATIC_SECONDS}, immutable"
                else:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """ASGI middleware that refuses a request body of more than ``bytes_max``, whether or not it declares its length."""

    def __init__(self, app: ASGIApp, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        is_number = declared.isascii() and declared.isdigit() and len(declared) <= DIGITS_MAX
        if not is_number or int(declared) > self._bytes_max:
            await PlainTextResponse(self._refusal, status_code=413)(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._bytes_max:
                raise HTTPException(413, self._refusal)
            return message

        await self._app(scope, receive_counted, send)

    @property
    def _refusal(self) -> str:
        return f"The request is larger than {self._bytes_max:,} bytes."
