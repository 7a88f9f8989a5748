"""The values of partition transforms, against PyIceberg's and the examples of Iceberg's specification."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import TableError
from penstock.sinks.derived import check_type, folder_texts, folder_value, hashes, texts
from penstock.sinks.iceberg.columns import iceberg_schema
from penstock.sinks.iceberg.partitioning import TableField, fields_of, new_spec
from penstock.sinks.partitions import TIMES, PartitionField, parse

UTC_TIMES = pa.timestamp("us", tz="UTC")
LOCAL_TIMES = pa.timestamp("us")
_DECIMALS = (pa.decimal128(1, 0), pa.decimal128(9, 2), pa.decimal128(18, 18), pa.decimal128(38, 10))
_TYPES = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), UTC_TIMES, LOCAL_TIMES, pa.string(), pa.binary()),
    *_DECIMALS,
)
_OTHERS = (pa.float32(), pa.float64(), pa.bool_(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]))


def _values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(type_):
        half = 1 << (type_.bit_width - 1)
        return st.integers(-half, half - 1)
    if pa.types.is_decimal(type_):
        most = 10**type_.precision - 1
        return st.integers(-most, most).map(
            lambda unscaled: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -type_.scale))
        )
    if pa.types.is_date(type_):
        return st.dates()
    if pa.types.is_timestamp(type_):
        return st.datetimes(timezones=st.just(UTC)) if type_.tz else st.datetimes()
    return st.text() if pa.types.is_string(type_) else st.binary()


@st.composite
def _columns(draw: st.DrawFn) -> tuple[pa.Array, PartitionField]:
    type_ = draw(st.sampled_from(_TYPES))
    field = draw(
        st.one_of(
            st.sampled_from(TIMES).map(lambda name: PartitionField(source="c", transform=name)),
            st.builds(
                PartitionField,
                source=st.just("c"),
                transform=st.sampled_from(["bucket", "truncate"]),
                argument=st.integers(1, 40) | st.integers(1, (1 << 31) - 1),
            ),
        ).filter(lambda field: _takes(field, type_))
    )
    rows = draw(st.lists(st.none() | _values(type_), max_size=20))
    return pa.array(rows, type_), field


def _takes(field: PartitionField, type_: pa.DataType) -> bool:
    try:
        check_type(field, type_)
    except TableError:
        return False
    return True


def _in_table(field: PartitionField, type_: pa.DataType) -> TableField:
    """Return the field as a new table has it."""
    columns = iceberg_schema(pa.schema([("c", type_)]))
    (found,) = fields_of(new_spec([str(field)], columns), columns)
    assert found.text == str(field)
    return found


def _expected(column: pa.Array, found: TableField) -> list[Any]:
    """Return PyIceberg's values: its functions take numbers since 1970 for dates and times."""
    assert found.kind is not None
    numbers = column
    if pa.types.is_date(column.type):
        numbers = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        numbers = column.cast(pa.int64())
    return list(map(found.transform.transform(found.kind), numbers.to_pylist()))


def _fits(value: Any, type_: pa.DataType) -> bool:
    if isinstance(value, Decimal):
        return bool(len(value.as_tuple().digits) <= type_.precision)
    least = -(1 << 63) if type_ == pa.int64() else -(1 << 31)
    return not isinstance(value, int) or bool(value >= least)


@given(_columns())
def test_values_are_those_of_pyiceberg(drawn: tuple[pa.Array, PartitionField]) -> None:
    column, field = drawn
    found = _in_table(field, column.type)
    expected = _expected(column, found)
    if not all(_fits(value, column.type) for value in expected):
        with pytest.raises(TableError, match="is too small to be partitioned by truncate"):
            texts(field, column)
        return
    written = texts(field, column)
    assert [found.value_of(text) for text in written.to_pylist()] == expected
    assert [found.text_of(value) for value in expected] == written.to_pylist(), "the texts are the values', exactly"
    assert texts(field, column.slice(len(column) // 2)).to_pylist() == written.to_pylist()[len(column) // 2 :]


@given(st.lists(st.none() | st.text() | st.sampled_from(["", "%", "%5F", "__HIVE_DEFAULT_PARTITION__", "\0", "a%00"])))
def test_every_text_survives_as_a_folder_name(values: list[str | None]) -> None:
    names = folder_texts(pa.array(values, pa.string())).to_pylist()
    assert [None if name is None else folder_value(name) for name in names] == values
    assert not {"", "__HIVE_DEFAULT_PARTITION__"} & set(names), "they would be null"
    assert not any(name and "\0" in name for name in names)


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        # Appendix B of the specification
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (date(2017, 11, 16), pa.date32(), -653330422),
        (datetime(2017, 11, 16, 22, 31, 8), LOCAL_TIMES, -2047944441),  # noqa: DTZ001 -- without a zone
        (datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), UTC_TIMES, -2047944441),
        (datetime(2017, 11, 16, 22, 31, 8, 1), LOCAL_TIMES, -1207196810),  # noqa: DTZ001 -- without a zone
        ("iceberg", pa.string(), 1210000089),
        (uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, pa.binary(), 1488055340),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ],
)
def test_hashes_are_those_of_the_specification(value: Any, type_: pa.DataType, expected: int) -> None:
    (found,) = hashes(pa.array([value], type_)).astype("int32").tolist()
    assert found == expected


