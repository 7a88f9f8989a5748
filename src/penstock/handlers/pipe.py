"""What goes between a process and its child. Neither end waits for a process that is gone.

The end of a pipe comes when nobody holds its other end open any more, and what a child forks goes on holding it. So the
parent looks, with each piece that it reads or writes, whether the child has ended.
"""

import os
import pickle
import select
import struct
from multiprocessing.connection import Connection
from typing import Any, Protocol

PIECE_BYTES = 1 << 20  # that are read at a time
_LENGTH = struct.Struct("!Q")


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class Pipe:
    """One end, for one thread at a time. Without ``end`` it waits for the other end alone."""

    def __init__(self, connection: Connection, *, end: _HasFileno | int | None = None) -> None:
        """``end`` can be read from once the process at the other end has ended."""
        os.set_blocking(connection.fileno(), False)
        self._connection = connection
        self._end = end

    def send(self, value: Any) -> None:
        """Raise `EOFError` where the process ended before it was written, `OSError` where nobody reads any more."""
        pickled = pickle.dumps(value)
        for data in (_LENGTH.pack(len(pickled)), pickled):
            left = memoryview(data)
            while left:
                self._await(select.POLLOUT)
                try:
                    left = left[os.write(self._connection.fileno(), left) :]
                except BlockingIOError:  # room for less than a piece
                    continue

    def receive(self) -> Any:
        """Raise `EOFError` where the other end is closed, or the process ended in the middle."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # both ends are ours

    def close(self) -> None:
        """The other end sees it."""
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

    def _await(self, what: int) -> None:
        """What was written before the process ended is read still."""
        poll = select.poll()
        poll.register(self._connection, what)
        if self._end is not None:
            poll.register(self._end, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._connection.fileno() not in ready:
            raise EOFError
