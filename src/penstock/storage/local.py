"""Files in a folder of this machine, or in one that all machines mount."""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from penstock.errors import TableError, TemporaryError
from penstock.storage.files import FileInfo

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The `penstock.storage.files.Files` in a folder that may not exist yet. ``root`` is a real path."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def is_local(self) -> bool:
        return True

    def store_options(self) -> Mapping[str, str]:
        return {}

    def below(self, path: str) -> "LocalFiles":
        return LocalFiles(self.root / path)

    def beside(self, name: str) -> "LocalFiles":
        return LocalFiles(self.root.with_name(name))

    def stat(self, path: str) -> FileInfo | None:
        with self._explained(path):
            try:
                status = (self.root / path).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return None if stat.S_ISDIR(status.st_mode) else _info(path, status)

    def list(self, folder: str = "") -> Iterator[FileInfo]:
        for parent, folders, names in os.walk(self.root / folder, onerror=self._refuse_walk):
            links = [name for name in folders if Path(parent, name).is_symlink()]
            for path in (Path(parent, name) for name in [*names, *links]):
                info = self.stat(path.relative_to(self.root).as_posix())
                if info is not None:  # None if it was deleted meanwhile
                    yield info

    def names(self, folder: str = "") -> Sequence[str]:
        with self._explained(folder):
            return sorted(e.name + ("/" if e.is_dir(follow_symlinks=False) else "") for e in self._entries(folder))

    def list_after(self, folder: str, name: str) -> Iterator[FileInfo]:
        with self._explained(folder):
            later = (e for e in self._entries(folder) if e.name > name and not e.name.startswith("."))
            for entry in sorted(later, key=lambda e: e.name):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    yield _info(f"{folder}/{entry.name}".strip("/"), status)

    def read(self, path: str) -> bytes:
        with self._explained(path):
            return (self.root / path).read_bytes()

    def read_tagged(self, path: str) -> tuple[bytes, FileInfo]:
        with self._explained(path), (self.root / path).open("rb") as file:
            return file.read(), _info(path, os.fstat(file.fileno()))

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with self.open_output(path, durable=durable) as file:
            file.write(data)

    def write_new(self, path: str, data: bytes) -> bool:
        target = self.root / path
        half = _half_of(target)
        with self._explained(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with half.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(half, target)  # unlike a rename, a link never replaces an existing file
            except FileExistsError:
                return False
            finally:
                half.unlink(missing_ok=True)
        return True

    @contextmanager
    def open_input(self, path: str) -> Iterator[BinaryIO]:
        with self._explained(path):
            file = (self.root / path).open("rb")
        with file:
            yield file

    @contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        target = self.root / path
        half = _half_of(target)
        with self._explained(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with half.open("wb") as file:
                    yield file
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
                half.replace(target)
            except BaseException:
                half.unlink(missing_ok=True)
                raise

    def make_durable(self, paths: Iterable[str]) -> None:
        # Sync the files first, then the folders that contain them, each once.
        files = [self.root / path for path in paths]
        folders = {folder for file in files for folder in file.parents if folder.is_relative_to(self.root)}
        for path in [*files, *sorted(folders, reverse=True)]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._explained(path):
                (self.root / path).unlink(missing_ok=True)

    def prune(self, folder: str) -> None:
        for parent, _, _ in os.walk(self.root / folder, topdown=False):
            with suppress(OSError):  # not empty: a slow writer may be recreating files
                Path(parent).rmdir()

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        """Return the entries of one folder, unordered; none if there is no such folder, or if it is a link."""
        path = self.root / folder
        if folder and path.is_symlink():
            return ()
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return ()

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Convert operating system errors to Penstock exceptions; `FileNotFoundError` passes through."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            self._refuse(error, path)

    def _refuse_walk(self, error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            self._refuse(error, "")

    def _refuse(self, error: OSError, path: str) -> NoReturn:
        where = error.filename or self.root / path
        if error.errno in _DENIED:
            raise TableError(f"{where} cannot be used: {error.strerror}; correct its permissions.") from error
        raise TemporaryError(f"{where} cannot be used: {error.strerror or error}") from error


def _half_of(target: Path) -> Path:
    """Return a new name for a file that is being written.

    No two writers share one. A process id would not do: containers that mount one folder number their processes alike.
    """
    return target.with_name(f".{target.name}.{secrets.randbits(64)}")


def _info(path: str, status: os.stat_result) -> FileInfo:
    return FileInfo(
        path=path,
        size_bytes=status.st_size,
        modified_at=status.st_mtime,
        tag=f"{status.st_ino:x}-{status.st_mtime_ns:x}",
    )
