"""Parquet and ORC, read in any pieces, against what Arrow reads at once; and objects that are damaged."""

import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc
from tests.property.source_run import Case, MemoryReader, any_pieces, halves, read, whole

from penstock.errors import Interrupted, ObjectGone, TemporaryError
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source import columnar
from penstock.pipeline.spark.source.blocks import Decoded
from penstock.pipeline.spark.source.column_types import storable
from penstock.pipeline.spark.source.fit_rows import Fitter
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

DDL = (
    "id bigint, name string, v double, n decimal(9,2), d date, ts timestamp, tags array<string>, "
    "at struct<x: int, y: int>"
)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("v", pa.float64()),
        ("n", pa.decimal128(9, 2)),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
    ]
)
MOMENTS = st.datetimes(
    datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2200-01-01"), timezones=st.just(UTC)
)
ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        "v": st.none() | st.floats(allow_nan=False),
        "n": st.none() | st.decimals(-9_999_999, 9_999_999, places=2),
        "d": st.none() | st.dates(date(1900, 1, 1)),
        "ts": st.none() | MOMENTS,
        "tags": st.none() | st.lists(st.none() | st.sampled_from(["a", "bc"]), max_size=3),
        "at": st.none() | st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.none()}),
    }
)


def as_parquet(table: pa.Table, unit_rows: int) -> bytes:
    data = io.BytesIO()
    pq.write_table(table, data, row_group_size=unit_rows, write_page_checksum=True)
    return data.getvalue()


def as_orc(table: pa.Table, unit_rows: int) -> bytes:  # Arrow counts bytes, and at least 1,024 rows
    data = io.BytesIO()
    orc.write_table(table, data, stripe_size=1)
    return data.getvalue()


WRITERS: dict[str, Callable[[pa.Table, int], bytes]] = {"parquet": as_parquet, "orc": as_orc}
formats = pytest.mark.parametrize("name", WRITERS)


def options(name: str, ddl: str = DDL) -> ReadOptions:
    return ReadOptions(schema_ddl=ddl, format=name)


@formats
@settings(max_examples=40, deadline=None)
@given(data=st.data(), unit_rows=st.sampled_from([1, 3, 1000]))
def test_any_objects_in_any_pieces_give_each_row_once_with_its_number(
    name: str, data: st.DataObject, unit_rows: int
) -> None:
    tables = [
        pa.Table.from_pylist(rows, SCHEMA)
        for rows in data.draw(st.lists(st.lists(ROWS, max_size=7), min_size=1, max_size=3))
    ]
    contents = [WRITERS[name](table, unit_rows) for table in tables]
    found = read(Case(contents=contents, partitions=data.draw(any_pieces(contents)), options=options(name)))
    assert (found.failures, found.bad) == ({}, [])
    for ref, table in zip(found.plan.objects, tables, strict=True):
        rows = sorted((number, row) for uri, number, row in found.rows if uri == ref.uri)
        assert [number for number, _ in rows] == list(range(table.num_rows))
        assert [row for _, row in rows] == table.to_pylist()


@formats
def test_every_unit_is_read_once_wherever_the_object_is_cut(name: str) -> None:
    rows = 5_000
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "name": [f"name {number}" for number in range(rows)]})
    content = WRITERS[name](table, 1_024)
    for cut in [*range(0, len(content), 997), len(content)]:
        found = read(Case(contents=[content], partitions=halves(content, cut), options=options(name, "id bigint")))
        assert sorted((number, row["id"]) for _, number, row in found.rows) == [(n, n) for n in range(rows)], cut


