"""Serve a process's metrics and health checks over HTTP, from a thread of its own.

Serves GET and HEAD of /metrics, /livez, /readyz and /startupz, and nothing else. Clients are not trusted: concurrent
connections are limited, and each is closed when its time is over, however slowly the client sends.

`Address` is the HOST:PORT of a setting.
"""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from penstock.errors import ConfigurationError
from penstock.monitoring.health import Health, HealthProbe
from penstock.monitoring.metrics import catalogue
from penstock.monitoring.metrics.meters import Distribution, Meters, Reading

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address to listen on. Port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def beside(self, number: int) -> "Address":
        """Return the address of process ``number``, from 0. Raises `ConfigurationError` beyond the last port."""
        port = self.port + number if self.port else 0
        if port > PORT_MAX:
            raise ConfigurationError(
                f"Each process serves its own port, and there are not enough ports from {self} on; begin at a "
                "lower one."
            )
        return Address(host=self.host, port=port)


def address_of(text: str, *, setting: str) -> Address:
    """Parse HOST:PORT, with IPv6 in brackets. Raises `ConfigurationError`, which names the setting."""
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
TURN_SECONDS = 0.2  # the longest wait of close
THREAD = "penstock-endpoint"

_HEALTHY, _UNWELL = "200 OK", "503 Service Unavailable"
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class Endpoint:
    """The HTTP server of a process, listening from `open` to `close`. ``setting`` names its setting in errors."""

    def __init__(self, address: Address, *, meters: Meters, health: Health, setting: str) -> None:
        self._configured = address
        self._setting = setting
        self._application = _application(meters, health)
        self._server: _Server | None = None  # this and _thread: written by the thread that opens and closes
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Return the address it listens on; before `open`, the configured one, in which the port may still be 0."""
        if self._server is None:
            return str(self._configured)
        return str(Address(host=self._configured.host, port=self._server.server_port))

    def open(self) -> None:
        """Start listening. Raises `ConfigurationError` if the address cannot be used."""
        try:
            self._server = _Server.at(self._configured, self._application)
        # not an address of this host, a port that is taken or privileged, not a host name
        except (OSError, ValueError) as error:
            raise ConfigurationError(self._refused(error)) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(TURN_SECONDS,), name=THREAD, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Requests in progress may continue."""
        if self._server is not None and self._thread is not None:
            # wakes the server; on systems where it does not, the server notices after TURN_SECONDS
            with suppress(OSError):
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def _refused(self, error: OSError | ValueError) -> str:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return (
                f"Nothing can be answered at {self._configured}: another process listens there already; end it, or "
                f"name another port in the setting {self._setting}."
            )
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        return (
            f"Nothing can be answered at {self._configured}: {reason}; name another address in the setting "
            f"{self._setting}."
        )


class _Handler(WSGIRequestHandler):
    """The handler of one request; the connection closes after the response."""

    timeout = CONNECTION_SECONDS_MAX

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a probe every second would be most of the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 16

    @classmethod
    def at(cls, address: Address, application: "WSGIApplication") -> "_Server":
        """Return a server bound to the address. Raises `OSError`."""
        family, _, _, _, socket_address = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = cls(family, socket_address)
        server.set_app(application)
        return server

    def __init__(self, family: socket.AddressFamily, socket_address: Any) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        # When each connection was accepted (monotonic). The server's thread adds entries and iterates over them; the
        # threads that handle requests remove them.
        self._open: dict[socket.socket, float] = {}
        super().__init__(socket_address, _Handler)

    def server_bind(self) -> None:
        """Bind as wsgiref does, without its lookup of the host's name, which can take long."""
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
        except BaseException:  # no thread available
            self._let_go(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_go(request)

    def service_actions(self) -> None:
        """Close connections that take too long. The server calls this several times a second."""
        too_old = time.monotonic() - CONNECTION_SECONDS_MAX
        for request, accepted_at in list(self._open.items()):
            if accepted_at < too_old:
                self._hang_up(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client that disconnects is not a failure of this process."""

    def _let_go(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        self._free.release()

    def _hang_up(self, request: socket.socket) -> None:
        try:
            request.shutdown(socket.SHUT_RDWR)
        except OSError:  # it ended just now
            return


def registry_of(meters: Meters) -> CollectorRegistry:
    """Return a registry with this process's meters and the system's data on it (memory, processor, files)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetersCollector(meters))
    ProcessCollector(registry=registry)
    return registry


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
        except Exception as error:  # a bug in Penstock, which must not look like a result
            return _say(start_response, "500 Internal Server Error", f"{type(error).__name__}: {error}")

    return application


def _head(page: "WSGIApplication", environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """Return the status and headers of the GET response, including its length, without the body."""
    said: list[tuple[str, list[tuple[str, str]]]] = []

    def note(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        said.append((status, headers))

    length = sum(map(len, page({**environ, "REQUEST_METHOD": "GET"}, note)))
    for status, headers in said:
        start_response(status, [*headers, ("Content-Length", str(length))])
    return ()


def _asking(question: HealthProbe) -> "WSGIApplication":
    def application(_: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        well, sentence = question()
        return _say(start_response, _HEALTHY if well else _UNWELL, sentence)

    return application


def _say(start_response: "Callable[..., Any]", status: str, sentence: str, *more: tuple[str, str]) -> Iterable[bytes]:
    start_response(status, [_TEXT, ("Cache-Control", "no-store"), *more])
    return (sentence.encode() + b"\n",)


class MetersCollector(Collector):
    """A Prometheus collector that takes one reading of the meters per scrape."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def collect(self) -> Iterable[Metric]:
        reading = self._meters.read()
        return [_family(metric, reading) for metric in self._meters.catalogue.values()]

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without series, to reserve their names; takes no reading."""
        empty = Meters(catalogue=self._meters.catalogue).read()
        return [_family(metric, empty) for metric in self._meters.catalogue.values()]


def _family(metric: catalogue.Metric, reading: Reading) -> Metric:
    name = catalogue.PREFIX + metric.name
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for labels, distribution in reading.distributions[metric.name].items():
            histogram.add_metric(labels, _buckets(metric.bounds, distribution), distribution.sum)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for labels, value in reading.values[metric.name].items():
        family.add_metric(labels, value)
    return family


def _buckets(bounds: tuple[float, ...], distribution: Distribution) -> list[tuple[str, float]]:
    """Return each bound with the number of values up to it; the last bound is infinite."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    return [(name, float(count)) for name, count in zip(names, accumulate(distribution.counts), strict=True)]