@pytest.mark.parametrize(
    ("text", "value", "type_", "expected"),
    [
        # The section on partition transforms of the specification
        ("truncate(10, c)", 1, pa.int32(), "0"),
        ("truncate(10, c)", -1, pa.int32(), "-10"),
        ("truncate(10, c)", -1, pa.int64(), "-10"),
        ("truncate(50, c)", Decimal("10.65"), pa.decimal128(9, 2), "10.50"),
        ("truncate(3, c)", "iceberg", pa.string(), "ice"),
        ("truncate(3, c)", b"\x01\x02\x03\x04\x05", pa.binary(), "010203"),
        # code points, not bytes or UTF-16
        ("truncate(2, c)", "é😀x", pa.string(), "é😀"),
        # times before 1970 are rounded down
        ("year(c)", date(1969, 12, 31), pa.date32(), "1969"),
        ("month(c)", date(1969, 12, 31), pa.date32(), "1969-12"),
        ("day(c)", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), UTC_TIMES, "1969-12-31"),
        ("hour(c)", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), UTC_TIMES, "1969-12-31-23"),
        ("hour(c)", datetime(2017, 11, 16, 5, tzinfo=UTC), UTC_TIMES, "2017-11-16-05"),
    ],
)
def test_texts_are_those_that_other_writers_use_in_folders(
    text: str, value: Any, type_: pa.DataType, expected: str
) -> None:
    assert texts(parse(text), pa.array([value, None], type_)).to_pylist() == [expected, None]


@pytest.mark.parametrize("transform", TIMES)
@given(st.integers(-(1 << 63), (1 << 63) - 1))
@example(-(1 << 63))
def test_times_beyond_pythons_calendar_have_exact_texts(transform: str, microseconds: int) -> None:
    field = PartitionField(source="c", transform=transform)
    column = pa.array([microseconds], pa.int64()).cast(UTC_TIMES)
    found = _in_table(field, UTC_TIMES)
    (text,) = texts(field, column).to_pylist()
    number = found.value_of(text)
    assert found.text_of(number) == text
    if transform in ("day", "hour"):
        assert number == microseconds // (86_400_000_000 if transform == "day" else 3_600_000_000)


def test_a_day_may_be_read_as_a_date_or_as_a_number() -> None:
    found = _in_table(parse("day(c)"), UTC_TIMES)
    assert found.text_of(date(2024, 1, 31)) == found.text_of(19_753) == "2024-01-31"


@pytest.mark.parametrize("type_", [*_TYPES, *_OTHERS], ids=str)
def test_a_transform_takes_the_types_that_pyicebergs_takes(type_: pa.DataType) -> None:
    columns = iceberg_schema(pa.schema([("c", type_)]))
    for text in ("year(c)", "month(c)", "day(c)", "hour(c)", "bucket(4, c)", "truncate(4, c)"):
        transform = new_spec([text], columns).fields[0].transform
        assert _takes(parse(text), type_) == transform.can_transform(columns.find_type("c")), text


def test_long_texts_do_not_slow_down_the_short_ones_beside_them() -> None:
    column = pa.array(["x" * 50_000, *(f"user-{number}" for number in range(20_000))])
    field = parse("bucket(16, c)")
    assert list(map(int, texts(field, column).to_pylist())) == _expected(column, _in_table(field, pa.string()))
