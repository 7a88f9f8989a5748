"""Schemas that change from object to object: no value of the source is lost, and fields without a column are counted.

``PENSTOCK_WALKS=10000`` runs that many walks of each format in place of a few.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.property.evolution_walks import (
    CSV_DDL,
    CSV_TEXTS,
    DDL,
    PARQUET_KINDS,
    PARQUET_TEXTS,
    TEXTS,
    Line,
    Walk,
    check_values,
    unknown_counts,
    walks,
)
from tests.property.source_run import Case, read, whole

from penstock.pipeline.spark.source.added import new_columns, with_added
from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.lines import Undecoded
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.packs import release
from penstock.pipeline.spark.source.rescue import open_jsonl
from penstock.pipeline.spark.source.summary import ObjectReading, ObjectReadings
from penstock.pipeline.spark.source.unknown import UnknownCount

WALKS = int(os.environ.get("PENSTOCK_WALKS", "60"))
_SETTINGS = settings(max_examples=WALKS, deadline=None, suppress_health_check=list(HealthCheck))
EVOLVES = st.sampled_from(["rescue", "add"])


@given(walk=walks(TEXTS), evolve=EVOLVES)
@_SETTINGS
def test_jsonl(walk: Walk, evolve: str) -> None:
    _follow(walk, ReadOptions(schema_ddl=DDL, evolve=evolve))


@given(walk=walks(TEXTS, bad=False), evolve=EVOLVES)
@_SETTINGS
def test_json_documents(walk: Walk, evolve: str) -> None:
    _follow(walk, ReadOptions(schema_ddl=DDL, format="json", evolve=evolve))


@given(walk=walks(CSV_TEXTS, csv=True), evolve=EVOLVES)
@_SETTINGS
def test_csv(walk: Walk, evolve: str) -> None:
    _follow(walk, ReadOptions(schema_ddl=CSV_DDL, format="csv", evolve=evolve))


@given(walk=walks(PARQUET_TEXTS, bad=False), evolve=EVOLVES)
@_SETTINGS
def test_parquet(walk: Walk, evolve: str) -> None:
    assume(all(walk.kinds))  # a file without columns cannot be read
    _follow(walk, ReadOptions(schema_ddl=DDL, format="parquet", evolve=evolve))


@pytest.mark.parametrize("format_name", ["jsonl", "csv"])
def test_unknown_fields_are_ignored_but_counted(format_name: str) -> None:
    lines = [b"id,x,name", b"1,2,n", b"2,,m"] if format_name == "csv" else [b'{"id":1,"x":2}', b'{"id":2,"x":null}']
    options = ReadOptions(schema_ddl="id bigint, name string", format=format_name)
    found = _read(b"\n".join(lines), options)
    (unknown,) = found.readings.unknown.values()
    assert {name: one.rows for name, one in unknown.fields.items()} == {"x": 2 if format_name == "csv" else 1}
    assert all("x" not in row for _, _, row in found.rows)


def test_fail_names_the_field_the_object_and_the_line() -> None:
    lines = b'{"id":1}\n{"id":2,"x":{"y":1}}\n'
    found = _read(lines, ReadOptions(schema_ddl="id bigint", evolve="fail"))
    assert found.failures[0] == (
        "s3://b/k0 has the field 'x', first in the line at byte 9, and no column takes it: add a column to the schema, "
        'or keep such fields with evolve "rescue" or "add" (--evolve)'
    )


def test_fields_inside_a_struct_are_counted_by_path() -> None:
    lines = b'{"s":{"a":1,"b":2},"l":[{"q":1},{"q":2,"z":0}]}\n{"s":{"b":null},"l":[]}\n'
    options = ReadOptions(schema_ddl="s struct<a: int>, l array<struct<q: int>>", evolve="rescue")
    found = _read(lines, options)
    assert {name: one.rows for name, one in found.readings[0].unknown.fields.items()} == {"s.b": 1, "l.z": 1}
    assert found.rows[0][2] == {
        "s": {"a": 1},
        "l": [{"q": 1}, {"q": 2}],
        "_rescued": '{"s":{"a":1,"b":2},"l":[{"q":1},{"q":2,"z":0}]}',
    }


def test_names_beyond_a_bound_are_counted_as_a_sum() -> None:
    lines = b"".join(b'{"id":%d,"k%d":1,"always":0}\n' % (number, number) for number in range(3_000))
    found = _read(lines, ReadOptions(schema_ddl="id bigint"))
    unknown = found.readings[0].unknown
    assert len(unknown.fields) == 50
    assert unknown.fields["always"].rows == 3_000
    assert sum(one.rows for one in unknown.fields.values()) + unknown.others == 6_000


def test_at_most_so_many_columns_are_added() -> None:
    fields = ",".join(f'"k{number}":1' for number in range(40))
    options = ReadOptions(schema_ddl="id bigint", evolve="add")
    found = _read(b"{" + fields.encode() + b"}\n", options)
    assert len(new_columns(found.readings, options, None, added_before=490)) == 10


def test_a_type_of_the_table_goes_before_the_inferred_one() -> None:
    options = ReadOptions(schema_ddl="id bigint", evolve="add")
    found = _read(b'{"x":1,"Y":1,"z":true}\n', options)
    table = parse_ddl("id bigint, x double, y bigint")
    assert new_columns(found.readings, options, table, added_before=0) == {"x": "DOUBLE", "z": "BOOLEAN"}


@pytest.mark.parametrize("evolve", ["none", "rescue"])
@pytest.mark.parametrize("format_name", ["jsonl", "parquet"])
def test_fields_in_the_values_of_maps_are_counted_by_path(format_name: str, evolve: str) -> None:
    data = b'{"id":1,"m":{"k":{"a":1,"b":2},"b":{"a":1}}}\n{"m":{"k":null}}\n{"m":{"k":{"a":2,"b":null}}}\n'
    if format_name == "parquet":
        inner = pa.struct([("a", pa.int64()), ("b", pa.int64())])
        rows = [[("k", {"a": 1, "b": 2}), ("b", {"a": 1, "b": None})], [("k", None)], None]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"m": pa.array(rows, pa.map_(pa.string(), inner))}), buffer)
        data = bytes(buffer.getvalue())
    options = ReadOptions(schema_ddl="id bigint, m map<string, struct<a: bigint>>", format=format_name, evolve=evolve)
    found = _read(data, options)
    assert not found.bad
    counted = {name: one.rows for name, one in found.readings[0].unknown.fields.items()}
    assert counted == {"m.b": 3 if format_name == "parquet" else 1}
    assert found.rows[0][2]["m"] == [("k", {"a": 1}), ("b", {"a": 1})]
    if evolve == "rescue":
        kept = {
            "jsonl": {"k": {"a": 1, "b": 2}, "b": {"a": 1}},
            "parquet": [["k", {"a": 1, "b": 2}], ["b", {"a": 1, "b": None}]],
        }
        assert json.loads(found.rows[0][2]["_rescued"]) == {"m": kept[format_name]}


@pytest.mark.parametrize("line", ['{"x":1,"x":null}', '{"s":{"a":1,"z":2,"z":null}}', '{"x":null,"x":1,"x":null}'])
def test_a_value_whose_name_is_given_again_with_null_is_kept(line: str) -> None:
    options = ReadOptions(schema_ddl="id bigint, s struct<a: int>", evolve="rescue")
    found = _read(f"{line}\n".encode(), options)
    assert found.rows[0][2]["_rescued"] == line.replace('"x":null,', "").replace(',"x":null', "")
    assert [one.rows for one in found.readings[0].unknown.fields.values()] == [1]


NO_TYPE = {
    "jsonl": ([b'{"id":1,"x":[]}\n', b'{"id":2,"x":[5]}\n', b'{"id":3,"x":{}}\n'], "ARRAY<BIGINT>"),
    "json": ([b'[{"id":1,"x":[]}]', b'{"id":2,"x":[5]}', b'{"id":3,"x":{}}'], "ARRAY<BIGINT>"),
    "csv": ([b"id,x\n1,\n", b"id,x\n1,5\n", b"x,id\n,3\n"], "BIGINT"),
}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("format_name", NO_TYPE)
def test_values_without_a_type_leave_the_column_to_the_others_however_objects_are_spread(
    format_name: str, *, together: bool
) -> None:
    contents, kind = NO_TYPE[format_name]
    (pieces,) = whole(contents)
    options = ReadOptions(schema_ddl="id bigint", format=format_name, evolve="add")
    found = read(
        Case(contents=contents, partitions=[pieces] if together else [[one] for one in pieces], options=options)
    )
    assert new_columns(found.readings, options, None, added_before=0) == {"x": kind}


def _nested_lists(levels: int) -> pa.Array:
    values = pa.array([1])
    for _ in range(levels):
        values = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
    return values


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        (pa.StructArray.from_arrays([pa.array([1])], names=[""]), {"x": "STRING"}),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a`b", ""]), {"x": "STRING"}),
        (_nested_lists(32), {"x": f"{'ARRAY<' * 32}BIGINT{'>' * 32}"}),
        (_nested_lists(40), {"x": f"{'ARRAY<' * 32}STRING{'>' * 32}"}),
    ],
    ids=["field without a name", "one of two fields", "as deep as columns are", "deeper"],
)
def test_types_of_parquet_that_no_schema_can_name_become_strings(values: pa.Array, columns: dict[str, str]) -> None:
    data = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1], "x": values}), data)
    options = ReadOptions(schema_ddl="id bigint", format="parquet", evolve="add")
    content = bytes(data.getvalue())
    new = new_columns(_read(content, options).readings, options, None, added_before=0)
    assert new == columns
    ((_, _, row),) = _read(content, with_added(options, new)).rows
    assert row["x"] is not None
    assert row["_rescued"] is None


def test_a_struct_with_a_field_without_a_name_is_rescued() -> None:
    lines = b'{"id":1,"x":{"":1},"y":[{"":2}]}\n'
    options = ReadOptions(schema_ddl="id bigint", evolve="add")
    found = _read(lines, options)
    assert new_columns(found.readings, options, None, added_before=0) == {}
    assert found.rows[0][2]["_rescued"] == '{"x":{"":1},"y":[{"":2}]}'


@pytest.mark.parametrize("evolve", ["none", "rescue"])
def test_text_inside_a_struct_that_is_not_utf8_costs_none_of_its_other_values(evolve: str) -> None:
    offsets, texts = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffa")
    inner = pa.StructArray.from_arrays(
        [pa.array([7, 8]), pa.Array.from_buffers(pa.string(), 2, [None, offsets, texts])], names=["a", "b"]
    )
    data = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1, 2], "s": inner, "x": inner}), data)
    ddl = "id bigint, s struct<a: int, b: string>"
    found = _read(bytes(data.getvalue()), ReadOptions(schema_ddl=ddl, format="parquet", evolve=evolve))
    kept = found.bad[0][2].decode() if evolve == "none" else found.rows[0][2]["_rescued"]
    fields = json.loads(kept)
    assert fields["s"] == [["a", 7], ["b", "\\xff"]]
    if evolve == "rescue":
        assert fields["x"] == fields["s"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of reading one object. ``rows``: (uri, position, values); ``bad``: (uri, position, raw, reason)."""

    rows: list[tuple[str, int, dict[str, Any]]]
    bad: list[tuple[str, int, bytes, str]]
    failures: Mapping[int, str]
    readings: ObjectReadings


