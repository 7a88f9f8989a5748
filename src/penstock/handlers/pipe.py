"""A pipe between a process and its child, on which neither waits for the other after it has ended.

A reader sees the end of a pipe only when every process has closed its other end, and processes that the child forked
keep it open. So the parent checks, with each piece that it reads or writes, if the child has ended.
"""

import os
import pickle
import select
import struct
from multiprocessing.connection import Connection
from typing import Any, Protocol

PIECE_BYTES = 1 << 20  # read at a time, at most
_LENGTH = struct.Struct("!Q")


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class Pipe:
    """One end of the pipe, for one thread at a time."""

    def __init__(self, connection: Connection, *, end: _HasFileno | int | None = None) -> None:
        """``end`` becomes readable when the process at the other end has ended; None: do not check for that."""
        os.set_blocking(connection.fileno(), False)
        self._connection = connection
        self._end = end

    def send(self, value: Any) -> None:
        """Send a value. Raises `EOFError` if the other process ended first, `OSError` if the other end is closed."""
        pickled = pickle.dumps(value)
        for data in (_LENGTH.pack(len(pickled)), pickled):
            left = memoryview(data)
            while left:
                self._await(select.POLLOUT)
                try:
                    left = left[os.write(self._connection.fileno(), left) :]
                except BlockingIOError:  # poll reports room that the write finds too small
                    continue

    def receive(self) -> Any:
        """Receive a value. Raises `EOFError` if the other end is closed or the other process ended."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # both ends are ours

    def close(self) -> None:
        """Close this end; the other one then raises."""
        self._connection.close()

    def _read(self, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            self._await(select.POLLIN)
            try:
                piece = os.read(self._connection.fileno(), min(PIECE_BYTES, length - len(data)))
            except BlockingIOError:
                continue
            if not piece:
                raise EOFError
            data += piece
        return data

    def _await(self, event: int) -> None:
        """Wait for a `select.poll` event. What a process wrote before it ended can still be read."""
        poll = select.poll()
        poll.register(self._connection, event)
        if self._end is not None:
            poll.register(self._end, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._connection.fileno() not in ready:
            raise EOFError
