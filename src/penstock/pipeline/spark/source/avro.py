"""Read Avro object container files: the units are their blocks, and a piece owns those that begin in it.

A row's position is the offset of its block times 2^23, plus its place in the block: ascending and without gaps only
within a block. A piece finds its first block by the marker that ends each block. The first damage fails the object.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import ObjectUnreadable
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.avro_codecs import CODECS, TooLarge
from penstock.pipeline.spark.source.avro_decoder import (
    EMPTY_ITEMS_MAX,
    ROWS_AT_ONCE,
    SCANNED_BYTES,
    AvroDecoder,
    Block,
    read_number,
)
from penstock.pipeline.spark.source.avro_schema import AvroField, AvroType, Unsupported, arrow_type, parse_schema
from penstock.pipeline.spark.source.avro_values import VARINT_BYTES_MAX, Damage
from penstock.pipeline.spark.source.blocks import Decoded, Positions
from penstock.pipeline.spark.source.contents import damaged
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.fit_rows import Fitter
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

ROW_BITS = 23  # of a position: a block has fewer rows; the offsets of blocks in objects up to 1 TiB fit above them

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_HEAD_BYTES_MAX = 2 * VARINT_BYTES_MAX  # of a block: count and size
_READ_BYTES = 4 << 20
_HEADER_READ_BYTES = 64 << 10
_HEADER_BYTES_MAX = 16 << 20
_ENTRIES_MAX = 10_000  # of a header
_WEAK_SYNC = 4  # a marker with fewer different bytes may be part of the data
_SCHEMAS_KEPT_MAX = 16  # many objects have the same schema


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    schema_text: bytes
    codec: str
    sync: bytes
    size_bytes: int  # the first block begins there


class AvroFormat:
    """Reads the declared columns of Avro objects. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._block_bytes_max = options.line_bytes_max
        self._inflated_bytes_max = options.inflated_bytes_max  # of a piece
        self._known: OrderedDict[bytes, _Columns] = OrderedDict()  # by schema text

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Decoded]:
        """Yield the rows of the blocks that begin in the piece, verified. Raises the store's `ObjectError`."""
        if not reader.ref.size_bytes:
            return
        with _explained(reader):
            for part in self._parts(_Content(reader, piece.stop), piece, reader.ref.uri):
                reader.verify()
                yield part

    def _parts(self, content: "_Content", piece: Piece, uri: str) -> Iterator[Decoded]:
        header = _header(content)
        columns = self._columns(header.schema_text, uri)
        room = [EMPTY_ITEMS_MAX]
        for group in _grouped(self._bounded(_blocks(content, header, piece, self._block_bytes_max))):
            yield from columns.decoded(group, room)

    def _bounded(self, blocks: Iterator[Block]) -> Iterator[Block]:
        total = 0
        for block in blocks:
            total += len(block.data)
            if total > self._inflated_bytes_max:
                raise Unsupported(f"inflates to more than {self._inflated_bytes_max} bytes, the limit for one object")
            yield block

    def _columns(self, schema_text: bytes, uri: str) -> "_Columns":
        found = self._known.pop(schema_text, None) or _Columns(parse_schema(schema_text), self._options, uri)
        self._known[schema_text] = found
        if len(self._known) > _SCHEMAS_KEPT_MAX:
            self._known.popitem(last=False)
        return found


def schema_of(reader: ObjectReader) -> pa.Schema:
    """Return the columns of an object, as Arrow names their types. Raises the store's `ObjectError`."""
    with _explained(reader):
        found = parse_schema(_header(_Content(reader, _HEADER_READ_BYTES)).schema_text)
    reader.verify()
    return _arrow_schema(found.fields, [field.name for field in found.fields])


def _arrow_schema(fields: Sequence[AvroField], names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(field.type)) for field, name in zip(fields, names, strict=True)])


@contextmanager
def _explained(reader: ObjectReader) -> Iterator[None]:
    """Raise the store's `ObjectError` in place of an error of decoding, if the bytes read are of this version."""
    try:
        yield
    except Damage as error:
        raise damaged(reader, "avro", str(error)) from error
    except Unsupported as error:
        reader.verify()
        raise ObjectUnreadable(f"{reader.ref.uri} {error}") from error


