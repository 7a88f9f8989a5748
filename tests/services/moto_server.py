"""moto's AWS as a process of its own, on loopback: `python moto_server.py PORT`, where 0 lets the system choose.

moto's models know no locks, so requests take turns. That makes its conditional puts atomic, too. SIGHUP closes the port
and every connection, SIGUSR2 listens on it again: what the service holds lives on meanwhile. It ends with its
input, where that is a pipe.
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
from moto.core.utils import unix_time_millis
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

HOST = "127.0.0.1"
LOOK_AGAIN_SECONDS = 0.05
LEAVE, COME_BACK = signal.SIGHUP, signal.SIGUSR2

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Turn(threading.Condition):
    """The turn of one request. A long poll gives it away while it waits: it waits at this very condition."""

    times_shut = 0  # how often the door was shut; changed by who has the turn

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Always wait, and never long.

        Always, since a queue whose visible messages may not be received yet would make moto look again and again within
        its turn. Never long, since nobody tells when the visibility of a message ends, by whatever clock.
        """
        came = self.times_shut
        self.wait(LOOK_AGAIN_SECONDS)
        self.go_on_if_open_since(came)
        return predicate()

    def go_on_if_open_since(self, times_shut: int) -> None:
        """A poll that went on for somebody who is gone would take messages from others."""
        if times_shut != self.times_shut:
            raise ConnectionAbortedError("the server left while this request waited")


class InTurns:
    """The application, one request at a time. Requests arrive as a whole first: a slow sender keeps nobody waiting."""

    def __init__(self, application: Application, turn: Turn) -> None:
        self._application = application
        self._turn = turn

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        came = self._turn.times_shut
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        elif environ.get("wsgi.input_terminated"):  # sent in chunks
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read())
        with self._turn:
            self._turn.go_on_if_open_since(came)
            return self._application(environ, start_response)


def is_visible(message: Any) -> bool:
    """At the end of its time, not a millisecond later: a clock that a test moves may never get there."""
    return bool(unix_time_millis() >= message.visible_at)


class Handler(WSGIRequestHandler):
    disable_nagle_algorithm = True  # head and body of an answer are two writes: without it the second waits 40 ms


class Door(ThreadedWSGIServer):
    """Listens, and knows who is connected."""

    def __init__(self, port: int, application: Application, turn: Turn) -> None:
        super().__init__(HOST, port, application, Handler)
        self._turn = turn
        self._visitors: set[socket.socket] = set()  # under the lock
        self._lock = threading.Lock()
        self._serving = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._serving.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._visitors.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._visitors.discard(request)
        super().shutdown_request(request)

    def shut(self) -> None:
        """The request whose turn it is takes effect, and its answer reaches nobody; those that wait are lost."""
        self.shutdown()
        self.server_close()
        with self._turn:
            self._turn.times_shut += 1
            self._turn.notify_all()
        with self._lock:
            for visitor in self._visitors:
                visitor.shutdown(socket.SHUT_RDWR)
        self._serving.join()


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    signal.pthread_sigmask(signal.SIG_BLOCK, {LEAVE, COME_BACK})  # they are waited for
    threading.Thread(target=end_with_the_input, daemon=True).start()
    turn = Turn()
    moto.sqs.models.Message.visible = property(is_visible)  # type: ignore[method-assign, assignment]
    application = InTurns(DomainDispatcherApplication(create_backend_app), turn)
    with mock.patch("moto.sqs.models.Condition", return_value=turn):  # every queue asks for one of its own
        serve(int(sys.argv[1]), application, turn)


def serve(port: int, application: Application, turn: Turn) -> None:
    while True:
        door = Door(port, application, turn)
        port = door.port
        say(f"listening on {port}")
        signal.sigwait({LEAVE})
        door.shut()
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
