"""Where a process answers for its metrics and its health: a small HTTP server in a thread of its own.

It answers GET and HEAD of /metrics, /livez, /readyz and /startupz, and nothing else. Whoever asks is not trusted: the
connections at one time are bounded, and each is closed when its time is over, however slowly its peer talks.

HOST:PORT, as settings write where a process listens.
"""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from penstock.errors import ConfigurationError
from penstock.monitoring.health import Health, Question
from penstock.monitoring.metrics.meters import Meters
from penstock.monitoring.metrics.prometheus import registry_of

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen. Port 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def beside(self, number: int) -> "Address":
        """That of the process with this number, the first being 0. Raises `ConfigurationError` beyond the last port."""
        port = self.port + number if self.port else 0
        if port > PORT_MAX:
            raise ConfigurationError(
                f"Each process answers at a port of its own, and from {self} on there are not that many; begin at a "
                "lower one."
            )
        return Address(host=self.host, port=port)


def address_of(text: str, *, setting: str) -> Address:
    """HOST:PORT, with IPv6 in brackets. Raises `ConfigurationError`, which names the setting."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    fits = bool(colon and host) and (bracketed or ":" not in host) and port.isascii() and port.isdigit()
    if not fits or int(port) > PORT_MAX or host == "[]":
        raise ConfigurationError(
            f"The setting {setting} is {text!r}, which is not HOST:PORT, as in 127.0.0.1:9464, 0.0.0.0:9464 (all "
            "addresses of the host) or [::1]:9464."
        )
    return Address(host=host[1:-1] if bracketed else host, port=int(port))


CONNECTIONS_MAX = 8
CONNECTION_SECONDS_MAX = 10.0
TURN_SECONDS = 0.2  # how long closing waits at most
THREAD = "penstock-endpoint"

_HEALTHY, _UNWELL = "200 OK", "503 Service Unavailable"
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class Endpoint:
    """Listens from `open` to `close`. ``setting`` is what says where, for people."""

    def __init__(self, address: Address, *, meters: Meters, health: Health, setting: str) -> None:
        self._asked = address
        self._setting = setting
        self._application = _application(meters, health)
        self._server: _Server | None = None  # this and the next: written by whoever opens and closes
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where it listens, with the port that was free where any would do; before it is open, where it will."""
        if self._server is None:
            return str(self._asked)
        return str(Address(host=self._asked.host, port=self._server.server_port))

    def open(self) -> None:
        """Listen. Raises `ConfigurationError` where that cannot be."""
        try:
            self._server = _Server.at(self._asked, self._application)
        except (OSError, ValueError) as error:  # not our address, a port that is taken or not for us, no name of a host
            raise ConfigurationError(self._refused(error)) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(TURN_SECONDS,), name=THREAD, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more. What is being answered may go on."""
        if self._server is not None and self._thread is not None:
            with suppress(OSError):  # it wakes the server, but not on every system: then it ends with its turn
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def _refused(self, error: OSError | ValueError) -> str:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return (
                f"Nothing can be answered at {self._asked}: another process listens there already; end it, or name "
                f"another port in the setting {self._setting}."
            )
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        return (
            f"Nothing can be answered at {self._asked}: {reason}; name another address in the setting {self._setting}."
        )


class _Handler(WSGIRequestHandler):
    """One request; the connection ends with its answer."""

    timeout = CONNECTION_SECONDS_MAX

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a probe every second would be most of the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 16

    @classmethod
    def at(cls, address: Address, application: "WSGIApplication") -> "_Server":
        """Raises OSError."""
        family, _, _, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = cls(family, place)
        server.set_app(application)
        return server

    def __init__(self, family: socket.AddressFamily, place: Any) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        # When each connection came (monotonic). Added to and looked through by the server's thread, taken from by those
        # that answer.
        self._open: dict[socket.socket, float] = {}
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        """As wsgiref does, without asking the network for the host's name, which can take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had
            self._let_go(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_go(request)

    def service_actions(self) -> None:
        """Several times a second: end what takes too long."""
        too_old = time.monotonic() - CONNECTION_SECONDS_MAX
        for request, came_at in list(self._open.items()):
            if came_at < too_old:
                self._hang_up(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a peer that goes away is no failure of ours."""

    def _let_go(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        self._free.release()

    def _hang_up(self, request: socket.socket) -> None:
        try:
            request.shutdown(socket.SHUT_RDWR)
        except OSError:  # it ended just now
            return


def _application(meters: Meters, health: Health) -> "WSGIApplication":
    pages: Mapping[str, WSGIApplication] = {
        "/metrics": make_wsgi_app(registry_of(meters)),
        "/livez": _asking(health.live),
        "/readyz": _asking(health.ready),
        "/startupz": _asking(health.started),
    }

    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        method, page = environ["REQUEST_METHOD"], pages.get(environ.get("PATH_INFO", ""))
        if page is None:
            return _say(start_response, "404 Not Found", f"Here are {', '.join(pages)}.")
        if method not in ("GET", "HEAD"):
            return _say(start_response, "405 Method Not Allowed", "GET and HEAD are answered.", ("Allow", "GET, HEAD"))
        try:
            return _head(page, environ, start_response) if method == "HEAD" else page(environ, start_response)
        except Exception as error:  # a defect of ours; it must not look like an answer
            return _say(start_response, "500 Internal Server Error", f"{type(error).__name__}: {error}")

    return application


def _head(page: "WSGIApplication", environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """What GET would be answered, its length too, without the body."""
    said: list[tuple[str, list[tuple[str, str]]]] = []

    def note(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        said.append((status, headers))

    length = sum(map(len, page({**environ, "REQUEST_METHOD": "GET"}, note)))
    for status, headers in said:
        start_response(status, [*headers, ("Content-Length", str(length))])
    return ()


def _asking(question: Question) -> "WSGIApplication":
    def application(_: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        well, sentence = question()
        return _say(start_response, _HEALTHY if well else _UNWELL, sentence)

    return application


def _say(start_response: "Callable[..., Any]", status: str, sentence: str, *more: tuple[str, str]) -> Iterable[bytes]:
    start_response(status, [_TEXT, ("Cache-Control", "no-store"), *more])
    return (sentence.encode() + b"\n",)
