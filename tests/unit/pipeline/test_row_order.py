"""Rows in the order of one column or of a Z-order curve, for every type that a column may have."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.maintenance.ordering import RowOrder
from penstock.pipeline.rewriting import is_ordered

COLUMNS = {
    "long": pa.array([3, None, -5, 3]),
    "double": pa.array([1.5, None, -math.inf, 1.5]),
    "string": pa.array(["é", None, "a", "é"]),
    "boolean": pa.array([True, None, False, True]),
    "date": pa.array([date(2024, 1, 1), None, date(1, 1, 1), date(2024, 1, 1)]),
    "timestamp": pa.array([datetime(2024, 1, 1, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)] * 1),
    "decimal": pa.array([Decimal("1.50"), None, Decimal("-0.50"), Decimal("1.50")]),
    "binary": pa.array([b"\xff", None, b"", b"\xff"]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_are_sorted_by_one_column_with_nulls_first(name: str) -> None:
    column = COLUMNS[name]
    found = RowOrder(("c",)).sort(pa.table({"c": column}))["c"].to_pylist()
    values = [value for value in column.to_pylist() if value is not None]
    assert found == [None, *sorted(values)]


@given(st.lists(st.tuples(st.integers(-3, 3), st.none() | st.text(max_size=2)), max_size=40))
def test_every_row_is_kept_once(rows: list[tuple[int, Any]]) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in rows], pa.int64()), "b": pa.array([b for _, b in rows], pa.string())}
    )
    found = RowOrder(("a", "b")).sort(table)
    assert sorted(zip(found["a"].to_pylist(), found["b"].to_pylist(), strict=True), key=repr) == sorted(rows, key=repr)


def test_rows_keep_their_types_and_values_in_nested_columns() -> None:
    struct = pa.struct([("x", pa.string()), ("y", pa.list_(pa.binary()))])
    table = pa.table(
        {
            "a": pa.array([2, 1]),
            "s": pa.array([{"x": "é", "y": [b"\xff"]}, None], struct),
            "m": pa.array([[("k", ["v"])], []], pa.map_(pa.string(), pa.list_(pa.string()))),
        }
    )
    found = RowOrder(("a",)).sort(table)
    assert found.schema.equals(table.schema)
    assert found.to_pylist() == table.to_pylist()[::-1]


@pytest.mark.slow  # needs 5 GB of memory
@pytest.mark.parametrize("name", ["a", "text"])
def test_texts_of_more_than_two_gibibytes_are_sorted(name: str) -> None:
    texts = pa.array(["x" * 1_000_000 + str(number) for number in range(100)])
    chunks = [texts] * 23
    numbers = pa.array(range(2_300, 0, -1))
    found = RowOrder((name,)).sort(pa.table({"a": numbers, "text": pa.chunked_array(chunks)}))
    assert sum(len(chunk) for chunk in found["text"].chunks) == 2_300
    assert found["text"][0].as_py().endswith("x99" if name == "a" else "x0")


def test_a_quarter_of_a_z_order_covers_half_of_each_column() -> None:
    table = pa.table({"a": [a for a in range(16) for _ in range(16)], "b": [b for _ in range(16) for b in range(16)]})
    found = RowOrder(("a", "b")).sort(table)
    for start in range(0, 256, 64):
        quarter = found.slice(start, 64)
        assert len(set(quarter["a"].to_pylist())) == len(set(quarter["b"].to_pylist())) == 8


def test_an_outlier_does_not_spoil_the_order_of_the_other_rows() -> None:
    table = pa.table({"a": [*range(63), 10**18], "b": [n * 7 % 64 for n in range(64)]})
    half = RowOrder(("a", "b")).sort(table).slice(0, 32)
    assert max(half["a"].to_pylist()) < 40


def test_a_file_with_an_order_is_known_by_its_name() -> None:
    mark = RowOrder(("a", "b")).mark
    assert is_ordered(f"compacted/01K0/part-00000-{mark}-00001.parquet")
    assert mark != RowOrder(("b", "a")).mark
    assert not is_ordered(f"data/01K0/part-00000-{mark}-00001.parquet")
    assert not is_ordered("compacted/01K0/part-00000.parquet")
