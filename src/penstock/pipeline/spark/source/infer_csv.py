"""Infer the columns of CSV: a column gets the narrowest type that holds all of its values in the sample.

====================================  ==========================================
values of the sample, apart from NULL  type
====================================  ==========================================
whole numbers                         bigint, decimal(38,0) beyond 64 bits
numbers; NaN, Inf beside numbers      double
true, false                           boolean
dates; times; both                    date; timestamp; timestamp
anything else, and any other mixture  string, for example numbers with leading zeros
====================================  ==========================================

If texts such as NA are all that keeps a column from being numbers, they are null marks. In columns of strings they stay
text, since NA may also be a name.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import ObjectError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.spark.source.column_types import wider
from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.csv_dialect import FoundDialect, detect, difference
from penstock.pipeline.spark.source.csv_lines import (
    FALSE_TEXTS,
    TRUE_TEXTS,
    CsvClassifier,
    Field,
    Layout,
    Misquoted,
    is_blank,
    is_number,
    is_special,
    null_texts,
    split,
)
from penstock.pipeline.spark.source.csv_records import header_names, parted, unnamed_columns
from penstock.pipeline.spark.source.ddl import TIMESTAMP, may_be_column, type_text
from penstock.pipeline.spark.source.evidence import (
    Cause,
    ColumnEvidence,
    Example,
    Tally,
    cut,
    evidence_of,
    looks_like_date,
    quoted,
    short_uri,
)
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked_csv
from penstock.pipeline.spark.source.samples import lines_at, sample_chunks, sample_lines
from penstock.pipeline.spark.source.spellings import is_date, is_moment

NULL_MARKS = frozenset(
    {"NA", "N/A", "n/a", "na", "NULL", "null", "Null", "None", "none", "#N/A", "#NA", "<NA>", "-", "?", "."}
)
_DIALECT_BYTES = 256 << 10
_OTHER_DIALECT_BYTES = 16 << 10  # of objects whose dialect is only compared
_DIGITS_MAX = 38
_TEXTS_KEPT = len(NULL_MARKS)
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFindings:
    """The columns and the dialect of a sample, with the reasons."""

    columns: Sequence[pa.Field]
    evidence: Sequence[ColumnEvidence]
    notes: Sequence[str]  # sentences about what may surprise
    csv: CsvOptions


def infer_csv(
    sample: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions, *, delimiter_given: bool, source: str
) -> CsvFindings:
    """Return the findings. ``source``: the address that those of objects are shortened by."""
    given = checked_csv(options.csv)
    beginnings = _Beginnings(sample, store, options, given, delimiter_given=delimiter_given)
    dialect = beginnings.dialect
    options = replace(options, csv=dialect.csv)
    columns: dict[str, _Column] = {}
    left_out: dict[str, None] = {}
    headers = _Headers(source)
    names: Sequence[str] = ()
    found: list[_Column | None] = []
    nulls = frozenset(null_texts(dialect.csv))
    for ref in sample:
        try:
            for record in _records(ref, store, options, objects=len(sample)):
                if record.names is not names:
                    names = record.names
                    found = [_column(columns, left_out, name) for name in names]
                if record.fields is None:
                    headers.add(ref, names, record.unnamed)
                    continue
                for column, value in zip(found, record.fields, strict=True):
                    if column is not None and value.text not in nulls:
                        column.add(value, ref, record.offset)
        except ObjectError:
            continue  # the read itself will fail on it and report it
    marks = sorted({mark for column in columns.values() for mark in column.marks()})
    notes = [*dialect.notes, *beginnings.differences(source), *headers.notes()]
    if marks:
        notes.append(f"{', '.join(marks[:_SHOWN_MAX])} mean NULL, except in columns of strings")
    notes += [f"{name!r}: left out, since no column can have this name" for name in left_out]
    return CsvFindings(
        columns=[pa.field(column.name, column.type()) for column in columns.values()],
        evidence=[column.evidence() for column in columns.values()],
        notes=notes,
        csv=replace(dialect.csv, null_marks=(*dialect.csv.null_marks, *marks)),
    )


def column_type(texts: Iterable[str]) -> pa.DataType:
    """Return the narrowest type that holds these values of one column."""
    column = _Column(name="")
    for text in texts:
        column.count(Field(text, False))
    return column.type()


@dataclass(slots=True)
class _Column:
    """The values of a column in the sample: the count of each kind, and the first texts."""

    name: str
    tally: Tally = field(default_factory=Tally)
    texts: set[str] = field(default_factory=set)

    def add(self, value: Field, ref: ObjectRef, offset: int) -> None:
        kind = self.count(value)
        if kind is not None:
            self.tally.firsts[kind] = Example(text=quoted(cut(value.text)), ref=ref, offset=offset)

    def count(self, value: Field) -> str | None:
        """Count a value. Return its kind if it is the first of its kind."""
        kind = _kind(value)
        if kind == "text" and len(self.texts) <= _TEXTS_KEPT:
            self.texts.add(value.text)
        return kind if self.tally.count(kind) else None

    def marks(self) -> frozenset[str]:
        """Return the null marks, if they are all the text of a column with other values."""
        others = self.tally.counts.keys() - {"text"}
        are_marks = others and not others & _TEXTUAL and self.texts <= NULL_MARKS
        return frozenset(self.texts) if are_marks else frozenset()

    def type(self) -> pa.DataType:
        """Return the narrowest type that holds the values."""
        kinds = set(self.tally.counts)
        if self.marks():
            kinds.discard("text")
        if kinds == {"special"} or {"padded date", "time"} <= kinds:
            return pa.string()
        types = [_TYPES[kind] for kind in sorted(kinds)]
        return reduce(wider, types) if types else pa.string()

    def evidence(self) -> ColumnEvidence:
        tally = self.tally
        if self.marks():
            tally = Tally(
                counts=tally.counts.copy(), firsts={kind: one for kind, one in tally.firsts.items() if kind != "text"}
            )
            del tally.counts["text"]
        return evidence_of(self.name, type_text(self.type()), tally, labels=_LABELS, cause=self._cause)

    def _cause(self, kind: str, example: Example) -> Cause:
        others = self.tally.counts.keys() - {kind}
        match kind:
            case "zeros":
                return Cause.ZEROS
            case "huge" | "overflow":
                return Cause.RANGE
            case "text" if looks_like_date(example.text) and others & _DATES:
                return Cause.DATES
            case "text" if len(self.texts) == 1:
                return Cause.MARK
            case "text":
                return Cause.TEXT
            case _ if kind in _DATES and others & _DATES:
                return Cause.DATES
            case _:
                return Cause.TYPE


def _column(columns: dict[str, _Column], left_out: dict[str, None], name: str) -> _Column | None:
    """Return the column of this name, a new one if need be; None if no column can have it."""
    if not may_be_column(name):
        left_out[name] = None
        return None
    return columns.setdefault(name.lower(), _Column(name=name))


_TYPES = {
    "whole": pa.int64(),
    "huge": pa.decimal128(_DIGITS_MAX, 0),
    "number": pa.float64(),
    "special": pa.float64(),  # NaN and infinity
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "padded date": pa.date32(),  # with blanks around it, which times must not have
    "time": TIMESTAMP,
    "zeros": pa.string(),  # 007 is more likely a name than a number
    "overflow": pa.string(),  # a number that no type holds
    "text": pa.string(),
}
_LABELS = {kind: type_text(found) for kind, found in _TYPES.items()}
_TEXTUAL = frozenset({"zeros", "overflow"})
_DATES = frozenset({"date", "padded date", "time"})
_BIGINT = CsvClassifier(pa.schema([("value", pa.int64())]), CsvOptions(), Layout(fields=1, indexes=(0,)))


def _kind(value: Field) -> str:
    text = value.text.strip(" \t")
    digits = text.removeprefix("+" if text.startswith("+") and _has_plus_numbers() else "-")
    if digits.isascii() and digits.isdigit():
        if len(digits) > 1 and digits.startswith("0"):
            return "zeros"
        if len(digits) <= _DIGITS_MAX and -(1 << 63) <= int(text) < 1 << 63:
            return "whole"
        return "huge" if len(digits) <= _DIGITS_MAX else "overflow"
    if is_number(text):
        begun = text.removeprefix("-").removeprefix("+")
        if begun[:1] == "0" and begun[1:2].isdigit():
            return "zeros"
        return "number" if math.isfinite(float(text)) else "overflow"
    if is_special(text):
        return "special"
    if value.text in TRUE_TEXTS or value.text in FALSE_TEXTS:
        return "boolean"
    if is_date(text):
        return "date" if text == value.text else "padded date"
    return "time" if is_moment(value.text) else "text"


@cache
def _has_plus_numbers() -> bool:
    """Return True if the reader takes +5 for a whole number."""
    return _BIGINT.reason(b"+5") is None


class _Beginnings:
    """The dialect of each object of the sample, from its first lines. That of the first object with any is used."""

    def __init__(
        self,
        sample: Sequence[ObjectRef],
        store: ObjectStore,
        options: ReadOptions,
        given: CsvOptions,
        *,
        delimiter_given: bool,
    ) -> None:
        self._found: list[tuple[ObjectRef, FoundDialect]] = []
        plain = replace(options, format="text")
        for ref in sample:
            size_bytes_max = _DIALECT_BYTES if not self._found else _OTHER_DIALECT_BYTES
            text = _beginning(ref, store, plain, size_bytes_max)
            if text.strip():
                self._found.append((ref, detect(text, given, delimiter_given=delimiter_given)))
        self.dialect = self._found[0][1] if self._found else detect("", given, delimiter_given=delimiter_given)

    def differences(self, source: str) -> list[str]:
        """Return a sentence for the first object with another dialect."""
        notes = []
        for ref, dialect in self._found[1:]:
            first = self._found[0][0]
            if (phrases := difference(self.dialect, dialect)) is not None:
                one, other = short_uri(first.uri, source), short_uri(ref.uri, source)
                notes.append(
                    f"{one} {phrases[0]}, and {other} {phrases[1]}: all are read like the former, so ingest those like "
                    "the latter from a folder of their own"
                )
        return notes[:1]


class _Headers:
    """The names in the headers of the sample's objects, and the columns that lack one."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._first: tuple[ObjectRef, Sequence[str]] | None = None
        self._other: tuple[ObjectRef, Sequence[str]] | None = None  # the first with other names
        self._unnamed: Sequence[str] = ()  # columns of the first header that lacks names

    def add(self, ref: ObjectRef, names: Sequence[str], unnamed: Sequence[str]) -> None:
        self._unnamed = self._unnamed or unnamed
        if self._first is None:
            self._first = ref, names
        elif self._other is None and _folded(names) != _folded(self._first[1]):
            self._other = ref, names

    def notes(self) -> list[str]:
        """Return a sentence if columns have no name, and one if headers differ."""
        return [*self._without_names(), *self._differences()]

    def _without_names(self) -> list[str]:
        if not self._unnamed:
            return []
        if len(self._unnamed) == 1:
            [name] = self._unnamed
            which = "the first column" if name == "_c0" else "a column"
            return [f"the header does not name {which}, which is {name}"]
        more = f" and {len(self._unnamed) - _SHOWN_MAX} more" if len(self._unnamed) > _SHOWN_MAX else ""
        named = ", ".join(self._unnamed[:_SHOWN_MAX])
        return [f"the header does not name {len(self._unnamed)} columns, which are {named}{more}"]

    def _differences(self) -> list[str]:
        if self._first is None or self._other is None:
            return []
        parts = []
        for (ref, names), (_, others) in ((self._first, self._other), (self._other, self._first)):
            only = [name for name in names if name.lower() not in _folded(others)]
            if only:
                more = f" and {len(only) - _SHOWN_MAX} more" if len(only) > _SHOWN_MAX else ""
                parts.append(f"only {short_uri(ref.uri, self._source)} has {', '.join(only[:_SHOWN_MAX])}{more}")
        return [f"headers differ: {'; '.join(parts)}; where a column is missing, it is null"]


