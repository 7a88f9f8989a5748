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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa

from penstock.errors import ObjectError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.csv_dialect import detect
from penstock.pipeline.spark.source.csv_lines import (
    FALSE_TEXTS,
    TRUE_TEXTS,
    Field,
    Misquoted,
    is_blank,
    is_number,
    is_special,
    null_texts,
    split,
)
from penstock.pipeline.spark.source.csv_records import header_names, parted
from penstock.pipeline.spark.source.ddl import TIMESTAMP, may_be_column
from penstock.pipeline.spark.source.fit import wider
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked_csv
from penstock.pipeline.spark.source.samples import sample_chunks, sample_lines
from penstock.pipeline.spark.source.spellings import is_date, is_moment

NULL_MARKS = frozenset(
    {"NA", "N/A", "n/a", "na", "NULL", "null", "Null", "None", "none", "#N/A", "#NA", "<NA>", "-", "?", "."}
)
_DIALECT_BYTES = 256 << 10
_DIGITS_MAX = 38
_TEXTS_KEPT = len(NULL_MARKS)
_SHOWN_MAX = 5


def infer_csv(
    sample: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions, *, delimiter_given: bool
) -> tuple[Sequence[pa.Field], Sequence[str], CsvOptions]:
    """Return the columns, sentences about what may surprise, and the dialect."""
    given = checked_csv(options.csv)
    dialect = detect(_beginning(sample, store, options), given, delimiter_given=delimiter_given)
    options = replace(options, csv=dialect.csv)
    columns: dict[str, _Column] = {}
    left_out: dict[str, None] = {}
    for ref in sample:
        try:
            for name, text in _values(ref, store, options, objects=len(sample)):
                if not may_be_column(name):
                    left_out[name] = None
                    continue
                columns.setdefault(name.lower(), _Column(name=name)).add(text, dialect.csv)
        except ObjectError:
            continue  # the read itself will fail on it and report it
    marks = sorted({mark for column in columns.values() for mark in column.marks()})
    notes = list(dialect.notes)
    if marks:
        notes.append(f"{', '.join(marks[:_SHOWN_MAX])} mean NULL, except in columns of strings")
    notes += [f"{name!r}: left out, since no column can have this name" for name in left_out]
    fields = [pa.field(column.name, column.type()) for column in columns.values()]
    return fields, notes, replace(dialect.csv, null_marks=(*dialect.csv.null_marks, *marks))


def column_type(texts: Iterable[str], csv: CsvOptions) -> pa.DataType:
    """Return the narrowest type that holds these values of one column."""
    column = _Column(name="")
    for text in texts:
        column.add(Field(text, False), csv)
    return column.type()


@dataclass(slots=True)
class _Column:
    """The values of a column in the sample: the count of each kind, and the first texts."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    texts: set[str] = field(default_factory=set)

    def add(self, value: Field | None, csv: CsvOptions) -> None:
        if value is None or value.text in null_texts(csv):
            return
        kind = _kind(value)
        self.kinds[kind] += 1
        if kind == "text" and len(self.texts) <= _TEXTS_KEPT:
            self.texts.add(value.text)

    def marks(self) -> frozenset[str]:
        """Return the null marks, if they are all the text of a column with other values."""
        others = self.kinds.keys() - {"text"}
        return frozenset(self.texts) if others and self.texts <= NULL_MARKS else frozenset()

    def type(self) -> pa.DataType:
        """Return the narrowest type that holds the values."""
        kinds = set(self.kinds)
        if self.marks():
            kinds.discard("text")
        if kinds == {"special"} or {"padded date", "time"} <= kinds:
            return pa.string()
        types = [_TYPES[kind] for kind in sorted(kinds)]
        return reduce(wider, types) if types else pa.string()


_TYPES = {
    "whole": pa.int64(),
    "huge": pa.decimal128(_DIGITS_MAX, 0),
    "number": pa.float64(),
    "special": pa.float64(),  # NaN and infinity
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "padded date": pa.date32(),  # with blanks around it, which times must not have
    "time": TIMESTAMP,
    "text": pa.string(),
}


def _kind(value: Field) -> str:
    text = value.text.strip(" \t")
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        if len(digits) > 1 and digits.startswith("0"):
            return "text"  # 007 is more likely a name than a number
        if -(1 << 63) <= int(text[: _DIGITS_MAX + 2]) < 1 << 63 and len(digits) <= _DIGITS_MAX:
            return "whole"
        return "huge" if len(digits) <= _DIGITS_MAX else "text"
    if is_number(text):
        begun = digits.removeprefix("+")
        has_zeros = begun[:1] == "0" and begun[1:2].isdigit()
        return "number" if not has_zeros and math.isfinite(float(text)) else "text"
    if is_special(text):
        return "special"
    if value.text in TRUE_TEXTS or value.text in FALSE_TEXTS:
        return "boolean"
    if is_date(text):
        return "date" if text == value.text else "padded date"
    return "time" if is_moment(value.text) else "text"


def _beginning(sample: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions) -> str:
    """Return the first lines of the first object that has any."""
    plain = replace(options, format="text")
    for ref in sample:
        lines, size_bytes = [], 0
        for line in sample_lines(ref, store, plain, objects=1):
            lines.append(line)
            size_bytes += len(line)
            if size_bytes > _DIALECT_BYTES:
                break
        if any(line.strip() for line in lines):
            return b"\n".join(lines).decode(errors="replace")
    return ""


def _values(
    ref: ObjectRef, store: ObjectStore, options: ReadOptions, *, objects: int
) -> Iterator[tuple[str, Field | None]]:
    """Yield names and values of the sample rows; each name at least once."""
    csv = options.csv
    names: list[str] = []
    for chunk in sample_chunks(ref, store, options, objects=objects):
        if csv.header and not names:
            names = header_names(chunk.header, csv, ref.uri)
            yield from ((name, None) for name in names)
        for found in _rows(chunk, csv):
            if not csv.header:
                names = names or [f"_c{number}" for number in range(len(found))]  # as Spark names them
            if len(found) == len(names):
                yield from zip(names, found, strict=True)


def _rows(chunk: LineChunk, csv: CsvOptions) -> Iterator[list[Field]]:
    for line in chunk.lines.split(b"\n")[:-1]:
        try:
            if not is_blank(line, csv):
                yield split((parted(line) if chunk.joined else line).decode().removesuffix("\r"), csv)
        except (Misquoted, UnicodeDecodeError):
            continue