class _Columns:
    """The columns that are read from objects with one schema."""

    def __init__(self, schema: AvroType, options: ReadOptions, uri: str) -> None:
        found = _arrow_schema(schema.fields, _aliased(schema.fields, parse_ddl(options.schema_ddl).names))
        self._fitter = Fitter.of(found, options, uri=uri)
        self._decoder = AvroDecoder(schema, [found.names.index(name) for name in self._fitter.names])

    def decoded(self, blocks: Sequence[Block], room: list[int]) -> Iterator[Decoded]:
        """Yield the rows of blocks. Raises `Damage`."""
        decoding = self._decoder.decode(blocks, room)
        try:
            for table, numbers, places in decoding:
                yield self._fitted(table, blocks, numbers, places)
        except Damage as damage:
            raise Damage(f"{decoding.place}: {damage}") from damage

    def _fitted(self, table: pa.Table, blocks: Sequence[Block], numbers: Positions, places: Positions) -> Decoded:
        begins = np.array([block.begin for block in blocks], dtype=np.int64)
        positions = (begins[numbers] << ROW_BITS) + places
        return self._fitter.fit(table.rename_columns(self._fitter.names), 0).moved(lambda rows: positions[rows])


def _aliased(fields: Sequence[AvroField], declared: Sequence[str]) -> list[str]:
    """Return the fields' names; one that is not declared gives way to an alias that is."""
    wanted = {name.lower(): name for name in declared}
    names = [field.name for field in fields]
    missing = wanted.keys() - {name.lower() for name in names}
    for place, field in enumerate(fields):
        if missing and field.name.lower() not in wanted:
            alias = next((alias.lower() for alias in field.aliases if alias.lower() in missing), None)
            if alias is not None:
                names[place] = wanted[alias]
                missing.discard(alias)
    return names


class _Content:
    """The bytes of an object, read in larger ranges than they are asked for."""

    def __init__(self, reader: ObjectReader, stop: int) -> None:
        """``stop``: read ahead up to it."""
        self.size_bytes = reader.ref.size_bytes
        self._reader = reader
        self._stop = stop
        self._held = b""
        self._begin = 0

    def at(self, offset: int, length_bytes: int) -> bytes:
        """Return a range, shorter only at the object's end."""
        first = offset - self._begin
        if first < 0 or first + length_bytes > len(self._held):
            ahead = max(_HEADER_READ_BYTES, min(_READ_BYTES, self._stop - offset))
            self._held = self._reader.pread(offset, max(length_bytes, ahead))
            self._begin, first = offset, 0
        return self._held[first : first + length_bytes]


def _header(content: _Content) -> _Header:
    length_bytes = _HEADER_READ_BYTES
    while True:
        data = content.at(0, length_bytes)
        try:
            return _parsed_header(data)
        except IndexError:
            if length_bytes >= content.size_bytes:
                raise Damage("it ends within its header") from None
        if length_bytes >= _HEADER_BYTES_MAX:
            raise Unsupported(f"has a header of more than {_HEADER_BYTES_MAX} bytes")
        length_bytes *= 4


def _parsed_header(data: bytes) -> _Header:
    """Return the header at the beginning of an object. Raises `IndexError` if the data ends within it."""
    if not data.startswith(_MAGIC):
        raise Damage("it does not begin as Avro does")
    values: dict[bytes, bytes] = {}
    at = len(_MAGIC)
    while True:
        count, at = read_number(data, at)
        if count < 0:  # its size follows
            _, at = read_number(data, at)
            count = -count
        if not count:
            break
        if count + len(values) > _ENTRIES_MAX:
            raise Damage(f"its header has more than {_ENTRIES_MAX} entries")
        for _ in range(count):
            key, at = _text(data, at)
            values[key], at = _text(data, at)
    if b"avro.schema" not in values:
        raise Damage("its header has no schema")
    if len(data) < at + _SYNC_BYTES:
        raise IndexError
    codec = values.get(b"avro.codec", b"null").decode("ascii", errors="replace")
    if codec not in CODECS:
        raise Unsupported(f"has the codec {codec[:20]!r}, and only {', '.join(CODECS)} are read")
    return _Header(
        schema_text=values[b"avro.schema"],
        codec=codec,
        sync=data[at : at + _SYNC_BYTES],
        size_bytes=at + _SYNC_BYTES,
    )


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    length_bytes, at = read_number(data, at)
    if length_bytes < 0:
        raise Damage("its header has a text of negative length")
    if at + length_bytes > len(data):
        raise IndexError
    return data[at : at + length_bytes], at + length_bytes


