"""Which processes of this state are alive.

Every process holds a lock on a file named after its worker id. The operating system drops the lock with the process,
however it died, so whoever can take the lock of a file has proof that its owner is gone and may free what it held at
once, without waiting for leases to end. (Locks are advisory `flock`s: the state lives on one host. A process that is
forked lets go of its parent's at once.) Beside its lock a process may keep a record of what it is doing; that is for
people, and proves nothing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROCESSES_FOLDER = "processes"  # in a state folder
RECORD_SUFFIX = ".json"

_SUFFIX = ".lock"

_held: set[int] = set()  # the descriptors of this process's own locks


def _let_go() -> None:
    """In a forked process: its copies of the descriptors would keep the locks for longer than their owner lives."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


class ProcessRegistry:
    """The lock files of one state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def registered(self, worker: str) -> Iterator[None]:
        """Be alive under this id until the block ends."""
        path = self._lock(worker)
        starting = path.with_suffix(".starting")  # locked before it has its name: nobody ever sees it unlocked
        descriptor = os.open(starting, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            starting.rename(path)
            yield
        finally:
            if descriptor in _held:  # not in a forked process, which is not the one that was registered
                _held.remove(descriptor)
                self._forget(worker)
                os.close(descriptor)

    def record(self, worker: str) -> Path:
        """Where this worker writes what it is doing; gone when it is forgotten."""
        return self._directory / f"{worker}{RECORD_SUFFIX}"

    def is_living(self, worker: str) -> bool:
        """Whether that process holds its lock."""
        return _is_held(self._lock(worker)) is True

    def living(self) -> list[str]:
        """The ids of the processes that hold their lock."""
        return [worker for worker, path in self._files() if _is_held(path)]

    @contextmanager
    def dead(self) -> Iterator[list[str]]:
        """The ids of processes that are gone. Their files are removed when the block ends well, so that nothing that
        was to be done for one of them is forgotten."""
        gone = [worker for worker, path in self._files() if _is_held(path) is False]
        yield gone
        for worker in gone:
            self._forget(worker)

    def _lock(self, worker: str) -> Path:
        return self._directory / f"{worker}{_SUFFIX}"

    def _forget(self, worker: str) -> None:
        """The lock goes last: while it is there, whoever comes after a crash here forgets the rest."""
        record = self.record(worker)
        for path in (draft_of(record), record, self._lock(worker)):
            with suppress(FileNotFoundError):
                path.unlink()

    def _files(self) -> list[tuple[str, Path]]:
        return [(path.name.removesuffix(_SUFFIX), path) for path in sorted(self._directory.glob(f"*{_SUFFIX}"))]


def draft_of(record: Path) -> Path:
    """Where a record is written before it takes the place of the one before."""
    return record.with_suffix(".draft")


def _is_held(path: Path) -> bool | None:
    """Whether somebody holds the lock; None where it is gone, since its owner has just ended properly."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: who only looks is not taken for an owner
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
