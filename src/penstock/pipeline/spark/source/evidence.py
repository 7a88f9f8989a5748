"""Explain an inferred column: the value of the sample that forced its type, with its object and line.

A column is explained if its type is wider than that of most of its values, as when one text stands among numbers.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from penstock.errors import ObjectError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.spark.source.contents import read_lines
from penstock.pipeline.spark.source.inflate import codec_of
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

TEXT_MAX = 60  # characters of a value that are shown and stored
_SEARCHED_BYTES = 16 << 20  # of all objects together, to count the lines before a value
_SLICE_BYTES = 256 << 10
_DATE_LIKE = re.compile(
    r"\s*(?:[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}|[0-9]{1,2}[ -]?[A-Za-z]{3,9}[ ,-]|[A-Z][a-z]{2,8} [0-9])"
)


class Cause(StrEnum):
    """Why a value does not fit the type of most others."""

    TEXT = "text"  # among numbers, dates or booleans
    ZEROS = "leading zeros"
    DATES = "another way to write a date"
    RANGE = "out of range"
    MARK = "perhaps a null mark"
    NESTED = "nested otherwise"
    TYPE = "another type"


_REMARKS = {
    Cause.ZEROS: ", which has leading zeros",
    Cause.DATES: ", which is written in another way",
    Cause.RANGE: ", which is out of range",
    Cause.MARK: ", which may mean NULL",
    Cause.NESTED: ", which is nested otherwise",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A value of the sample. Its line begins at ``offset``, or it is in row ``row``; neither: the object has it."""

    text: str  # as in the file, cut
    ref: ObjectRef
    offset: int | None = None
    row: int | None = None


@dataclass(slots=True)
class Tally:
    """The values seen in one column: the count of each kind, and the first value of each."""

    counts: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, Example] = field(default_factory=dict)

    def count(self, kind: str) -> bool:
        """Count a value; return True if it is the first of its kind, which the caller puts into ``firsts``."""
        self.counts[kind] += 1
        return kind not in self.firsts


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEvidence:
    """The values that a sample has in one column, and the one that decided the type."""

    column: str  # of a nested field with the names of those around it: a.b
    type: str
    values: int  # without nulls
    frequent_type: str  # of most of the values
    frequent: int  # number of these
    cause: Cause | None  # None: the column's type is that of most values
    of_objects: bool = False  # what is counted are objects, and ``value`` is the type that one has
    value: str = ""  # the deciding one, as in the file
    object: str = ""  # its address
    offset: int | None = None
    line: int | None = None  # from 1; None: too far into its object to be counted, or the format has none
    row: int | None = None

    @property
    def is_lossless(self) -> bool:
        """True if the wider type has each value as a number or time, not as text."""
        return self.type in ("DOUBLE", "TIMESTAMP", "BIGINT")

    def sentence(self, source: str) -> str:
        """Return the explanation for a person. ``source``: the address that those of objects are shortened by."""
        return f"{self.column} is {self.type}{' ' if self.cause is not None else ': '}{self.reason(source)}"

    def reason(self, source: str) -> str:
        """Return the explanation without the column's name and type."""
        where = self.where(source)
        most = f"{self.frequent:,} of {self.values:,}" if self.frequent < self.values else f"all {self.values:,}"
        common = f"{most} {'objects have it as' if self.of_objects else 'values are'} {self.frequent_type}"
        shown = f"it is {self.value} in {where}" if self.of_objects else f"{self.value} in {where}"
        if not self.values:
            return "no value in the sample"
        if self.cause is None:
            return f"{common}, such as {self.value} in {where}" if not self.of_objects else f"{common}, first {where}"
        return f"since {shown}{_REMARKS.get(self.cause, '')}; {common}"

    def where(self, source: str) -> str:
        """Return the place of the deciding value: the object and, if it has one, the line or row."""
        name = short_uri(self.object, source)
        if self.line is not None:
            return f"{name}, line {self.line:,}"
        if self.row is not None:
            return f"{name}, row {self.row:,}"
        return name if self.offset is None else f"{name}, byte {self.offset:,}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON; `evidence_from_json` reads them."""
        return asdict(self)


def evidence_from_json(fields: Mapping[str, Any]) -> ColumnEvidence:
    """Return the evidence of `ColumnEvidence.as_json`."""
    cause = fields.get("cause")
    return ColumnEvidence(**{**fields, "cause": None if cause is None else Cause(cause)})


