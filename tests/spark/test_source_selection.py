"""Patterns, filters and path partitions through Spark, from a folder and from S3, and their reconcile."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer

from penstock.app.context import PipelineTools
from penstock.app.reconcile import ReconcileReport, ReconcileRequest, reconcile
from penstock.app.reconcile_target import target_of_table
from penstock.app.scope import ScopeRequest, find_scope
from penstock.config import Settings
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

FILES = {
    "day=2026-01-01/region=eu%2Fwest/a.csv": b"id\n1\n",
    "day=2026-01-02/region=__HIVE_DEFAULT_PARTITION__/x/b.csv.gz": gzip.compress(b"id\n2\n3\n"),
    "day=2026-01-02/region=us/.b.csv.crc": b"crc",
    "day=2026-01-02/region=us/_SUCCESS": b"",
    "day=2026-01-02/region=us/README.md": b"# read me",
    "day=2026-01-02/region=us/tmp/c.csv": b"id\n4\n",
    "day=2025-12-31/region=us/d.csv": b"id\n5\n",
}
PARTITIONS = "day date, region string"
ROWS = [
    ("1", "2026-01-01", "eu/west"),
    ("2", "2026-01-02", None),
    ("3", "2026-01-02", None),
]


def run(request: IngestRequest, spark: SparkSession) -> IngestReport:
    return ingest(request, stop=StopSignal(), spark=spark)


def rows(table: Path) -> list[tuple[str, str, str | None]]:
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted((str(row["id"]), str(row["day"]), row["region"]) for row in found)


def reconciled(request: IngestRequest, spark: SparkSession, settings: Settings) -> ReconcileReport:
    scope = find_scope(ScopeRequest(table=request.table), here=Path.cwd())
    assert scope.table is not None
    scope = replace(scope, table=replace(scope.table, aws=settings.aws))
    tools = PipelineTools(stop=StopSignal(), clock=SystemClock(), bus=Bus(), probe=no_probe)
    with target_of_table(scope, request.source, include=request.include, exclude=request.exclude) as target:
        return reconcile(target, ReconcileRequest(older_than_seconds=0, dry_run=True), spark=spark, tools=tools)


def test_a_pattern_of_files_with_partitions(tmp_path: Path, spark: SparkSession) -> None:
    for name, content in FILES.items():
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    request = IngestRequest(
        source=f"{tmp_path}/in/day=2026-*/",
        table=str(tmp_path / "table"),
        exclude=("tmp/",),
        partitions=PARTITIONS,
        partition_by=("day",),
    )
    report = run(request, spark)
    assert (report.objects_processed, report.objects_dead) == (2, 0)
    assert report.files_ignored == {"hidden": 1, "underscore": 1, "other_suffix": 1, "not_selected": 2}
    assert rows(tmp_path / "table") == ROWS

    again = run(request, spark)
    assert (again.objects_found, again.objects_skipped) == (2, 2)
    assert again.files_ignored == report.files_ignored
    found = reconciled(request, spark, Settings())
    assert (found.missing, found.listed, found.problems) == (0, 2, ())

    remembered = replace(request, partitions=None)
    (tmp_path / "in/day=2026-01-03/region=é").mkdir(parents=True)
    (tmp_path / "in/day=2026-01-03/region=é/e.csv").write_bytes(b"id\n6\n")
    (tmp_path / "in/day=2026-soon").mkdir()
    (tmp_path / "in/day=2026-soon/f.csv").write_bytes(b"id\n7\n")
    report = run(replace(remembered, settings=Settings(objects_max_attempts=1)), spark)
    assert (report.objects_processed, report.objects_dead) == (1, 1), "a path without a region fails its object"
    assert rows(tmp_path / "table") == [*ROWS, ("6", "2026-01-03", "é")]


def test_a_file_alone(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "[a]*.csv").write_bytes(b"id\n1\n")
    (tmp_path / "b.csv").write_bytes(b"id\n2\n")
    report = run(IngestRequest(source=str(tmp_path / "[a]*.csv"), table=str(tmp_path / "table")), spark)
    assert (report.objects_found, report.rows_written, report.files_ignored) == (1, 1, {})


def test_objects_in_s3(tmp_path: Path, spark: SparkSession, moto: AwsServer) -> None:
    moto.client("s3").create_bucket(Bucket="selected")
    for name, content in FILES.items():
        moto.client("s3").put_object(Bucket="selected", Key=f"in/{name}", Body=content)
    settings = Settings.model_construct(aws_endpoint_url=moto.url, aws_region=moto.aws.region)
    request = IngestRequest(
        source="s3a://selected/in/day=2026-*/**/*.csv*",
        table=str(tmp_path / "table"),
        exclude=("tmp/",),
        partitions=PARTITIONS,
        settings=settings,
    )
    report = run(request, spark)
    assert (report.objects_processed, report.objects_dead) == (2, 0)
    assert rows(tmp_path / "table") == ROWS

    moto.client("s3").put_object(Bucket="selected", Key="in/day=2026-01-03/region=us/g.csv", Body=b"id\n8\n")
    found = reconciled(request, spark, settings)
    assert (found.missing, found.listed) == (1, 7), "listed is what begins like the pattern"
    assert {str(reason): number for reason, number in found.left_out.items()} == {"hidden": 1, "not_selected": 3}


def json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"id": number, "day": "inside"}) + "\n" for number in range(3)))


def documents(path: Path) -> None:
    path.write_text(json.dumps([{"id": number} for number in range(3)]))


def parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": range(3)}), path)


def comma_separated(path: Path) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id"], *([number] for number in range(3))])


@pytest.mark.parametrize(
    ("suffix", "write", "named"),
    [
        ("jsonl", json_lines, None),
        ("json", documents, None),
        ("parquet", parquet, None),
        ("csv", comma_separated, None),
        ("txt", comma_separated, None),
        ("bin", comma_separated, "binary"),
    ],
)
def test_every_format_has_partitions(
    suffix: str, write: object, named: str | None, tmp_path: Path, spark: SparkSession
) -> None:
    for day in (1, 2):
        folder = tmp_path / "in" / f"day={day}"
        folder.mkdir(parents=True)
        write(folder / f"a.{suffix}")  # type: ignore[operator]
    request = IngestRequest(
        source=str(tmp_path / "in"), table=str(tmp_path / "table"), format=named, partitions="day int", provenance=False
    )
    run(request, spark)
    found = DeltaTable(tmp_path / "table").to_pyarrow_table()
    days = found["day"].to_pylist()
    assert set(days) == {1, 2}
    assert days.count(1) == days.count(2) > 0
