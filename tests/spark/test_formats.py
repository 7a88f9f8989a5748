"""Each format through Spark, from a folder and from S3, into a table that another library reads."""

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import orc
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer

from penstock.config import Settings
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


WRITERS: dict[str, Callable[[pa.Table], bytes]] = {"parquet": parquet, "orc": in_orc}


def run(source: str, table: Path, spark: SparkSession, settings: Settings) -> IngestReport:
    request = IngestRequest(source=source, table=str(table), settings=settings)
    return ingest(request, stop=StopSignal(), spark=spark)


def check(table: Path) -> None:
    found = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert found.select(ROWS.column_names).to_pylist() == ROWS.to_pylist()
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
    check(tmp_path / "table")


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
    check(tmp_path / "table")


def test_files_of_several_formats_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_bytes(b"id\n1\n")
    (source / "b.parquet").write_bytes(parquet(ROWS))
    with pytest.raises(Exception, match=r"objects of several formats, such as .*a\.csv \(csv\) and .*b\.parquet"):
        run(str(source), tmp_path / "table", spark, Settings())
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))
