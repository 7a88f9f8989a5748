"""Spark 3 refuses dates before 1582 and times before 1900 in a file whose footer does not name a Spark."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.storage.local import LocalFiles

pytest.importorskip("pyspark")


def test_the_footer_names_the_version_of_spark(tmp_path: Path) -> None:
    from penstock.pipeline.spark.arrow_writer import WriteTask

    rows = pa.record_batch({"d": pa.array([datetime.date(1500, 1, 1)])})
    task = WriteTask.of(rows.schema, files=LocalFiles(tmp_path), directory="r0")
    (result,) = task.results([rows])
    (path,) = result.column("path").to_pylist()
    assert b"org.apache.spark.version" in (pq.read_metadata(tmp_path / path).metadata or {})
