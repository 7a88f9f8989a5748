"""Avro in any pieces, against what fastavro writes and reads; and objects that are damaged or hostile."""

import bz2
import io
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.source_run import Case, Found, MemoryReader, any_pieces, halves, read, whole

from penstock.errors import ObjectUnreadable
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source import avro, avro_decoder
from penstock.pipeline.spark.source.avro import ROW_BITS, schema_of
from penstock.pipeline.spark.source.column_types import storable
from penstock.pipeline.spark.source.ddl import format_ddl
from penstock.pipeline.spark.source.options import ReadOptions

SYNC = bytes(range(16))
Schema = Any
Pair = tuple[Any, Any]  # a value as fastavro takes it, and as the table has it
Typed = tuple[Schema, st.SearchStrategy[Pair]]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)


def snappy(data: bytes) -> bytes:
    return bytes(pa.compress(data, "snappy", asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")


def deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": deflate,
    "snappy": snappy,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstandard.compress,
}
codecs = pytest.mark.parametrize("codec", CODECS)


def number(value: int) -> bytes:
    """Return a long as Avro writes it."""
    rest = (value << 1) ^ (value >> 63)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*data, rest])


def header(schema: Schema, codec: str = "null", *, sync: bytes = SYNC) -> bytes:
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    entries = {b"avro.schema": text, b"avro.codec": codec.encode()}
    packed = b"".join(number(len(one)) + one for entry in entries.items() for one in entry)
    return b"Obj\x01" + number(len(entries)) + packed + b"\0" + sync


def block(rows: int, data: bytes, codec: str = "null", *, sync: bytes = SYNC) -> bytes:
    stored = CODECS[codec](data)
    return number(rows) + number(len(stored)) + stored + sync


def rows_of(schema: Schema, values: Sequence[Any]) -> bytes:
    data = io.BytesIO()
    parsed = fastavro.parse_schema(schema)
    for value in values:
        fastavro.schemaless_writer(data, parsed, value)
    return data.getvalue()


def container(schema: Schema, blocks: Sequence[Sequence[Any]], codec: str = "null", *, sync: bytes = SYNC) -> bytes:
    parts = [block(len(values), rows_of(schema, values), codec, sync=sync) for values in blocks]
    return header(schema, codec, sync=sync) + b"".join(parts)


def record(**fields: Schema) -> Schema:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def opened(content: bytes) -> MemoryReader:
    return MemoryReader(ObjectRef(bucket="b", key="k", size_bytes=len(content), etag="e"), content)


def inferred(content: bytes) -> str:
    return format_ddl(pa.schema([field.with_type(storable(field.type)) for field in schema_of(opened(content))]))


