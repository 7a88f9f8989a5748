"""Read Parquet and ORC: the units are row groups and stripes, and a piece owns those that begin in it.

A row's position is its number in the object.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.errors import Interrupted, PenstockError
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.contents import damaged
from penstock.pipeline.spark.source.fit_rows import DAMAGE, Fitter, Unfitted
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

_HELD_BYTES_MAX = 8 << 20  # a smaller object is read with one request
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A row group or stripe."""

    start: Callable[[], int]  # returns where it begins in the object
    read: Callable[[Sequence[str]], Iterator[pa.Table]]  # returns the rows with these columns
    count: Callable[[], int]  # returns the number of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """An object whose footer was read."""

    schema: pa.Schema
    units: Sequence[Unit]


class ColumnarFormat:
    """Reads the declared columns of Parquet or ORC objects. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name = options.format
        self._found: tuple[pa.Schema, Fitter] | None = None  # of the last object; most others have the same columns

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Unfitted]:
        """Yield the rows of the units that begin in the piece, verified. Raises the store's `ObjectError`."""
        if not reader.ref.size_bytes:
            return
        content = Content(reader)
        try:
            for part in self._parts(content, piece, uri=reader.ref.uri):
                reader.verify()
                yield part
        except DAMAGE as error:
            raise content.explained(error, format_name=self._name) from error

    def _parts(self, content: "Content", piece: Piece, *, uri: str) -> Iterator[Unfitted]:
        file = OPENERS[self._name](content)
        fitter = self._fitter(file.schema, uri)
        owned = _owned(file.units, piece, content.size_bytes)
        left = sum(owned)
        first = 0
        for unit, is_owned in zip(file.units, owned, strict=True):
            if not left:
                return
            if not is_owned:
                first += unit.count()
                continue
            left -= 1
            for rows in unit.read(fitter.names):
                yield Unfitted(rows=rows.select(fitter.names), first=first, fitter=fitter)
                first += rows.num_rows

    def _fitter(self, schema: pa.Schema, uri: str) -> Fitter:
        if self._found is None or not schema.equals(self._found[0]):
            self._found = schema, Fitter.of(schema, self._options, uri=uri)
        return self._found[1]


def _owned(units: Sequence[Unit], piece: Piece, size_bytes: int) -> list[bool]:
    """Return a flag per unit, set if it begins in the piece; a writer may put units in any order."""
    if (piece.start, piece.stop) == (0, size_bytes):  # without their starts: those of damaged units may end the process
        return [True] * len(units)
    # a start outside of the object belongs to a piece too, and fails it
    starts = (max(0, min(unit.start(), size_bytes - 1)) for unit in units)
    return [piece.start <= start < piece.stop for start in starts]


class Content(io.RawIOBase):
    """An object as a file for Arrow, read in ranges; a small one is read at once. Used by one thread."""

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__()
        self._reader = reader
        self._size_bytes = reader.ref.size_bytes
        self._held = reader.pread(0, self._size_bytes) if self._size_bytes <= _HELD_BYTES_MAX else None
        self._at = 0
        self._failure: BaseException | None = None

    def explained(self, error: Exception, *, format_name: str) -> BaseException:
        """Return the store's error if it caused this error of Arrow, else that the object is corrupt.

        Raises the store's `ObjectError`, such as `ObjectSuperseded` if the bytes read were not of this version.
        """
        if self._failure is not None:
            return self._failure
        return damaged(self._reader, format_name, (str(error).splitlines() or [type(error).__name__])[0])

    @property
    def file(self) -> Any:
        """The file."""
        return pa.BufferReader(self._held) if self._held is not None else pa.PythonFile(self, mode="r")

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size_bytes - self._at)
        try:
            data = self._reader.pread(self._at, left if size is None or size < 0 else min(size, left))
        except (PenstockError, Interrupted) as error:
            self._failure = error  # Arrow may pass on only its text
            raise
        self._at += len(data)
        return data


def _open_parquet(content: Content) -> OpenFile:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        content.file,
        pre_buffer=False,  # it would read in other threads
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )

    def read(number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        if file.metadata.row_group(number).num_rows <= _ROWS_AT_ONCE:
            return iter([file.read_row_group(number, columns=columns, use_threads=False)])
        batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=[number], columns=columns, use_threads=False)
        return map(_table, batches)

    def unit(number: int) -> Unit:
        group = file.metadata.row_group(number)
        return Unit(start=lambda: _begin(group), read=partial(read, number), count=lambda: group.num_rows)

    return OpenFile(schema=file.schema_arrow, units=[unit(number) for number in range(file.num_row_groups)])


def _begin(group: Any) -> int:
    """Return the offset of a row group's first page; many writers leave its ``file_offset`` 0."""
    if not group.num_columns:
        return 0
    column = group.column(0)
    return int(min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0))


def _open_orc(content: Content) -> OpenFile:
    """Open ORC. Arrow does not give the offsets of stripes, so all of them count as equally large."""
    from pyarrow import orc

    file = orc.ORCFile(content.file)
    schema: pa.Schema = file.schema

    def read(number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        # Arrow takes a.b for the field b of a column a, if there is one
        named = None if any("." in name for name in columns) else list(columns)
        yield _table(file.read_stripe(number, columns=named))

    def start(number: int) -> int:
        return content.size_bytes * number // int(file.nstripes)

    def count(number: int) -> int:
        narrow = next((field.name for field in schema if not pa.types.is_nested(field.type)), schema.names[0])
        return int(file.read_stripe(number, columns=[narrow]).num_rows)

    return OpenFile(
        schema=schema,
        units=[
            Unit(
                start=partial(start, number),
                read=partial(read, number),
                count=partial(count, number),
            )
            for number in range(file.nstripes)
        ],
    )


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def schema_of(reader: ObjectReader, format_name: str) -> pa.Schema:
    """Return the schema of an object, as Arrow names its types. Raises the store's `ObjectError`."""
    content = Content(reader)
    try:
        schema = OPENERS[format_name](content).schema
        schema.to_string()  # decodes all names
        reader.verify()
        return schema
    except DAMAGE as error:
        raise content.explained(error, format_name=format_name) from error


OPENERS: dict[str, Callable[[Content], OpenFile]] = {"parquet": _open_parquet, "orc": _open_orc}
