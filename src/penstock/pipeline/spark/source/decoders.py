"""Choose the decoder of a source's format (for CSV, one per header), and decode plain text.

In plain text every line is a string, including the empty line, whatever it contains, as long as it is UTF-8. A line
ends with a newline; a carriage return directly before it belongs to the line ending, and any other is a normal
character.
"""

import numpy as np
import pyarrow as pa

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import NEWLINE, RETURN, Decoded, Decoder, Flags, Lines, invalid_utf8
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_records import layout_of
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.options import ReadOptions

_KEPT_MAX = 64


class TextDecoder:
    """A `Decoder` for plain text. ``schema`` has one column of strings."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:  # noqa: ARG002 # only CSV uses it
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


class Decoders:
    """Decoders by header. Equal headers share one, so that a block can hold many small objects."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._schema = parse_ddl(options.schema_ddl)
        self._known: dict[bytes, Decoder] = {}  # by header; written by the one thread that reads the partition

    def of(self, header: bytes, uri: str) -> Decoder:
        """Return the decoder for lines under this header. Raises `ObjectUnreadable` if it does not fit the schema."""
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


def _strings(block: bytes, lines: Lines, returns: Flags, kept: Flags) -> pa.StringArray:
    """Return the kept lines without their endings; builds the Arrow buffers directly."""
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
