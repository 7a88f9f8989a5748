"""What is open when a process is copied by ``os.fork``: files of SQLite, connections, threads.

A copy has SQLite's memory of the locks and none of the locks: another process takes itself for the last one, deletes
the log, and what the copy writes from then on is lost or destroys the file. A connection that the copy opens itself
shares that memory, so opening again is no remedy. Nothing of a file may be open at that moment (SQLite, "How To
Corrupt", 2.6): `EmbeddedFile` sees to it. Sockets and threads are simpler: a copy makes its own (`tell_copies`).
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from penstock.errors import ConfigurationError, TemporaryError, UsageError

WAIT_SECONDS = 5.0  # a fork waits so long, in all, for transactions under way


class Copied(Protocol):
    """Something that a copy of the process cannot use as it is."""

    def begin_in_copy(self) -> None:
        """Replace what belongs to the other process, and touch nothing of it. Called in the copy."""
        ...


class EmbeddedFile:
    """The use of one SQLite file through one owner's connections. Any thread may enter (``with``), not twice.

    A fork waits until all have left, and closes the connections; both processes open them again when they next need
    them. If somebody does not leave in time, or the process was copied without Python's hooks, the copy may not use the
    file at all: entering raises `ConfigurationError`.
    """

    def __init__(self, what: str, path: Path | None, close: Callable[[], None]) -> None:
        """``what`` it is, for errors. ``close`` is called while nobody is in. ``path`` None: it is in memory."""
        self._what = what
        self._path = None if path is None else path.absolute()  # a copy may go to another folder
        self._close = close
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._users = 0  # this and the next three: under the condition's lock
        self._forking = False
        self._open = False  # there may be connections
        self._refused = False  # in a copy, of which `_open` was true
        _forks.begin_in_copy()  # of which nothing may have told: what was open in the other process must be known
        with _forks.lock:
            _forks.files.add(self)

    def __enter__(self) -> None:
        if self._process != os.getpid():
            _forks.begin_in_copy()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._forking, 2 * WAIT_SECONDS):
                raise TemporaryError(f"{self._what} cannot be used while the process forks: try again")
            if self._refused or (_forks.refused and self._identity() in _forks.refused):
                raise ConfigurationError(
                    f"{self._what} was in use while this process was forked, so this process must not use it: fork "
                    "while nothing uses it, or call close() before the fork."
                )
            self._users += 1
            self._open = True

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._users -= 1
            if not self._users and self._forking:
                self._changed.notify_all()

    def close(self) -> None:
        """Close the connections, if nobody is in: from here on a copy that Python knows nothing of may use the file."""
        with self._changed:
            if self._process == os.getpid() and not self._users:
                self._close()
                self._open = False

    def before_fork(self, give_up: float) -> None:
        """Wait for those who are in, by the monotonic clock, and close."""
        with self._changed:
            self._forking = True
            if self._open and self._changed.wait_for(lambda: not self._users, max(0.0, give_up - time.monotonic())):
                self._close()
                self._open = False

    def after_fork(self) -> None:
        """Let others in again; in the process that was copied."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def begin_in_copy(self) -> None:
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._users, self._forking = 0, False
        if self._open:
            self._open, self._refused = False, True
            _keep(self._close)
            if (identity := self._identity()) is not None:
                _forks.refused.add(identity)

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat() if self._path is not None else None
        except OSError:  # it is no more
            return None
        return None if status is None else (status.st_dev, status.st_ino)


class OwnSockets:
    """Whether this is the process that made this, for what has sockets and threads that a copy must not use."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    def check(self) -> None:
        """Raise `UsageError` in a copy."""
        if self._process != os.getpid():
            raise UsageError(
                f"{self._what} was opened before this process was forked: open another one in this process."
            )


def tell_copies(thing: Copied) -> None:
    """Call its `begin_in_copy` in each copy of this process, as long as it lives."""
    with _forks.lock:
        _forks.things.add(thing)


def leave_to_parent(thing: object) -> None:
    """Never clean up a thing of the other process, which might speak to that one's server; called in a copy."""
    _keep(thing)


class _Forks:
    """The hooks of this process. The lock is held while it forks, so that one fork comes after another."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.files: WeakSet[EmbeddedFile] = WeakSet()  # this and the next: written under the lock
        self.things: WeakSet[Copied] = WeakSet()
        self.refused: set[tuple[int, int]] = set()  # files that the process before had open; written in a new copy
        self._process = os.getpid()

    def before(self) -> None:
        self.lock.acquire()
        give_up = time.monotonic() + WAIT_SECONDS
        with ExitStack() as stack:  # all of them, whatever one raises; Python prints what a hook raises
            for file in self.files:
                stack.callback(file.before_fork, give_up)

    def after(self) -> None:
        with ExitStack() as stack:  # as above
            stack.callback(self.lock.release)
            for file in self.files:
                stack.callback(file.after_fork)

    def begin_in_copy(self) -> None:
        """Called by Python, or by the first user where the process was copied without Python."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self.lock = threading.RLock()
        for thing in (*self.files, *self.things):
            thing.begin_in_copy()


def _keep(thing: object) -> None:
    """Let it outlive the interpreter, which at its end would clean up what a mere list holds."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_forks = _Forks()
os.register_at_fork(before=_forks.before, after_in_parent=_forks.after, after_in_child=_forks.begin_in_copy)
