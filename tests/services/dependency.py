"""A dependency of a handler: a server on loopback that answers, refuses or hangs on command."""

import socket
import threading
from contextlib import suppress

ANSWER = b"done\n"
BACKLOG = 512


class Dependency:
    """A server that answers each line with a line, and keeps its port number over refusals."""

    def __init__(self) -> None:
        self._port = 0  # chosen at the first start and kept
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None  # under the lock
        self._open: set[socket.socket] = set()  # under the lock
        self._hangs = False  # written by the test
        self._asked = 0  # under the lock: received lines, answered or not
        self.answer()

    @property
    def port(self) -> int:
        return self._port

    @property
    def asked(self) -> int:
        """Return the number of received lines."""
        return self._asked

    def answer(self) -> None:
        """Answer from now on. Requests that hung must be repeated."""
        self._hangs = False
        self._drop_connections()
        self._listen()

    def refuse(self) -> None:
        """Refuse connections."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            listener.close()
        self._drop_connections()

    def hang(self) -> None:
        """Accept connections, but never answer."""
        self._hangs = True
        self._listen()

    def close(self) -> None:
        self.refuse()

    def _listen(self) -> None:
        with self._lock:
            if self._listener is not None:
                return
            self._listener = listener = socket.create_server(("127.0.0.1", self._port), backlog=BACKLOG)
            self._port = int(listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while connection.recv(1024):
                with self._lock:
                    self._asked += 1
                if not self._hangs:
                    connection.sendall(ANSWER)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _drop_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def ask(port: int, *, timeout_seconds: float) -> None:
    """Make one call, as a client library would. Raises OSError."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
        connection.sendall(b"do\n")
        if connection.recv(len(ANSWER)) != ANSWER:
            raise ConnectionResetError("the dependency hung up")