def rows_and_failure(content: bytes, ddl: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
    found = found_in(content, ddl)
    assert found.bad == []
    return [row for *_, row in found.rows], found.failures.get(0)


def found_in(content: bytes, ddl: str | None = None, *, line_bytes_max: int = 1 << 27) -> Found:
    options = ReadOptions(schema_ddl=ddl or inferred(content), format="avro", line_bytes_max=line_bytes_max)
    return read(Case(contents=[content], partitions=whole([content]), options=options))


def same(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return strategy.map(lambda value: (value, value))


def shown(strategy: st.SearchStrategy[Any], show: Callable[[Any], Any]) -> st.SearchStrategy[Pair]:
    return strategy.map(lambda value: (value, show(value)))


PRIMITIVES: list[Typed] = [
    ("boolean", same(st.booleans())),
    ("int", same(st.integers(-(2**31), 2**31 - 1))),
    ("long", same(LONGS)),
    ("float", same(st.floats(width=32, allow_nan=False))),
    ("double", same(st.floats(allow_nan=False))),
    ("string", same(TEXTS)),
    ("bytes", same(st.binary(max_size=5))),
]
MOMENTS = st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2200-01-01"))
MILLIS = MOMENTS.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
TIMES = st.times()


def logical(kind: str, meaning: str, **more: Any) -> Schema:
    return {"type": kind, "logicalType": meaning, **more}


def zoned(moments: st.SearchStrategy[datetime]) -> st.SearchStrategy[Pair]:
    return same(moments.map(lambda moment: moment.replace(tzinfo=UTC)))


LOGICAL: list[Typed] = [
    (logical("int", "date"), same(st.dates(date(1, 1, 1)))),
    (
        logical("int", "time-millis"),
        shown(
            TIMES.map(lambda one: one.replace(microsecond=one.microsecond // 1000 * 1000)),
            lambda one: one.isoformat("milliseconds"),
        ),
    ),
    (logical("long", "time-micros"), shown(TIMES, lambda one: one.isoformat("microseconds"))),
    (logical("long", "timestamp-millis"), zoned(MILLIS)),
    (logical("long", "timestamp-micros"), zoned(MOMENTS)),
    (logical("long", "local-timestamp-millis"), same(MILLIS)),
    (logical("long", "local-timestamp-micros"), same(MOMENTS)),
    (logical("string", "uuid"), shown(st.uuids(), str)),
    (logical("bytes", "decimal", precision=38, scale=9), same(st.decimals(-(10**28), 10**28, places=9))),
    (logical("bytes", "decimal", precision=4), same(st.integers(-9999, 9999).map(Decimal))),
]


@st.composite
def typed(draw: st.DrawFn, names: list[int], depth: int = 0) -> Typed:
    """Return a type and a strategy for its values. ``names`` counts the named types."""
    choices = ["primitive", "logical", "enum", "fixed", "optional"]
    if depth < 3:
        choices += ["array", "map", "record", "union"]
    names.append(len(names))
    name = f"N{len(names)}"
    match draw(st.sampled_from(choices)):
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "logical":
            return draw(st.sampled_from(LOGICAL))
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, same(st.sampled_from("ABC"))
        case "fixed":
            if draw(st.booleans()):
                fixed = logical("fixed", "decimal", name=name, size=9, precision=20, scale=3)
                return fixed, same(st.decimals(-(10**16), 10**16, places=3))
            return {"type": "fixed", "name": name, "size": 3}, same(st.binary(min_size=3, max_size=3))
        case "optional":
            schema, values = draw(typed(names, depth + 1).filter(lambda one: not isinstance(one[0], list)))
            both = [schema, "null"] if draw(st.booleans()) else ["null", schema]
            return both, st.just((None, None)) | values
        case "array":
            schema, values = draw(typed(names, depth + 1))
            lists = st.lists(values, max_size=draw(st.sampled_from([3, 70]) if depth == 0 else st.just(3)))
            return {"type": "array", "items": schema}, lists.map(_two)
        case "map":
            schema, values = draw(typed(names, depth + 1))
            return {"type": "map", "values": schema}, st.dictionaries(TEXTS, values, max_size=3).map(_two_maps)
        case "union":
            return draw(union())
        case _:
            return draw(records(names, name, depth + 1))


def _two(pairs: Sequence[Pair]) -> tuple[list[Any], list[Any]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def _two_maps(pairs: Mapping[str, Pair]) -> Pair:
    return {name: one for name, (one, _) in pairs.items()}, [(name, other) for name, (_, other) in pairs.items()]


@st.composite
def union(draw: st.DrawFn) -> Typed:
    """Return a union of several primitive types, whose values are structs with one field for each."""
    chosen = draw(st.lists(st.sampled_from(PRIMITIVES), min_size=2, max_size=4, unique_by=lambda one: one[0]))
    kinds: list[str] = [kind for kind, _ in chosen]
    widened = set(kinds) in ({"int", "long"}, {"float", "double"})
    nothing = dict.fromkeys(f"member{place}" for place in range(len(kinds)))

    def put(place: int, kind: str, pair: Pair) -> Pair:
        written, value = pair
        return (kind, written), value if widened else {**nothing, f"member{place}": value}

    values = st.one_of(*(pairs.map(partial(put, place, kind)) for place, (kind, pairs) in enumerate(chosen)))
    if draw(st.booleans()):
        kinds.insert(draw(st.integers(0, len(kinds))), "null")
        values = st.just((None, None)) | values
    return kinds, values


@st.composite
def records(draw: st.DrawFn, names: list[int], name: str, depth: int) -> Typed:
    fields = [draw(typed(names, depth)) for _ in range(draw(st.integers(1, 4)))]
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{place}", "type": kind} for place, (kind, _) in enumerate(fields)],
    }
    values = st.tuples(*(pairs for _, pairs in fields)).map(
        lambda pairs: (
            {f"f{place}": one for place, (one, _) in enumerate(pairs)},
            {f"f{place}": other for place, (_, other) in enumerate(pairs)},
        )
    )
    return schema, values


def in_any_codec(schema: Schema, rows: Sequence[Any], codec: str, sync_interval: int) -> bytes:
    data = io.BytesIO()
    fastavro.writer(data, schema, rows, codec=codec, sync_interval=sync_interval)
    return data.getvalue()


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    codec=st.sampled_from(["null", "deflate", "bzip2", "xz"]),
    sync_interval=st.sampled_from([1, 40, 100_000]),
)
def test_any_values_of_any_schema_in_any_pieces_are_those_that_were_written(
    data: st.DataObject, codec: str, sync_interval: int
) -> None:
    schema, values = data.draw(records([], "Row", 0))
    pairs = data.draw(st.lists(values, min_size=1, max_size=12))
    content = in_any_codec(schema, [written for written, _ in pairs], codec, sync_interval)
    options = ReadOptions(schema_ddl=inferred(content), format="avro")
    found = read(Case(contents=[content], partitions=data.draw(any_pieces([content])), options=options))
    assert (found.failures, found.bad) == ({}, [])
    rows = sorted(((position, row) for _, position, row in found.rows), key=lambda one: one[0])
    assert [row for _, row in rows] == [expected for _, expected in pairs]
    assert [position for position, _ in rows] == positions(content)


def positions(content: bytes) -> list[int]:
    """Return the positions of all rows, by fastavro."""
    blocks = fastavro.block_reader(io.BytesIO(content))
    return [(one.offset << ROW_BITS) + place for one in blocks for place in range(one.num_records)]


@codecs
@pytest.mark.parametrize("at_once", [3, 1 << 16])
def test_every_block_is_read_once_wherever_the_object_is_cut(
    codec: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_decoder, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(avro, "_HEADER_READ_BYTES", 32)
    schema = record(id="long", name=["null", "string"])
    rows = [{"id": at * 7919, "name": None if at % 3 else f"name {at}"} for at in range(60)]
    content = container(schema, [rows[at : at + 7] for at in range(0, 60, 7)], codec)
    for cut in [*range(0, len(content), 29), len(content)]:
        options = ReadOptions(schema_ddl="id bigint, name string", format="avro")
        found = read(Case(contents=[content], partitions=halves(content, cut), options=options))
        ordered = sorted((position, row["id"], row["name"]) for _, position, row in found.rows)
        assert [(key, name) for _, key, name in ordered] == [(row["id"], row["name"]) for row in rows], cut


def test_a_marker_that_the_data_contain_finds_no_block() -> None:
    sync = bytes(16)
    rows = [{"data": bytes(40), "id": at} for at in range(30)]
    content = container(record(data="bytes", id="long"), [rows[at : at + 5] for at in range(0, 30, 5)], sync=sync)
    for cut in range(0, len(content), 37):
        options = ReadOptions(schema_ddl="id bigint", format="avro")
        found = read(Case(contents=[content], partitions=halves(content, cut), options=options))
        assert sorted(row["id"] for *_, row in found.rows) == list(range(30)), cut


def test_a_large_block_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_decoder, "SCANNED_BYTES", 100)
    rows = [{"id": at, "tags": [str(at)] * (at % 5)} for at in range(500)]
    content = container(record(id="long", tags={"type": "array", "items": "string"}), [rows, rows[:3]])
    found = found_in(content)
    assert [row for *_, row in found.rows] == [*rows, *rows[:3]]
    assert [position for _, position, _ in found.rows] == positions(content)


def test_logical_types_that_fastavro_lacks() -> None:
    schema = record(
        nanos=logical("long", "timestamp-nanos"),
        local=logical("long", "local-timestamp-nanos"),
        id=logical("fixed", "uuid", name="U", size=16),
        wait=logical("fixed", "duration", name="D", size=12),
        odd=logical("string", "decimal", precision=3),
        wide=logical("bytes", "decimal", precision=100),
    )
    uid = UUID("12345678-9abc-def0-1234-56789abcdef0")
    row = number(1_700_000_000_123_456_789) * 2 + uid.bytes + struct.pack("<III", 14, 3, 4005) + b"\x02a\x04\x01\x02"
    content = header(schema) + block(1, row)
    ((found,), failure) = rows_and_failure(content)
    assert failure is None
    moment = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert found == {
        "nanos": moment,
        "local": moment.replace(tzinfo=None),
        "id": str(uid),
        "wait": "P14M3DT4.005S",
        "odd": "a",
        "wide": b"\x01\x02",
    }


def test_columns_are_found_by_name_or_alias_and_fit_the_declared_types() -> None:
    schema = record(ID="int", price="float", extra={"type": "array", "items": "long"}, label="string")
    schema["fields"][3]["aliases"] = ["title", "name"]
    content = container(schema, [[{"ID": 7, "price": 1.5, "extra": [1, 2], "label": "a"}]])
    rows, _ = rows_and_failure(content, "id bigint, price double, name string, more date, extra string")
    assert rows == [{"id": 7, "price": 1.5, "name": "a", "more": None, "extra": "[1,2]"}]
    found = found_in(content, "label date, id int")
    assert [(raw, reason) for *_, raw, reason in found.bad] == [(b'{"label":"a","ID":7}', "wrong type")]
    assert rows_and_failure(content, "x int") == (
        [],
        "s3://b/k0 has no column of the schema, it has 'ID', 'price', 'extra', 'label'",
    )


def test_text_that_is_not_utf8_makes_a_bad_row() -> None:
    content = header(record(s="string")) + block(3, b"\x02a\x02\xff\x04\xc3\xa9")
    found = found_in(content)
    assert [row["s"] for *_, row in found.rows] == ["a", "é"]
    assert [(raw, reason) for *_, raw, reason in found.bad] == [(b'{"s":"\\\\xff"}', "invalid UTF-8")]


def test_an_object_without_rows_or_bytes_has_no_rows() -> None:
    schema = record(id="long")
    for content in (b"", header(schema), header(schema) + block(0, b"")):
        assert rows_and_failure(content, "id bigint") == ([], None)


def test_rows_without_bytes_are_rows() -> None:
    assert rows_and_failure(header(record(n="null")) + block(3, b"")) == ([{"n": None}] * 3, None)


LIST = {"type": "array", "items": "long"}
EMPTY = {"type": "array", "items": "null"}
LONG = "a number of more than 64 bits"


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("long", b"\xff" * 10 + b"\x01", LONG),
        ("long", b"\xff" * 9 + b"\x02", LONG),
        ("long", b"\x80" * 1000 + b"\x00", LONG),
        ("long", b"\xff\xff", "it ends within a row"),
        ("long", b"", "it ends within a row"),
        ("int", number(2**31), "an int of more than 32 bits"),
        ("boolean", b"\x02", "a boolean that is neither 0 nor 1"),
        ("double", b"1234567", "the last row ends behind the block"),
        ("string", b"\x01", "a text of negative length"),
        ("string", number(-(2**63)), "a text of negative length"),
        ("string", number(2**63 - 1), "the last row ends behind the block"),
        ("string", b"\x04a", "the last row ends behind the block"),
        ("string", b"\x02abc", "2 bytes are left behind the last row"),
        (LIST, number(2**62), "more items than the block has bytes"),
        (LIST, number(-(2**63)) + number(5), "more items than the block has bytes"),
        (LIST, number(-1) + number(-1), "items of negative size"),
        (LIST, b"\x80\x00", "a count of 0 in more than one byte"),
        (LIST, b"\x7e\x02", "it ends within a row"),
        (EMPTY, number(2**62), "more than 8388608 items without content"),
        (EMPTY, number(2**23) + number(2**23), "more than 8388608 items without content"),
        (["null", "long"], b"\x04\x00", "a place beyond the types of a union"),
        (["string", "null", "long"], b"\x07\x00", "a place beyond the types of a union"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\x02", "a place beyond the symbols of an enum"),
        (logical("bytes", "decimal", precision=9), number(40) + bytes(40), "a decimal of 40 bytes"),
    ],
    ids=str,
)
def test_bytes_that_are_no_rows_fail_the_object_for_good(kind: Schema, data: bytes, reason: str) -> None:
    content = header(record(v=kind)) + block(1, data)
    found = found_in(content)
    at = len(header(record(v=kind)))
    assert found.failures[0].startswith(f"s3://b/k0 cannot be read as avro: the block at offset {at}: ")
    if data not in (b"\x7e\x02", b"", b"\xff\xff"):
        assert found.failures[0].endswith(reason)
    assert found.rows == []


def test_a_damaged_block_fails_its_object_alone() -> None:
    schema = record(id="long")
    good = container(schema, [[{"id": at}] for at in range(100)])
    at = len(header(schema)) + 50 * len(block(1, b"\x00"))
    damaged = {
        "cut within a block": good[:-5],
        "without a marker": good[:at] + good[at:].replace(SYNC, bytes(16), 1),
        "a negative count": good[:at] + b"\x01" + good[at + 1 :],
        "a negative size": good[:at] + b"\x02\x01" + good[at + 2 :],
        "cut within the header": good[:30],
        "another format": b"id,name\n1,a\n" * 100,
        "no codec": header(schema, "lz4"),
        "no JSON": header(b"{"),
        "no record": header("long"),
        "a huge size": header(schema) + number(1) + number(1 << 40),
        "a huge count": header(schema) + number(1 << 40) + number(0) + SYNC,
        "a header with a huge count": b"Obj\x01" + number(1 << 40),
        "a header with a huge text": b"Obj\x01" + number(1) + number(1 << 40),
    }
    contents = [good, *damaged.values()]
    options = ReadOptions(schema_ddl="id bigint", format="avro")
    found = read(Case(contents=contents, partitions=whole(contents), options=options))
    assert set(found.failures) == set(range(1, len(contents))), "and not the first"
    assert len([row for uri, _, row in found.rows if uri == "s3://b/k0"]) == 100
    reasons = dict(
        zip(damaged, (found.failures[number].partition(" ")[2] for number in range(1, len(contents))), strict=True)
    )
    end = len(header(schema))
    last = len(good) - len(block(1, number(99)))
    assert reasons == {
        "cut within a block": f"cannot be read as avro: it ends within the block at offset {last}",
        "without a marker": f"cannot be read as avro: the block at offset {at} does not end with the object's marker",
        "a negative count": f"cannot be read as avro: the block at offset {at} has a negative size",
        "a negative size": f"cannot be read as avro: the block at offset {at} has a negative size",
        "cut within the header": "cannot be read as avro: it ends within its header",
        "another format": "cannot be read as avro: it does not begin as Avro does",
        "no codec": "has the codec 'lz4', and only null, deflate, snappy, bzip2, xz, zstandard are read",
        "no JSON": "has a schema that is not JSON",
        "no record": "has rows of the type long, and only records have columns",
        "a huge size": f"has a block of {1 << 40} bytes at offset {end}, and at most {1 << 27} are read",
        "a huge count": f"has a block of {1 << 40} rows at offset {end}, and at most {(1 << 23) - 1} are read",
        "a header with a huge count": "cannot be read as avro: its header has more than 10000 entries",
        "a header with a huge text": "cannot be read as avro: it ends within its header",
    }


@codecs
def test_a_block_that_inflates_to_more_than_the_limit_fails_its_object(codec: str) -> None:
    content = header(record(v="bytes"), codec) + block(1, number(1 << 21) + bytes(1 << 21), codec)
    found = found_in(content, line_bytes_max=1 << 20)
    assert "more than 1048576 bytes" in found.failures[0] or "at most 1048576 are read" in found.failures[0]
    assert found_in(content, line_bytes_max=1 << 22).failures == {}


@codecs
def test_a_cut_off_or_continued_block_is_damaged(codec: str) -> None:
    schema = record(v="bytes")
    stored = CODECS[codec](rows_of(schema, [{"v": bytes(range(256)) * 4}]))
    for wrong in (stored[:-1], stored[:10], b"", stored + b"\0\1\2"):
        content = header(schema, codec) + number(1) + number(len(wrong)) + wrong + SYNC
        assert "cannot be read as avro: the block at offset" in found_in(content).failures[0]


def nested(depth: int) -> Schema:
    schema: Schema = "long"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def twice(levels: int) -> Schema:
    """Return a schema of few characters whose types double at each level."""
    inner: Schema = {"type": "record", "name": "L0", "fields": [{"name": "a", "type": "long"}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"L{level - 1}"}]
        inner = {"type": "record", "name": f"L{level}", "fields": fields}
    return inner


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(v=nested(70)), "has a schema that is nested deeper than 64 levels"),
        (b'{"type":' * 100_000, "has a schema that is not JSON"),
        (record(v=NODE), "has a schema in which the type 'Node' contains itself"),
        (twice(40), "has a schema of more than 10000 types"),
        (record(v=["null"] * 65), "has a schema with a union of more than 64 types"),
        (record(v="Missing"), "has a schema with the unknown type 'Missing'"),
        (record(v={"type": "fixed", "name": "F", "size": -1}), "has a schema with a fixed type without a valid size"),
        (record(v=7), "has a schema with 7, which is no type"),
        ({"type": "record", "name": "R"}, "has a schema with a record without fields"),
        ({"type": "record", "fields": []}, "has a schema with a type record without a name"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_schema_without_columns_for_it_is_explained(schema: Schema, reason: str) -> None:
    content = header(schema) + block(0, b"")
    with pytest.raises(ObjectUnreadable, match=reason):
        schema_of(opened(content))
    assert rows_and_failure(content, "v string") == ([], f"s3://b/k0 {reason}")


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 20])
def test_nested_arrays_and_maps(depth: int) -> None:
    value: Any = 7
    schema: Schema = "long"
    expected: Any = 7
    for level in range(depth):
        if level % 3 == 2:
            schema, value, expected = {"type": "map", "values": ["null", schema]}, {"k": value}, [("k", expected)]
        else:
            schema, value, expected = {"type": "array", "items": ["null", schema]}, [value, None], [expected, None]
    assert rows_and_failure(container(record(v=schema), [[{"v": value}] * 3])) == ([{"v": expected}] * 3, None)


