"""The files of a finished write, read from footers and folder names."""

import math
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TableError, TemporaryError
from penstock.sinks.parquet import (
    STRING_CHARACTERS_MAX,
    FooterNote,
    WrittenFile,
    bounds,
    list_files,
    partition_values,
    statistics,
)
from penstock.storage.files import FileInfo
from penstock.storage.local import LocalFiles

RUN = "data/01K00000000000000000000000/r1"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
UTC_US = pa.timestamp("us", tz="UTC")
TEXTS = st.text(st.characters(codec="utf-8", max_codepoint=0x10FFFE))
MICROSECONDS = st.integers(-(2**57), 2**57) | st.integers(-(2**63), 2**63 - 1)  # mostly in years that Python supports


def write(root: Path, relative: str, table: pa.Table, **options: Any) -> Path:
    path = root / RUN / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [None] * len(ids)}, schema=SCHEMA)


def listed(root: Path, *, partition_by: tuple[str, ...] = (), schema: pa.Schema = SCHEMA) -> list[str]:
    files = list_files(LocalFiles(root), RUN, partition_by=partition_by, schema=schema)
    return [file.path.removeprefix(f"{RUN}/") for file in files]


def test_files_are_listed_with_rows_size_time_and_statistics(tmp_path: Path) -> None:
    path = write(tmp_path, "part-0.parquet", rows(1, 2, 3))
    (file,) = list_files(LocalFiles(tmp_path), RUN, partition_by=(), schema=SCHEMA)
    assert (file.path, file.rows, file.size_bytes) == (f"{RUN}/part-0.parquet", 3, path.stat().st_size)
    assert file.modified_at == path.stat().st_mtime
    assert file.partition_values == {}
    assert file.statistics["nullCount"] == {"id": 0, "name": 3}


def test_files_and_their_folders_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "name=a/part-0.parquet", rows(1).drop_columns("name"))
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    list_files(LocalFiles(tmp_path), RUN, partition_by=("name",), schema=SCHEMA)
    between = [path, *path.parents][: len(path.relative_to(tmp_path).parts) + 1]
    assert flushed == [entry.stat().st_ino for entry in between]


def test_a_run_that_wrote_nothing_has_no_files(tmp_path: Path) -> None:
    assert listed(tmp_path) == []


def test_a_file_without_rows_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "part-0.parquet", rows())
    write(tmp_path, "part-1.parquet", rows(1))
    assert listed(tmp_path) == ["part-1.parquet"]


def test_auxiliary_files_of_spark_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "part-0.parquet", rows(1))
    write(tmp_path, "_temporary/0/part-1.parquet", rows(2))
    write(tmp_path, ".spark-staging/part-2.parquet", rows(3))
    (tmp_path / RUN / "_SUCCESS").touch()
    (tmp_path / RUN / ".part-0.parquet.crc").write_bytes(b"crc")
    assert listed(tmp_path) == ["part-0.parquet"]


def test_files_of_other_runs_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "part-0.parquet", rows(1))
    write(tmp_path, "../r2/part-0.parquet", rows(2))
    assert listed(tmp_path) == ["part-0.parquet"]


def test_a_partition_column_may_begin_with_an_underscore(tmp_path: Path) -> None:
    """Spark reads such folders too; treating them as hidden would lose their rows."""
    write(tmp_path, "_day=2024-01-01/part-0.parquet", rows(1))
    schema = SCHEMA.append(pa.field("_day", pa.date32()))
    assert listed(tmp_path, partition_by=("_day",), schema=schema) == ["_day=2024-01-01/part-0.parquet"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": [1]}),
        pa.table({"id": [1], "name": ["a"], "extra": [1]}),
        pa.table({"id": ["1"], "name": ["a"]}),
        pa.table({"ID": [1], "name": ["a"]}),
    ],
    ids=["missing", "extra", "type", "case"],
)
def test_a_file_with_other_columns_is_never_listed(tmp_path: Path, table: pa.Table) -> None:
    write(tmp_path, "part-0.parquet", table)
    with pytest.raises(RuntimeError, match="part-0"):
        listed(tmp_path)


