"""Mistakes that only Spark can find: one sentence, no loss, and the same command works once they are corrected."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.app.scope import ScopeRequest, find_scope
from penstock.errors import TableError, TransformError, UsageError
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.operations.tables.transforms import change_transform
from penstock.worker.shutdown import StopSignal

TRANSFORMS = """
from pyspark.sql import functions as F

def raises(df):
    return df.select(1 / 0)

def none(df):
    return None

def twice(df):
    return df.select("id", "id")

def nothing(df):
    return df.select()

def unknown(df):
    return df.select("no_such_column")

def interval(df):
    return df.selectExpr("make_dt_interval(1) i")

def other(df):
    return df.select(F.col("id").cast("string").alias("id"))

def wider(df):
    return df.withColumn("twice", F.col("id") * 2)

def narrower(df):
    return df.select("_object")
"""

Ingest = Callable[..., IngestReport]


@pytest.fixture
def run(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{tmp_path.name}_t.py").write_text(TRANSFORMS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')

    def call(transform: str | None = None, **options: object) -> IngestReport:
        request = IngestRequest(
            source=str(tmp_path / "in"),
            table=str(tmp_path / "t"),
            transform=f"{tmp_path.name}_t:{transform}" if transform else None,
            **{"schema": "id long", **options},  # type: ignore[arg-type]  # of the request's own fields
        )
        return ingest(request, stop=StopSignal(), spark=spark)

    return call


def accept(folder: Path, transform: str = "") -> None:
    """Allow the next ingests to have another transform, or none."""
    name = f"{folder.name}_t:{transform}" if transform else ""
    change_transform(find_scope(ScopeRequest(table=str(folder / "t")), here=folder), name)


def ids(table: Path) -> list[int]:
    return sorted(row["id"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist())


@pytest.mark.parametrize(
    ("transform", "part"),
    [
        ("raises", "ZeroDivisionError"),
        ("none", "NoneType"),
        ("twice", "id"),
        ("nothing", "without columns"),
        ("unknown", "no_such_column"),
        ("interval", "interval"),
    ],
)
def test_a_broken_transform_is_reported_and_loses_nothing(
    run: Ingest, tmp_path: Path, transform: str, part: str
) -> None:
    with pytest.raises(TransformError, match=part) as error:
        run(transform)
    assert "\n" not in str(error.value)
    report = run()
    assert (report.objects_processed, report.rows_written) == (1, 2)
    assert ids(tmp_path / "t") == [1, 2]


def test_a_partition_column_missing_from_the_rows_is_refused(run: Ingest) -> None:
    with pytest.raises(UsageError, match="no column day"):
        run(partition_by=("day",))


@pytest.mark.parametrize(("transform", "part"), [("other", "'id'|id"), ("narrower", "id")])
def test_columns_incompatible_with_the_table_are_refused(
    run: Ingest, tmp_path: Path, transform: str, part: str
) -> None:
    run()
    (tmp_path / "in" / "b.jsonl").write_text('{"id": 3}\n')
    accept(tmp_path, transform)
    with pytest.raises(TableError, match=part):
        run(transform)
    accept(tmp_path)
    assert run().objects_processed == 1
    assert ids(tmp_path / "t") == [1, 2, 3]


def test_a_foreign_table_with_other_columns_is_refused(run: Ingest, tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "t"), pa.schema([("name", pa.string())]))
    with pytest.raises(TableError, match="name"):
        run()


def test_an_additional_column_is_added_and_null_in_older_rows(run: Ingest, tmp_path: Path) -> None:
    run()
    (tmp_path / "in" / "b.jsonl").write_text('{"id": 3}\n')
    accept(tmp_path, "wider")
    assert run("wider").rows_written == 1
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["twice"]) for row in rows if row["id"] == 3) == [(3, 6)]
    assert [row["twice"] for row in rows if row["id"] < 3] == [None, None]
    (tmp_path / "in" / "c.jsonl").write_text('{"id": 4}\n')
    accept(tmp_path)
    with pytest.raises(TableError, match="twice"):
        run()


def test_a_schema_that_failed_is_not_remembered(run: Ingest, tmp_path: Path) -> None:
    run()
    (tmp_path / "in" / "b.jsonl").write_text('{"id": 3}\n')
    with pytest.raises(TableError, match="id"):
        run(schema="id string")
    assert run(schema=None).rows_written == 1
    assert ids(tmp_path / "t") == [1, 2, 3]
