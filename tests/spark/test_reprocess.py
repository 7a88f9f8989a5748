"""Processed files are read again on Spark, with a changed transform, and their rows are replaced."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from penstock.app.paths import table_paths
from penstock.app.scope import ScopeRequest, find_scope, scope_ledger
from penstock.errors import TableError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.operations.inspection import view
from penstock.operations.objects.reprocess import ReprocessPlan, ReprocessSelection, plan, reprocess
from penstock.operations.tables.transforms import change_transform
from penstock.worker.shutdown import StopSignal

Load = Callable[..., IngestReport]
TIMES_TEN = f"{__name__}:times_ten"


def times_ten(rows: DataFrame) -> DataFrame:
    return rows.withColumn("id", col("id") * 10)


def without_address(rows: DataFrame) -> DataFrame:
    return rows.drop("_object")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, ids in (("a", (1, 2)), ("b", (3,)), ("c", (4,))):
        (folder / f"{name}.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in ids))
    return folder


@pytest.fixture
def load(tmp_path: Path, source: Path, spark: SparkSession) -> Load:
    def call(**options: Any) -> IngestReport:
        request = IngestRequest(source=str(source), table=str(tmp_path / "t"), schema="id bigint", **options)
        return ingest(request, stop=StopSignal(), spark=spark)

    return call


@pytest.fixture
def ledger(tmp_path: Path, load: Load) -> Iterator[Ledger]:
    load()
    with closing(scope_ledger(scope_of(tmp_path))) as opened:
        yield opened


def scope_of(folder: Path) -> Any:
    return find_scope(ScopeRequest(table=str(folder / "t")), here=folder)


def read_again(folder: Path, ledger: Ledger, *paths: Path) -> ReprocessPlan:
    selection = ReprocessSelection(uris=[path.as_uri() for path in paths])
    with view(scope_of(folder), make=True) as seen:
        return reprocess(
            seen,
            selection,
            plan(seen, selection),
            ledger=ledger,
            stopped=lambda: False,
            on_progress=lambda _: None,
        )


def ids_in(table: Path) -> list[int]:
    return sorted(row["id"] for row in DeltaTable(table).to_pyarrow_table(columns=["id"]).to_pylist())


def test_files_are_read_again_under_the_changed_transform_and_only_their_rows_change(
    tmp_path: Path, source: Path, load: Load, ledger: Ledger
) -> None:
    change_transform(scope_of(tmp_path), TIMES_TEN)
    done = read_again(tmp_path, ledger, source / "a.jsonl", source / "b.jsonl")
    assert (done.objects, done.rows) == (2, 3)
    assert ids_in(tmp_path / "t") == [1, 2, 3, 4]
    (source / "d.jsonl").write_text('{"id": 5}\n')
    report = load(transform=TIMES_TEN)
    assert (report.objects_processed, report.replaced_objects, report.replaced_rows) == (3, 2, 3)
    assert report.objects_reread == 2
    assert ids_in(tmp_path / "t") == [4, 10, 20, 30, 50]
    (source / "d.jsonl").write_text('{"id": 6}\n{"id": 7}\n')
    changed = load(transform=TIMES_TEN)
    assert (changed.objects_processed, changed.replaced_objects, changed.objects_reread) == (1, 1, 0)
    assert load(transform=TIMES_TEN).objects_processed == 0


def test_files_that_are_gone_or_changed_keep_their_earlier_rows(
    tmp_path: Path, source: Path, load: Load, ledger: Ledger
) -> None:
    read_again(tmp_path, ledger, *(source / f"{name}.jsonl" for name in "abc"))
    (source / "a.jsonl").unlink()
    (source / "b.jsonl").write_text('{"id": 33}\n{"id": 34}\n')
    report = load(on_change="add")
    assert (report.objects_kept, report.objects_dead) == (2, 0)
    assert ids_in(tmp_path / "t") == [1, 2, 3, 4, 33, 34]
    pipeline = table_paths(str(tmp_path / "t")).pipeline
    assert set(ledger.counts(pipeline).items()) >= {(ObjectState.PROCESSED, 4), (ObjectState.UNPROCESSED, 0)}


def test_a_transform_that_drops_the_address_of_the_file_replaces_nothing(
    tmp_path: Path, source: Path, load: Load, ledger: Ledger
) -> None:
    transform = f"{__name__}:without_address"
    change_transform(scope_of(tmp_path), transform)
    read_again(tmp_path, ledger, source / "a.jsonl")
    with pytest.raises(TableError, match=r"The column _object .* is missing"):
        load(transform=transform, on_change="add")
    assert ids_in(tmp_path / "t") == [1, 2, 3, 4]
    (waiting,) = ledger.reopenings.open(table_paths(str(tmp_path / "t")).pipeline, limit=10)
    assert waiting.uri.endswith("/a.jsonl")
