"""Decode blocks of JSON lines with Arrow's JSON reader, behind guards.

Measured with pyarrow 26: a block that begins with the line ``null`` kills the process; two objects on one line and one
object across two lines keep the row count but shift every offset; invalid UTF-8 passes. So a block is parsed whole only
if

- every non-blank line begins with ``{`` and ends with ``}``, ignoring a carriage return. Then no object crosses a
  newline, because the joint of its halves (``}`` newline ``{``) is never valid JSON;
- it is UTF-8;
- Arrow returns exactly one row per non-blank line. No line yields less than one, so none yielded two;
- no number overflowed its type, and none has an exponent or many digits if a column is a decimal.

jsonl_lines.py defines the meaning of a line, json_fields.py finds the fields that no column takes.
"""

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import (
    RETURN,
    DecimalGuard,
    Decoded,
    Flags,
    Lines,
    Positions,
    cast_texts,
    holds_moments,
    is_utf8,
    repair,
    text_type,
)
from penstock.pipeline.spark.source.json_fields import UnknownFinder, read_json
from penstock.pipeline.spark.source.jsonl_lines import BLANKS, Classifier

_OPEN, _CLOSE = b"{}"
_UNEXPECTED = "unexpected field"
_FINE_FRACTION = re.compile(rb"\.[0-9]{7}")  # possibly of a second