def _read(data: bytes, options: ReadOptions) -> Found:
    found = read(Case(contents=[data], partitions=whole([data]), options=options))
    return Found(rows=found.rows, bad=found.bad, failures=found.failures, readings=found.readings)


def _decode(data: bytes, options: ReadOptions) -> Found:
    """Do what `_read` does for JSON lines, without files, for many walks."""
    decoder = open_jsonl(parse_ddl(options.schema_ddl), options)
    placed = release([Undecoded(chunk=LineChunk(lines=data, offset=0), decoder=decoder)])
    count = UnknownCount()
    for _, name, unknown in placed.unknown_fields():
        count.add(name, unknown)
    rows = list(zip(placed.positions.tolist(), placed.rows.to_pylist(), strict=True))
    reading = ObjectReading(
        rows=len(rows),
        lines_quarantined=len(placed.bad),
        reasons={},
        samples=(),
        bytes=len(data),
        unknown=count.result(),
    )
    return Found(
        rows=[("", at, row) for at, row in rows],
        bad=[("", at, bad.raw, bad.reason.value) for _, at, bad in placed.bad],
        failures={},
        readings=ObjectReadings.of({0: reading}),
    )


def _follow(walk: Walk, options: ReadOptions) -> None:
    """Read the objects one by one, each as a batch, and check every value."""
    added: dict[str, str] = {}
    for lines, kinds in zip(walk.objects, walk.kinds, strict=True):
        data = _parquet(lines, kinds) if options.format == "parquet" else _content(lines, options.format)
        reading = _decode if options.format == "jsonl" else _read
        found = reading(data, with_added(options, added))
        if options.evolve == "add":
            new = new_columns(found.readings, with_added(options, added), None, added_before=len(added))
            added |= new
            found = reading(data, with_added(options, added)) if new else found
        assert not found.failures
        numbers = _numbers(lines, data, options.format)
        rows = {numbers[at]: row for _, at, row in found.rows}
        check_values(lines, rows, {numbers[at]: raw for _, at, raw, _ in found.bad}, csv=options.format == "csv")
        _check_counts(lines, rows, found, with_added(options, added))


