"""Each format through Spark, from a folder and from S3, into a table that another library reads."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import orc
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer
from tests.spark import readers

from penstock import App, DeltaSink, ObjectSource
from penstock.config import Settings
from penstock.events import Event, ObjectFailed
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

ROWS = pa.table(
    {
        "id": pa.array(range(3_000), pa.int64()),
        "name": [f"name {number}" for number in range(3_000)],
        "half": [number / 2 for number in range(3_000)],
        "tags": [[str(number % 7), None] for number in range(3_000)],
    }
)


def parquet(rows: pa.Table) -> bytes:
    data = io.BytesIO()
    pq.write_table(rows, data, row_group_size=500)
    return data.getvalue()


def in_orc(rows: pa.Table) -> bytes:
    data = io.BytesIO()
    orc.write_table(rows, data)
    return data.getvalue()


def in_avro(rows: pa.Table) -> bytes:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "half", "type": ["null", "double"]},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
    ]
    data = io.BytesIO()
    fastavro.writer(
        data, {"type": "record", "name": "R", "fields": fields}, rows.to_pylist(), codec="deflate", sync_interval=4_000
    )
    return data.getvalue()


WRITERS: dict[str, Callable[[pa.Table], bytes]] = {"parquet": parquet, "orc": in_orc, "avro": in_avro}


def run(source: str, table: Path, spark: SparkSession, settings: Settings) -> IngestReport:
    request = IngestRequest(source=source, table=str(table), settings=settings)
    return ingest(request, stop=StopSignal(), spark=spark)


def check(table: Path, name: str) -> None:
    found = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert found.select(ROWS.column_names).to_pylist() == ROWS.to_pylist()
    if name == "avro":
        numbers = [found["_row"].to_pylist()[start : start + 1_000] for start in (0, 1_000, 2_000)]
        assert all(one == sorted(set(one)) for one in numbers), "in the order of each object"
    else:
        assert sorted(set(found["_row"].to_pylist())) == list(range(1_000)), "numbered in each of the three objects"


@pytest.mark.parametrize("name", WRITERS)
def test_objects_of_a_folder_are_read_with_their_own_columns(name: str, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"part-{number}.{name}").write_bytes(WRITERS[name](ROWS.slice(number * 1_000, 1_000)))
    (source / f"part-3.{name}").write_bytes(b"no such thing")
    (source / "_SUCCESS").touch()
    report = run(str(source), tmp_path / "table", spark, Settings(objects_max_attempts=1))
    assert (report.rows_written, report.lines_quarantined) == (3_000, 0)
    assert (report.objects_processed, report.objects_dead) == (3, 1)
    assert report.files_ignored == {"underscore": 1}, "as Spark skips it"
    check(tmp_path / "table", name)


@pytest.mark.parametrize("name", WRITERS)
def test_objects_in_s3_are_read_in_ranges(name: str, tmp_path: Path, spark: SparkSession, moto: AwsServer) -> None:
    moto.client("s3").create_bucket(Bucket=f"formats-{name}")
    for number in range(3):
        moto.client("s3").put_object(
            Bucket=f"formats-{name}",
            Key=f"in/part-{number}.{name}",
            Body=WRITERS[name](ROWS.slice(number * 1_000, 1_000)),
        )
    settings = Settings.model_construct(aws_endpoint_url=moto.url, aws_region=moto.aws.region)
    report = run(f"s3://formats-{name}/in", tmp_path / "table", spark, settings)
    assert (report.rows_written, report.objects_processed) == (3_000, 3)
    check(tmp_path / "table", name)


def read_by_function(folder: str, tmp_path: Path, spark: SparkSession, settings: Settings) -> list[Event]:
    """Run a pipeline over a source with a reader, to the end, and return its events."""
    events: list[Event] = []
    app = App(settings=settings)
    pipeline = app.pipeline(
        "pairs",
        source=ObjectSource(folder, queue="pairs", schema="id bigint, half double", reader=readers.read_pairs),
        sink=DeltaSink(tmp_path / "table"),
    )
    pipeline.run(source=folder, spark=spark, listeners=[events.append])
    app.close()
    return events


def check_pairs(tmp_path: Path) -> None:
    found = DeltaTable(tmp_path / "table").to_pyarrow_table().sort_by("id")
    assert [(row["id"], row["half"], row["_row"]) for row in found.to_pylist()] == [
        (number, number / 2, number % 10) for number in range(30)
    ]


def app_settings(tmp_path: Path, **more: Any) -> Settings:
    return Settings.model_construct(
        broker=f"sqlite:///{tmp_path}/state/queue.db",
        ledger=f"sqlite:///{tmp_path}/state/ledger.db",
        data_dir=f"{tmp_path}/state",
        objects_max_attempts=1,
        **more,
    )


def test_a_function_reads_objects_of_a_folder(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.pairs").write_text(readers.written(range(number * 10, number * 10 + 10)))
    (source / "bad.pairs").write_text("100=50;101")
    (source / "odd.pairs").write_text("many=50")
    events = read_by_function(str(source), tmp_path, spark, app_settings(tmp_path))
    check_pairs(tmp_path)
    quarantine = DeltaTable(tmp_path / "table_quarantine").to_pyarrow_table().to_pylist()
    assert [(row["raw"], row["detail"]) for row in quarantine] == [
        (b'{"id":"many","half":50.0}', 'field id: "many" is not BIGINT')
    ]
    (failed,) = (event for event in events if isinstance(event, ObjectFailed))
    assert failed.reason.startswith(f"file://{source}/bad.pairs cannot be read by tests.spark.readers:read_pairs at ")
    assert failed.reason.endswith("ValueError: not enough values to unpack (expected 2, got 1)")
    assert failed.error_type == "ValueError"
    assert 'name, half = pair.split("=")' in (failed.traceback or "")


def test_a_function_reads_objects_in_s3(tmp_path: Path, spark: SparkSession, moto: AwsServer) -> None:
    moto.client("s3").create_bucket(Bucket="pairs")
    for number in range(3):
        moto.client("s3").put_object(
            Bucket="pairs",
            Key=f"in/{number}.pairs",
            Body=readers.written(range(number * 10, number * 10 + 10)).encode(),
        )
    settings = app_settings(tmp_path, aws_endpoint_url=moto.url, aws_region=moto.aws.region)
    read_by_function("s3://pairs/in", tmp_path, spark, settings)
    check_pairs(tmp_path)


def test_files_of_several_formats_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_bytes(b"id\n1\n")
    (source / "b.parquet").write_bytes(parquet(ROWS))
    with pytest.raises(Exception, match=r"objects of several formats, such as .*a\.csv \(csv\) and .*b\.parquet"):
        run(str(source), tmp_path / "table", spark, Settings())
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))