def test_optional_records_within_each_other() -> None:
    schema: Schema = "long"
    value: Any = 7
    for level in range(30):
        fields = [{"name": "v", "type": ["null", schema]}]
        schema, value = {"type": "record", "name": f"L{level}", "fields": fields}, {"v": value if level != 20 else None}
    rows, failure = rows_and_failure(container(schema, [[value, {"v": None}]]))
    assert (rows, failure) == ([value, {"v": None}], None)


def test_many_blocks_of_rows_without_bytes_do_not_hold_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "EMPTY_ITEMS_MAX", 5_000)
    content = header(record(n="null")) + block(1_000, b"") * 6
    assert found_in(content).failures[0].endswith("items without content")
    content = header(record(n=EMPTY)) + block(1, number(1_000) + b"\0") * 6
    assert found_in(content).failures[0].endswith("items without content")


def test_an_object_that_inflates_to_more_than_the_limit_fails() -> None:
    content = header(record(v="bytes"), "deflate") + block(1, number(1 << 20) + bytes(1 << 20), "deflate") * 9
    options = ReadOptions(schema_ddl="v binary", format="avro", inflated_bytes_max=8 << 20)
    found = read(Case(contents=[content], partitions=whole([content]), options=options))
    assert found.failures == {0: "s3://b/k0 inflates to more than 8388608 bytes, the limit for one object"}


