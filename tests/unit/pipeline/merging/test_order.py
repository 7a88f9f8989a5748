"""The order of the rows of one key, over Arrow columns."""

import itertools
import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import TableError
from penstock.pipeline.merging.order import Rows, Signs, check_types, compare, content_names, key_texts, last_of_each

NAN = math.nan
ORDERED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [None, -(2**63), -1, 0, 2**63 - 1]),
    (pa.string(), [None, "", "a", "aa", "b", "\uffff", "\U0001f600"]),  # by code points, as by bytes
    (pa.float64(), [None, -math.inf, -1.5, 0.0, 1.5, math.inf, NAN]),
    (pa.bool_(), [None, False, True]),
    (pa.date32(), [None, date(1969, 1, 1), date(2026, 1, 1)]),
    (pa.timestamp("us", tz="UTC"), [None, datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, UTC)]),
    (pa.decimal128(10, 2), [None, Decimal("-10.00"), Decimal("-9.99"), Decimal("9.00"), Decimal("10.00")]),
    (pa.binary(), [None, b"", b"\x00", b"\xff"]),
]


@pytest.mark.parametrize(("kind", "values"), ORDERED, ids=[str(kind) for kind, _ in ORDERED])
def test_null_is_the_oldest_and_values_have_sparks_order(kind: pa.DataType, values: list[Any]) -> None:
    pairs = list(itertools.product(range(len(values)), repeat=2))
    left, right = (pa.array([values[pair[side]] for pair in pairs], kind) for side in (0, 1))
    assert compare([left], [right], len(pairs)).tolist() == [(one > other) - (one < other) for one, other in pairs]


def test_negative_zero_equals_zero() -> None:
    assert compare([pa.array([-0.0])], [pa.array([0.0])], 1).tolist() == [0]


def test_the_first_column_that_differs_decides() -> None:
    left = [pa.array([1, 1, 1]), pa.array(["a", "b", "c"])]
    right = [pa.array([2, 1, 1]), pa.array(["z", "a", "c"])]
    assert compare(left, right, 3).tolist() == [-1, 1, 0]
    assert compare([], [], 3).tolist() == [0, 0, 0]


def test_nested_values_have_a_total_order() -> None:
    kind = pa.list_(pa.struct([("a", pa.int64())]))
    values = [None, [], [{"a": 1}], [{"a": 2}]]
    signs = {
        (one, other): compare([pa.array([values[one]], kind)], [pa.array([values[other]], kind)], 1)[0]
        for one, other in itertools.product(range(len(values)), repeat=2)
    }
    assert all(signs[pair] == -signs[pair[::-1]] for pair in signs)
    assert all((sign == 0) == (one == other) for (one, other), sign in signs.items())
    assert all(signs[0, other] == -1 for other in (1, 2, 3))


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.array([2_932_897, 3_000_000], pa.int32()), pa.date32()),  # of the years 10000 and later
        (pa.array([2**62, 2**62 + 1]), pa.timestamp("us", tz="UTC")),
        (pa.array([b"\xff", b"\xff\x00"]), pa.string()),  # Spark casts any bytes to a string
    ],
    ids=["date", "timestamp", "string"],
)
def test_nested_values_that_python_lacks_have_an_order(stored: pa.Array, kind: pa.DataType) -> None:
    values = stored.cast(kind) if not pa.types.is_string(kind) else pa.Array.from_buffers(kind, 2, stored.buffers())
    ends = pa.array([0, 1, 2], pa.int32())
    one, other = (pa.StructArray.from_arrays([values.take(pa.array(rows))], ["a"]) for rows in ([0, 1], [1, 0]))
    assert set(compare([one], [other], 2).tolist()) == {-1, 1}
    for parts in (one, other):
        lists = pa.ListArray.from_arrays(ends, parts)
        maps = pa.MapArray.from_arrays(ends, pa.array(["k", "k"]), parts)
        assert compare([lists], [lists], 2).tolist() == compare([maps], [maps], 2).tolist() == [0, 0]


def test_keys_have_texts_that_no_other_key_has() -> None:
    columns = [pa.array(["a:1", "a", "a"]), pa.array(["b", "1:b", "1:b"])]
    texts = key_texts(columns).to_pylist()
    assert texts[0] != texts[1] == texts[2]
    for kind, values in ORDERED:
        if not (pa.types.is_floating(kind) or pa.types.is_binary(kind)):
            found = key_texts([pa.array(values[1:], kind)]).to_pylist()
            assert len(set(found)) == len(values) - 1


def test_the_last_row_of_each_key_is_found_in_few_rounds() -> None:
    rng = random.Random(1)
    keys = [rng.choice("abcdefg") for _ in range(2000)]
    values = np.array([rng.randint(0, 10**9) for _ in keys])
    rounds = []

    def decide(left: Rows, right: Rows) -> Signs:
        rounds.append(len(left))
        assert all(keys[one] == keys[other] for one, other in zip(left, right, strict=True))
        signs: Signs = np.sign(values[left] - values[right]).astype(np.int8)
        return signs

    found = last_of_each(pa.array(keys), decide).tolist()
    last = {key: max((i for i, one in enumerate(keys) if one == key), key=lambda i: values[i]) for key in set(keys)}
    assert found == sorted(last.values())
    assert len(rounds) <= 10
    assert last_of_each(pa.array([], pa.string()), decide).tolist() == []


def test_provenance_decides_last() -> None:
    schema = pa.schema([(name, pa.int64()) for name in ("_offset", "b", "id", "_object", "a", "at")])
    assert content_names(schema, ["id", "at"]) == ["a", "b", "_object", "_offset"]


@pytest.mark.parametrize(
    ("key", "order_by", "says"),
    [
        (["no"], ["n"], "needs the column no, and the rows have n, f, l"),
        (["f"], ["n"], "The column f is double, which cannot be a key"),
        (["n"], ["l"], "The column l is list.* cannot order rows"),
    ],
)
def test_columns_that_do_not_fit_are_named(key: Sequence[str], order_by: Sequence[str], says: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("l", pa.list_(pa.int64()))])
    check_types(schema, ["n"], ["f"])
    with pytest.raises(TableError, match=says):
        check_types(schema, key, order_by)
