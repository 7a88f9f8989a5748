"""Infer the schema of a source without a declared one from a bounded sample. The caller logs and stores it.

Objects of some formats have a schema of their own. For JSON, the kinds of values are counted per field. The type is one
that holds all of them if there is one, else that of the majority. infer_csv.py has the rules for CSV, evidence.py the
explanations.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import ObjectError, UsageError
from penstock.messaging.wording import counted, worded
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectReader, ObjectStore
from penstock.pipeline.spark.source import avro
from penstock.pipeline.spark.source.column_types import storable, wider
from penstock.pipeline.spark.source.columnar import OPENERS, schema_of
from penstock.pipeline.spark.source.contents import beginning
from penstock.pipeline.spark.source.ddl import TIMESTAMP, format_ddl, may_be_column, parse_ddl, type_text
from penstock.pipeline.spark.source.documents import document_lines, looks_like_document
from penstock.pipeline.spark.source.evidence import (
    Cause,
    ColumnEvidence,
    Example,
    Tally,
    cut,
    evidence_of,
    looks_like_date,
    short_uri,
    with_lines,
)
from penstock.pipeline.spark.source.formats import DEFAULT_FORMAT, format_by_names, format_of
from penstock.pipeline.spark.source.infer_csv import NULL_MARKS, infer_csv
from penstock.pipeline.spark.source.jsonl_lines import Classifier
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked
from penstock.pipeline.spark.source.samples import sample_lines_at

_OBJECTS_MAX = 20
Sample = Mapping[str, Any]

_TIME_LIKE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_MOMENTS = Classifier(pa.schema([("value", TIMESTAMP)]))
_TEXTS_KEPT = 2
_BEGINNING_BYTES = 64 << 10
_DEPTH_MAX = 16
_VALUES_MAX = 10_000  # of one document
_NOTES_MAX = 10
_EXPLAINED_MAX = 5
_EXACT_MAX = 1 << 53  # beyond this, a double cannot represent all whole numbers

_LABELS = {
    "text": "STRING",
    "time": "TIMESTAMP",
    "real": "DOUBLE",
    "whole": "BIGINT",
    "large": "BIGINT",
    "huge": "DECIMAL(38,0)",
    "boolean": "BOOLEAN",
    "object": "STRUCT",
    "list": "ARRAY",
}
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
    """The inferred options, with the reasons."""

    options: ReadOptions
    notes: tuple[str, ...]  # a sentence for each thing that may surprise, apart from columns' types
    evidence: tuple[ColumnEvidence, ...] = ()  # for each column, and for nested fields that need an explanation
    sample: tuple[ObjectRef, ...] = ()
    source: str = ""  # the address that those of objects are shortened by

    @property
    def ddl(self) -> str:
        return self.options.schema_ddl

    @property
    def explained(self) -> Sequence[ColumnEvidence]:
        """The columns with a type wider than that of most of their values, those that became text first."""
        return sorted((one for one in self.evidence if one.cause is not None), key=lambda one: one.is_lossless)

    def sentences(self) -> tuple[str, ...]:
        """Return the notes and explanations for a person, as few as can be read at once."""
        explained = [one.sentence(self.source) for one in self.explained]
        more = len(explained) - _EXPLAINED_MAX
        rest = [f"{counted(more, 'more column')} explained by `penstock admin schema show`"] if more > 0 else []
        return (*self.notes, *explained[:_EXPLAINED_MAX], *rest)


def infer_format(objects: Sequence[ObjectRef], store: ObjectStore, *, source: str) -> str:
    """Return the format by the names of objects; for JSON, look into the first one that is not empty.

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
    source: str = "",
) -> Inferred:
    """Return options with the schema, and for CSV the dialect, of some objects, spread evenly over all of them.

    ``options``: what a person gave; JSON lines if nothing. Text always has one column. Columns are in the order of
    their first appearance; one without any value is string. A column gets the narrowest type that holds all values of
    the sample. If a value of JSON fits no type that the reader could store it in, the majority decides, and lines with
    the minority are quarantined. Empty objects are left out. ``source``: the address that those of objects are
    shortened by in sentences.

    Raises `UsageError` if the sample has no column.
    """
    options = options or ReadOptions()
    if format_of(options.format).has_own_schema:
        return Inferred(options=checked(options), notes=())
    sample = list(_spread([ref for ref in objects if ref.size_bytes]))
    if objects and not sample:
        raise UsageError(
            f"{worded(len(objects), 'The only object', 'All {} objects')} of the source "
            f"{worded(len(objects), 'is', 'are')} empty ({objects[0].uri}), so no schema can be inferred: give it "
            "(--schema), or wait for an object with content."
        )
    found = _findings(sample, store, options, delimiter_given=delimiter_given, source=source)
    if not found.columns:
        raise UsageError(
            f"No object of the sample ({objects[0].uri if objects else 'it is empty'}, ...) can be read as "
            f"{options.format} with a column: give the schema (--schema), or look at the files."
        )
    columns, notes = list(found.columns), list(found.notes)
    if options.partitions_ddl:
        in_paths = {field.name.lower() for field in parse_ddl(options.partitions_ddl)}
        shadowed = [column.name for column in columns if column.name.lower() in in_paths]
        notes = [*(f"{name}: from the path, not from the objects" for name in shadowed), *notes]
        columns = [column for column in columns if column.name not in shadowed]
    ddl = format_ddl(pa.schema(columns))
    notes = [*_empty(objects, source), *notes]
    return Inferred(
        options=replace(options, csv=found.csv, schema_ddl=ddl),
        notes=tuple(notes[:_NOTES_MAX]),
        evidence=tuple(with_lines(found.evidence, sample, store, options)),
        sample=tuple(sample),
        source=source,
    )


