"""A folder that appears as a place that the JVM cannot access."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from pyspark import cloudpickle

from penstock.errors import TableError, TemporaryError
from penstock.storage.local import LocalFiles

# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

_OPEN: list[str] = []


class Elsewhere(LocalFiles):
    @property
    def is_local(self) -> bool:
        return False


class Flood(Elsewhere):
    """A store that fails in the middle of a file."""

    @contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        with LocalFiles.open_output(self, path, durable=durable) as file:
            yield _Breaking(file)  # type: ignore[misc]


class Locked(Elsewhere):
    """A store that denies writing."""

    @contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        with LocalFiles.open_output(self, path, durable=durable) as file:
            if file.writable():
                raise TableError(f"{path} cannot be used: Access Denied; correct its permissions.")
            yield file


class Single(Elsewhere):
    """A store that allows one open file per process."""

    @contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        assert not _OPEN, f"{_OPEN} is open"
        _OPEN.append(path)
        with LocalFiles.open_output(self, path, durable=durable) as file:
            yield file
        _OPEN.remove(path)


class _Breaking:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        if self._file.tell() > 1000:
            raise TemporaryError("S3 asks to slow down")
        return self._file.write(data)