def evidence_of(
    column: str,
    type_text: str,
    tally: Tally,
    *,
    labels: Mapping[str, str],
    cause: Callable[[str, Example], Cause],
    of_objects: bool = False,
) -> ColumnEvidence:
    """Return the evidence for the type of a column.

    Args:
        column: Its name.
        type_text: Its type.
        tally: Its values.
        labels: The type of each kind of value.
        cause: Returns why a value of a kind does not fit the most frequent type.
        of_objects: The values are the types that objects have.
    """
    by_type: Counter[str] = Counter()
    for kind, count in tally.counts.items():
        by_type[labels[kind]] += count
    frequent = max(by_type, key=lambda name: (by_type[name], name == type_text), default=type_text)
    others = [kind for kind in tally.firsts if labels[kind] != frequent]
    if frequent == type_text or not others:
        decisive = next((kind for kind in tally.firsts if labels[kind] == frequent), None)
    else:
        decisive = next((kind for kind in others if labels[kind] == type_text), others[0])
    found = tally.firsts.get(decisive) if decisive is not None else None
    is_wider = frequent != type_text and bool(others)
    return ColumnEvidence(
        column=column,
        type=type_text,
        values=sum(by_type.values()),
        frequent_type=frequent,
        frequent=by_type[frequent],
        cause=cause(str(decisive), found) if found is not None and is_wider else None,
        of_objects=of_objects,
        value=found.text if found is not None else "",
        object=found.ref.uri if found is not None else "",
        offset=found.offset if found is not None else None,
        row=found.row if found is not None else None,
    )


def cut(text: str) -> str:
    """Return the beginning of a value, as valid Unicode."""
    begun = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
    return begun.encode("utf-8", errors="backslashreplace").decode()


def quoted(text: str) -> str:
    """Return a text in quotes, which show that it is one."""
    return f'"{text}"'


def looks_like_date(text: str) -> bool:
    """Return True if a text resembles a date, in whatever order and spelling."""
    return _DATE_LIKE.match(text.strip('"')) is not None


def short_uri(uri: str, source: str) -> str:
    """Return an object's address relative to its source; the whole address if it is elsewhere."""
    for root in (source.rstrip("/"), f"file://{source.rstrip('/')}"):
        if source and uri.startswith(f"{root}/"):
            return uri.removeprefix(f"{root}/")
    return uri


def with_lines(
    found: Sequence[ColumnEvidence], sample: Iterable[ObjectRef], store: ObjectStore, options: ReadOptions
) -> Sequence[ColumnEvidence]:
    """Return the evidence with the numbers of lines, as far as they are near enough to the objects' beginnings."""
    wanted: dict[str, list[int]] = {}
    for one in found:
        if one.offset is not None:
            wanted.setdefault(one.object, []).append(one.offset)
    lines: dict[tuple[str, int], int] = {}
    left = _SEARCHED_BYTES
    for ref in sample:
        offsets = [offset for offset in sorted(set(wanted.get(ref.uri, ()))) if offset <= left]
        if offsets:
            left -= offsets[-1]
            lines |= {(ref.uri, offset): line for offset, line in _lines(ref, store, options, offsets)}
    return [replace(one, line=lines.get((one.object, -1 if one.offset is None else one.offset))) for one in found]


def _lines(
    ref: ObjectRef, store: ObjectStore, options: ReadOptions, offsets: Sequence[int]
) -> Iterable[tuple[int, int]]:
    """Return the number of the line that begins at each offset, in ascending order."""
    plain = replace(options, format="text", block_bytes=_SLICE_BYTES, inflated_bytes_verified_max=0)
    # of a compressed object, all of it is one piece
    stop = ref.size_bytes if codec_of(ref) is not None else min(ref.size_bytes, offsets[-1] + 1)
    found: list[tuple[int, int]] = []
    before = 1
    try:
        with store.open(ref) as reader:
            for part in read_lines(reader, Piece(object=0, start=0, stop=stop), plain):
                end = part.offset + len(part.lines)
                while len(found) < len(offsets) and offsets[len(found)] < end:
                    offset = offsets[len(found)]
                    found.append((offset, before + part.lines.count(b"\n", 0, max(0, offset - part.offset))))
                if len(found) == len(offsets):
                    break
                before += part.lines.count(b"\n")
    except ObjectError:
        return found
    return found
