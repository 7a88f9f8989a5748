"""Make ``os.fork`` safe for SQLite files, connections and threads, and keep forked copies from settling messages.

In this file, a copy is the child process of a fork. A copy inherits SQLite's record of its file locks, but not the
locks. So another process may conclude that it is the last user of the file and delete the log: later writes of the
copy are lost or destroy the file. A new connection in the copy shares that record, so opening the file again does
not help. No connection to a file may be open during a fork (SQLite, "How To Corrupt", 2.6): `EmbeddedFile` closes
them. Sockets and threads are simpler: a copy creates its own (`renew_in_copies`).

A user's code may fork and return in both processes; `OwnProcess` ends the copy.
"""

import ctypes
import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from penstock.errors import ConfigurationError, TemporaryError, UsageError

WAIT_SECONDS = 5.0  # total time that a fork waits for running transactions


class ForkGuarded(Protocol):
    """An object that a copy of the process cannot use unchanged."""

    def begin_in_copy(self) -> None:
        """Replace everything that belongs to the parent process without touching it. Called in the copy."""
        ...


class EmbeddedFile:
    """The use of one SQLite file through one owner's connections. Any thread may enter (``with``), but not twice.

    A fork waits until all threads have left, and closes the connections; both processes reopen them when needed. If
    a thread does not leave in time, or a fork bypassed Python's hooks, the copy cannot use the file: entering raises
    `ConfigurationError`.
    """

    def __init__(self, subject: str, path: Path | None, close: Callable[[], None]) -> None:
        """Register the file for forks of this process.

        Args:
            subject: Names the file in errors.
            path: The file; None for a database in memory.
            close: Closes the connections. Called while no thread is inside.
        """
        self._subject = subject
        self._path = None if path is None else path.absolute()  # a copy may change its working directory
        self._close = close
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._users = 0  # this and the next three: under the condition's lock
        self._forking = False
        self._open = False  # True if there may be connections
        self._refused = False  # True in a copy that was made while `_open` was True
        _forks.begin_in_copy()  # first handle a fork that Python did not notice
        with _forks.lock:
            _forks.files.add(self)

    def __enter__(self) -> None:
        if self._process != os.getpid():
            _forks.begin_in_copy()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._forking, 2 * WAIT_SECONDS):
                raise TemporaryError(f"{self._subject} cannot be used while the process forks: try again")
            if self._refused or (_forks.refused and self._identity() in _forks.refused):
                raise ConfigurationError(
                    f"{self._subject} was in use while this process was forked, so this process must not use it: fork "
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
        """Close the connections unless a thread uses them.

        After this, a copy from a fork that Python did not notice may open the file.
        """
        with self._changed:
            if self._process == os.getpid() and not self._users:
                self._close()
                self._open = False

    def before_fork(self, give_up: float) -> None:
        """Wait until all threads have left, at most until ``give_up`` (monotonic), and close the connections."""
        with self._changed:
            self._forking = True
            if self._open and self._changed.wait_for(lambda: not self._users, max(0.0, give_up - time.monotonic())):
                self._close()
                self._open = False

    def after_fork(self) -> None:
        """Let threads enter again. Called in the parent process."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def begin_in_copy(self) -> None:
        """Forget the parent's users and connections. If connections were open, refuse the file from now on."""
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._users, self._forking = 0, False
        if self._open:
            self._open, self._refused = False, True
            leave_to_parent(self._close)
            if (identity := self._identity()) is not None:
                _forks.refused.add(identity)

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat() if self._path is not None else None
        except OSError:  # it was deleted
            return None
        return None if status is None else (status.st_dev, status.st_ino)


class OwnSockets:
    """A guard for an object with sockets and threads, which a copy of the process must not use.

    Owned by that object.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._process = os.getpid()

    def check(self) -> None:
        """Raise `UsageError` in a copy."""
        if self._process != os.getpid():
            raise UsageError(
                f"{self._subject} was opened before this process was forked: open another one in this process."
            )


def renew_in_copies(guarded: ForkGuarded) -> None:
    """Call `begin_in_copy` of an object in each copy of this process, as long as the object lives."""
    with _forks.lock:
        _forks.guarded.add(guarded)


def leave_to_parent(inherited: object) -> None:
    """Keep an object of the parent process alive for ever. Called in a copy.

    Its cleanup might send something to its server. The added reference survives even the end of the interpreter; a list
    would not, because its contents are cleaned up then.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


class _Forks:
    """The fork hooks of this process. The lock is held during a fork, so that forks run one after another."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.files: WeakSet[EmbeddedFile] = WeakSet()  # this and the next: written under the lock
        self.guarded: WeakSet[ForkGuarded] = WeakSet()
        self.refused: set[tuple[int, int]] = set()  # files that the parent had open; written in a new copy
        self._process = os.getpid()

    def before(self) -> None:
        self.lock.acquire()
        give_up = time.monotonic() + WAIT_SECONDS
        with ExitStack() as stack:  # runs every callback, even if one raises; Python prints the exception
            for file in self.files:
                stack.callback(file.before_fork, give_up)

    def after(self) -> None:
        with ExitStack() as stack:  # as above
            stack.callback(self.lock.release)
            for file in self.files:
                stack.callback(file.after_fork)

    def begin_in_copy(self) -> None:
        """Renew everything. Called by Python or, if Python did not notice the fork, by the first use of a file."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self.lock = threading.RLock()
        for guarded in (*self.files, *self.guarded):
            guarded.begin_in_copy()


_forks = _Forks()
os.register_at_fork(before=_forks.before, after_in_parent=_forks.after, after_in_child=_forks.begin_in_copy)


class OwnProcess:
    """A guard around user code: in a copy of the process that created it, the process ends when that code ends.

    A copy has its parent's claims, receipt handles and connections, and would record the work and settle the message
    while the parent is still working on it. It ends at once without cleanup, because everything to clean up belongs
    to the parent.
    """

    __slots__ = ("_id",)

    def __init__(self) -> None:
        self._id = os.getpid()

    def __enter__(self) -> None:
        """Enter user code. Only leaving it needs a check."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, where: TracebackType | None
    ) -> None:
        if os.getpid() != self._id:
            _end_copy(raised)


def _end_copy(raised: BaseException | None) -> None:
    """Exit: with 0 if the code returned, with the code of a `SystemExit`, otherwise with 1."""
    code = 0 if raised is None else 1
    try:
        if isinstance(raised, SystemExit) and (raised.code is None or isinstance(raised.code, int)):
            code = raised.code or 0
        elif raised is not None:
            # Not through sys.stderr: another thread may have held its lock during the fork.
            os.write(2, "".join(traceback.format_exception(raised)).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code & 0xFF)
