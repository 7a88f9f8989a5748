"""Tables partitioned by transforms: both of Spark's writers, and `penstock ingest` into an Iceberg table."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.conformance.sinks.kit import iceberg_table
from tests.spark.elsewhere import Elsewhere
from tests.spark.test_arrow_writer import DIRECTORY, flat, nested, rows_of

from penstock.errors import TableError
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.spark.arrow_writer import arrow_schema
from penstock.pipeline.spark.frames import frame_of
from penstock.pipeline.spark.partition_columns import with_partition_columns
from penstock.pipeline.spark.run import write
from penstock.pipeline.spark.session import runtime_of
from penstock.sinks.derived import texts
from penstock.sinks.iceberg.sink import IcebergTableSink
from penstock.sinks.parquet import list_files
from penstock.sinks.partitions import TIMES, resolve
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal

PARTITION_BY = [
    "day(at)",
    "bucket(3, a b.c)",
    "truncate(2, s)",
    "o",
    "bucket(5, d38)",
    "truncate(50, d18)",
    "hour(wall)",
]


@pytest.fixture(scope="module")
def beside(spark: SparkSession) -> SparkSession:
    return runtime_of(spark).sibling()


@pytest.mark.parametrize("writer", [LocalFiles, Elsewhere], ids=["by Spark", "through Arrow"])
def test_a_writer_puts_each_row_into_the_partition_of_its_values(
    writer: type[LocalFiles], beside: SparkSession, tmp_path: Path
) -> None:
    files = writer(tmp_path / "table")
    frame = flat(beside)
    reported = write(frame, files, DIRECTORY, partition_by=PARTITION_BY)
    schema = arrow_schema(frame.schema)
    found = list_files(files, DIRECTORY, partition_by=PARTITION_BY, schema=schema, written=reported)
    assert sum(file.rows for file in found) == frame.count()
    for file in found:
        rows = pq.read_table(files.root / file.path)
        assert rows.schema.names == [name for name in schema.names if name != "o"], (
            "only columns themselves are left out"
        )
        for field in resolve(PARTITION_BY, schema.names):
            if field.transform is not None:
                values = texts(field, rows[field.source].combine_chunks()).to_pylist()
                assert set(values) == {file.partition_values[str(field)]}
        assert set(file.partition_values) == set(PARTITION_BY)
    read = beside.read.option("recursiveFileLookup", "true").parquet(f"{files}/{DIRECTORY}")
    assert rows_of(read) == rows_of(frame.drop("o"))


def test_texts_of_times_are_those_of_arrow_in_any_time_zone(beside: SparkSession) -> None:
    micros = [
        0,
        -1,
        1,
        -62_135_596_800_000_000,
        253_402_300_799_999_999,
        253_402_300_800_000_000,
        1_709_251_199_999_999,
    ]
    micros += [hour * 3_600_000_000 + off for hour in (-1_000_001, 5, 23, 24, 475_000) for off in (-1, 0)]
    numbers = beside.createDataFrame([(micro,) for micro in [*micros, None]], "m long")
    instants = numbers.selectExpr("timestamp_micros(m) at", "m")
    frame = instants.selectExpr("at", "cast(at as timestamp_ntz) wall", "cast(at as date) born", "m").coalesce(1)
    columns = [("at", TIMES), ("wall", TIMES), ("born", ("year", "month", "day"))]
    partition_by = [f"{transform}({column})" for column, transforms in columns for transform in transforms]
    rows = frame.toArrow().combine_chunks()
    zone = beside.conf.get("spark.sql.session.timeZone")
    beside.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        again = beside.createDataFrame(rows, "at timestamp, wall timestamp_ntz, born date, m long")
        derived, names = with_partition_columns(again, partition_by)
        found = derived.toArrow().combine_chunks()
    finally:
        beside.conf.set("spark.sql.session.timeZone", str(zone))
    for field, name in zip(resolve(partition_by, rows.schema.names), names, strict=True):
        assert found[name].to_pylist() == texts(field, rows[field.source].combine_chunks()).to_pylist(), field


@pytest.mark.parametrize("writer", [LocalFiles, Elsewhere], ids=["by Spark", "through Arrow"])
def test_nested_columns_pass_unchanged(writer: type[LocalFiles], beside: SparkSession, tmp_path: Path) -> None:
    files = writer(tmp_path / "table")
    frame = nested(beside)
    write(frame, files, DIRECTORY, partition_by=["bucket(2, id)"])
    read = beside.read.option("recursiveFileLookup", "true").parquet(f"{files}/{DIRECTORY}")
    assert rows_of(read) == rows_of(frame)
    assert [field.name for field in read.schema] == frame.columns


ROWS = [
    {"ts": "1969-12-31T23:59:59.999999Z", "user": "ann", "n": 1},
    {"ts": "2024-02-29T00:00:00Z", "user": "ann", "n": 2},
    {"ts": "2024-02-29T23:59:59Z", "user": "é😀", "n": 3},
    {"ts": "2024-03-01T00:00:00Z", "user": "", "n": 4},
    {"n": 5},
]
SCHEMA = "ts timestamp, user string, n long"


def ingested(folder: Path, spark: SparkSession, partition_by: Sequence[str]) -> int:
    request = IngestRequest(
        source=str(folder / "in"),
        table=f"iceberg:{folder / 't'}",
        schema=SCHEMA,
        provenance=False,
        partition_by=tuple(partition_by),
    )
    return ingest(request, stop=StopSignal(), spark=spark).rows_written


def test_ingest_partitions_an_iceberg_table_by_day_and_bucket(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root, partition_by = tmp_path / "t", ("day(ts)", "bucket(4, user)")
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "in" / name).write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS))
        assert ingested(tmp_path, spark, [" DAY(ts)", "bucket(4,user)"]) == len(ROWS)
    table = iceberg_table(root)
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [
        ("ts_day", "day"),
        ("user_bucket", "bucket[4]"),
    ]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    midnight = "ts = '2024-03-01T00:00:00+00:00'"
    assert len(list(table.scan().plan_files())) >= 10
    assert {task.file.partition[0] for task in table.scan(row_filter=midnight).plan_files()} == {19_783}
    assert table.scan(row_filter=midnight).to_arrow()["user"].to_pylist() == ["", ""]
    assert table.scan(row_filter="user = 'ann'").count() == 4

    sink = IcebergTableSink(LocalFiles(root), pipeline=f"file://{root}", partition_by=partition_by)
    assert compact(sink, clock=FakeClock()) is not None
    loaded = sink.load()
    assert loaded is not None
    assert len(loaded.files()) == 5, "one for each partition"
    frame = frame_of(spark, loaded)
    assert sorted(row["n"] for row in frame.collect()) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert frame.columns == ["ts", "user", "n"]

    (tmp_path / "in" / "c.jsonl").write_text('{"n": 6}\n')
    with pytest.raises(
        TableError, match=r"partitioned by day\(ts\), bucket\(4, user\) and not by day\(ts\), bucket\(8"
    ):
        ingested(tmp_path, spark, ["day(ts)", "bucket(8, user)"])
    assert ingested(tmp_path, spark, partition_by) == 1
    assert iceberg_table(root).scan().count() == 11


def test_a_number_that_has_no_truncation_fails_its_batch_in_one_sentence(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(f'{{"n": {-(1 << 63)}}}\n')
    with pytest.raises(Exception, match=r"too small to be partitioned by truncate\(10, n\)") as caught:
        ingested(tmp_path, spark, ["truncate(10, n)"])
    assert "\n" not in str(caught.value)