def _blocks(content: _Content, header: _Header, piece: Piece, bytes_max: int) -> Iterator[Block]:
    """Yield the blocks that begin in the piece, inflated."""
    inflate = CODECS[header.codec]
    for begin, rows, stored in _stored_blocks(
        content, header, _first_block(content, header, piece, bytes_max), bytes_max
    ):
        if begin >= piece.stop:
            return
        try:
            data = inflate(stored, bytes_max)
        except Damage as damage:
            raise Damage(f"the block at offset {begin} is no {header.codec}: {damage}") from damage
        except TooLarge as error:
            raise Unsupported(f"has a block that inflates to more than {bytes_max} bytes, at offset {begin}") from error
        yield Block(data=data, rows=rows, begin=begin)


def _first_block(content: _Content, header: _Header, piece: Piece, bytes_max: int) -> int:
    """Return the offset of the first block at or behind the piece's start; the object's size if there is none."""
    if piece.start <= header.size_bytes:
        return header.size_bytes
    if len(set(header.sync)) < _WEAK_SYNC:
        blocks = _stored_blocks(content, header, header.size_bytes, bytes_max)
        return next((begin for begin, _, _ in blocks if begin >= piece.start), content.size_bytes)
    at = max(piece.start, header.size_bytes) - _SYNC_BYTES
    while at + _SYNC_BYTES < piece.stop:
        data = content.at(at, _HEADER_READ_BYTES)
        found = data.find(header.sync)
        if found >= 0:
            return at + found + _SYNC_BYTES
        at += max(1, len(data) - _SYNC_BYTES + 1)
    return content.size_bytes


def _stored_blocks(content: _Content, header: _Header, at: int, bytes_max: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, number of rows and stored bytes of the blocks from an offset on."""
    while at < content.size_bytes:
        head = content.at(at, _HEAD_BYTES_MAX)
        try:
            rows, after = read_number(head, 0)
            size_bytes, after = read_number(head, after)
        except IndexError:
            raise Damage(f"it ends within the block at offset {at}") from None
        if rows < 0 or size_bytes < 0:
            raise Damage(f"the block at offset {at} has a negative size")
        if size_bytes > bytes_max:
            raise Unsupported(f"has a block of {size_bytes} bytes at offset {at}, and at most {bytes_max} are read")
        if rows >> ROW_BITS:
            raise Unsupported(f"has a block of {rows} rows at offset {at}, and at most {(1 << ROW_BITS) - 1} are read")
        begin = at + after
        stored = content.at(begin, size_bytes + _SYNC_BYTES)
        if len(stored) < size_bytes + _SYNC_BYTES:
            raise Damage(f"it ends within the block at offset {at}")
        if not stored.endswith(header.sync):
            raise Damage(f"the block at offset {at} does not end with the object's marker")
        yield at, rows, stored[:size_bytes]
        at = begin + size_bytes + _SYNC_BYTES


def _grouped(blocks: Iterator[Block]) -> Iterator[list[Block]]:
    """Group small blocks, because each table that is made has a cost of its own."""
    group: list[Block] = []
    size_bytes = rows = 0
    for block in blocks:
        group.append(block)
        size_bytes += len(block.data)
        rows += block.rows
        if size_bytes >= SCANNED_BYTES or rows >= ROWS_AT_ONCE:
            yield group
            group, size_bytes, rows = [], 0, 0
    if group:
        yield group
