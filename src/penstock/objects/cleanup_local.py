"""Move or delete processed files, each in exactly the version that was processed.

No system call removes a name on the condition that it still refers to a certain file. So a file is first renamed within
its folder, whichever version it is. It is then checked under the new name, where no writer can replace it any more.
Only then is it deleted or moved, or renamed back if it is another version. After a crash in between it has a hidden
name made from its identity, under which the next try finds it.
"""

import errno
import fcntl
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from penstock.errors import ConfigurationError, ObjectDenied, TemporaryError
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.cleanup import ASIDE_PREFIX, CHANGED, DONE, MISSING, CleanupResult, refused, second_name
from penstock.objects.local_store import LocalStore, etag_of
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef, encode_key

LOCK_SECONDS = 30.0  # a file takes milliseconds, so a cleaner that holds the lock longer is stuck
LOCK_POLL_SECONDS = 0.01
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})


@dataclass(frozen=True, slots=True, kw_only=True)
class _RenamedFile:
    """A file under its temporary name, in the folder that is open as ``folder``."""

    folder: int
    name: bytes
    status: os.stat_result


class _FileCleaner(ABC):
    """Common part of moving and deleting. See `penstock.objects.cleanup.Cleaner`."""

    def __init__(self, root: str, *, probe: Probe = no_probe) -> None:
        self._root = os.fsencode(root)
        self._store = LocalStore(root)
        self._probe = probe

    def clean(self, ref: ObjectRef) -> CleanupResult:
        path = ref.key_bytes
        if ref.bucket != LOCAL_BUCKET or not self._store.contains(path):
            return refused("it is outside the source")
        folder, name = os.path.split(path)
        try:
            with _alone_in(folder) as descriptor:
                cleaned = self._cleaned(ref, descriptor, name)
        except _NOT_THERE:
            cleaned = MISSING
        except OSError as error:
            _refuse(ref, error)
        if cleaned is MISSING:
            self._store.check_missing(path)
        return cleaned

    def _cleaned(self, ref: ObjectRef, folder: int, name: bytes) -> CleanupResult:
        hidden = encode_key(f"{ASIDE_PREFIX}{ref.object_id.hex()}")
        status = _status(folder, hidden)
        if status is None:  # otherwise an earlier try died after the rename
            there = _status(folder, name)
            if there is None:
                return MISSING
            self._store.record_found(ref.key_bytes, there)
            if not _is_version(ref, there):
                return CHANGED
            os.rename(name, hidden, src_dir_fd=folder, dst_dir_fd=folder)
            self._probe(Step.SET_ASIDE)
            status = os.stat(hidden, dir_fd=folder, follow_symlinks=False)
        aside = _RenamedFile(folder=folder, name=hidden, status=status)
        if not _is_version(ref, status):
            _put_back(ref, aside, name)
            return CHANGED
        try:
            ended = self._end(ref, aside)
        except BaseException:
            _put_back(ref, aside, name)
            raise
        if ended is not DONE:
            _put_back(ref, aside, name)
        return ended

    @abstractmethod
    def _end(self, ref: ObjectRef, aside: _RenamedFile) -> CleanupResult:
        """Delete or move the file. Any result but `DONE` means that the file is still under its temporary name."""


class FileDeleter(_FileCleaner):
    """A cleaner that deletes files."""

    def _end(self, ref: ObjectRef, aside: _RenamedFile) -> CleanupResult:  # noqa: ARG002 - the base class's signature
        os.unlink(aside.name, dir_fd=aside.folder)
        return DONE


class FileMover(_FileCleaner):
    """A cleaner that moves files below another folder of the same file system, under their relative path."""

    def __init__(self, root: str, target: str, *, probe: Probe = no_probe) -> None:
        super().__init__(root, probe=probe)
        self._target = os.fsencode(target)

    def _end(self, ref: ObjectRef, aside: _RenamedFile) -> CleanupResult:
        plain = os.path.join(self._target, os.path.relpath(ref.key_bytes, self._root))  # noqa: PTH118 - bytes
        folder = os.path.dirname(plain)  # noqa: PTH120 - bytes
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - bytes
        for path in (plain, encode_key(second_name(os.fsdecode(plain), ref))):
            if _linked(ref, aside, path):
                _sync(folder)  # the new name must be on disk before the old one is removed
                os.unlink(aside.name, dir_fd=aside.folder)
                return DONE
        return refused("both possible names below the target are taken")


@contextmanager
def _alone_in(folder: bytes) -> Iterator[int]:
    """Open the folder and lock it against other cleaners of this host. Raise as `os.open` if it no longer exists."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.realpath(folder) != folder:
            raise FileNotFoundError(errno.ENOENT, "a folder in its path has become a link")
        _lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Lock the folder. Raise `OSError` if another cleaner holds it too long (suspended, or its disk hangs)."""
    give_up = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise OSError(
                    errno.EWOULDBLOCK, f"another cleanup has locked its folder for {LOCK_SECONDS:g} s; is it suspended?"
                ) from None
        time.sleep(LOCK_POLL_SECONDS)  # bounded by give_up; real time, as other processes hold the lock


def _status(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_version(ref: ObjectRef, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == ref.size_bytes and etag_of(status) == ref.etag


def _put_back(ref: ObjectRef, aside: _RenamedFile, name: bytes) -> None:
    """Restore the file's name, or if it is taken use the fallback, which scans also find. Overwrite no file."""
    for back in (name, encode_key(second_name(os.fsdecode(name), ref))):
        try:
            os.link(aside.name, back, src_dir_fd=aside.folder, dst_dir_fd=aside.folder, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NO_LINKS or _status(aside.folder, back) is not None:
                raise
            os.rename(aside.name, back, src_dir_fd=aside.folder, dst_dir_fd=aside.folder)
            return
        os.unlink(aside.name, dir_fd=aside.folder)
        return


def _linked(ref: ObjectRef, aside: _RenamedFile, path: bytes) -> bool:
    """Link the file to that name too. Return False if another file has it."""
    try:
        os.link(aside.name, path, src_dir_fd=aside.folder, follow_symlinks=False)
    except FileExistsError:
        return os.path.samestat(os.stat(path, follow_symlinks=False), aside.status)  # noqa: PTH116 - bytes
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise ConfigurationError(
            f"{ref.uri} cannot be moved to {os.fsdecode(path)}: they are on different file systems, or on one without "
            "hard links; name a target beside the source."
        ) from error
    return True


def _sync(folder: bytes) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse(ref: ObjectRef, error: OSError) -> NoReturn:
    reason = f"{ref.uri} cannot be moved or deleted: {error.strerror or error}"
    if isinstance(error, PermissionError):
        raise ObjectDenied(reason) from error
    raise TemporaryError(reason) from error
