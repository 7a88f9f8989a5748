"""Decode blocks of CSV with Arrow's CSV reader, behind guards.

Measured with pyarrow 26: an unclosed quote pulls the following lines into its field, without an error at the block's
end; a lone carriage return ends a row. So a block is parsed whole only if

- each line has an even number of quotes; the first, third, ... opens a field (it follows the line's start, a delimiter
  or the closing quote it doubles), the others close one. Then Arrow's fields begin and end as the rule in csv_lines.py
  defines, and none continues past its line;
- no line contains a carriage return, except before its newline;
- no line is blank, because Arrow reads a line of blanks as a row;
- it is UTF-8;
- Arrow returns exactly one row per line, and no number overflowed its type.

An empty quoted string is NULL in columns other than strings, and an empty string in string columns; a null mark such as
NA is text in string columns. Arrow has one rule for all columns, so a block that may have such a field is read twice:
once for the strings, once for the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import (
    NEWLINE,
    RETURN,
    DecimalGuard,
    Decoded,
    Flags,
    Lines,
    holds,
    is_utf8,
    repair,
    to_moments,
)
from penstock.pipeline.spark.source.contents import BOM
from penstock.pipeline.spark.source.csv_lines import (
    FALSE_TEXTS,
    TRUE_TEXTS,
    CsvClassifier,
    Layout,
    blanks,
    is_blank,
    null_texts,
)
from penstock.pipeline.spark.source.csv_records import (
    INNER_NEWLINE,
    INNER_RETURN,
    holds_joined,
    join,
    oddly_quoted,
    parted,
)
from penstock.pipeline.spark.source.options import CsvOptions

_HEXADECIMAL = (b"0x", b"0X")


class _Reading(NamedTuple):
    """One pass over a block for some columns: their types by place, and the texts that are NULL in them."""

    kinds: Mapping[int, pa.DataType]
    nulls: Sequence[str]
    quoted_nulls: bool = False  # these texts are NULL also when quoted


class CsvDecoder:
    """A `Decoder` and `LineFormat` for CSV under one header. At least one column has a place."""

    filler = b"\n"  # Arrow skips empty lines

    def __init__(self, schema: pa.Schema, csv: CsvOptions, layout: Layout, *, joined: bool = False) -> None:
        """``joined``: lines may be joined records, see `csv_records.join`."""
        self.schema = schema
        self._joined = joined
        self._csv = csv
        self._layout = layout
        self._decimals = DecimalGuard(field.type for field in schema)
        self._classifier = CsvClassifier(schema, csv, layout)
        self._kinds = {
            index: _reading_type(field.type)
            for field, index in zip(schema, layout.indexes, strict=True)
            if index is not None
        }
        strings = {index for field, index in zip(schema, layout.indexes, strict=True) if pa.types.is_string(field.type)}
        self._strings = {index: kind for index, kind in self._kinds.items() if index in strings}
        self._others = {index: kind for index, kind in self._kinds.items() if index not in strings}
        self._integers = {index: pa.string() for index, kind in self._kinds.items() if pa.types.is_integer(kind)}
        self._nulls = {in_strings: null_texts(csv, in_strings=in_strings) for in_strings in (True, False)}
        self._quoted_nulls = [f"{csv.quote}{text}{csv.quote}".encode() for text in self._nulls[False] if csv.quote]
        self._marks = [start + mark.encode() for mark in csv.null_marks for start in (csv.delimiter.encode(), b"\n")]
        self._mark_at_start = tuple(mark.encode() for mark in csv.null_marks)
        self._parse_options = pcsv.ParseOptions(
            delimiter=csv.delimiter,
            quote_char=csv.quote or False,
            double_quote=bool(csv.quote),
            newlines_in_values=False,
            ignore_empty_lines=True,
        )

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:
        lines = Lines.of(block)
        shaped = self._shaped(block, lines, plain=plain)
        self._decimals.distrust(block, lines, shaped)
        if shaped.all() and is_utf8(self.text(block)):
            table = self.parse(block, len(lines.starts), verified=False)
            if isinstance(table, pa.Table):
                return Decoded(rows=table, starts=lines.starts, bad=())
        decoded = repair(self, block, lines, shaped)
        if not self._joined:
            return decoded
        return replace(decoded, bad=tuple(replace(bad, raw=parted(bad.raw)) for bad in decoded.bad))

    def text(self, block: bytes) -> bytes:
        return parted(block) if self._joined and holds_joined(block) else block

    def is_blank(self, line: bytes) -> bool:
        return is_blank(line, self._csv)

    def mended(self, line: bytes) -> bytes:
        if not self._joined:
            return self._classifier.mended(line)
        text = parted(line)
        mended = self._classifier.mended(text)
        return line if mended is text else join(mended + b"\n").removesuffix(b"\n")

    def parse(self, block: bytes, rows: int, *, verified: bool) -> pa.Table | Exception:
        if rows == 0:
            return self.schema.empty_table()
        quoted_nulls = any(holds(block, null) for null in self._quoted_nulls)
        if not self._others or not (quoted_nulls or self._may_have_marks(block)):
            return self._parse(block, rows, _Reading(self._kinds, self._nulls[True]), verified=verified)
        others = _Reading(self._others, self._nulls[False], quoted_nulls=quoted_nulls)
        return self._parse(block, rows, _Reading(self._strings, self._nulls[True]), others, verified=verified)

    def _may_have_marks(self, block: bytes) -> bool:
        return block.startswith(self._mark_at_start) or any(holds(block, mark) for mark in self._marks)

    def explain(self, refused: Exception) -> tuple[QuarantineReason, str]:
        text = str(refused).splitlines()[0]
        if isinstance(refused, pa.ArrowException) and not text.startswith("CSV parse error"):
            return QuarantineReason.WRONG_TYPE, text.rpartition("Row #1: ")[2]
        return QuarantineReason.MALFORMED, text.removeprefix("CSV parse error: ")

    def _shaped(self, block: bytes, lines: Lines, *, plain: bool) -> Flags:
        """Return a flag per line, set if the line is certainly neither blank nor oddly quoted."""
        data = np.frombuffer(block, dtype=np.uint8)
        blank = np.zeros(256, dtype=np.bool_)
        blank[[NEWLINE, RETURN, *blanks(self._csv)]] = True
        shaped: Flags = ~(blank[data[lines.starts]] & blank[data[lines.ends - 1]])
        if self._csv.comment:
            shaped &= data[lines.starts] != ord(self._csv.comment)
        if b"\r" in block:
            returns = np.flatnonzero(data == RETURN)
            alone = returns[data[returns + 1] != NEWLINE]
            shaped[np.searchsorted(lines.ends, alone)] = False
        if self._joined and INNER_RETURN in block:
            returns = np.flatnonzero(data == ord(INNER_RETURN))
            alone = returns[data[returns + 1] != ord(INNER_NEWLINE)]  # perhaps in a field without quotes
            shaped[np.searchsorted(lines.ends, alone)] = False
        if not plain and self._csv.quote and self._csv.quote.encode() in block:
            shaped &= ~oddly_quoted(data, lines, self._csv)
        return shaped

    def _parse(self, block: bytes, rows: int, *readings: "_Reading", verified: bool) -> pa.Table | Exception:
        try:
            columns: dict[int, pa.ChunkedArray] = {}
            for reading in readings:
                columns |= self._read(block, reading) if reading.kinds else {}
            if any(len(column) != rows for column in columns.values()):
                return ValueError("not one row")
            self._refuse_hexadecimal(block)
            return self._typed(columns, rows, verified=verified)
        except pa.ArrowException as refused:
            return refused

    def _read(self, block: bytes, reading: "_Reading") -> Mapping[int, pa.ChunkedArray]:
        kinds = reading.kinds
        if block.startswith(BOM):
            block = b"\n" + block  # here it is data, but Arrow would drop it as a byte order mark
        table = pcsv.read_csv(
            pa.BufferReader(block),
            read_options=pcsv.ReadOptions(
                use_threads=False,
                block_size=len(block) + 1,
                column_names=[str(index) for index in range(self._layout.fields)],
            ),
            parse_options=self._parse_options,
            convert_options=pcsv.ConvertOptions(
                check_utf8=False,  # already checked
                column_types={str(index): kind for index, kind in kinds.items()},
                include_columns=[str(index) for index in kinds],
                null_values=reading.nulls,
                true_values=TRUE_TEXTS,
                false_values=FALSE_TEXTS,
                strings_can_be_null=True,
                quoted_strings_can_be_null=reading.quoted_nulls,
            ),
        )
        columns = dict(zip(kinds, table.columns, strict=True))
        if self._joined and holds_joined(block):
            return {index: _parted(column) for index, column in columns.items()}
        return columns

    def _refuse_hexadecimal(self, block: bytes) -> None:
        """Raise for hexadecimal numbers: Arrow accepts 0xff, and reads it as -1 in a tinyint (measured)."""
        if not self._integers or not any(holds(block, spelling) for spelling in _HEXADECIMAL):
            return
        texts = _Reading(self._integers, self._nulls[False], quoted_nulls=True)
        for column in self._read(block, texts).values():
            if pc.any(pc.match_substring(column, "x", ignore_case=True)).as_py():
                raise pa.ArrowInvalid("a hexadecimal number")

    def _typed(self, columns: Mapping[int, pa.ChunkedArray], rows: int, *, verified: bool) -> pa.Table:
        typed = [
            pa.nulls(rows, field.type) if index is None else _typed(columns[index], field.type, verified=verified)
            for field, index in zip(self.schema, self._layout.indexes, strict=True)
        ]
        return pa.Table.from_arrays(typed, schema=self.schema)


def _parted(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with the line breaks of joined records, if it is text; works on the buffer of all values."""
    if not pa.types.is_string(column.type):
        return column
    chunks = []
    for chunk in column.chunks:
        valid, ends, data = chunk.buffers()
        text = pa.py_buffer(parted(data.to_pybytes())) if data is not None else None
        chunks.append(pa.StringArray.from_buffers(len(chunk), ends, text, valid, chunk.null_count, chunk.offset))
    return pa.chunked_array(chunks, column.type)


def _reading_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a column with; timestamps as strings, because Arrow wants all zoned or none."""
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _typed(column: pa.ChunkedArray, kind: pa.DataType, *, verified: bool) -> pa.ChunkedArray | pa.Array:
    if pa.types.is_timestamp(kind):
        return to_moments(column.combine_chunks(), kind)
    if pa.types.is_decimal(kind):
        column.validate(full=True)  # Arrow's reader accepts 1e4 for a decimal(6,2): measured
    if pa.types.is_floating(kind) and not verified and pc.any(pc.is_inf(column)).as_py():
        raise pa.ArrowInvalid("a number too large for its type")
    return column
