"""An object of our own for reading, seekable: each read is one request for exactly those bytes of exactly that version.

That is what Parquet's readers want, which read a footer and a few columns of a large file.
"""

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class S3Input(io.RawIOBase):
    """``fetch(start, stop)`` gives the bytes. Not buffered: wrap it where it is read in small pieces."""

    def __init__(self, size_bytes: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._take(self._size_bytes if size is None or size < 0 else size)

    def readall(self) -> bytes:
        return self.read()

    def _take(self, wanted: int) -> bytes:
        if self.closed:
            raise ValueError("the file is closed")
        stop = min(self._at + wanted, self._size_bytes)
        if stop <= self._at:
            return b""
        data = self._fetch(self._at, stop)
        self._at += len(data)
        return data
