"""The file operations that tables and runs need, in a local folder or below an S3 prefix."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One file. ``path`` is relative to the root, with "/" as separator."""

    path: str
    size_bytes: int
    modified_at: float  # Unix seconds
    tag: str = ""  # another one if the file is replaced, even by one of the same size: S3's ETag, or inode and time


class Files(Protocol):
    """The files below one root. A small frozen value that is sent to Spark's executors.

    Paths are relative to the root, with "/" as separator. Penstock generates them; they never come from outside. All
    methods block. They raise `TemporaryError` if a retry may succeed, and `TableError` if permission or space is
    missing.
    """

    @property
    def uri(self) -> str:
        """Return the root's canonical address: ``file:///srv/clicks``, ``s3://lake/clicks``; no slash at its end."""
        ...

    @property
    def name(self) -> str:
        """Return the last part of the root."""
        ...

    @property
    def is_local(self) -> bool:
        """Return True for a local folder; `str()` of this object is then its path."""
        ...

    def store_options(self) -> Mapping[str, str]:
        """Return delta-rs's options for this root. They contain secrets that expire: do not store them."""
        ...

    def below(self, path: str) -> "Files":
        """Return the files below a subfolder of this root."""
        ...

    def beside(self, name: str) -> "Files":
        """Return the files of a sibling of this root."""
        ...

    def stat(self, path: str) -> FileInfo | None:
        """Return the file's size and time; None if it does not exist."""
        ...

    def list(self, folder: str = "") -> Iterator[FileInfo]:
        """Yield all files below the folder, at any depth, in no order; none if the folder does not exist.

        Locally, symbolic links are listed like files and never followed.
        """
        ...

    def names(self, folder: str = "") -> Sequence[str]:
        """Return the names of the folder's direct entries, sorted; names of folders end in "/".

        Locally, files that are still being written are included; their names begin with a dot.
        """
        ...

    def list_after(self, folder: str, name: str) -> Iterator[FileInfo]:
        """Yield the files directly in the folder whose names sort after ``name``, by name. S3 returns 1,000 a request.

        Locally, files that are still being written are left out.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return the file's bytes. Raises `FileNotFoundError`."""
        ...

    def read_tagged(self, path: str) -> tuple[bytes, FileInfo]:
        """Return the file's bytes, and the size, time and tag of exactly these bytes. Raises `FileNotFoundError`."""
        ...

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write the file atomically, replacing an existing one. ``durable``: see `open_output`."""
        ...

    def write_new(self, path: str, data: bytes) -> bool:
        """Write the file atomically unless it exists; return True if this call created it.

        Raises `TemporaryError` also if the outcome is unknown: read the file to find out.
        """
        ...

    def open_input(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open the file for reading, seekable. Raises `FileNotFoundError`."""
        ...

    def open_output(self, path: str, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """Open a new file for sequential writing. It appears, complete, when the block ends; never if it raises.

        A ``durable`` file in a local folder is synced to disk. Others may be lost or empty after a power loss: for
        files that no process reads after the end of the run that wrote them. A crash of a process loses nothing.
        """
        ...

    def make_durable(self, paths: Iterable[str]) -> None:
        """Make files written by other code, such as Spark, survive a power loss."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. Missing ones are ignored."""
        ...

    def prune(self, folder: str) -> None:
        """Remove the empty folders below and including this one. S3 has no folders to remove."""
        ...
