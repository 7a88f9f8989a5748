"""Files and row groups that a merge need not read, and single rows of files."""

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.merging.rows import RowFile, RowReader, key_range
from penstock.storage.local import LocalFiles

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("word", pa.string())])


def file(**fields: object) -> RowFile:
    least, greatest = fields.pop("least", {}), fields.pop("greatest", {})
    return RowFile(path="f", rows=4, statistics={"minValues": least, "maxValues": greatest}, **fields)  # type: ignore[arg-type]


def test_bounds_of_the_log_rule_files_out() -> None:
    keys = key_range(["id", "day"], [pa.array([5, 9]), pa.array([date(2026, 1, 1), date(2026, 1, 3)])])
    assert keys.may_hold(file(least={"id": 5}, greatest={"id": 5}))
    assert keys.may_hold(file(least={"id": 1}, greatest={"id": 9}))
    assert not keys.may_hold(file(least={"id": 6}, greatest={"id": 8}))
    assert keys.may_hold(file(least={"day": "2026-01-02"}, greatest={"day": "2026-01-03"}))
    assert not keys.may_hold(file(least={"day": "2026-01-02"}, greatest={"day": "2026-01-02"}))
    assert keys.may_hold(file(least={"day": "no date"}, greatest={"day": "no date"})), "unknown bounds rule nothing out"
    assert keys.may_hold(file())


def test_partitions_rule_files_out() -> None:
    keys = key_range(["day"], [pa.array([date(2026, 1, 1)])])
    assert keys.may_hold(file(partition_values={"day": "2026-01-01"}))
    assert not keys.may_hold(file(partition_values={"day": "2026-01-02"}))
    assert keys.may_hold(file(partition_values={"day": None})), "writers store an empty string as null"


@pytest.fixture
def reader(tmp_path: Path) -> RowReader:
    table = pa.table({"id": [1, 2, 3, 4, 5], "word": ["a", "b", None, "d", "e"]})
    pq.write_table(table, tmp_path / "f", row_group_size=2)
    return RowReader(root=LocalFiles(tmp_path), schema=SCHEMA)


def test_row_groups_without_a_key_are_not_read(reader: RowReader) -> None:
    within = key_range(["id"], [pa.array([3, 9])])
    ((first, (ids,)),) = reader.groups(file(), ["id"], within=within)
    assert (first, ids.to_pylist()) == (2, [3, 4])


def test_single_rows_come_in_the_order_asked_for(reader: RowReader) -> None:
    files = [file(), file(partition_values={"day": "2026-01-02"})]
    words, days = reader.at(files, np.array([1, 0, 0, 1]), np.array([4, 3, 0, 0]), ["word", "day"])
    assert words.to_pylist() == ["e", "d", "a", "a"]
    assert days.to_pylist() == [date(2026, 1, 2), None, None, date(2026, 1, 2)]
    assert [len(column) for column in reader.at(files, np.array([], int), np.array([], int), ["word"])] == [0]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", tz="UTC")], ids=str)
def test_row_groups_with_dates_that_python_lacks_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    """Spark has years before 1 and after 9999."""
    plain = pa.int32() if pa.types.is_date(kind) else pa.int64()
    for days in (-1_000_000, 3_000_000):
        number = days if pa.types.is_date(kind) else days * 86_400_000_000
        keys = pa.array([number, 7], plain).cast(kind)
        pq.write_table(pa.table({"key": keys}), tmp_path / "f")
        reader = RowReader(root=LocalFiles(tmp_path), schema=pa.schema([("key", kind)]))
        within = key_range(["key"], [pa.array([7], plain).cast(kind)])
        ((_, (found,)),) = reader.groups(file(), ["key"], within=within)
        assert found.cast(plain).to_pylist() == [number, 7]
