"""Register the processes of a data directory, and find those that are dead.

Every process holds a lock on a file named after its worker id. The operating system drops the lock when the process
ends, however it ends. A process that can take the lock of a file therefore has proof that the owner is dead, and may
release whatever it held at once, without waiting for leases to expire. Locks are advisory `flock`s, so a data directory
lives on one host. A forked process closes its copies of the parent's locks at once. Beside its lock a process may keep
a record of its activity; the record is for people and proves nothing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROCESSES_FOLDER = "processes"  # in a data directory
RECORD_SUFFIX = ".json"

_SUFFIX = ".lock"

_held: set[int] = set()  # descriptors of this process's own locks


def _close_inherited() -> None:
    """Close the copies of the descriptors in a forked process: they would keep the locks beyond their owner's life."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_inherited)


class ProcessRegistry:
    """The lock files of one data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def register(self, worker: str) -> Iterator[None]:
        """Hold the lock of this worker id inside the block."""
        path = self._lock(worker)
        starting = path.with_suffix(".starting")  # locked before it gets its final name, so never visible unlocked
        descriptor = os.open(starting, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            starting.rename(path)
            yield
        finally:
            if descriptor in _held:  # not in a forked process, which is not the registered one
                _held.remove(descriptor)
                self._forget(worker)
                os.close(descriptor)

    def record(self, worker: str) -> Path:
        """Return the path of the worker's record, which is deleted together with its lock."""
        return self._directory / f"{worker}{RECORD_SUFFIX}"

    def is_living(self, worker: str) -> bool:
        """Return True if that process holds its lock."""
        return _is_held(self._lock(worker)) is True

    def living(self) -> list[str]:
        """Return the ids of the processes that hold their lock."""
        return [worker for worker, path in self._files() if _is_held(path)]

    @contextmanager
    def dead(self) -> Iterator[list[str]]:
        """Yield the ids of dead processes; delete their files only if the block succeeds, so that it is repeated."""
        dead = [worker for worker, path in self._files() if _is_held(path) is False]
        yield dead
        for worker in dead:
            self._forget(worker)

    def _lock(self, worker: str) -> Path:
        return self._directory / f"{worker}{_SUFFIX}"

    def _forget(self, worker: str) -> None:
        """Delete the files of a worker, the lock last: after a crash in between, the next process deletes the rest."""
        record = self.record(worker)
        for path in (draft_of(record), record, self._lock(worker)):
            with suppress(FileNotFoundError):
                path.unlink()

    def _files(self) -> list[tuple[str, Path]]:
        return [(path.name.removesuffix(_SUFFIX), path) for path in sorted(self._directory.glob(f"*{_SUFFIX}"))]


def draft_of(record: Path) -> Path:
    """Return the path where a record is written before it replaces the previous one."""
    return record.with_suffix(".draft")


def _is_held(path: Path) -> bool | None:
    """Return True if a process holds the lock; None if its owner has just ended properly and deleted the file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so as not to pass for an owner
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
