"""What tables and runs need of the place where their files lie, be it a folder or a prefix in S3."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One file. ``path`` is relative to the root, with "/" between its parts."""

    path: str
    size_bytes: int
    modified_at: float  # Unix seconds


class Files(Protocol):
    """The files below one root. A small, frozen value that travels to Spark's executors.

    Paths are relative to the root, with "/" between their parts; they are of our own making, never names from outside.
    All methods block. They raise `TemporaryError` where another try may succeed, and `TableError` where permission or
    space is lacking.
    """

    @property
    def uri(self) -> str:
        """The root's canonical address, without a slash at its end: ``file:///srv/clicks``, ``s3://lake/clicks``."""
        ...

    @property
    def name(self) -> str:
        """The root's last part."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it is a folder that a path leads to; then `str()` of this is that path."""
        ...

    def store_options(self) -> Mapping[str, str]:
        """What delta-rs needs besides the address. There are secrets in it: ask anew each time, and keep nothing."""
        ...

    def below(self, path: str) -> "Files":
        """The same place, with a root further down."""
        ...

    def beside(self, name: str) -> "Files":
        """A root of that name beside this one."""
        ...

    def stat(self, path: str) -> FileInfo | None:
        """The file, or None where there is none."""
        ...

    def list(self, folder: str = "") -> Iterator[FileInfo]:
        """All files below the folder, at any depth, in no order. No folder, no files.

        Locally, links are told of like files and never followed.
        """
        ...

    def names(self, folder: str = "") -> Sequence[str]:
        """What lies directly in the folder, sorted; a folder's name ends in "/"."""
        ...

    def read(self, path: str) -> bytes:
        """The file's bytes. Raises `FileNotFoundError`."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Make the file, whole or not at all; one that was there is replaced. Locally it is on the disk afterwards."""
        ...

    def write_new(self, path: str, data: bytes) -> bool:
        """Make the file, whole, unless there is one of that name; answers whether this call made it.

        Raises `TemporaryError` also where the outcome is unknown: read it and look.
        """
        ...

    def open_input(self, path: str) -> AbstractContextManager[BinaryIO]:
        """The file for reading, seekable. Raises `FileNotFoundError`."""
        ...

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file for writing in order; there, whole, when the block ends, and not there if it ends by an error."""
        ...

    def make_durable(self, paths: Iterable[str]) -> None:
        """Let files that somebody else wrote here outlast a power loss."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that are not there are no error."""
        ...

    def prune(self, folder: str) -> None:
        """Remove the folder and those in it as far as they are empty. In S3 there are no folders to remove."""
        ...