def test_a_partition_column_inside_the_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "name=a/part-0.parquet", rows(1))
    with pytest.raises(RuntimeError):
        listed(tmp_path, partition_by=("name",))


# Folders


@pytest.mark.parametrize(
    ("folder", "value"),
    [
        ("p=plain", "plain"),
        ("p=__HIVE_DEFAULT_PARTITION__", None),
        ("p=a%2Fb%3Dc", "a/b=c"),
        ("p=a=b", "a=b"),
        ("p=%2541", "%41"),
        ("p=100%", "100%"),
        ("p=a+b", "a+b"),
        ("p=日本é", "日本é"),
        ("p=", ""),
    ],
)
def test_a_folder_is_decoded_once_as_spark_encodes_it(folder: str, value: str | None) -> None:
    assert partition_values([folder], ["p"]) == {"p": value}


def test_several_partition_columns_keep_their_order() -> None:
    assert list(partition_values(["b=1", "a=2"], ["b", "a"])) == ["b", "a"]


@pytest.mark.parametrize("folders", [[], ["p=1", "q=2"], ["q=1"], ["p"], ["2024"]])
def test_other_folders_than_the_partitions_are_refused(folders: list[str]) -> None:
    with pytest.raises(RuntimeError):
        partition_values(folders, ["p"] if folders != ["p"] else ["q"])


@pytest.mark.parametrize(
    "type_", [pa.float64(), pa.binary(), UTC_US, pa.decimal128(9, 2), pa.list_(pa.int64())], ids=str
)
def test_a_partition_column_of_an_unsupported_type_is_refused(tmp_path: Path, type_: pa.DataType) -> None:
    with pytest.raises(TableError, match="column p"):
        listed(tmp_path, partition_by=("p",), schema=SCHEMA.append(pa.field("p", type_)))


# Statistics


