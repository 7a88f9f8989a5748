"""Decode plain text: every line is a string, also an empty one, as long as it is UTF-8.

A line ends with a newline; a carriage return directly before it belongs to the line ending, and any other is a normal
character.
"""

import numpy as np
import pyarrow as pa

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import NEWLINE, RETURN, Decoded, Flags, Lines, invalid_utf8


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
