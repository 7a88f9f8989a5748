"""A compaction orders rows by columns: the same rows, fewer files for a selective filter, and nothing to do twice."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.conformance.publishing.batch_maker import PIPELINE

from penstock.errors import PublishConflict, TableError
from penstock.pipeline.maintenance.compact import CompactionResult, compact
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

ROWS = 20_000
FILES = 8
NESTED = pa.struct([("x", pa.int64())])


def rows() -> pa.Table:
    chance = random.Random(7)
    numbers = range(ROWS)
    return pa.table(
        {
            "a": pa.array([chance.randrange(ROWS) for _ in numbers]),
            "b": pa.array([None if n % 50 == 0 else f"{chance.randrange(ROWS):06}" for n in numbers]),
            "outlier": pa.array([10**18 if n == 3 else n % 7 for n in numbers]),
            "nested": pa.array([{"x": n} for n in numbers], NESTED),
        }
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root, table = tmp_path / "t", rows()
    for number in range(FILES):
        write_deltalake(str(root), table.slice(number * ROWS // FILES, ROWS // FILES), mode="append")
    return root


def size_bytes(root: Path) -> int:
    return int(sum(pa.table(DeltaTable(str(root)).get_add_actions())["size_bytes"].to_pylist()))


def ordered(root: Path, *columns: str, files: int = 4, dry_run: bool = False) -> CompactionResult:
    done = compact(
        DeltaTableSink(LocalFiles(root), pipeline=PIPELINE, partition_by=None),
        target_bytes=math.ceil(size_bytes(root) / files),
        order_by=columns,
        dry_run=dry_run,
        clock=FakeClock(auto_advance=True),
    )
    assert done is not None
    return done


def paths(root: Path) -> Sequence[str]:
    return sorted(DeltaTable(str(root)).file_uris())


def files_read(root: Path, wanted: pc.Expression) -> int:
    return len(list(DeltaTable(str(root)).to_pyarrow_dataset().get_fragments(filter=wanted)))


def sorted_rows(table: pa.Table) -> list[Any]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("columns", [("a",), ("a", "b"), ("outlier", "a")])
def test_a_filter_on_each_column_reads_fewer_files_and_no_row_changes(root: Path, columns: Sequence[str]) -> None:
    wanted = {"a": pc.field("a") == 500, "b": pc.field("b") == "000500", "outlier": pc.field("outlier") == 10**18}
    compact_all = ordered(root, *columns)
    assert compact_all.merged == FILES
    assert compact_all.files_after == len(paths(root)) == 4
    fraction = 1 if len(columns) == 1 else 2  # of four files
    for name in columns:
        assert files_read(root, wanted[name]) <= fraction, name
    assert sorted_rows(DeltaTable(str(root)).to_pyarrow_table()) == sorted_rows(rows())


@pytest.mark.parametrize("columns", [("a",), ("a", "b")])
def test_a_second_compaction_does_nothing(root: Path, columns: Sequence[str]) -> None:
    ordered(root, *columns)
    before = paths(root)
    again = ordered(root, *columns, files=2)
    assert (again.merged, paths(root)) == (0, before)


def test_only_new_files_are_ordered_later(root: Path) -> None:
    ordered(root, "a", files=4)
    before = set(paths(root))
    write_deltalake(str(root), rows().slice(0, 5_000), mode="append")
    write_deltalake(str(root), rows().slice(0, 5_000), mode="append")
    done = ordered(root, "a", files=4)
    assert done.merged == 2
    assert before < set(paths(root))


def test_a_small_ordered_file_is_merged_with_new_ones(root: Path) -> None:
    ordered(root, "a", files=1)
    write_deltalake(str(root), rows().slice(0, 100), mode="append")
    big = 100 * size_bytes(root)
    sink = DeltaTableSink(LocalFiles(root), pipeline=PIPELINE, partition_by=None)
    done = compact(sink, target_bytes=big, order_by=["a"], clock=FakeClock(auto_advance=True))
    assert done is not None
    assert (done.merged, len(paths(root))) == (2, 1)


def test_a_compaction_without_an_order_leaves_ordered_files_alone(root: Path) -> None:
    ordered(root, "a")
    sink = DeltaTableSink(LocalFiles(root), pipeline=PIPELINE, partition_by=None)
    done = compact(sink, clock=FakeClock(auto_advance=True))
    assert done is not None
    assert done.merged == 0


def test_another_order_is_applied_to_ordered_files(root: Path) -> None:
    ordered(root, "a")
    assert files_read(root, pc.field("b") == "000500") == 4
    assert ordered(root, "b").merged == 4
    assert files_read(root, pc.field("b") == "000500") == 1


def test_a_dry_run_counts_the_files_and_changes_nothing(root: Path) -> None:
    before = sorted(root.rglob("*"))
    done = ordered(root, "a", dry_run=True)
    assert (done.merged, done.files_after) == (FILES, 4)
    assert sorted(root.rglob("*")) == before


def test_files_of_a_compaction_that_lost_a_race_are_deleted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_files = DeltaTableSink.replace_files

    def overtaken(self: DeltaTableSink, **options: Any) -> int:
        monkeypatch.setattr(DeltaTableSink, "replace_files", replace_files)
        DeltaTable(str(root)).delete("a < 100")
        raise PublishConflict("another writer")

    monkeypatch.setattr(DeltaTableSink, "replace_files", overtaken)
    done = ordered(root, "a", files=2)
    assert done.merged == 0
    assert list((root / "compacted").rglob("*.parquet")) == []


def test_partitions_are_ordered_separately(tmp_path: Path) -> None:
    root, table = tmp_path / "t", rows().append_column("day", pa.array(["x", "y"] * (ROWS // 2)))
    for number in range(2):
        write_deltalake(str(root), table.slice(number * 10_000, 10_000), mode="append", partition_by=["day"])
    ordered(root, "a", files=8)
    assert files_read(root, (pc.field("a") == 500) & (pc.field("day") == "x")) == 1
    assert sorted_rows(DeltaTable(str(root)).to_pyarrow_table()) == sorted_rows(table)


@pytest.mark.parametrize(
    ("columns", "words"),
    [(["c"], "no column c"), (["nested"], "is nested"), ([f"n{n}" for n in range(9)], "no column n0")],
)
def test_columns_that_rows_cannot_be_ordered_by_are_refused(root: Path, columns: Sequence[str], words: str) -> None:
    with pytest.raises(TableError, match=words):
        ordered(root, *columns)