def _empty(objects: Sequence[ObjectRef], source: str) -> list[str]:
    """Return the sentence about objects without content."""
    empty = [ref for ref in objects if not ref.size_bytes]
    if not empty:
        return []
    name = short_uri(empty[0].uri, source)
    if len(empty) == 1:
        return [f"{name} is empty and tells nothing about the schema"]
    return [f"{len(empty):,} objects, such as {name}, are empty and tell nothing about the schema"]


class _Findings(NamedTuple):
    columns: Sequence[pa.Field]
    evidence: Sequence[ColumnEvidence]
    notes: Sequence[str]
    csv: CsvOptions


def _findings(
    sample: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions, *, delimiter_given: bool, source: str
) -> _Findings:
    if options.format == "csv":
        found = infer_csv(sample, store, options, delimiter_given=delimiter_given, source=source)
        return _Findings(found.columns, found.evidence, found.notes, found.csv)
    if options.format in OPENERS or options.format == "avro":
        return _Findings(*_from_footers(sample, store, options.format), options.csv)
    root = _Votes()
    for ref in sample:
        if options.format == "jsonl":
            lines = (
                (_Place(ref, at, None), line) for at, line in sample_lines_at(ref, store, options, objects=len(sample))
            )
        else:
            lines = ((_Place(ref, None, row), line) for row, line in enumerate(_first_values(ref, store, options)))
        for place, value in _json_samples(lines):
            _vote(root, value, place, depth=0)
    settling = _Settling()
    kind = settling.settled(root, ())
    columns = list(kind) if kind is not None and pa.types.is_struct(kind) else []
    return _Findings(columns, settling.evidence, settling.notes, options.csv)


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
) -> tuple[Sequence[pa.Field], Sequence[ColumnEvidence], Sequence[str]]:
    """Return the columns of objects that have a schema of their own, in the order of their first appearance.

    If objects disagree about a column, it gets the type that holds the values of all, in the end a string.
    """
    columns: dict[str, pa.Field] = {}
    tallies: dict[str, Tally] = {}
    notes: dict[str, None] = {}
    for ref in sample:
        try:
            with store.open(ref) as reader:
                found = _own_schema(reader, format_name)
        except ObjectError:
            continue  # the read itself will fail on it and report it
        for one in found:
            if not may_be_column(one.name):
                notes[f"{one.name!r}: left out, since no column can have this name"] = None
                continue
            folded = one.name.lower()
            known, kind = columns.get(folded), storable(one.type)
            tally, own = tallies.setdefault(folded, Tally()), type_text(kind)
            if tally.count(own):
                tally.firsts[own] = Example(text=own, ref=ref)
            if known is not None:
                kind = wider(known.type, kind)
            columns[folded] = pa.field(known.name if known is not None else one.name, kind)
    return list(columns.values()), [_footer_evidence(columns[name], tally) for name, tally in tallies.items()], [*notes]


def _footer_evidence(column: pa.Field, tally: Tally) -> ColumnEvidence:
    labels = {name: name for name in tally.counts}
    return evidence_of(
        column.name, type_text(column.type), tally, labels=labels, cause=lambda *_: Cause.TYPE, of_objects=True
    )


def _own_schema(reader: ObjectReader, format_name: str) -> pa.Schema:
    return avro.schema_of(reader) if format_name == "avro" else schema_of(reader, format_name)


def _json_samples(lines: "Iterable[tuple[_Place, bytes]]") -> "Iterator[tuple[_Place, Sample]]":
    for place, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield place, value


class _Place(NamedTuple):
    ref: ObjectRef
    offset: int | None
    row: int | None


@dataclass(slots=True)
class _Votes:
    """The values seen at one position: the count of each kind, and the values inside lists and objects."""

    tally: Tally = field(default_factory=Tally)
    element: "_Votes | None" = None
    fields: "dict[str, _Votes]" = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)  # the first two

    @property
    def kinds(self) -> Counter[str]:
        return self.tally.counts