def _check_counts(lines: list[Line], rows: Mapping[int, Any], found: Found, options: ReadOptions) -> None:
    known = set(parse_ddl(options.schema_ddl).names)
    unknown = found.readings[0].unknown.fields if 0 in found.readings else {}
    counted = {name: one.rows for name, one in unknown.items() if name.partition(".")[0] not in known}
    if options.format in ("csv", "parquet"):
        assert set(counted) == {name for line in lines[:1] for name in line.fields or () if name not in known}
    else:
        assert counted == unknown_counts(lines, rows, known.__contains__)


def _content(lines: list[Line], format_name: str) -> bytes:
    texts = [line.raw for line in lines]
    if format_name == "json":
        return ("[" + ",\n".join(texts) + "]").encode()
    if format_name == "csv":
        texts = [",".join(lines[0].fields or ()), *texts]
    return "".join(f"{text}\n" for text in texts).encode()


def _parquet(lines: list[Line], kinds: Mapping[str, str]) -> bytes:
    rows = [{name: json.loads(text) for name, text in (line.fields or {}).items()} for line in lines]
    schema = pa.schema([(name, PARQUET_KINDS[kind]) for name, kind in kinds.items()])
    data = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), data)
    return bytes(data.getvalue())


def _numbers(lines: list[Line], data: bytes, format_name: str) -> dict[int, int]:
    """Return the number of the line at each position."""
    if format_name in ("json", "parquet"):
        return {number: number for number in range(len(lines))}
    at = data.index(b"\n") + 1 if format_name == "csv" else 0
    numbers = {}
    for number, line in enumerate(lines):
        numbers[at] = number
        at += len(line.raw.encode()) + 1
    return numbers
