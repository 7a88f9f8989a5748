"""Guess a schema from a bounded sample, for people who bring none. What is guessed is told and remembered by others."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from penstock.errors import ObjectError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.source.contents import read_parts
from penstock.pipeline.source.ddl import PROVENANCE, TIMESTAMP, format_ddl
from penstock.pipeline.source.lines import Classifier
from penstock.pipeline.source.plan import Piece, ReadOptions, is_gzip

_OBJECTS_MAX = 20
_LINES_MAX = 1_000  # of one object
_BYTES_MAX = 1 << 20  # of one object
_PLAIN_NAME = re.compile(r"\S(?:.*\S)?")
_TIME_LIKE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_MOMENTS = Classifier(pa.schema([("value", TIMESTAMP)]))
_DEPTH_MAX = 16


def infer_schema(objects: Sequence[ObjectRef], store: ObjectStore) -> str:
    """The DDL of what the first lines of some objects hold, spread over all that there are.

    Whole numbers are bigint, other numbers double, text that is a time in every line timestamp; what does not agree is
    string if it is text somewhere and cannot be told otherwise. Columns come in the order they were first seen.
    Objects that are empty in every line are left out. Raises `UsageError` when nothing is left.
    """
    fields: dict[str, pa.DataType] = {}
    for value in _samples(objects, store):
        _merge_fields(fields, value, depth=0)
    known = _settled(pa.struct([(name, kind) for name, kind in fields.items() if not _is_own(name)]))
    if known is None:
        raise UsageError("No line of the sample is a JSON object with a field: give a schema, or look at the files.")
    return format_ddl(pa.schema(list(known)))


def _samples(objects: Sequence[ObjectRef], store: ObjectStore) -> Iterator[Mapping[str, Any]]:
    step = max(1, len(objects) // _OBJECTS_MAX)
    for ref in islice(objects[::step], _OBJECTS_MAX):
        yield from _object_samples(ref, store)


def _object_samples(ref: ObjectRef, store: ObjectStore) -> Iterator[Mapping[str, Any]]:
    try:
        lines = _first_lines(ref, store)
    except ObjectError:
        return  # it will fail, and be told of, when its turn comes
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _first_lines(ref: ObjectRef, store: ObjectStore) -> list[bytes]:
    stop = ref.size_bytes if is_gzip(ref) else min(ref.size_bytes, _BYTES_MAX)
    options = ReadOptions(schema_ddl="", block_bytes=_BYTES_MAX, inflated_bytes_verified_max=0)
    lines: list[bytes] = []
    size_bytes = 0
    with store.open(ref) as reader:
        for part in read_parts(reader, Piece(object=0, start=0, stop=stop), options):
            lines.extend(part.lines.split(b"\n"))
            size_bytes += len(part.lines)
            if len(lines) > _LINES_MAX or size_bytes >= _BYTES_MAX:
                break
    return lines[:_LINES_MAX]


def _is_own(name: str) -> bool:
    return not _PLAIN_NAME.fullmatch(name) or name.lower() in {field.name for field in PROVENANCE}


def _merge_fields(fields: dict[str, pa.DataType], value: Mapping[str, Any], *, depth: int) -> None:
    for name, item in value.items():
        fields[name] = _merged(fields.get(name, pa.null()), _kind(item, depth=depth))


def _kind(value: Any, *, depth: int) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(1 << 63) <= value < 1 << 63 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return TIMESTAMP if _is_time(value) else pa.string()
    return _nested_kind(value, depth=depth + 1)


def _nested_kind(value: Any, *, depth: int) -> pa.DataType:
    if depth > _DEPTH_MAX:
        return pa.string()
    if isinstance(value, list):
        kind = pa.null()
        for item in value:
            kind = _merged(kind, _kind(item, depth=depth))
        return pa.list_(pa.field("element", kind))
    fields: dict[str, pa.DataType] = {}
    _merge_fields(fields, value, depth=depth)
    return pa.struct(list(fields.items()))


def _is_time(text: str) -> bool:
    if not _TIME_LIKE.match(text):
        return False
    return _MOMENTS.reason(json.dumps({"value": text}).encode()) is None


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", _merged(one.value_type, other.value_type)))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    return pa.string()


def _settled(kind: pa.DataType) -> pa.DataType | None:
    """The type to declare: what was null everywhere is string, an object without a field is nothing.

    Of names that differ in case only the first is kept: Spark cannot tell them apart.
    """
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        item = _settled(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if not pa.types.is_struct(kind):
        return kind
    fields: dict[str, pa.Field] = {}
    for field in kind:
        settled = _settled(field.type)
        if settled is not None:
            fields.setdefault(field.name.lower(), field.with_type(settled))
    return pa.struct(list(fields.values())) if fields else None
