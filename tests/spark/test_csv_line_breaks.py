"""A large CSV file, mostly quoted fields with line breaks, that is read in pieces."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.objects.local_store import LocalStore
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.source import plan
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.worker.shutdown import StopSignal

RECORDS = 60
INNER = "".join(f"{900_000 + number},not a row\n" for number in range(25_000))  # lines that look like rows


def test_records_with_line_breaks_are_one_row_each_wherever_the_file_is_cut(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_PARTITION_COST_MAX", 4 << 20)
    source = tmp_path / "in"
    source.mkdir()
    rows: list[tuple[int, int, str]] = []
    with (source / "a.csv").open("wb") as file:
        file.write(b"id,comment\n")
        for number in range(RECORDS):
            rows.append((file.tell(), 2 * number, "one line"))
            file.write(b"%d,one line\n" % (2 * number))
            rows.append((file.tell(), 800_000 + number, f'{INNER}{number}, said "she"'))
            file.write(f'{800_000 + number},"{INNER}{number}, said ""she"""\r\n'.encode())
            rows.append((file.tell(), 2 * number + 1, 'with "quotes", and a comma'))
            file.write(b'%d,"with ""quotes"", and a comma"\n' % (2 * number + 1))
    refs = [LocalStore(source).describe(source / "a.csv")]
    assert len(plan._partitions(refs, runtime_of(spark).tasks_at_once(), {}, ReadOptions(format="csv"), {})) >= 4, (
        "it is read in pieces"
    )
    request = IngestRequest(
        source=str(source),
        table=str(tmp_path / "table"),
        format="csv",
        schema="id int, comment string",
        settings=Settings(),
    )
    report = ingest(request, stop=StopSignal(), listeners=[], spark=spark)

    assert (report.rows_written, report.lines_quarantined, report.objects_dead) == (len(rows), 0, 0)
    found = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["_offset"], row["id"], row["comment"]) for row in found) == rows
