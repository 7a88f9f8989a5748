"""The formats of a source: what the driver needs to know of each. readers.py has their readers.

A format cuts an object into units: lines, row groups, stripes, or the whole object. A piece of an object is a byte
range and owns the units that begin in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.ddl import OFFSET, ROW
from penstock.pipeline.spark.source.inflate import CODECS, plain_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format as the driver plans it."""

    position: pa.Field = OFFSET  # the column with a row's place in its object: a byte offset, or the row's number
    is_inflated: bool = True  # compressed objects are
    can_be_cut: bool = True  # False: an object is one unit
    is_read_in_order: bool = True  # False: a reader skips parts of its piece
    inflation: int = 1  # cost of one stored byte, in bytes of plain lines
    suffixes: tuple[bytes, ...]  # names of objects end so, before the suffix of a compression
    has_own_schema: bool = False  # nothing has to be declared or inferred
    can_be_named: bool = True  # False: chosen in another way
    can_grow: bool = False  # what is appended to an object can be read alone


OWN_FORMAT = "reader"  # read by a function of the user's

FORMATS: Mapping[str, Format] = {
    "jsonl": Format(suffixes=(b".jsonl", b".ndjson", b".json"), can_grow=True),
    "csv": Format(suffixes=(b".csv", b".tsv"), can_grow=True),
    "text": Format(suffixes=(b".txt", b".log"), has_own_schema=True, can_grow=True),
    "json": Format(suffixes=(), position=ROW, can_be_cut=False, inflation=2),  # documents; names do not tell
    "parquet": Format(
        suffixes=(b".parquet", b".parq"), position=ROW, is_inflated=False, is_read_in_order=False, inflation=4
    ),
    "orc": Format(suffixes=(b".orc",), position=ROW, is_inflated=False, is_read_in_order=False, inflation=4),
    "avro": Format(suffixes=(b".avro",), position=ROW, is_inflated=False, inflation=6),
    "binary": Format(suffixes=(), position=ROW, is_inflated=False, can_be_cut=False, has_own_schema=True),
    OWN_FORMAT: Format(
        suffixes=(),
        position=ROW,
        is_inflated=False,
        can_be_cut=False,
        is_read_in_order=False,
        inflation=6,
        can_be_named=False,
    ),
}
DEFAULT_FORMAT = "jsonl"
_ZIP = b".zip"  # is not read, and fails with a reason
# in lower case: how the names of objects end that are read when formats follow from names
KNOWN_SUFFIXES = tuple(
    (plain + packed).decode()
    for kind in FORMATS.values()
    for plain in kind.suffixes
    for packed in (b"", _ZIP, *(suffix for codec in CODECS for suffix in codec.suffixes))
)


def format_by_names(objects: Iterable[ObjectRef], *, source: str) -> str:
    """Return the format that the names of objects tell, else the default. Raises `UsageError` if they differ."""
    found: dict[str, ObjectRef] = {}
    for ref in objects:
        name = _by_name(ref.key_bytes)
        if name is not None:
            found.setdefault(name, ref)
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise UsageError(
            f"The source {source} has objects of several formats, such as {first.uri} ({one}) and {second.uri} "
            f"({other}): ingest each from a folder of its own, or name the format of all (--format)."
        )
    return next(iter(found), DEFAULT_FORMAT)


def follows_from_names(objects: Iterable[ObjectRef]) -> bool:
    """Return True if an object's name tells its format."""
    return any(_by_name(ref.key_bytes) is not None for ref in objects)


def _by_name(key: bytes) -> str | None:
    name = plain_name(key)
    return next((each for each, kind in FORMATS.items() if kind.suffixes and name.endswith(kind.suffixes)), None)


def format_of(name: str) -> Format:
    """Return the format of this name. Raises `UsageError` if there is none."""
    if name not in FORMATS:
        raise unknown_format(name)
    return FORMATS[name]


def unknown_format(name: str) -> UsageError:
    """Return the error for a format that cannot be chosen by this name."""
    known = ", ".join(each for each, kind in FORMATS.items() if kind.can_be_named)
    return UsageError(f"The format {name!r} is unknown: this version reads {known}.")
