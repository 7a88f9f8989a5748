"""Infer the schema of a source without a declared one from a bounded sample. The caller logs and stores it.

Objects with a schema of their own tell it. For JSON lines, the kinds of values are counted per field, and the majority
decides. infer_csv.py has the rules for CSV.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from penstock.errors import ObjectError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectReader, ObjectStore
from penstock.pipeline.spark.source import avro
from penstock.pipeline.spark.source.columnar import OPENERS, schema_of
from penstock.pipeline.spark.source.contents import beginning
from penstock.pipeline.spark.source.ddl import TIMESTAMP, format_ddl, may_be_column, parse_ddl, type_text
from penstock.pipeline.spark.source.documents import document_lines, looks_like_document
from penstock.pipeline.spark.source.fit import storable, wider
from penstock.pipeline.spark.source.formats import DEFAULT_FORMAT, format_by_names, format_of
from penstock.pipeline.spark.source.infer_csv import infer_csv
from penstock.pipeline.spark.source.jsonl_lines import Classifier
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked
from penstock.pipeline.spark.source.samples import sample_lines

_OBJECTS_MAX = 20
Sample = Mapping[str, Any]

_TIME_LIKE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_MOMENTS = Classifier(pa.schema([("value", TIMESTAMP)]))
_BEGINNING_BYTES = 64 << 10
_DEPTH_MAX = 16
_VALUES_MAX = 10_000  # of one document
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The inferred options, with a sentence for each thing about them that may surprise."""

    options: ReadOptions
    notes: tuple[str, ...]

    @property
    def ddl(self) -> str:
        return self.options.schema_ddl


def infer_format(objects: Sequence[ObjectRef], store: ObjectStore, *, source: str) -> str:
    """Return the format that the names of objects tell; for JSON, look into the first one that is not empty.

    Raises `UsageError` if names tell several formats.
    """
    found = format_by_names(objects, source=source)
    if found != DEFAULT_FORMAT:
        return found
    for ref in islice(filter(lambda ref: ref.size_bytes, objects), _OBJECTS_MAX):
        try:
            with store.open(ref) as reader:
                return "json" if looks_like_document(beginning(reader, _BEGINNING_BYTES)) else found
        except ObjectError:
            continue  # the read itself will fail on it and report it
    return found


def infer_schema(
    objects: Sequence[ObjectRef],
    store: ObjectStore,
    options: ReadOptions | None = None,
    *,
    delimiter_given: bool = False,
) -> Inferred:
    """Return options with the schema, and for CSV the dialect, of some objects, spread evenly over all of them.

    ``options``: what a person gave; JSON lines if nothing. Text always has one column. Columns are in the order of
    their first appearance; one without any value is string. A column gets the narrowest type that holds all values of
    the sample, in CSV and formats with typed columns. In JSON, the majority decides if values disagree, and the notes
    name the minority, whose lines will be quarantined.

    Raises `UsageError` if the sample has no column.
    """
    options = options or ReadOptions()
    if format_of(options.format).has_own_schema:
        return Inferred(options=checked(options), notes=())
    sample = list(_spread(objects))
    columns, notes, csv = _columns(sample, store, options, delimiter_given=delimiter_given)
    if not columns:
        raise UsageError(
            f"No object of the sample ({objects[0].uri if objects else 'it is empty'}, ...) can be read as "
            f"{options.format} with a column: give the schema (--schema), or look at the files."
        )
    if options.partitions_ddl:
        in_paths = {field.name.lower() for field in parse_ddl(options.partitions_ddl)}
        shadowed = [column.name for column in columns if column.name.lower() in in_paths]
        notes = [*(f"{name}: from the path, not from the objects" for name in shadowed), *notes]
        columns = [column for column in columns if column.name not in shadowed]
    ddl = format_ddl(pa.schema(columns))
    return Inferred(options=replace(options, csv=csv, schema_ddl=ddl), notes=tuple(notes[:_NOTES_MAX]))


def _columns(
    sample: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions, *, delimiter_given: bool
) -> tuple[Sequence[pa.Field], Sequence[str], CsvOptions]:
    if options.format == "csv":
        return infer_csv(sample, store, options, delimiter_given=delimiter_given)
    if options.format in OPENERS or options.format == "avro":
        return *_from_footers(sample, store, options.format), options.csv
    root = _Votes()
    for ref in sample:
        if options.format == "jsonl":
            lines = sample_lines(ref, store, options, objects=len(sample))
        else:
            lines = _first_values(ref, store, options)
        for value in _json_samples(lines):
            _vote(root, value, depth=0)
    notes: list[str] = []
    kind = _settled(root, (), notes)
    return list(kind) if kind is not None and pa.types.is_struct(kind) else [], notes, options.csv


def _first_values(ref: ObjectRef, store: ObjectStore, options: ReadOptions) -> Iterator[bytes]:
    try:
        with store.open(ref) as reader:
            yield from islice(document_lines(reader, options), _VALUES_MAX)
    except ObjectError:
        return  # the read itself will fail on it and report it


def _spread(objects: Sequence[ObjectRef]) -> Iterator[ObjectRef]:
    """Yield some objects, spread evenly over all of them."""
    step = max(1, len(objects) // _OBJECTS_MAX)
    return islice(objects[::step], _OBJECTS_MAX)


def _from_footers(
    sample: Sequence[ObjectRef], store: ObjectStore, format_name: str
) -> tuple[Sequence[pa.Field], Sequence[str]]:
    """Return the columns of objects that have a schema of their own, in the order of their first appearance.

    If objects disagree about a column, it gets the type that holds the values of all, in the end a string.
    """
    columns: dict[str, pa.Field] = {}
    notes: list[str] = []
    for ref in sample:
        try:
            with store.open(ref) as reader:
                found = _own_schema(reader, format_name) if ref.size_bytes else pa.schema([])
        except ObjectError:
            continue  # the read itself will fail on it and report it
        for one in found:
            if not may_be_column(one.name):
                notes.append(f"{one.name!r}: left out, since no column can have this name")
                continue
            known = columns.get(one.name.lower())
            kind = storable(one.type)
            if known is not None and known.type != kind:
                notes.append(f"{one.name}: {type_text(known.type)} and {type_text(kind)} in the sample")
                kind = wider(known.type, kind)
            columns[one.name.lower()] = pa.field(known.name if known is not None else one.name, kind)
    return list(columns.values()), notes


def _own_schema(reader: ObjectReader, format_name: str) -> pa.Schema:
    return avro.schema_of(reader) if format_name == "avro" else schema_of(reader, format_name)


def _json_samples(lines: Iterable[bytes]) -> Iterator[Sample]:
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


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
            if may_be_column(name, depth=depth):
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


def _is_time(text: str) -> bool:
    if not _TIME_LIKE.match(text):
        return False
    return _MOMENTS.reason(json.dumps({"value": text}).encode()) is None


def _settled(votes: _Votes, path: tuple[str, ...], notes: list[str]) -> pa.DataType | None:
    """Return the type to declare; None for an object without a field, or a list of such objects."""
    counts = {family: sum(votes.kinds[kind] for kind in kinds) for family, kinds in _FAMILIES}
    total = sum(counts.values())
    if not total:
        return pa.string()
    family = max(counts, key=lambda name: counts[name])
    if path and counts[family] < total and not (family == "text" and votes.kinds["text"]):  # a string takes any value
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