@formats
def test_an_object_of_many_units_is_spread_over_pieces(name: str) -> None:
    rows = 5_000
    ids = [number * 7919 % 1_000_003 for number in range(rows)]
    content = WRITERS[name](pa.table({"id": pa.array(ids, pa.int64())}), 1_024)
    pieces = [
        [Piece(object=0, start=len(content) * part // 4, stop=len(content) * (part + 1) // 4)] for part in range(4)
    ]
    found = read(Case(contents=[content], partitions=pieces, options=options(name, "id bigint")))
    assert found.counts == {0: (rows, 0)}
    assert sum(1 for count in found.rows_by_partition if count) == 4


@formats
def test_an_empty_object_has_no_rows(name: str) -> None:
    found = read(Case(contents=[b""], partitions=whole([b""]), options=options(name)))
    assert (found.rows, found.bad, found.failures, found.counts) == ([], [], {}, {0: (0, 0)})


@formats
def test_a_table_without_rows_has_no_rows(name: str) -> None:
    content = WRITERS[name](SCHEMA.empty_table(), 4)
    found = read(Case(contents=[content], partitions=whole([content]), options=options(name)))
    assert (found.rows, found.failures) == ([], {})


@formats
@pytest.mark.parametrize("held", [True, False], ids=["read at once", "read in ranges"])
def test_a_damaged_object_fails_alone_and_for_good(name: str, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_HELD_BYTES_MAX", 1 << 20 if held else 0)
    table = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"name {number}" for number in range(1000)]})
    good = WRITERS[name](table, 1000)
    middle = len(good) // 3
    damaged = {
        "cut": good[: len(good) // 2],
        "without a footer": good[:-20] + b"x" * 20,
        "another format": b"id,name\n1,a\n" * 100,
    }
    if name == "parquet":  # which has checksums
        damaged["flipped"] = (
            good[:middle] + bytes(255 - byte for byte in good[middle : middle + 64]) + good[middle + 64 :]
        )
    contents = [good, *damaged.values()]
    found = read(Case(contents=contents, partitions=whole(contents), options=options(name, "id bigint, name string")))
    assert set(found.failures) == set(range(1, len(contents))), "and not the first"
    assert all(
        reason.startswith(f"s3://b/k{number} cannot be read as {name}: ") for number, reason in found.failures.items()
    )
    assert len([row for uri, _, row in found.rows if uri == "s3://b/k0"]) == 1000


@formats
def test_bad_rows_of_objects_that_are_fitted_together_keep_their_object_and_number(name: str) -> None:
    texts = [[str(n) if n % 5 else "bad" for n in range(rows)] for rows in (7, 0, 12, 6)]
    tables = [pa.table({"id": pa.array(column, pa.string())}) for column in texts]
    contents = [WRITERS[name](table, 5) for table in tables]
    found = read(Case(contents=contents, partitions=whole(contents), options=options(name, "id decimal(9,0)")))
    places = [(f"s3://b/k{index}", n) for index, table in enumerate(tables) for n in range(table.num_rows)]
    assert [(uri, n, row["id"]) for uri, n, row in found.rows] == [(uri, n, n) for uri, n in places if n % 5]
    assert [(uri, n) for uri, n, *_ in found.bad] == [(uri, n) for uri, n in places if not n % 5]
    assert found.failures == {}


@formats
def test_objects_of_other_types_are_released_together(name: str) -> None:
    kinds = [pa.int64(), pa.float64(), pa.float64(), pa.string(), pa.int64()]
    columns = [[float(n) if n % 3 else None for n in range(rows)] for rows in (7, 0, 12, 6, 1)]
    values = [pa.array(column, pa.float64()).cast(kind) for column, kind in zip(columns, kinds, strict=True)]
    contents = [WRITERS[name](pa.table({"id": column}), 5) for column in values]
    found = read(Case(contents=contents, partitions=whole(contents), options=options(name, "id bigint")))
    assert found.table.column(0).num_chunks == 1
    places = [(index, n) for index, column in enumerate(columns) for n in range(len(column))]
    is_text = [pa.types.is_string(kind) for kind in kinds]
    bad = [(index, n) for index, n in places if is_text[index] and n % 3]
    wanted = [(f"s3://b/k{index}", n, n if n % 3 else None) for index, n in places if (index, n) not in bad]
    assert [(uri, n, row["id"]) for uri, n, row in found.rows] == wanted
    assert [(uri, n) for uri, n, *_ in found.bad] == [(f"s3://b/k{index}", n) for index, n in bad]
    assert found.failures == {}


@formats
def test_few_objects_of_many_columns_are_held_at_once(name: str) -> None:
    names = [f"c{number}" for number in range(100)]
    content = WRITERS[name](pa.table({each: [1] for each in names}), 1)
    ddl = ", ".join(f"{each} bigint" for each in names)
    case = Case(contents=[content] * 40, partitions=whole([content] * 40), options=options(name, ddl))
    found = read(replace(case, options=replace(case.options, block_bytes=1 << 20)))
    assert found.table.num_rows == 40
    assert found.table.column(0).num_chunks >= 4  # of about ten objects each, although they have 32 KiB of values


@formats
def test_rows_that_cannot_be_fitted_fail_their_object_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Fitter.fit

    def fit(fitter: Fitter, rows: pa.Table, first: int = 0) -> Decoded:
        if 13 in rows["id"].to_pylist():
            raise pa.ArrowIndexError("an index out of bounds\nand more")
        return fitted(fitter, rows, first)

    monkeypatch.setattr(Fitter, "fit", fit)
    contents = [WRITERS[name](pa.table({"id": range(first, first + 6)}), 5) for first in (0, 10, 20)]
    found = read(Case(contents=contents, partitions=whole(contents), options=options(name, "id bigint")))
    assert found.failures == {1: f"s3://b/k1 cannot be read as {name}: an index out of bounds"}
    kept = [row["id"] for uri, _, row in found.rows if uri != "s3://b/k1"]
    assert kept == [*range(6), *range(20, 26)]


@formats
def test_columns_are_found_by_name_in_any_order_and_case_and_missing_ones_are_null(name: str) -> None:
    table = pa.table({"Extra": [1.5], "NAME": ["a"], "id": pa.array([7], pa.int16())})
    content = WRITERS[name](table, 10)
    found = read(
        Case(contents=[content], partitions=whole([content]), options=options(name, "id bigint, name string, v double"))
    )
    assert [row for *_, row in found.rows] == [{"id": 7, "name": "a", "v": None}]


@formats
def test_an_object_without_any_declared_column_fails(name: str) -> None:
    content = WRITERS[name](pa.table({"a": [1], "b": [2]}), 10)
    found = read(Case(contents=[content], partitions=whole([content]), options=options(name, "id bigint")))
    assert found.failures == {0: "s3://b/k0 has no column of the schema, it has 'a', 'b'"}


@formats
def test_a_row_with_a_value_of_another_type_is_a_bad_row(name: str) -> None:
    table = pa.table({"id": ["x", "y", None], "name": [1, 2, 3], "n": [Decimal("1.5"), None, Decimal("2.5")]})
    content = WRITERS[name](table, 2)
    found = read(
        Case(
            contents=[content],
            partitions=whole([content]),
            options=options(name, "id bigint, name string, n decimal(9,2)"),
        )
    )
    assert [(number, row) for _, number, row in found.rows] == [(2, {"id": None, "name": "3", "n": Decimal("2.50")})]
    assert [(at, raw, reason) for _, at, raw, reason in found.bad] == [
        (0, b'{"id":"x","name":1,"n":"1.5"}', "wrong type"),
        (1, b'{"id":"y","name":2,"n":null}', "wrong type"),
    ]


def test_old_timestamps_of_96_bits_are_read() -> None:
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    data = io.BytesIO()
    pq.write_table(pa.table({"ts": pa.array(moments, pa.timestamp("us"))}), data, use_deprecated_int96_timestamps=True)
    content = data.getvalue()
    found = read(Case(contents=[content], partitions=whole([content]), options=options("parquet", "ts timestamp")))
    assert [row["ts"] for *_, row in found.rows] == moments


@formats
def test_text_that_is_not_utf8_makes_a_bad_row(name: str) -> None:
    texts = pa.array([b"a", b"\xff", b"\xc3\xa9"], pa.binary())
    text = pa.StringArray.from_buffers(3, *texts.buffers()[1:])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text)
    for column, ddl in ((text, "s string"), (lists, "s array<string>")):
        content = WRITERS[name](pa.table({"s": column}), 10)
        found = read(Case(contents=[content], partitions=whole([content]), options=options(name, ddl)))
        assert [number for _, number, _ in found.rows] == [0, 2]
        ((_, at, raw, _),) = found.bad
        assert at == 1
        assert raw == (b'{"s":"\\\\xff"}' if column is text else b'{"s":["\\\\xff"]}')