class JsonlDecoder:
    """A `Decoder` and `LineFormat` for JSON lines. Without a finder, fields without a column are not counted."""

    filler = b" "

    def __init__(self, schema: pa.Schema, finder: UnknownFinder | None = None) -> None:
        self.schema = schema
        self._finder = finder
        self._reading = _reading(schema, moments=False)
        moments = any(holds_moments(field.type) for field in schema)
        self._fine_reading = _reading(schema, moments=True) if moments else None
        self._checked = [index for index, field in enumerate(schema) if _may_overflow(field.type)]
        self._maps = any(_holds_map(field.type) for field in schema)  # then every line has to be mended
        self._decimals = DecimalGuard(field.type for field in schema)
        self._classifier = Classifier(schema)
        # The rows of the last block that have each field without a column; None: there may be some, which have to be
        # searched. Written by the thread that decodes.
        self.unknown: Mapping[str, Positions] | None = {}

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:  # noqa: ARG002 # only CSV uses it
        self.unknown = {}
        lines = Lines.of(block)
        if self._maps:
            return repair(self, block, lines, np.zeros(len(lines.starts), dtype=np.bool_))
        shaped = _shaped(block, lines)
        self._decimals.distrust(block, lines, shaped)
        if shaped.all() and is_utf8(block):
            table = self._whole(block, lines)
            if isinstance(table, pa.Table):
                return Decoded(rows=table, starts=lines.starts, bad=())
        return repair(self, block, lines, shaped)

    def text(self, block: bytes) -> bytes:
        return block

    def is_blank(self, line: bytes) -> bool:
        return not line.strip(BLANKS)

    def mended(self, line: bytes) -> bytes:
        return self._classifier.mended(line)

    def parse(self, block: bytes, rows: int, *, verified: bool) -> pa.Table | Exception:
        return self._parse(block, rows, self._read, verified=verified)

    def explain(self, refused: Exception) -> tuple[QuarantineReason, str]:
        """Classify Arrow's error for one line. "changed from" marks a declared field with another kind of value."""
        text = str(refused).splitlines()[0]
        if text.startswith("JSON parse error") and "changed from" not in text:
            return QuarantineReason.MALFORMED, text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
        if isinstance(refused, pa.ArrowException):
            return QuarantineReason.WRONG_TYPE, text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
        return QuarantineReason.MALFORMED, text

    def _whole(self, block: bytes, lines: Lines) -> pa.Table | Exception:
        """Parse a guarded block: with the fields that the finder knows, or else without others than the declared."""
        rows = len(lines.starts)
        if (finder := self._finder) is None:
            return self.parse(block, rows, verified=False)

        def read(block: bytes, reading: pa.Schema) -> pa.Table:
            table, self.unknown = finder.read(block, reading)
            return table

        parsed = self._parse(block, rows, read, verified=False)
        if isinstance(parsed, pa.Table) or not (finder.knows_some or _UNEXPECTED in str(parsed)):
            return parsed
        if finder.learns(block, lines.starts):
            parsed = self._parse(block, rows, read, verified=False)
            if isinstance(parsed, pa.Table):
                return parsed
        finder.note_refusal()
        self.unknown = None
        return self.parse(block, rows, verified=False)

    def _parse(
        self, block: bytes, rows: int, read: Callable[[bytes, pa.Schema], pa.Table], *, verified: bool
    ) -> pa.Table | Exception:
        if rows == 0:
            return self.schema.empty_table()
        parsed = self._typed(block, rows, self._reading, read, verified=verified)
        if isinstance(parsed, Exception) and self._fine_reading is not None and _FINE_FRACTION.search(block):
            return self._typed(block, rows, self._fine_reading, read, verified=verified)
        return parsed

    def _typed(
        self,
        block: bytes,
        rows: int,
        reading: pa.Schema,
        read: Callable[[bytes, pa.Schema], pa.Table],
        *,
        verified: bool,
    ) -> pa.Table | Exception:
        try:
            table = read(block, reading)
            if table.num_rows != rows:
                return ValueError("not one object")
            self._refuse_overflow(table, verified=verified)
            return self._cast(table)
        except pa.ArrowException as refused:
            return refused

    def _read(self, block: bytes, reading: pa.Schema) -> pa.Table:
        """Return the declared fields. Others are refused at first, and ignored in a block that has some.

        So a block without them costs nothing more: Arrow stops at the first one (measured).
        """
        if self._finder is not None and self.unknown is not None:
            try:
                return read_json(block, reading, unexpected="error")
            except pa.ArrowInvalid as refused:
                if _UNEXPECTED not in str(refused):
                    raise
                self.unknown = None
        return read_json(block, reading, unexpected="ignore")

    def _refuse_overflow(self, table: pa.Table, *, verified: bool) -> None:
        for index in self._checked:
            column = table.column(index)
            if pa.types.is_floating(column.type):
                leaves = [] if verified else [column]
            else:
                column.validate(full=True)  # Arrow's reader accepts 1e8 for a decimal(10,2): measured
                leaves = [] if verified else list(_floats(column))
            if any(pc.any(pc.is_inf(leaf)).as_py() for leaf in leaves):
                raise pa.ArrowInvalid("Failed to convert JSON: a number too large for its type")

    def _cast(self, table: pa.Table) -> pa.Table:
        columns = [
            column if column.type == field.type else cast_texts(column.chunk(0), field.type)
            for column, field in zip(table.columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


def _reading(schema: pa.Schema, *, moments: bool) -> pa.Schema:
    """Return the schema to read with: dates as strings, because Arrow's reader takes them for numbers (measured).

    With ``moments``, timestamps are read as strings as well.
    """
    return pa.schema([pa.field(field.name, text_type(field.type, moments=moments)) for field in schema])


def _shaped(block: bytes, lines: Lines) -> Flags:
    """Return a flag per line, set if the line looks like one object."""
    data = np.frombuffer(block, dtype=np.uint8)
    # for an empty line this is another line's byte, but an empty line does not begin with `{`
    last = data[lines.ends - 1]
    returns = last == RETURN
    if returns.any():
        last = np.where(returns, data[lines.ends - 2], last)
    shaped: Flags = (data[lines.starts] == _OPEN) & (last == _CLOSE)
    return shaped


def _may_overflow(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_may_overflow(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return pa.types.is_nested(kind) and any(_holds_map(kind.field(index).type) for index in range(kind.num_fields))


def _floats(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the floating-point leaves inside a nested column."""
    arrays = list(column.chunks)
    while arrays:
        array = arrays.pop()
        if pa.types.is_floating(array.type):
            yield array
        elif pa.types.is_list(array.type):
            arrays.append(array.flatten())
        elif pa.types.is_struct(array.type):
            arrays.extend(array.flatten())
