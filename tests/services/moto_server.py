"""moto's AWS as a separate process on loopback: `python moto_server.py PORT`, where 0 lets the system choose.

moto's models have no locks, so requests are serialised, which also makes its conditional puts atomic. SIGHUP closes the
port and all connections, SIGUSR2 opens it again; the data is kept meanwhile. If the standard input is a pipe, the
process ends with it.
"""

import io
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import moto.sqs.models
from moto.core.exceptions import JsonRESTError
from moto.core.utils import unix_time_millis
from moto.glue.responses import GlueResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

HOST = "127.0.0.1"
LOOK_AGAIN_SECONDS = 0.05
LEAVE, COME_BACK = signal.SIGHUP, signal.SIGUSR2

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Turn(threading.Condition):
    """The lock of the request that runs. A long poll waits on this condition, which lets other requests run."""

    times_shut = 0  # number of closed ports; written under this lock

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait for a short time, even if the predicate is true.

        Without a wait, moto would poll a queue whose visible messages may not be received yet in a busy loop. A long
        wait would miss the end of a message's visibility timeout, which notifies no one.
        """
        times_before = self.times_shut
        self.wait(LOOK_AGAIN_SECONDS)
        self.check_open_since(times_before)
        return predicate()

    def check_open_since(self, times_shut: int) -> None:
        """Raise ConnectionAbortedError if the port was closed: a poll of a lost client must receive no messages."""
        if times_shut != self.times_shut:
            raise ConnectionAbortedError("the server left while this request waited")


class Serialised:
    """The application, one request at a time. A request is read completely first, so a slow client delays no other."""

    def __init__(self, application: Application, turn: Turn) -> None:
        self._application = application
        self._turn = turn

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        times_before = self._turn.times_shut
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        elif environ.get("wsgi.input_terminated"):  # sent in chunks
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read())
        with self._turn:
            self._turn.check_open_since(times_before)
            return self._application(environ, start_response)


def is_visible(message: Any) -> bool:
    """Return True at the end of the visibility timeout, not a millisecond later, as a test's clock may stop there."""
    return bool(unix_time_millis() >= message.visible_at)


def update_if_unchanged(update: Callable[[GlueResponse], Any], request: GlueResponse) -> Any:
    """Update a table of Glue if it still has the version that the request names, which moto ignores."""
    version, name = request.parameters.get("VersionId"), request.parameters["TableInput"]["Name"]
    table = request.glue_backend.get_table(request.parameters["DatabaseName"], name)
    if version is not None and version != table.as_dict()["VersionId"]:
        raise JsonRESTError("ConcurrentModificationException", f"the table {name} was changed concurrently")
    return update(request)


class Handler(WSGIRequestHandler):
    disable_nagle_algorithm = True  # head and body are two writes, and the second would wait 40 ms


class Server(ThreadedWSGIServer):
    """A listening server that knows its connections."""

    def __init__(self, port: int, application: Application, turn: Turn) -> None:
        super().__init__(HOST, port, application, Handler)
        self._turn = turn
        self._connections: set[socket.socket] = set()  # under the lock
        self._lock = threading.Lock()
        self._serving = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._serving.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def shut(self) -> None:
        """Close the port. The running request takes effect but its answer is lost; waiting requests are lost."""
        self.shutdown()
        self.server_close()
        with self._turn:
            self._turn.times_shut += 1
            self._turn.notify_all()
        with self._lock:
            for connection in self._connections:
                connection.shutdown(socket.SHUT_RDWR)
        self._serving.join()


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    signal.pthread_sigmask(signal.SIG_BLOCK, {LEAVE, COME_BACK})  # handled by sigwait
    threading.Thread(target=end_with_the_input, daemon=True).start()
    turn = Turn()
    moto.sqs.models.Message.visible = property(is_visible)  # type: ignore[method-assign, assignment]
    update = GlueResponse.update_table
    GlueResponse.update_table = lambda request: update_if_unchanged(update, request)  # type: ignore[method-assign, assignment]
    application = Serialised(DomainDispatcherApplication(create_backend_app), turn)
    with mock.patch("moto.sqs.models.Condition", return_value=turn):  # every queue creates one
        serve(int(sys.argv[1]), application, turn)


def serve(port: int, application: Application, turn: Turn) -> None:
    while True:
        server = Server(port, application, turn)
        port = server.port
        say(f"listening on {port}")
        signal.sigwait({LEAVE})
        server.shut()
        say("away")
        signal.sigwait({COME_BACK})


def end_with_the_input() -> None:
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        sys.stdin.buffer.read()
        os._exit(0)


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
