"""The decoder of a source's format; for CSV one for each header that its objects have.

Decode blocks of text: a line is a string, whatever is in it, as long as it is UTF-8.

The empty line is a row, too. A line ends with a newline, a carriage return before it belongs to the line's end; a
carriage return elsewhere is a character like others.
"""

import numpy as np
import pyarrow as pa

from penstock.pipeline.spark.source.blocks import NEWLINE, RETURN, Decoded, Decoder, Flags, Lines, invalid_utf8
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_records import layout_of
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.lines import QuarantineReason
from penstock.pipeline.spark.source.options import ReadOptions


class TextDecoder:
    """See `penstock.pipeline.spark.source.blocks.Decoder`. ``schema``: one column of strings."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:  # noqa: ARG002 # it tells of CSV
        lines = Lines.of(block)
        data = np.frombuffer(block, dtype=np.uint8)
        returns: Flags = (data[lines.ends - 1] == RETURN) & (lines.ends > lines.starts)
        invalid = dict(invalid_utf8(block, lines))
        kept = np.ones(len(lines.starts), dtype=np.bool_)
        kept[list(invalid)] = False
        return Decoded(
            rows=pa.table([_strings(block, lines, returns, kept)], schema=self._schema),
            starts=lines.starts[kept],
            bad=tuple(
                lines.bad(block, index, QuarantineReason.INVALID_UTF8, detail) for index, detail in invalid.items()
            ),
        )


def _strings(block: bytes, lines: Lines, returns: Flags, kept: Flags) -> pa.StringArray:
    """The kept lines without their ends; the buffers are made directly."""
    sizes = (lines.ends - returns - lines.starts)[kept]
    ends = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    text = block.replace(b"\n", b"") if kept.all() and not returns.any() else _picked(block, lines, returns, kept)
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), pa.py_buffer(text))


def _picked(block: bytes, lines: Lines, returns: Flags, kept: Flags) -> bytes:
    data = np.frombuffer(block, dtype=np.uint8)
    wanted = data != NEWLINE
    wanted[lines.ends[returns] - 1] = False
    for index in np.flatnonzero(~kept).tolist():
        wanted[lines.starts[index] : lines.ends[index]] = False
    return bytes(data[wanted])


_KEPT_MAX = 64


class Decoders:
    """Gives equal headers the same decoder, so that blocks can be put together of many small objects."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._schema = parse_ddl(options.schema_ddl)
        self._known: dict[bytes, Decoder] = {}  # by header; written by the one thread that reads the partition

    def of(self, header: bytes, uri: str) -> Decoder:
        """The decoder for lines below that header. Raises `ObjectUnreadable` where it is no header for the schema."""
        found = self._known.get(header)
        if found is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            found = self._known[header] = self._make(header, uri)
        return found

    def _make(self, header: bytes, uri: str) -> Decoder:
        match self._options.format:
            case "csv":
                layout = layout_of(header, self._schema, self._options.csv, uri)
                return CsvDecoder(self._schema, self._options.csv, layout)
            case "text":
                return TextDecoder(self._schema)
            case _:
                return JsonlDecoder(self._schema)
