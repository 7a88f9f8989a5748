"""Infer a schema from a bounded sample, for sources without a declared one. The caller logs and stores it.

`samples` reads the first lines of some objects as values; `infer_schema` counts the kinds of values per field.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from penstock.errors import ObjectError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.spark.source.columnar import schema_of
from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.csv_lines import (
    FALSE_TEXTS,
    TRUE_TEXTS,
    Field,
    Misquoted,
    is_blank,
    null_texts,
    split,
)
from penstock.pipeline.spark.source.csv_records import header_names, read_parts
from penstock.pipeline.spark.source.ddl import PROVENANCE, TIMESTAMP, format_ddl, type_text
from penstock.pipeline.spark.source.fit import storable, wider
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.inflate import codec_of
from penstock.pipeline.spark.source.jsonl_lines import Classifier
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked
from penstock.pipeline.spark.source.plan import Piece

_OBJECTS_MAX = 20
_LINES_MAX = 1_000  # of one object
_BYTES_MAX = 1 << 20  # of one object
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")  # 007 is more likely a name than a number
_REAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DIGITS_MAX = 40

Sample = Mapping[str, Any]

_PLAIN_NAME = re.compile(r"\S(?:.*\S)?")
_TIME_LIKE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_MOMENTS = Classifier(pa.schema([("value", TIMESTAMP)]))
_DEPTH_MAX = 16
_NOTES_MAX = 10
_EXACT_MAX = 1 << 53  # beyond this, a double cannot represent all whole numbers

# Groups of kinds that share a column, by group name; on a tie the earlier group wins.
_FAMILIES = (
    ("text", ("text", "time")),
    ("numbers", ("real", "whole", "large", "huge")),
    ("booleans", ("boolean",)),
    ("objects", ("object",)),
    ("lists", ("list",)),
)


def samples(objects: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions) -> Iterator[Sample]:
    """Yield names and values from the first lines of some objects, spread evenly over all of them."""
    options = ReadOptions(format=options.format, csv=options.csv, block_bytes=_BYTES_MAX, inflated_bytes_verified_max=0)
    for ref in _spread(objects):
        try:
            parts = _first_parts(ref, store, options)
            names = header_names(parts[0].header, options.csv, ref.uri) if parts else []
        except ObjectError:
            continue  # the read itself will fail on it and report it
        lines = b"".join(part.lines for part in parts).split(b"\n")[:_LINES_MAX]
        if options.format == "csv":
            yield from _csv_samples(lines, names, options.csv)
        else:
            yield from _json_samples(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """An inferred schema, with a sentence for each column whose values did not agree."""

    ddl: str
    notes: tuple[str, ...]


def infer_schema(objects: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions | None = None) -> Inferred:
    """Infer the DDL from the first lines of some objects, spread evenly over all of them.

    ``options``: format and CSV dialect; JSON lines if not given. Text always has one column. Columns of CSV without a
    header are _c0, _c1 and so on.

    Whole numbers become bigint, mixed with others double; text becomes timestamp if all of it is times, else string. If
    values disagree, the majority decides, so that one bad line does not cost the others their column; the notes name
    the minority, whose lines will be quarantined. Columns are in the order of their first appearance; one without any
    value is string.

    Raises `UsageError` if no line of the sample is an object with a field.
    """
    options = options or ReadOptions()
    if options.format == "text":
        return Inferred(ddl=checked(options).schema_ddl, notes=())
    if not format_of(options.format).is_lines:
        return _from_footers(objects, store, options.format)
    root = _Votes()
    for value in samples(objects, store, options):
        _vote(root, value, depth=0)
    if options.format == "csv":
        _let_strings_hold_all(root)
    notes: list[str] = []
    kind = _settled(root, (), notes)
    if kind is None or not pa.types.is_struct(kind):
        wanted = "is a JSON object with a field" if options.format == "jsonl" else "can be read as CSV with a column"
        raise UsageError(
            f"No line of the sample ({objects[0].uri if objects else 'it is empty'}, ...) {wanted}: give the schema "
            "(--schema), or look at the files."
        )
    return Inferred(ddl=format_ddl(pa.schema(list(kind))), notes=tuple(notes[:_NOTES_MAX]))


def _spread(objects: Sequence[ObjectRef]) -> Iterator[ObjectRef]:
    """Yield some objects, spread evenly over all of them."""
    step = max(1, len(objects) // _OBJECTS_MAX)
    return islice(objects[::step], _OBJECTS_MAX)


def _from_footers(objects: Sequence[ObjectRef], store: ObjectStore, format_name: str) -> Inferred:
    """Return the columns of objects that have a schema of their own, in the order of their first appearance.

    If objects disagree about a column, it gets the type that holds the values of all, in the end a string.
    """
    columns: dict[str, pa.Field] = {}
    notes: list[str] = []
    for ref in _spread(objects):
        try:
            with store.open(ref) as reader:
                found = schema_of(reader, format_name) if ref.size_bytes else pa.schema([])
        except ObjectError:
            continue  # the read itself will fail on it and report it
        for one in found:
            if _is_no_column(one.name, depth=0):
                notes.append(f"{one.name!r}: left out, since no column can have this name")
                continue
            known = columns.get(one.name.lower())
            kind = storable(one.type)
            if known is not None and known.type != kind:
                notes.append(f"{one.name}: {type_text(known.type)} and {type_text(kind)} in the sample")
                kind = wider(known.type, kind)
            columns[one.name.lower()] = pa.field(known.name if known is not None else one.name, kind)
    if not columns:
        raise UsageError(
            f"No object of the sample ({objects[0].uri if objects else 'it is empty'}, ...) can be read as "
            f"{format_name} with a column: give the schema (--schema), or look at the files."
        )
    return Inferred(ddl=format_ddl(pa.schema(list(columns.values()))), notes=tuple(notes[:_NOTES_MAX]))


def _first_parts(ref: ObjectRef, store: ObjectStore, options: ReadOptions) -> list[LineChunk]:
    stop = ref.size_bytes if codec_of(ref) else min(ref.size_bytes, _BYTES_MAX)
    parts: list[LineChunk] = []
    lines = size_bytes = 0
    with store.open(ref) as reader:
        for part in read_parts(reader, Piece(object=0, start=0, stop=stop), options):
            if not isinstance(part, LineChunk):
                continue
            parts.append(part)
            lines += part.lines.count(b"\n")
            size_bytes += len(part.lines)
            if lines > _LINES_MAX or size_bytes >= _BYTES_MAX:
                break
    return parts


def _json_samples(lines: Sequence[bytes]) -> Iterator[Sample]:
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _csv_samples(lines: Sequence[bytes], header: Sequence[str], csv: CsvOptions) -> Iterator[Sample]:
    """Yield the rows of CSV lines as dictionaries; a header without rows yields its column names.

    A name that the header has twice is left out: the object could not be read with it.
    """
    folded = [name.lower() for name in header]
    names = [name if folded.count(name.lower()) == 1 else "" for name in header]
    if csv.header:
        yield dict.fromkeys(filter(None, names))
    for line in lines:
        try:
            fields = [] if is_blank(line, csv) else split(line.decode().removesuffix("\r"), csv)
        except (Misquoted, UnicodeDecodeError):
            continue
        if not csv.header:
            names = [f"_c{number}" for number in range(len(fields))]  # as Spark names them
        if fields and len(fields) == len(names):
            yield {name: _value(field, csv) for name, field in zip(names, fields, strict=True) if name}


def _value(field: Field, csv: CsvOptions) -> Any:
    """Return the value that a JSON reader would return for the field."""
    text = field.text.strip()
    if field.text in null_texts(csv):
        return None
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) <= _DIGITS_MAX else field.text
    if _REAL.fullmatch(text):
        return float(text)
    if field.text in TRUE_TEXTS or field.text in FALSE_TEXTS:
        return field.text in TRUE_TEXTS
    return field.text


@dataclass(slots=True)
class _Votes:
    """The values seen at one position: the count of each kind, and the values inside lists and objects."""

    kinds: Counter[str] = field(default_factory=Counter)
    element: "_Votes | None" = None
    fields: "dict[str, _Votes]" = field(default_factory=dict)


def _vote(votes: _Votes, value: Any, *, depth: int) -> None:
    if depth > _DEPTH_MAX:
        votes.kinds["text"] += 1
        return
    kind = _kind(value)
    votes.kinds[kind] += 1
    if kind == "list":
        votes.element = votes.element or _Votes()
        for item in value:
            _vote(votes.element, item, depth=depth + 1)
    elif kind == "object":
        for name, item in value.items():
            if not _is_no_column(name, depth=depth):
                _vote(votes.fields.setdefault(name, _Votes()), item, depth=depth + 1)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            if abs(value) <= _EXACT_MAX:
                return "whole"
            return "large" if -(1 << 63) <= value < 1 << 63 else "huge"
        case float():
            return "real"
        case str():
            return "time" if _is_time(value) else "text"
        case list():
            return "list"
        case _:
            return "object"


def _is_no_column(name: str, *, depth: int) -> bool:
    """Return True for a name that no column can have.

    These are names with blanks at an end, with half a surrogate pair, or of a column that the reader adds.
    """
    if not name.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        return True
    return not depth and (not _PLAIN_NAME.fullmatch(name) or name.lower() in {field.name for field in PROVENANCE})


def _is_time(text: str) -> bool:
    if not _TIME_LIKE.match(text):
        return False
    return _MOMENTS.reason(json.dumps({"value": text}).encode()) is None


def _let_strings_hold_all(root: _Votes) -> None:
    """Count all values of a CSV column as text if text prevails: a column of strings loses none and needs no note."""
    for votes in root.fields.values():
        text = votes.kinds["text"] + votes.kinds["time"]
        others = votes.kinds.total() - text - votes.kinds["null"]
        if votes.kinds["text"] and text >= max(others - votes.kinds["boolean"], votes.kinds["boolean"]):
            votes.kinds = Counter(text=text + others)


def _settled(votes: _Votes, path: tuple[str, ...], notes: list[str]) -> pa.DataType | None:
    """Return the type to declare; None for an object without a field, or a list of such objects."""
    counts = {family: sum(votes.kinds[kind] for kind in kinds) for family, kinds in _FAMILIES}
    total = sum(counts.values())
    if not total:
        return pa.string()
    family = max(counts, key=lambda name: counts[name])
    if path and counts[family] < total:
        name = ".".join(path)
        others = ", ".join(f"{count} {other}" for other, count in counts.items() if count and other != family)
        notes.append(
            f"{name}: {counts[family]} {family}, {others} in the sample; lines with the latter are quarantined"
        )
    match family:
        case "text":
            return pa.string() if votes.kinds["text"] else TIMESTAMP
        case "numbers":
            return _settled_number(votes, path, notes)
        case "booleans":
            return pa.bool_()
        case "lists":
            item = _settled(votes.element or _Votes(), (*path, "element"), notes)
            return None if item is None else pa.list_(pa.field("element", item))
        case _:
            return _settled_object(votes, path, notes)


def _settled_number(votes: _Votes, path: tuple[str, ...], notes: list[str]) -> pa.DataType:
    """Keep whole numbers whole, however large; next to fractions they become double, with a note if that rounds."""
    if not votes.kinds["real"]:
        return pa.decimal128(38, 0) if votes.kinds["huge"] else pa.int64()
    if large := votes.kinds["large"] + votes.kinds["huge"]:
        notes.append(
            f"{'.'.join(path)}: {large} whole numbers beyond 2^53 beside fractions in the sample; DOUBLE rounds them, "
            "DECIMAL(38, 9) would not (--schema)"
        )
    return pa.float64()


def _settled_object(votes: _Votes, path: tuple[str, ...], notes: list[str]) -> pa.DataType | None:
    """Return a struct; of names that differ only in case the first is kept, since Spark does not distinguish them."""
    fields: dict[str, pa.Field] = {}
    for name, inner in votes.fields.items():
        if name.lower() in fields:
            notes.append(f"{'.'.join((*path, name))}: left out, since only case tells it from another field")
        elif (kind := _settled(inner, (*path, name), notes)) is None:
            notes.append(f"{'.'.join((*path, name))}: left out, since nothing in it had a value")
        else:
            fields[name.lower()] = pa.field(name, kind)
    return pa.struct(list(fields.values())) if fields else None