def _folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _beginning(ref: ObjectRef, store: ObjectStore, plain: ReadOptions, size_bytes_max: int) -> str:
    """Return the first lines of an object."""
    lines, size_bytes = [], 0
    for line in sample_lines(ref, store, plain, objects=1):
        lines.append(line)
        size_bytes += len(line)
        if size_bytes > size_bytes_max:
            break
    return b"\n".join(lines).decode(errors="replace")


class _SampledRecord(NamedTuple):
    names: Sequence[str]
    fields: Sequence[Field] | None  # None: it is the header
    offset: int  # of its first line
    unnamed: Sequence[str] = ()  # of the names: those that the header does not have


def _records(ref: ObjectRef, store: ObjectStore, options: ReadOptions, *, objects: int) -> Iterator[_SampledRecord]:
    """Yield the header, if there is one, and the records of the sample that have as many fields."""
    csv = options.csv
    names: list[str] = []
    for chunk in sample_chunks(ref, store, options, objects=objects):
        if csv.header and not names:
            names = header_names(chunk.header, csv, ref.uri)
            unnamed = [names[place] for place in unnamed_columns(chunk.header, csv, ref.uri)]
            yield _SampledRecord(names, None, 0, unnamed[1:] if csv.unnamed_first else unnamed)
        for offset, found in _rows(chunk, csv):
            if not csv.header:
                names = names or [f"_c{number}" for number in range(len(found))]  # as Spark names them
            if len(found) == len(names):
                yield _SampledRecord(names, found, offset)


def _rows(chunk: LineChunk, csv: CsvOptions) -> Iterator[tuple[int, list[Field]]]:
    for offset, line in lines_at(chunk):
        try:
            if not is_blank(line, csv):
                yield offset, split((parted(line) if chunk.joined else line).decode().removesuffix("\r"), csv)
        except (Misquoted, UnicodeDecodeError):
            continue