def test_names_are_resolved_in_their_namespace() -> None:
    inner = {"type": "fixed", "name": "F", "size": 1}
    schema = {
        "type": "record",
        "name": "a.b.R",
        "fields": [
            {"name": "x", "type": inner},
            {"name": "y", "type": "a.b.F"},
            {"name": "z", "type": ["null", "F"]},
            {"name": "w", "type": {"type": {"type": "enum", "name": "E", "namespace": "c", "symbols": ["p"]}}},
            {"name": "v", "type": "c.E"},
        ],
    }
    content = header(schema) + block(1, b"12\x023\x00\x00")
    assert rows_and_failure(content) == ([{"x": b"1", "y": b"2", "z": b"3", "w": "p", "v": "p"}], None)


FUZZED = record(
    id="long",
    name=["null", "string"],
    v="double",
    n=logical("bytes", "decimal", precision=9, scale=2),
    at=[
        "null",
        {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}, {"name": "e", "type": EMPTY}]},
    ],
    tags={"type": "array", "items": ["string", "null", "long"]},
    m={"type": "map", "values": "boolean"},
    day=logical("int", "date"),
    moment=logical("long", "timestamp-millis"),
    hour=logical("long", "time-micros"),
)
FUZZED_ROWS = [
    {
        "id": 3**at,
        "name": None if at % 2 else "n" * at,
        "v": at / 3,
        "n": Decimal(at) / 4,
        "at": {"x": at, "e": [None] * at} if at % 3 else None,
        "tags": ["a", None, at],
        "m": {"k": True, "l": False},
        "day": date(2024, 1, 1),
        "moment": datetime(2024, 1, 1, tzinfo=UTC),
        "hour": time(1, 2, 3),
    }
    for at in range(12)
]


@codecs
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_flipped_bytes_fail_the_object_or_change_nothing_that_is_checked(codec: str, data: st.DataObject) -> None:
    content = bytearray(container(FUZZED, [FUZZED_ROWS[:5], FUZZED_ROWS[5:]], codec))
    whole_rows = found_in(bytes(content)).rows
    ddl = inferred(bytes(content))
    begin = data.draw(st.sampled_from([0, len(header(FUZZED, codec))]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(begin, len(content) - 1))] = data.draw(st.integers(0, 255))
    found = found_in(bytes(content), ddl)
    if begin and codec in ("snappy", "bzip2", "xz") and not found.failures:
        assert found.rows == whole_rows, "the checksum of a block covers its rows"
