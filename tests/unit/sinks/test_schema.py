"""Schemas: their text in Delta's terms, and their comparison."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TableError
from penstock.sinks.schema import additions, canonical, decode, encode, merge, same_type, type_name

UTC_US = pa.timestamp("us", tz="UTC")
LEAVES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    UTC_US,
    pa.timestamp("us"),
    pa.decimal128(38, 0),
    pa.decimal128(10, 2),
    pa.decimal128(1, 1),
]
NAMES = st.text(min_size=1, max_size=8)


def _structs(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.tuples(NAMES, types, st.booleans())
    return st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field[0].lower()).map(
        lambda found: pa.struct([pa.field(name, type_, nullable=null) for name, type_, null in found])
    )


def _lists(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.tuples(types, st.booleans()).map(lambda of: pa.list_(pa.field("element", of[0], nullable=of[1])))


def _maps(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.tuples(types, types, st.booleans()).map(
        lambda of: pa.map_(pa.field("key", of[0], nullable=False), pa.field("value", of[1], nullable=of[2]))
    )


TYPES = st.recursive(
    st.sampled_from(LEAVES), lambda types: st.one_of(_structs(types), _lists(types), _maps(types)), max_leaves=8
)
SCHEMAS = _structs(TYPES).map(lambda struct: pa.schema(list(struct)))


def nested(type_: pa.DataType) -> pa.Schema:
    """Return a schema with the type at every depth at which Spark allows it."""
    return pa.schema(
        [
            pa.field("flat", type_),
            pa.field("needed", type_, nullable=False),
            pa.field("list", pa.list_(pa.field("element", type_))),
            pa.field("map", pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", type_))),
            pa.field("struct", pa.struct([pa.field("deep", pa.struct([pa.field("deeper", type_)]))])),
        ]
    )


@pytest.mark.parametrize("type_", LEAVES, ids=str)
def test_every_type_of_spark_survives_encoding_and_decoding(type_: pa.DataType) -> None:
    schema = nested(type_)
    assert decode(encode(schema)).equals(schema, check_metadata=True)


@given(SCHEMAS)
def test_any_schema_survives_encoding_and_decoding(schema: pa.Schema) -> None:
    assert decode(encode(schema)).equals(schema)
    assert encode(decode(encode(schema))) == encode(schema)


@given(SCHEMAS)
def test_a_schema_is_compatible_with_itself(schema: pa.Schema) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    assert additions(nullable, schema, table="t") == ()


def test_the_text_equals_the_one_that_spark_and_delta_write() -> None:
    text = encode(pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    assert json.loads(text) == {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {
                "name": "tags",
                "type": {"type": "array", "elementType": "string", "containsNull": True},
                "nullable": True,
                "metadata": {},
            },
        ],
    }


@pytest.mark.parametrize(
    ("arrow", "table"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.timestamp("us", tz="Europe/Paris"), UTC_US),
        (pa.timestamp("ms", tz="UTC"), UTC_US),
        (pa.large_list(pa.int64()), pa.list_(pa.field("element", pa.int64()))),
        (pa.list_(pa.field("item", pa.large_string())), pa.list_(pa.field("element", pa.string()))),
    ],
    ids=str,
)
def test_arrows_variants_of_one_type_are_equal(arrow: pa.DataType, table: pa.DataType) -> None:
    assert canonical(pa.schema([("c", arrow)])).field("c").type == table
    assert same_type(arrow, table)


@pytest.mark.parametrize(
    "type_",
    [
        pa.null(),
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.time64("us"),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.timestamp("ns"),
        pa.decimal256(50, 2),
        pa.decimal128(10, -2),
    ],
    ids=str,
)
def test_an_unsupported_type_is_refused_with_its_column_at_any_depth(type_: pa.DataType) -> None:
    for wrapped in (type_, pa.list_(type_), pa.struct([("inner", type_)])):
        with pytest.raises(TableError, match="column c"):
            encode(pa.schema([("c", wrapped)]))


def test_a_variant_is_refused_by_its_name() -> None:
    """PySpark represents a variant as a struct with a marker on one of its fields."""
    value = pa.field("value", pa.binary(), nullable=False)
    mark = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
    with pytest.raises(TableError, match="variant"):
        encode(pa.schema([("v", pa.struct([value, mark]))]))


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"type":"array"}', '"long"'])
def test_a_text_that_is_not_a_schema_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        decode(text)


def test_types_are_named_as_in_sql() -> None:
    schema = canonical(nested(pa.decimal128(10, 2)))
    assert type_name(schema.field("map").type) == "map<string, decimal(10,2)>"
    assert type_name(schema.field("struct").type) == "struct<deep: struct<deeper: decimal(10,2)>>"


# Comparing

TABLE = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_the_order_of_columns_does_not_matter() -> None:
    assert merge(TABLE, pa.schema([("name", pa.string()), ("id", pa.int64())]), table="t").equals(TABLE)


def test_new_columns_come_last_and_are_nullable() -> None:
    wanted = pa.schema([pa.field("at", UTC_US, nullable=False), ("id", pa.int64()), ("name", pa.string())])
    assert merge(TABLE, wanted, table="t").equals(TABLE.append(pa.field("at", UTC_US)))


def test_a_run_must_write_every_column_and_an_older_batch_may_lack_some() -> None:
    fewer = pa.schema([("id", pa.int64())])
    with pytest.raises(TableError, match="name"):
        merge(TABLE, fewer, table="t")
    missing = set(TABLE.names) - set(fewer.names)
    assert merge(TABLE, fewer, table="t", optional=missing).equals(TABLE)
    assert additions(TABLE, fewer, table="t") == ()


def test_a_required_column_may_be_written_to_a_nullable_one() -> None:
    assert additions(TABLE, pa.schema([pa.field("id", pa.int64(), nullable=False)]), table="t") == ()


def test_a_required_column_of_the_table_is_refused() -> None:
    with pytest.raises(TableError, match="id"):
        additions(pa.schema([pa.field("id", pa.int64(), nullable=False)]), TABLE, table="t")


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (UTC_US, pa.timestamp("us")),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        (pa.struct([("a", pa.int64())]), pa.struct([("A", pa.int64())])),
    ],
    ids=str,
)
def test_a_different_type_is_refused_in_both_directions(have: pa.DataType, want: pa.DataType) -> None:
    for one, other in ((have, want), (want, have)):
        with pytest.raises(TableError, match="column c is") as refusal:
            merge(pa.schema([("c", one)]), pa.schema([("c", other)]), table="file:///lake/t")
        assert "file:///lake/t" in str(refusal.value)