def rows_and_bad(content: bytes, name: str, ddl: str) -> tuple[list[dict[str, object]], list[bytes]]:
    found = read(Case(contents=[content], partitions=whole([content]), options=options(name, ddl)))
    assert found.failures == {}
    return [row for *_, row in found.rows], [raw for *_, raw, _ in found.bad]


@formats
def test_a_name_given_twice_or_not_in_utf8_fails_its_object_alone(name: str) -> None:
    twice = WRITERS[name](pa.table([pa.array([1]), pa.array(["x"])], names=["id", "id"]), 10)
    strange = WRITERS[name](pa.table({"abcdef": [1], "id": [2]}).replace_schema_metadata(), 10)
    strange = strange.replace(b"abcdef", b"abc\xffef")
    good = WRITERS[name](pa.table({"id": [3]}), 10)
    contents = [twice, strange, good]
    found = read(Case(contents=contents, partitions=whole(contents), options=options(name, "id bigint")))
    assert [row for *_, row in found.rows] == [{"id": 3}]
    assert found.failures[0] == "s3://b/k0 has 2 columns called 'id': rename all but one"
    assert "can't decode byte 0xff" in found.failures[1]


@formats
def test_a_dot_in_a_name_is_part_of_it(name: str) -> None:
    content = WRITERS[name](pa.table({"a.b": [1], "a": [{"b": 2, "c": 3}]}), 10)
    assert rows_and_bad(content, name, "`a.b` bigint") == ([{"a.b": 1}], [])
    assert rows_and_bad(content, name, "`a.b` bigint, a struct<c: int>") == ([{"a.b": 1, "a": {"c": 3}}], [])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array([[253402300800000000]], pa.list_(pa.timestamp("us"))), '["10000-01-01 00:00:00.000000"]'),
        (pa.array([[1]], pa.list_(pa.timestamp("us", "Not/AZone"))), '["1970-01-01 00:00:00.000001"]'),
        (pa.array([[(1, 9999999)]], pa.map_(pa.int8(), pa.date32())), '[[1,"29349-01-25"]]'),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]), '[["x",1],["x",2]]'),
    ],
    ids=["a year after 9999", "an unknown zone", "a map of dates", "a field given twice"],
)
def test_a_value_that_python_lacks_is_text_in_a_string_column_and_in_quarantine(values: pa.Array, shown: str) -> None:
    content = as_parquet(pa.table({"v": values}), 10)
    assert rows_and_bad(content, "parquet", "v string") == ([{"v": shown}], [])
    ((), (raw,)) = rows_and_bad(content, "parquet", "v int")
    assert raw == b'{"v":%s}' % shown.encode()


