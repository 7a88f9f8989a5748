"""Bounds of columns in an Iceberg table's manifests, in the form of the statistics of a file."""

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes

from penstock.sinks.iceberg.columns import bounds, iceberg_schema

COLUMNS = iceberg_schema(
    pa.schema(
        [
            ("text", pa.string()),
            ("number", pa.int64()),
            ("day", pa.date32()),
            ("flag", pa.bool_()),
            ("at", pa.timestamp("us")),
            ("parts", pa.struct([("a", pa.int32())])),
        ]
    )
).fields


def raw(name: str, value: object) -> dict[int, bytes]:
    field = next(field for field in COLUMNS if field.name == name)
    return {field.field_id: to_bytes(field.field_type, value)}  # type: ignore[arg-type] # a primitive type


@pytest.mark.parametrize(
    ("name", "stored", "found"),
    [
        ("text", ("a", "zé"), ("a", "zé")),
        ("number", (-1, 1 << 40), (-1, 1 << 40)),
        ("day", (0, 19_723), ("1970-01-01", "2024-01-01")),
        ("flag", (False, True), (False, True)),
    ],
)
def test_bounds_are_read(name: str, stored: tuple[object, object], found: tuple[object, object]) -> None:
    read = bounds(raw(name, stored[0]), raw(name, stored[1]), COLUMNS)
    assert read == {"minValues": {name: found[0]}, "maxValues": {name: found[1]}}


def test_bounds_that_cannot_be_read_are_unknown() -> None:
    assert bounds({1: b"a\xc3"}, {1: b"b"}, COLUMNS) == {"minValues": {}, "maxValues": {"text": "b"}}
    assert bounds({2: b"\x01"}, {2: b"\x01"}, COLUMNS) == {"minValues": {}, "maxValues": {}}
    assert bounds(raw("day", 1 << 30), raw("day", 1 << 30), COLUMNS) == {"minValues": {}, "maxValues": {}}


def test_a_number_that_was_stored_before_its_column_was_widened() -> None:
    narrow = (7).to_bytes(4, "little")
    assert bounds({2: narrow}, {2: narrow}, COLUMNS) == {"minValues": {"number": 7}, "maxValues": {"number": 7}}


def test_other_columns_and_half_known_bounds_are_left_out() -> None:
    empty: dict[str, object] = {"minValues": {}, "maxValues": {}}
    assert bounds(raw("text", "a"), {}, COLUMNS) == empty
    assert bounds(raw("at", 1), raw("at", 2), COLUMNS) == empty
    assert bounds(None, None, COLUMNS) == empty
    assert bounds(raw("text", "a"), raw("text", "b"), COLUMNS[1:]) == empty
