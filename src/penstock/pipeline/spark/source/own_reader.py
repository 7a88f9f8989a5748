"""Read objects with a function of the user's: the format of everything that has none here, such as XML or Excel.

The function takes a `SourceObject` and yields record batches. Their columns are fitted to the declared ones like those
of Parquet, and rows are numbered in the order in which they come. Whatever the function raises fails the object alone.

`SourceObject` is the part of `penstock.IncomingObject` that a task can offer: a task has no message and no ledger, and
executors lack the packages for them.
"""

import errno
import importlib
import io
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import IO, Any

import pyarrow as pa

from penstock.errors import (
    ConfigurationError,
    ObjectCorrupt,
    ObjectError,
    ObjectUnreadable,
    PenstockError,
    Reject,
    TemporaryError,
)
from penstock.messaging.failure import failure_of, location_of
from penstock.objects.reference import ObjectFacts, ObjectRef
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.blocks import Decoded
from penstock.pipeline.spark.source.fit_rows import Fitter
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

READ_BYTES_MAX = 64 << 20
_BUFFER_BYTES = 1 << 20
_ROWS_AT_ONCE = 1 << 16
_REASON_CHARS_MAX = 500
_NAME_BYTES_MAX = 100  # of a file

ReaderFunction = Callable[["SourceObject"], Iterable[pa.RecordBatch]]


class SourceObject(ObjectFacts):
    """One version of one object, passed to the function of `ObjectSource(reader=...)`.

    Valid until the function's iterator ends. Not thread-safe.
    """

    def __init__(self, reader: ObjectReader, *, bytes_max: int) -> None:
        self._reader = reader
        self._ref = reader.ref
        self._bytes_max = bytes_max
        self._open = ExitStack()  # files and folders, until `close`
        self.fault: PenstockError | None = None  # the first error in reading the object

    def open(self) -> IO[bytes]:
        """Return the stored bytes as a seekable binary file, not inflated, which reads ranges as they are needed.

        Raises:
            ObjectError: The object is missing, changed or unreadable. Let it propagate.
        """
        return self._open.enter_context(io.BufferedReader(_Ranges(self._range, self.size_bytes), _BUFFER_BYTES))

    def read(self, bytes_max: int = READ_BYTES_MAX) -> bytes:
        """Return all stored bytes, not inflated. Raise `ObjectUnreadable` if there are more than ``bytes_max``."""
        self._check_size(bytes_max, "are read at once")
        return self._range(0, self.size_bytes)

    def local_path(self) -> Path:
        """Return the path of a temporary copy, for libraries that take no file. It is up to 1 GiB large.

        Raises `ObjectUnreadable` for a larger object, and as `open` does.
        """
        self._check_size(self._bytes_max, "are copied")
        try:
            folder = self._open.enter_context(TemporaryDirectory(prefix="penstock-reader-"))
            path = Path(folder) / _file_name(self._ref)
            with self.open() as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy, _BUFFER_BYTES)
        except OSError as error:
            self.fault = self.fault or TemporaryError(f"{self.uri} cannot be copied on {gethostname()}: {error}")
            raise self.fault from error
        return path

    def close(self) -> None:
        """Close its files and delete its copies. A second call does nothing."""
        self._open.close()

    def _range(self, offset: int, length_bytes: int) -> bytes:
        try:
            return self._reader.pread(offset, length_bytes)
        except PenstockError as fault:
            self.fault = self.fault or fault
            raise

    def _check_size(self, bytes_max: int, done: str) -> None:
        if self.size_bytes > bytes_max:
            raise ObjectUnreadable(f"{self.uri} has {self.size_bytes} bytes, and at most {bytes_max} {done}")


class OwnReader:
    """Reads objects with the function that the options name. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name = options.reader
        self._function = _imported(options.reader)
        self._bytes_max = options.whole_bytes_max

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Decoded]:  # noqa: ARG002 # an object is one piece
        """Yield the rows of the function, verified. Raises the store's `ObjectError`."""
        obj = SourceObject(reader, bytes_max=self._bytes_max)
        try:
            first = 0
            for batch in self._batches(obj):
                fitter = Fitter.of(batch.schema, self._options, uri=obj.uri)
                rows = pa.Table.from_batches([batch]).select(fitter.names)
                for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                    part = rows.slice(start, _ROWS_AT_ONCE)
                    reader.verify()
                    yield fitter.fit(part, first)
                    first += part.num_rows
            reader.verify()
        finally:
            obj.close()

    def _batches(self, obj: SourceObject) -> Iterator[pa.RecordBatch]:
        """Yield what the function yields. Raises an `ObjectError` in place of what it raises."""
        with self._explained(obj):
            found = iter(self._function(obj))
        try:
            while True:
                with self._explained(obj):
                    batch = next(found, None)
                    if batch is not None:
                        batch = _checked(batch)
                if batch is None:
                    return
                if batch.num_rows:
                    yield batch
        finally:
            if isinstance(found, Generator):
                with self._explained(obj):
                    found.close()

    @contextmanager
    def _explained(self, obj: SourceObject) -> Iterator[None]:
        """Raise the error of the store, if there was one, or else the object's failure, for any other exception."""
        try:
            yield
        except Exception as raised:
            if obj.fault is None:
                raise self._failed(obj, raised) from raised
        except SystemExit as raised:  # the function must not be able to end the task
            if obj.fault is None:
                raise self._failed(obj, raised) from raised
        if obj.fault is not None:  # also if the function has caught it
            raise obj.fault

    def _failed(self, obj: SourceObject, raised: BaseException) -> ObjectError:
        described = failure_of(raised)
        summary = " ".join(described.summary.split())[:_REASON_CHARS_MAX]
        place = location_of(raised)
        kind = ObjectCorrupt if isinstance(raised, Reject) else ObjectUnreadable
        error = kind(f"{obj.uri} cannot be read by {self._name}{f' at {place}' if place else ''}: {summary}")
        vars(error)["failure"] = described  # see `failure_of`
        return error


class _Ranges(io.RawIOBase):
    """An object as a file. Each read is one request."""

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        super().__init__()
        self._read = read
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"negative position {base + offset}")  # as files do, which zipfile relies on
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        wanted = max(0, min(len(buffer), self._size_bytes - self._at))
        data = self._read(self._at, wanted) if wanted else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _checked(batch: Any) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"it yielded a {type(batch).__name__}, and pyarrow.RecordBatch is expected")
    batch.validate()
    return batch


def _file_name(ref: ObjectRef) -> str:
    """Return the name of a copy: libraries look at its ending."""
    name = os.path.basename(ref.key_bytes)[-_NAME_BYTES_MAX:].replace(b"\0", b"")  # noqa: PTH119 # bytes, not a path
    return os.fsdecode(b"object-" + name)


def _imported(name: str) -> ReaderFunction:
    """Return the function named ``module:function``, in the process that reads."""
    module, _, function = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigurationError(
            f"The reader {name} cannot be imported on the host {gethostname()} ({type(error).__name__}: {error}): name "
            "its module in spark.py_files, and install the packages that it imports on the executors."
        ) from error
    if not callable(found):
        raise ConfigurationError(f"The reader {name} is no function on the host {gethostname()}.")
    imported: ReaderFunction = found
    return imported