def test_a_timestamp_in_an_unknown_zone_is_text_in_utc() -> None:
    content = as_parquet(pa.table({"v": pa.array([1], pa.timestamp("us", "Not/AZone"))}), 10)
    assert rows_and_bad(content, "parquet", "v string") == ([{"v": "1970-01-01 00:00:00.000001Z"}], [])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Not/AZone"])
def test_nanoseconds_are_cut_whatever_the_zone(zone: str) -> None:
    twice_in_berlin = 1698541200123456789  # 2:00 in the night in which clocks are set back
    content = as_parquet(pa.table({"ts": pa.array([twice_in_berlin], pa.timestamp("ns", zone))}), 10)
    moment = datetime(2023, 10, 29, 1, 0, 0, 123456, tzinfo=UTC)
    assert rows_and_bad(content, "parquet", "ts timestamp") == ([{"ts": moment}], [])


@pytest.mark.parametrize(
    ("values", "kind", "good"),
    [
        (pa.array([11, 0]), "decimal(38,38)", ["0E-38"]),
        (pa.array([Decimal(11), Decimal(0)]), "decimal(38,38)", ["0E-38"]),
        (pa.array([11.0, 0.5]), "decimal(38,38)", ["0.5" + "0" * 37]),
        (pa.array(["11", "0.5", "5e-1"]), "decimal(38,38)", ["0.5" + "0" * 37] * 2),
        (pa.array([1e-39, 1e30]), "decimal(38,0)", ["1" + "0" * 30]),
        (pa.array(["9" * 60, "1e-39", "12"]), "decimal(38,0)", ["12"]),
        (pa.array([2**64 - 1, 5], pa.uint64()), "decimal(20,0)", [str(2**64 - 1), "5"]),
        (pa.array([Decimal("1e60"), Decimal(5)], pa.decimal256(76, 2)), "decimal(38,2)", ["5.00"]),
        (pa.array([Decimal("1e60"), Decimal(5)], pa.decimal256(76, 2)), "float", ["5.0"]),
    ],
    ids=[
        "a whole number",
        "a decimal",
        "a double",
        "a text",
        "a double of many places",
        "a text of many digits",
        "beyond 63 bits",
        "beyond 128 bits",
        "beyond a float",
    ],
)
def test_a_number_that_a_type_does_not_hold_is_never_another_number(
    values: pa.Array, kind: str, good: list[str]
) -> None:
    rows, bad = rows_and_bad(as_parquet(pa.table({"n": values}), 100), "parquet", f"n {kind}")
    assert [str(row["n"]) for row in rows] == good
    assert len(bad) == len(values) - len(good)


