"""Schemas that change from object to object: no value of the source is lost, and fields without a column are counted.

``PENSTOCK_WALKS=10000`` runs that many walks of each format in place of a few.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples
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
    wrong_type_counts,
)
from tests.property.source_run import Case, read, whole

from penstock.pipeline.spark.source.added import new_columns, with_added
from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.lines import Undecoded
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.packs import release
from penstock.pipeline.spark.source.places import ranges_of
from penstock.pipeline.spark.source.plan import Piece
from penstock.pipeline.spark.source.rescue import open_jsonl
from penstock.pipeline.spark.source.summary import ObjectReading, ObjectReadings
from penstock.pipeline.spark.source.unknown import NO_UNKNOWN, UnknownCount, UnknownFields

pytestmark = pytest.mark.generated

WALKS = int(os.environ.get("PENSTOCK_WALKS", examples(60)))
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


@given(walk=walks(TEXTS))
@_SETTINGS
def test_jsonl_without_rescue(walk: Walk) -> None:
    _count_strictly(walk, ReadOptions(schema_ddl=DDL))


@given(walk=walks(TEXTS, bad=False))
@_SETTINGS
def test_json_documents_without_rescue(walk: Walk) -> None:
    _count_strictly(walk, ReadOptions(schema_ddl=DDL, format="json"))


@given(walk=walks(CSV_TEXTS, csv=True))
@_SETTINGS
def test_csv_without_rescue(walk: Walk) -> None:
    _count_strictly(walk, ReadOptions(schema_ddl=CSV_DDL, format="csv"))


@given(walk=walks(PARQUET_TEXTS, bad=False))
@_SETTINGS
def test_parquet_without_rescue(walk: Walk) -> None:
    assume(all(walk.kinds))  # a file without columns cannot be read
    _count_strictly(walk, ReadOptions(schema_ddl=DDL, format="parquet"))


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


def test_fail_refuses_an_object_whose_lines_with_the_field_are_bad() -> None:
    lines = b"".join(b'{"id":"no","x":%d}\n' % number for number in range(400))
    found = _read(b'{"id":1}\n' + lines, ReadOptions(schema_ddl="id bigint", evolve="fail"))
    assert list(found.failures) == [0]
    assert found.failures[0].startswith("s3://b/k0 has the field 'x', first in the line at byte 9, and no column")
    assert 0 not in found.readings


@pytest.mark.parametrize("evolve", ["none", "fail"])
def test_lines_that_are_no_records_have_no_fields(evolve: str) -> None:
    lines = b'{"id":1}\n{"id":2,"x":1\n["x"]\n{"id":2}{"x":1}\n{"id":3,"x":"\xff"}\n{"id":1,"id":2,"x":1}\n'
    found = _read(lines, ReadOptions(schema_ddl="id bigint", evolve=evolve))
    assert (found.failures, len(found.bad), found.readings[0].unknown) == ({}, 5, NO_UNKNOWN)


def test_a_field_that_only_a_bad_line_has_becomes_no_column() -> None:
    twice = b'{"id":"no","x":1,"name":1,"name":2}\n'
    options = ReadOptions(schema_ddl="id bigint, name string", evolve="add")
    found = _read(b'{"id":1}\n' + twice + b'{"id":2,"y":1}\n', options)
    assert [raw + b"\n" for _, _, raw, _ in found.bad] == [twice]
    assert new_columns(found.readings, options, None, added_before=0) == {"y": "BIGINT"}


WRONG_TYPES = {
    "jsonl": b"".join(b'{"id":%d,"amount":"x","n":%s}\n' % (at, b"true" if at < 2 else b"1") for at in range(400)),
    "csv": b"id,Amount,N\n" + b"".join(b"%d,x,%s\n" % (at, b"true" if at < 2 else b"1") for at in range(400)),
}
WRONG_TYPES["json"] = b"[" + b",\n".join(WRONG_TYPES["jsonl"].splitlines()) + b"]"


@pytest.mark.parametrize("evolve", ["rescue", "add"])
@pytest.mark.parametrize("parts", [1, 20])
@pytest.mark.parametrize("format_name", WRONG_TYPES)
def test_rescued_values_of_another_type_are_counted_by_column(format_name: str, parts: int, evolve: str) -> None:
    data = WRONG_TYPES[format_name]
    options = ReadOptions(schema_ddl="id bigint, amount double, n bigint", format=format_name, evolve=evolve)
    parts = 1 if format_name == "json" else parts
    edges = [len(data) * part // parts for part in range(parts + 1)]
    pieces = [Piece(object=0, start=start, stop=stop) for start, stop in pairwise(edges)]
    found = read(Case(contents=[data], partitions=[pieces[:3], pieces[3:]], options=options))
    assert (found.bad, found.failures, found.counts) == ([], {}, {0: (400, 0)})
    assert found.readings[0].unknown == UnknownFields(wrong_type={"amount": 400, "n": 2})


def test_rescued_values_in_parquet_are_counted_without_those_of_bad_rows() -> None:
    offsets, texts = pa.py_buffer(np.arange(5, dtype=np.int32)), pa.py_buffer(b"a\xffbc")
    data = pa.BufferOutputStream()
    names = pa.Array.from_buffers(pa.string(), 4, [None, offsets, texts])
    pq.write_table(pa.table({"name": names, "amount": ["x", "x", None, "x"], "more": [1, 2, 3, 4]}), data)
    options = ReadOptions(schema_ddl="name string, amount double", format="parquet", evolve="rescue")
    found = _read(bytes(data.getvalue()), options)
    assert [at for _, at, _, _ in found.bad] == [1]
    assert [row["_rescued"] for _, _, row in found.rows] == [
        '{"amount":"x","more":1}',
        '{"more":3}',
        '{"amount":"x","more":4}',
    ]
    unknown = found.readings[0].unknown
    assert (unknown.fields["more"].rows, unknown.wrong_type) == (4, {"amount": 2})


def test_columns_with_wrong_types_beyond_a_bound_are_counted_as_a_sum() -> None:
    ddl = ", ".join(f"c{number} bigint" for number in range(60))
    fields = ",".join(f'"c{number}":"x"' for number in range(60))
    lines = f"{{{fields}}}\n".encode() * 3 + b'{"c59":"x"}\n'
    unknown = _read(lines, ReadOptions(schema_ddl=ddl, evolve="rescue")).readings[0].unknown
    assert len(unknown.wrong_type) == 50
    assert unknown.wrong_type["c59"] == 4
    assert sum(unknown.wrong_type.values()) + unknown.wrong_type_others == 181


def test_a_replay_counts_only_the_lines_that_it_reads() -> None:
    lines = [b'{"id":1,"x":1}\n', b'{"id":"a","x":2}\n', b'{"id":"b","y":3}\n', b'{"id":2,"y":4}\n']
    data = b"".join(lines)
    spans = [(data.index(line), len(line) - 1) for line in lines[1:3]]
    found = {
        evolve: read(
            Case(
                contents=[data],
                partitions=whole([data]),
                options=ReadOptions(schema_ddl="id bigint", evolve=evolve),
                places={0: ranges_of(spans[: 1 if evolve == "none" else 2], place="_offset")},
            )
        ).readings[0]
        for evolve in ("none", "rescue")
    }
    assert {name: one.rows for name, one in found["none"].unknown.fields.items()} == {"x": 1}
    assert found["none"].unknown.fields["x"].first == len(lines[0])
    assert {name: one.rows for name, one in found["rescue"].unknown.fields.items()} == {"x": 1, "y": 1}
    assert found["rescue"].unknown.wrong_type == {"id": 2}


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


@pytest.mark.parametrize(
    ("line", "table", "added"),
    [
        ('{"S.A":1,"x":1}', None, ["x"]),
        ('{"t":{"b":1},"t.b":2}', None, ["t"]),
        ('{"t.b":2}\n{"t":{"b":1}}', None, ["t.b"]),
        ('{"l":[1],"l.element":2,"l.item":3}', None, ["l", "l.item"]),
        ('{"made.by":1}', "id bigint, made struct<by: string>", []),
        ('{"made":{"by":1}}', "id bigint, `made.by` bigint", []),
        ('{"made.by":1}', "id bigint, made struct<by: string>, `made.by` bigint", ["made.by"]),
    ],
)
def test_a_field_that_is_named_like_a_part_of_a_column_is_rescued(
    line: str, table: str | None, added: list[str]
) -> None:
    """Iceberg has one name for the column ``a.b`` and the part b of the struct a."""
    options = ReadOptions(schema_ddl="id bigint, s struct<a: bigint>", evolve="add")
    found = _read(f"{line}\n".encode(), options)
    known = None if table is None else parse_ddl(table)
    new = new_columns(found.readings, options, known, added_before=0)
    assert list(new) == added


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
    for _, name, wrong in placed.wrong_types():
        count.add_wrong_type(name, wrong)
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
    unknown = found.readings[0].unknown
    counted = {name: one.rows for name, one in unknown.fields.items() if name.partition(".")[0] not in known}
    if options.format in ("csv", "parquet"):
        assert counted == {name: len(lines) for name in lines[0].fields or () if name not in known}
    else:
        assert counted == unknown_counts(lines, known.__contains__)
    assert unknown.wrong_type == wrong_type_counts(rows, known.__contains__)
    assert unknown.wrong_type_others == 0


def _count_strictly(walk: Walk, options: ReadOptions) -> None:
    """Read the objects with ``evolve`` "none" and "fail": the fields of bad lines count, and fail their objects."""
    for lines, kinds in zip(walk.objects, walk.kinds, strict=True):
        data = _parquet(lines, kinds) if options.format == "parquet" else _content(lines, options.format)
        strict = _read(data, replace(options, evolve="fail"))
        if options.format == "parquet" and not kinds.keys() & set(parse_ddl(options.schema_ddl).names):
            assert "has no column of the schema" in strict.failures[0]
            continue
        found = _read(data, options)
        assert not found.failures
        _check_counts(lines, {}, found, options)
        names = found.readings[0].unknown.fields
        assert [reason.partition("'")[2].partition("'")[0] in names for reason in strict.failures.values()] == (
            [True] if names else []
        )


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
