"""Decode blocks of JSON lines by Arrow's JSON reader, behind guards.

Measured with pyarrow 26: a block that begins with the line ``null`` ends the process; two objects on one line and one
object across two lines keep the row count and shift every offset; invalid UTF-8 passes. So a block is taken whole only
when

- every line that is not blank begins with ``{`` and ends with ``}``, a carriage return aside. An object can then not
  cross a newline: what would join the halves (``}`` newline ``{``) is JSON nowhere;
- it is UTF-8;
- Arrow gives exactly one row a line that is not blank. No line gives less than one, so none gave two;
- no number overflowed its type, and none has an exponent or many digits if a column is a decimal.

The rule of what a line means is in lines.py.
"""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.pipeline.spark.source.blocks import (
    RETURN,
    DecimalGuard,
    Decoded,
    Flags,
    Lines,
    cast_texts,
    holds_moments,
    is_utf8,
    repair,
    text_type,
)
from penstock.pipeline.spark.source.lines import BLANKS, Classifier, QuarantineReason

_OPEN, _CLOSE = b"{}"
_FINE_FRACTION = re.compile(rb"\.[0-9]{7}")  # of a second, perhaps


class JsonlDecoder:
    """See `penstock.pipeline.spark.source.blocks.Decoder`, and `LineFormat`."""

    filler = b" "

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._options = _parse_options(schema, moments=False)
        moments = any(holds_moments(field.type) for field in schema)
        self._fine_options = _parse_options(schema, moments=True) if moments else None
        self._checked = [index for index, field in enumerate(schema) if _may_overflow(field.type)]
        self._decimals = DecimalGuard(field.type for field in schema)
        self._classifier = Classifier(schema)

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:  # noqa: ARG002 # it tells of CSV
        lines = Lines.of(block)
        shaped = _shaped(block, lines)
        self._decimals.distrust(block, lines, shaped)
        if shaped.all() and is_utf8(block):
            table = self.parse(block, len(lines.starts), verified=False)
            if isinstance(table, pa.Table):
                return Decoded(rows=table, starts=lines.starts, bad=())
        return repair(self, block, lines, shaped)

    def is_blank(self, line: bytes) -> bool:
        return not line.strip(BLANKS)

    def reason(self, line: bytes) -> tuple[QuarantineReason, str] | None:
        return self._classifier.reason(line)

    def parse(self, block: bytes, rows: int, *, verified: bool) -> pa.Table | Exception:
        if rows == 0:
            return self.schema.empty_table()
        parsed = self._parse(block, rows, self._options, verified=verified)
        if isinstance(parsed, Exception) and self._fine_options is not None and _FINE_FRACTION.search(block):
            return self._parse(block, rows, self._fine_options, verified=verified)
        return parsed

    def explain(self, refused: Exception) -> tuple[QuarantineReason, str]:
        """Arrow's words about a single line. A declared field of another kind of value is told by "changed from"."""
        text = str(refused).splitlines()[0]
        if text.startswith("JSON parse error") and "changed from" not in text:
            return QuarantineReason.MALFORMED, text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
        if isinstance(refused, pa.ArrowException):
            return QuarantineReason.WRONG_TYPE, text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
        return QuarantineReason.MALFORMED, text

    def _parse(self, block: bytes, rows: int, options: pj.ParseOptions, *, verified: bool) -> pa.Table | Exception:
        try:
            table = pj.read_json(
                pa.BufferReader(block),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
                parse_options=options,
            )
            if table.num_rows != rows:
                return ValueError("not one object")
            self._refuse_overflow(table, verified=verified)
            return self._cast(table)
        except pa.ArrowException as refused:
            return refused

    def _refuse_overflow(self, table: pa.Table, *, verified: bool) -> None:
        for index in self._checked:
            column = table.column(index)
            if pa.types.is_floating(column.type):
                leaves = [] if verified else [column]
            else:
                column.validate(full=True)  # Arrow's reader lets 1e8 into a decimal(10,2): measured
                leaves = [] if verified else list(_floats(column))
            if any(pc.any(pc.is_inf(leaf)).as_py() for leaf in leaves):
                raise pa.ArrowInvalid("Failed to convert JSON: a number too large for its type")

    def _cast(self, table: pa.Table) -> pa.Table:
        columns = [
            column if column.type == field.type else cast_texts(column.combine_chunks(), field.type)
            for column, field in zip(table.columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


def _parse_options(schema: pa.Schema, *, moments: bool) -> pj.ParseOptions:
    """Dates are parsed as strings, Arrow's reader takes them for numbers (measured); ``moments``: times as well."""
    reading = [pa.field(field.name, text_type(field.type, moments=moments)) for field in schema]
    return pj.ParseOptions(
        explicit_schema=pa.schema(reading), unexpected_field_behavior="ignore", newlines_in_values=False
    )


def _shaped(block: bytes, lines: Lines) -> Flags:
    """Which lines look like one object."""
    data = np.frombuffer(block, dtype=np.uint8)
    last = data[lines.ends - 1]  # an empty line looks at its neighbour's byte, but does not begin with `{` either
    returns = last == RETURN
    if returns.any():
        last = np.where(returns, data[lines.ends - 2], last)
    shaped: Flags = (data[lines.starts] == _OPEN) & (last == _CLOSE)
    return shaped


def _may_overflow(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_may_overflow(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _floats(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """The floating leaves inside a nested column."""
    arrays = list(column.chunks)
    while arrays:
        array = arrays.pop()
        if pa.types.is_floating(array.type):
            yield array
        elif pa.types.is_list(array.type):
            arrays.append(array.flatten())
        elif pa.types.is_struct(array.type):
            arrays.extend(array.flatten())