def of(column: pa.Array, *, row_group_size: int = 2, created_by: str = "parquet-mr version 1.16") -> dict[str, Any]:
    """Return the statistics of a file with one column, as if another writer had written it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"c": column}), sink, row_group_size=row_group_size)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))

    class Footer:
        def __getattr__(self, name: str) -> Any:
            return created_by if name == "created_by" else getattr(footer, name)

    return statistics(Footer(), footer.schema.to_arrow_schema())


def test_bounds_cover_all_row_groups() -> None:
    found = of(pa.array([5, 1, None, 9, 3]))
    assert found == {"minValues": {"c": 1}, "maxValues": {"c": 9}, "nullCount": {"c": 1}}


def test_a_column_of_nulls_has_no_bounds() -> None:
    assert of(pa.array([None, None, None], pa.int64())) == {"minValues": {}, "maxValues": {}, "nullCount": {"c": 3}}


def test_bounds_of_a_writer_that_ignores_nan_are_left_out() -> None:
    column = pa.array([1.0, math.nan, 3.0])
    assert of(column, created_by="parquet-cpp-arrow version 26.0")["maxValues"] == {}


def test_nested_columns_are_skipped_and_later_columns_keep_their_bounds() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table(
        {"s": [{"a": 100, "b": [1, 2]}], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "z": [7]}
    )
    pq.write_table(table, sink)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    assert statistics(footer, footer.schema.to_arrow_schema())["minValues"] == {"z": 7}


@pytest.mark.parametrize(
    ("column", "least", "greatest"),
    [
        (pa.array([date(1500, 1, 1), date(9999, 12, 31)]), "1500-01-01", "9999-12-31"),
        (
            pa.array([datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)], UTC_US),
            "2024-01-01T00:00:00.123Z",
            "2024-01-01T00:00:00.124Z",
        ),
        (
            pa.array([-1], pa.int64()).cast(pa.timestamp("us")),
            "1969-12-31T23:59:59.999",
            "1970-01-01T00:00:00.000",
        ),
        (pa.array(["", "b"]), "", "b"),
        (pa.array(["é" * 33, "a"]), "a", "é" * 31 + "ê"),
        (pa.array([-(2**63), 2**63 - 1]), -(2**63), 2**63 - 1),
        (pa.array([True, False]), False, True),
        (pa.array([True, True]), True, True),
        (pa.array([Decimal("-0.05"), None, Decimal("12.34")]), "-0.05", "12.34"),
        (pa.array([Decimal("5"), Decimal("-7")], pa.decimal128(20, 0)), "-7", "5"),
        (pa.array([Decimal("-" + "9" * 36 + ".99")]), "-" + "9" * 36 + ".99", "-" + "9" * 36 + ".99"),
    ],
    ids=[
        "dates",
        "timestamps-rounded-outwards",
        "before-the-epoch",
        "strings",
        "long-strings",
        "integers",
        "booleans",
        "one-boolean",
        "decimals",
        "whole-decimals",
        "long-decimals",
    ],
)
def test_bounds_have_the_format_of_delta(column: pa.Array, least: Any, greatest: Any) -> None:
    found = of(column)
    assert (found["minValues"]["c"], found["maxValues"]["c"]) == (least, greatest)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"a", b"b"]),
        pa.array([math.inf, 1.0]),
    ],
    ids=lambda column: str(column.type),
)
def test_unsafe_bounds_are_left_out(column: pa.Array) -> None:
    found = of(column)
    assert (found["minValues"], found["maxValues"]) == ({}, {})


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_the_bounds_of_strings_enclose_them(values: list[str]) -> None:
    least, greatest = bounds(pa.string(), min(values), max(values))
    assert len(least) <= STRING_CHARACTERS_MAX
    assert all(least.encode() <= value.encode() for value in values)
    assert greatest is None or len(greatest) <= STRING_CHARACTERS_MAX
    assert greatest is None or all(greatest.encode() >= value.encode() for value in values)


@pytest.mark.parametrize(
    ("greatest", "bound"),
    [
        ("\ud7ff" * 40, "\ud7ff" * 31 + "\ue000"),
        ("a" + "\U0010ffff" * 40, "b"),
        ("\U0010ffff" * 40, None),
    ],
    ids=["before-the-surrogates", "after-the-last-character", "nothing-is-above"],
)
def test_the_bound_of_a_long_string_is_the_next_short_one(greatest: str, bound: str | None) -> None:
    assert bounds(pa.string(), "", greatest) == ("", bound)


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**8), max_value=10**8)))
def test_the_bounds_of_decimals_are_exact_in_any_file(values: list[Decimal]) -> None:
    for as_integer in (False, True):
        column = pa.array([None, *values], pa.decimal128(18, 9))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"c": column}), sink, row_group_size=1, store_decimal_as_integer=as_integer)
        footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
        found = statistics(footer, footer.schema.to_arrow_schema())
        if values:
            assert Decimal(found["minValues"]["c"]) == min(values)
            assert Decimal(found["maxValues"]["c"]) == max(values)


@pytest.mark.parametrize("values", [[0.0, 0.0], [-0.0, -0.0], [-0.0, 0.0]])
def test_bounds_of_zero_enclose_both_zeros(values: list[float]) -> None:
    found = of(pa.array(values))
    assert math.copysign(1, found["minValues"]["c"]) == -1
    assert math.copysign(1, found["maxValues"]["c"]) == 1


def test_a_string_that_is_not_utf_8_has_no_bounds() -> None:
    column = pa.array([b"\xff", b"a"]).cast(pa.string(), safe=False)
    assert of(column) == {"minValues": {}, "maxValues": {}, "nullCount": {"c": 0}}


# The note in footers by Arrow


def noted(column: pa.Array, *, group_rows: int = 2) -> dict[str, Any]:
    """Return the statistics of a file that is written as Penstock does, with Arrow."""
    table = pa.table({"c": column})
    sink = pa.BufferOutputStream()
    note = FooterNote(table.schema)
    with pq.ParquetWriter(sink, table.schema) as writer:
        for start in range(0, table.num_rows, group_rows):
            group = table.slice(start, group_rows)
            writer.write_table(group)
            note.add(group)
        note.write(writer)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return statistics(footer, footer.schema.to_arrow_schema())


def test_floats_without_nan_have_bounds_in_files_by_arrow() -> None:
    found = noted(pa.array([1.5, None, -3.0, 2.0]))
    assert (found["minValues"], found["maxValues"]) == ({"c": -3.0}, {"c": 2.0})
    assert noted(pa.array([1.5, None, math.nan, 2.0]))["minValues"] == {}


@given(st.lists(st.none() | st.tuples(TEXTS, st.sampled_from([1, 2_100])), min_size=1, max_size=6))
def test_strings_of_kilobytes_have_bounds_in_files_by_arrow(parts: list[tuple[str, int] | None]) -> None:
    values = [None if part is None else part[0] * part[1] for part in parts]
    found = noted(pa.array(values, pa.string()))
    texts = [value for value in values if value is not None]
    if texts:
        assert found["minValues"]["c"] <= min(texts)
        assert found["maxValues"]["c"] >= max(texts)
    assert found["nullCount"]["c"] == values.count(None)


@given(MICROSECONDS, MICROSECONDS)
def test_the_bounds_of_timestamps_enclose_them_or_are_left_out(one: int, other: int) -> None:
    low, high = sorted((one, other))
    least, greatest = bounds(UTC_US, low, high)
    assert least is None or 0 <= low - microseconds(least) < 1_000
    assert greatest is None or 0 <= microseconds(greatest) - high < 1_000


def microseconds(text: str) -> int:
    """Return the microseconds since the epoch."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def reported(*files: tuple[str, int, int]) -> list[WrittenFile]:
    return [WrittenFile(path=f"{RUN}/{name}", rows=rows, size_bytes=size) for name, rows, size in files]


