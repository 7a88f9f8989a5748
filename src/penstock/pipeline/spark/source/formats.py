"""The formats of a source: what the driver needs to know of each. readers.py has their readers.

A format cuts an object into units: lines, row groups, stripes, or the whole object. A piece of an object is a byte
range and owns the units that begin in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.pipeline.spark.source.ddl import OFFSET, ROW


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format as the driver plans it."""

    position: pa.Field = OFFSET  # the column with a row's place in its object: a byte offset, or the row's number
    is_lines: bool = True  # otherwise, compressed objects are not inflated
    can_be_cut: bool = True  # False: an object is one unit
    inflation: int = 1  # cost of one stored byte, in bytes of plain lines
    has_names: bool = True  # an object names its columns


FORMATS: Mapping[str, Format] = {
    "jsonl": Format(),
    "csv": Format(),
    "text": Format(has_names=False),
    "parquet": Format(position=ROW, is_lines=False, inflation=4),
    "orc": Format(position=ROW, is_lines=False, inflation=4),
}


def format_of(name: str) -> Format:
    """Return the format of this name. Raises `UsageError` if there is none."""
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"The format {name!r} is unknown: this version reads {known}.")
    return FORMATS[name]
