"""Which processes of this state are alive.

Every process holds a lock on a file named after its worker id. The operating system drops the lock with the process,
however it died, so whoever can take the lock of a file has proof that its owner is gone and may free what it held at
once, without waiting for leases to end. (Locks are advisory `flock`s: the state lives on one host.)
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SUFFIX = ".lock"


class ProcessRegistry:
    """The lock files of one state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def registered(self, worker: str) -> Iterator[None]:
        """Be alive under this id until the block ends."""
        path = self._directory / f"{worker}{_SUFFIX}"
        starting = path.with_suffix(".starting")  # locked before it has its name: nobody ever sees it unlocked
        descriptor = os.open(starting, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            starting.rename(path)
            yield
        finally:
            with suppress(FileNotFoundError):
                path.unlink()
            os.close(descriptor)

    def living(self) -> list[str]:
        """The ids of the processes that hold their lock."""
        return [worker for worker, path in self._files() if not _is_free(path)]

    @contextmanager
    def dead(self) -> Iterator[list[str]]:
        """The ids of processes that are gone. Their files are removed when the block ends well, so that nothing that
        was to be done for one of them is forgotten."""
        gone = [(worker, path) for worker, path in self._files() if _is_free(path)]
        yield [worker for worker, _ in gone]
        for _, path in gone:
            with suppress(FileNotFoundError):
                path.unlink()

    def _files(self) -> list[tuple[str, Path]]:
        return [(path.name.removesuffix(_SUFFIX), path) for path in sorted(self._directory.glob(f"*{_SUFFIX}"))]


def _is_free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # its owner has just ended properly
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
