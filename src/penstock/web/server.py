"""Serve a dashboard over HTTP, from a thread of its own."""

import errno
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from penstock.errors import ConfigurationError
from penstock.messaging.threads import WorkThread
from penstock.monitoring.endpoint import Address
from penstock.web.actions import STOP_SECONDS as ACTION_SECONDS
from penstock.web.connections import DashboardConnection
from penstock.web.sampling import CLOSE_SECONDS

BACKLOG = 128
KEEP_ALIVE_SECONDS = 5
STOP_SECONDS = 1  # for open requests, at a stop; event streams end at once
START_SECONDS = 30.0
THREAD = "penstock-web"


class WebServer:
    """The HTTP server of a dashboard, listening from `open` to `close`. ``setting`` names its setting in errors."""

    def __init__(self, application: Starlette, *, address: Address, setting: str) -> None:
        self.application = application
        self._configured = address
        self._setting = setting
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                lifespan="on",
                http=DashboardConnection,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        self._socket: socket.socket | None = None  # this and _thread: written by the thread that opens and closes
        self._thread: WorkThread | None = None

    @property
    def url(self) -> str:
        """The address of the first page; before `open`, the port may still be 0."""
        if self._socket is None:
            return f"http://{self._configured}/"
        return f"http://{Address(host=self._configured.host, port=self._socket.getsockname()[1])}/"

    def open(self) -> None:
        """Start listening. Raises `ConfigurationError` if the address cannot be used."""
        try:
            self._socket = _listening(self._configured)
        except (OSError, ValueError) as error:
            raise ConfigurationError(self._refused(error)) from error
        self._thread = WorkThread(self._server.run, [self._socket], name=THREAD)
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(START_SECONDS / 0.01)):
            if self._server.started or not self._thread.is_alive():
                break
            waited.wait(0.01)
        if not self._server.started:
            raise ConfigurationError("The dashboard's server did not start; the lines above may say why.")

    def close(self) -> None:
        """Stop listening, and end the dashboard's own threads. A running action may end its current chunk."""
        # The server waits for open streams before it ends the application's lifespan, so they end first.
        self.application.state.context.sampler.close()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(2 * STOP_SECONDS + CLOSE_SECONDS + ACTION_SECONDS)
        if self._socket is not None:
            self._socket.close()

    def _refused(self, error: OSError | ValueError) -> str:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return (
                f"The dashboard cannot listen on {self._configured}: another process does; end it, or name another "
                f"port with {self._setting}."
            )
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        return (
            f"The dashboard cannot listen on {self._configured}: {reason}; name another address with {self._setting}."
        )


def _listening(address: Address) -> socket.socket:
    family, _, _, _, socket_address = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(socket_address[:2], family=family, backlog=BACKLOG)
