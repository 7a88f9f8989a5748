"""Files that changed, on Spark: their rows are replaced, added, or the file is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions

from penstock.errors import UsageError
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

Load = Callable[..., IngestReport]


def without_address(rows: DataFrame) -> DataFrame:
    return rows.select("id")


def with_short_address(rows: DataFrame) -> DataFrame:
    return rows.withColumn("_object", functions.element_at(functions.split("_object", "/"), -1))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.jsonl", 1, 2)
    write(folder / "b.jsonl", 3)
    return folder


@pytest.fixture
def load(tmp_path: Path, source: Path, spark: SparkSession) -> Load:
    def call(**options: Any) -> IngestReport:
        request = IngestRequest(source=str(source), table=str(tmp_path / "t"), schema="id bigint", **options)
        return ingest(request, stop=StopSignal(), spark=spark)

    return call


def write(file: Path, *ids: int) -> None:
    """Write a new version of a file. All have the same size per row, so their time tells them apart."""
    file.write_text("".join(f'{{"id": {number}}}\n' for number in ids))


def ids_in(table: Path) -> list[int]:
    return sorted(row["id"] for row in DeltaTable(table).to_pyarrow_table(columns=["id"]).to_pylist())


def test_rows_of_a_changed_file_are_replaced_also_if_it_changes_back(tmp_path: Path, source: Path, load: Load) -> None:
    first = load()
    assert (first.objects_processed, first.replaced_objects) == (2, 0)
    before = (source / "a.jsonl").stat()

    write(source / "a.jsonl", 7, 8, 9)
    changed = load()
    assert (changed.objects_processed, changed.replaced_objects, changed.replaced_rows) == (1, 1, 2)
    assert changed.objects_changed == 0, "no row of its earlier version stays"
    assert ids_in(tmp_path / "t") == [3, 7, 8, 9]

    write(source / "a.jsonl", 1, 2)
    os.utime(source / "a.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    back = load()
    assert (back.objects_processed, back.replaced_objects, back.replaced_rows) == (1, 1, 3)
    assert ids_in(tmp_path / "t") == [1, 2, 3]
    assert load().objects_processed == 0


def test_a_changed_file_is_refused_or_added_as_asked(tmp_path: Path, source: Path, load: Load) -> None:
    load()
    write(source / "a.jsonl", 7)
    refused = load(on_change="refuse")
    assert (refused.objects_processed, refused.objects_dead, refused.replaced_objects) == (0, 1, 0)
    assert ids_in(tmp_path / "t") == [1, 2, 3]
    write(source / "b.jsonl", 4)
    added = load(on_change="add")
    assert (added.objects_processed, added.objects_changed, added.replaced_objects) == (1, 1, 0)
    assert ids_in(tmp_path / "t") == [1, 2, 3, 4]


def test_rows_without_the_address_of_their_file_are_added_and_cannot_be_replaced(
    tmp_path: Path, source: Path, load: Load
) -> None:
    transform = f"{__name__}:without_address"
    with pytest.raises(UsageError, match=r"drops the column _object.* choose on_change='add' or 'refuse'"):
        load(transform=transform, on_change="replace")
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))

    load(transform=transform)
    write(source / "a.jsonl", 7, 8, 9)
    report = load(transform=transform)
    assert (report.objects_processed, report.objects_changed, report.replaced_objects) == (1, 1, 0)
    assert ids_in(tmp_path / "t") == [1, 2, 3, 7, 8, 9]


def test_rows_whose_address_a_transform_changes_are_added_and_cannot_be_replaced(
    tmp_path: Path, source: Path, load: Load
) -> None:
    transform = f"{__name__}:with_short_address"
    with pytest.raises(UsageError, match=r"changes the values of the column _object.* choose on_change='add'"):
        load(transform=transform, on_change="replace")
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))

    load(transform=transform)
    write(source / "a.jsonl", 7, 8, 9)
    report = load(transform=transform)
    assert (report.objects_processed, report.replaced_objects, report.replaced_rows) == (1, 0, 0)
    assert ids_in(tmp_path / "t") == [1, 2, 3, 7, 8, 9]