def test_exactly_the_files_that_tasks_reported_are_listed(tmp_path: Path) -> None:
    size = write(tmp_path, "part-0.parquet", rows(1, 2)).stat().st_size
    write(tmp_path, "part-of-a-repeated-task.parquet", rows(1, 2))
    found = list_files(
        LocalFiles(tmp_path), RUN, partition_by=(), schema=SCHEMA, written=reported(("part-0.parquet", 2, size))
    )
    assert [file.path for file in found] == [f"{RUN}/part-0.parquet"]


@pytest.mark.parametrize(
    ("name", "more_rows", "more_bytes", "words"),
    [
        ("part-1.parquet", 0, 0, "is not there"),
        ("part-0.parquet", 1, 0, "has 2 rows"),
        ("part-0.parquet", 0, 1, r"has \d+ bytes"),
    ],
)
def test_a_file_that_is_not_as_reported_fails_the_run(
    tmp_path: Path, name: str, more_rows: int, more_bytes: int, words: str
) -> None:
    size = write(tmp_path, "part-0.parquet", rows(1, 2)).stat().st_size
    written = reported((name, 2 + more_rows, size + more_bytes))
    with pytest.raises(TemporaryError, match=words):
        list_files(LocalFiles(tmp_path), RUN, partition_by=(), schema=SCHEMA, written=written)


def test_a_reported_file_missing_in_a_cached_listing_is_found_by_its_name(tmp_path: Path) -> None:
    class Cached(LocalFiles):
        def list(self, folder: str = "") -> Iterator[FileInfo]:
            return iter(())

    size = write(tmp_path, "part-0.parquet", rows(1, 2)).stat().st_size
    (file,) = list_files(
        Cached(tmp_path), RUN, partition_by=(), schema=SCHEMA, written=reported(("part-0.parquet", 2, size))
    )
    assert file.rows == 2
