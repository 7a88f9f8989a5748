"""A file in Delta's log has bounds for every indexed column, or for none."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.sinks.delta.statistics import encode, indexed_columns, logged, with_raw_dates
from penstock.sinks.parquet import with_columns

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(38, 2)),
        ("nested", pa.struct([("x", pa.int64())])),
        ("list", pa.list_(pa.int64())),
        ("raw", pa.binary()),
    ]
)
COMPLETE: dict[str, dict[str, Any]] = {
    "minValues": {"id": 1, "name": "a", "price": "-0.05"},
    "maxValues": {"id": 9, "name": "b", "price": "123456789012345678901234567890.12"},
    "nullCount": {"id": 0, "name": 1, "price": 0, "raw": 0},
}


def encoded(statistics: dict[str, Any], rows: int = 3) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(rows, statistics, list(SCHEMA)), parse_float=Decimal)
    return found


def without(key: str, column: str) -> dict[str, Any]:
    return {**COMPLETE, key: {name: value for name, value in COMPLETE[key].items() if name != column}}


def test_a_complete_file_has_bounds_with_all_digits_and_an_empty_object_for_structs() -> None:
    assert encoded(COMPLETE) == {
        "numRecords": 3,
        "minValues": {"id": 1, "name": "a", "price": Decimal("-0.05"), "nested": {}},
        "maxValues": {"id": 9, "name": "b", "price": Decimal("123456789012345678901234567890.12"), "nested": {}},
        "nullCount": {"id": 0, "name": 1, "price": 0, "raw": 0},
    }


@pytest.mark.parametrize("column", ["id", "name", "price"])
@pytest.mark.parametrize("key", ["minValues", "maxValues", "nullCount"])
def test_a_file_whose_manifest_lacks_something_of_a_column_has_no_bounds(key: str, column: str) -> None:
    """Manifests of earlier versions have bounds for some columns."""
    partial = without(key, column)
    assert encoded(partial) == {"numRecords": 3, "nullCount": partial["nullCount"]}


def test_a_column_of_nulls_needs_no_bounds() -> None:
    nulls = {**without("minValues", "name"), "nullCount": {**COMPLETE["nullCount"], "name": 3}}
    assert encoded({**nulls, "maxValues": without("maxValues", "name")["maxValues"]})["minValues"].keys() == {
        "id",
        "price",
        "nested",
    }


def test_a_manifest_without_statistics_counts_rows_only() -> None:
    assert encoded({}) == {"numRecords": 3, "nullCount": {}}


def test_a_file_with_nulls_only_has_no_bounds() -> None:
    assert encoded({"nullCount": {"id": 3, "name": 3, "price": 3}}).keys() == {"numRecords", "nullCount"}


def test_characters_are_not_escaped() -> None:
    """arrow-rs decodes some escapes of two surrogates to other characters."""
    bounds = {**COMPLETE, "maxValues": {**COMPLETE["maxValues"], "name": "\U000ab1bb"}}
    assert "\U000ab1bb" in encode(3, bounds, list(SCHEMA))


@pytest.mark.parametrize(
    ("configuration", "number"),
    [
        ({}, 32),
        ({"delta.dataSkippingNumIndexedCols": "3"}, 3),
        ({"delta.dataSkippingNumIndexedCols": "0"}, 0),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, 39),
        ({"delta.dataSkippingNumIndexedCols": "many"}, 39),
        ({"delta.dataSkippingStatsColumns": "c1,c2"}, 39),
    ],
)
def test_the_first_columns_are_indexed_unless_the_table_says_otherwise(
    configuration: dict[str, str | None], number: int
) -> None:
    schema = pa.schema([(f"c{one}", pa.int64()) for one in range(40)])
    found = indexed_columns(schema, partition_by=["c0"], configuration=configuration)
    assert [field.name for field in found] == [f"c{one}" for one in range(1, number + 1)]


def test_statistics_read_from_a_log_and_restated_stay_the_same_except_for_the_new_columns() -> None:
    found = logged(
        least={"id": 1, "name": "a", "price": Decimal("-0.05"), "nested": {"x": None}},
        greatest={"id": 9, "name": "b", "price": Decimal("123456789012345678901234567890.12"), "nested": {"x": None}},
        nulls={"id": 0, "name": 1, "price": 0, "nested": {"x": None}, "raw": 0},
        schema=SCHEMA,
    )
    assert found == COMPLETE
    added = [pa.field("new", pa.int64()), pa.field("more", pa.struct([("y", pa.int64())]))]
    text = encode(3, with_columns(3, found, added), [*SCHEMA, *added])
    expected = encoded(COMPLETE)
    expected["nullCount"]["new"] = 3
    expected["minValues"]["more"] = expected["maxValues"]["more"] = {}
    assert json.loads(text, parse_float=Decimal) == expected


def test_bounds_in_a_log_that_penstock_would_not_write_are_left_out() -> None:
    """Databricks states those of all files again, with infinity and bounds of binaries."""
    schema = pa.schema([("share", pa.float64()), ("raw", pa.binary()), ("id", pa.int64())])
    found = logged(
        least={"share": float("-inf"), "raw": b"a", "id": 1},
        greatest={"share": 1.0, "raw": b"b", "id": 2},
        nulls={"share": 0, "raw": 0, "id": 0},
        schema=schema,
    )
    assert found == {"minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"share": 0, "raw": 0, "id": 0}}
    assert "minValues" not in json.loads(encode(2, found, list(schema))), "null would hide the rows from readers"


@pytest.mark.parametrize("zone", ["UTC", None])
def test_bounds_of_timestamps_contain_values_that_spark_has_cut_to_milliseconds(zone: str | None) -> None:
    cut = datetime(2026, 1, 1, 0, 0, 0, 123_000, UTC if zone else None)
    schema = pa.schema([("at", pa.timestamp("us", tz=zone))])
    found = logged(least={"at": cut}, greatest={"at": cut}, nulls={"at": 0}, schema=schema)
    end = "Z" if zone else ""
    assert found["minValues"] == {"at": f"2026-01-01T00:00:00.123{end}"}
    assert found["maxValues"] == {"at": f"2026-01-01T00:00:00.124{end}"}


def test_dates_that_python_lacks_are_no_bounds() -> None:
    """Other writers have the bounds of years after 9999 in the log."""
    days = pa.array([7, 3_000_000], pa.int32()).cast(pa.date32())
    bounds = pa.StructArray.from_arrays([days, pa.array([1, 2])], ["day", "id"])
    actions = with_raw_dates(pa.table({"path": ["a", "b"], "min": bounds, "max": bounds}))
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64())])
    found = [
        logged(least=action["min"], greatest=action["max"], nulls={}, schema=schema) for action in actions.to_pylist()
    ]
    assert [one["maxValues"] for one in found] == [{"day": "1970-01-08", "id": 1}, {"id": 2}]