def test_units_are_read_once_in_whatever_order_a_writer_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    content = as_parquet(pa.table({"id": list(range(6))}), 2)
    starts = iter([400, -7, 1 << 40] * 100)
    monkeypatch.setattr(columnar, "_begin", lambda _: next(starts))
    for cut in (1, 300, 450, len(content) - 1):
        found = read(Case(contents=[content], partitions=halves(content, cut), options=options("parquet", "id bigint")))
        assert sorted((number, row["id"]) for _, number, row in found.rows) == [(n, n) for n in range(6)], cut


def test_an_object_in_one_piece_is_read_without_the_starts_of_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(group: object) -> int:
        raise AssertionError("Arrow ends the process if the metadata of a column are damaged")

    monkeypatch.setattr(columnar, "_begin", begin)
    content = as_parquet(pa.table({"id": [1, 2]}), 1)
    assert rows_and_bad(content, "parquet", "id bigint") == ([{"id": 1}, {"id": 2}], [])


@pytest.mark.parametrize("kind", [pa.list_view, pa.large_list_view])
def test_list_views_are_lists(kind: Callable[[pa.DataType], pa.DataType]) -> None:
    lists = [[[1], None, [2, 300]], None, [], [[3, 4], []]]
    content = as_parquet(pa.table({"v": pa.array(lists, kind(kind(pa.int64())))}), 3)
    rows, bad = rows_and_bad(content, "parquet", "v array<array<tinyint>>")
    assert [row["v"] for row in rows] == lists[1:]
    assert bad == [b'{"v":[[1],null,[2,300]]}']
    assert storable(kind(pa.int8())) == pa.list_(pa.int8())


@formats
@pytest.mark.parametrize("fault", [TemporaryError("the connection broke"), ObjectGone("deleted"), Interrupted("stop")])
@pytest.mark.parametrize("reads", [0, 1, 3])
def test_a_fault_while_reading_in_ranges_is_not_taken_for_a_damaged_object(
    name: str, fault: BaseException, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "_HELD_BYTES_MAX", 0)
    content = WRITERS[name](pa.table({"id": range(3_000), "name": [str(number) for number in range(3_000)]}), 1_000)

    class FailingReader(MemoryReader):
        def pread(self, offset: int, length_bytes: int) -> bytes:
            self.at += 1
            if self.at > reads:
                raise fault
            return super().pread(offset, length_bytes)

    reader = FailingReader(ObjectRef(bucket="b", key="k", size_bytes=len(content), etag="e"), content)
    piece = Piece(object=0, start=0, stop=len(content))
    with pytest.raises(type(fault)):
        list(columnar.ColumnarFormat(options(name, "id bigint, name string")).read(reader, piece))


def test_a_struct_that_a_schema_cannot_name_is_stored_as_text() -> None:
    twice = pa.struct([pa.field("x", pa.int32()), pa.field("X", pa.int32())])
    assert [storable(kind) for kind in (twice, pa.struct([]))] == [pa.string()] * 2
    assert rows_and_bad(as_orc(pa.table({"v": pa.array([{}], pa.struct([])), "id": [1]}), 1), "orc", "v string") == (
        [{"v": "{}"}],
        [],
    )