def _vote(votes: _Votes, value: Any, place: _Place, *, depth: int) -> None:
    if value is None:
        return
    kind = _kind(value) if depth <= _DEPTH_MAX else "text"
    if votes.tally.count(kind):
        votes.tally.firsts[kind] = _example(value, place)
    if kind == "object" and depth <= _DEPTH_MAX:
        fields = votes.fields
        for name, item in value.items():
            if name in fields:
                _vote(fields[name], item, place, depth=depth + 1)
            elif may_be_column(name, depth=depth):
                fields[name] = _Votes()
                _vote(fields[name], item, place, depth=depth + 1)
    elif kind == "list":
        votes.element = votes.element or _Votes()
        for item in value:
            _vote(votes.element, item, place, depth=depth + 1)
    elif kind == "text" and len(votes.texts) < _TEXTS_KEPT and isinstance(value, str):
        votes.texts.add(value)


def _example(value: Any, place: _Place) -> Example:
    text = cut(json.dumps(value, ensure_ascii=False))
    return Example(text=text, ref=place.ref, offset=place.offset, row=place.row)


def _kind(value: Any) -> str:
    match value:
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


class _Settling:
    """Decide the type at each position, and collect the reasons."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.evidence: list[ColumnEvidence] = []

    def settled(self, votes: _Votes, path: tuple[str, ...]) -> pa.DataType | None:
        """Return the type to declare; None for an object without a field, or a list of such objects.

        It is a string if the values are of several kinds, since a string column takes any value.
        """
        counts = {family: sum(votes.kinds[kind] for kind in kinds) for family, kinds in _FAMILIES}
        found = [family for family, count in counts.items() if count]
        if not found or not path:
            return self._settled_object(votes, path) if found else pa.string()
        if len(found) > 1:
            self._explain(votes, path, pa.string())
            return pa.string()
        position = len(self.evidence)  # before those of fields inside
        kind = self._settled_family(found[0], votes, path)
        if kind is not None and (len(path) == 1 or len(votes.kinds) > 1):
            self._explain(votes, path, kind, at=position)
        return kind

    def _settled_family(self, family: str, votes: _Votes, path: tuple[str, ...]) -> pa.DataType | None:
        match family:
            case "text":
                return pa.string() if votes.kinds["text"] else TIMESTAMP
            case "numbers":
                return self._settled_number(votes, path)
            case "booleans":
                return pa.bool_()
            case "lists":
                item = self.settled(votes.element or _Votes(), (*path, "element"))
                return None if item is None else pa.list_(pa.field("element", item))
            case _:
                return self._settled_object(votes, path)

    def _settled_number(self, votes: _Votes, path: tuple[str, ...]) -> pa.DataType:
        """Keep whole numbers whole, however large; next to fractions they become double, with a note if that rounds."""
        if not votes.kinds["real"]:
            return pa.decimal128(38, 0) if votes.kinds["huge"] else pa.int64()
        if large := votes.kinds["large"] + votes.kinds["huge"]:
            self.notes.append(
                f"{'.'.join(path)}: {large} whole numbers beyond 2^53 beside fractions in the sample; DOUBLE rounds "
                "them, DECIMAL(38, 9) would not (--schema)"
            )
        return pa.float64()

    def _settled_object(self, votes: _Votes, path: tuple[str, ...]) -> pa.DataType | None:
        """Return a struct; of names that differ only in case the first is kept, since Spark takes them for one."""
        fields: dict[str, pa.Field] = {}
        for name, inner in votes.fields.items():
            if name.lower() in fields:
                self.notes.append(
                    f"{'.'.join((*path, name))}: left out, since only case tells it from another field; "
                    'evolve="rescue" (--evolve rescue) keeps its values in _rescued'
                )
            elif (kind := self.settled(inner, (*path, name))) is None:
                self.notes.append(f"{'.'.join((*path, name))}: left out, since nothing in it had a value")
            else:
                fields[name.lower()] = pa.field(name, kind)
        return pa.struct(list(fields.values())) if fields else None

    def _explain(self, votes: _Votes, path: tuple[str, ...], kind: pa.DataType, *, at: int | None = None) -> None:
        """Keep the evidence for a column, and for a field inside it if its values disagree."""
        labels = _LABELS | ({"list": type_text(kind)} if pa.types.is_list(kind) else {})
        labels |= {"object": type_text(kind)} if pa.types.is_struct(kind) else {}
        evidence = evidence_of(
            ".".join(path),
            type_text(kind),
            votes.tally,
            labels=labels,
            cause=lambda found, example: _cause(votes, found, example),
        )
        self.evidence.insert(len(self.evidence) if at is None else at, evidence)


def _cause(votes: _Votes, kind: str, example: Example) -> Cause:
    if kind in ("object", "list"):
        return Cause.NESTED
    if kind == "huge":
        return Cause.RANGE
    if kind != "text":
        return Cause.TYPE
    if votes.kinds["time"] and looks_like_date(example.text):
        return Cause.DATES
    is_mark = len(votes.texts) == 1 and (votes.texts <= NULL_MARKS or votes.texts == {""})
    return Cause.MARK if is_mark else Cause.TEXT
