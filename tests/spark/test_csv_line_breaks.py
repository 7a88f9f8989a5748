"""A large CSV file, mostly quoted fields with line breaks, that is read in pieces."""

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.events import Event, LinesQuarantined
from penstock.monitoring.logs.object_rows import OBJECT_ROWS
from penstock.monitoring.logs.rows import LogRow
from penstock.objects.local_store import LocalStore
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.source.plan import _partitions
from penstock.pipeline.spark.source.report import SAMPLES_MAX
from penstock.worker.shutdown import StopSignal

RECORDS = 60
INNER = "".join(f"{900_000 + number},not a row\n" for number in range(25_000))  # lines that look like rows


def test_records_with_line_breaks_are_quarantined_once_wherever_the_file_is_cut(
    tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    good: list[int] = []
    bad: list[tuple[int, bytes]] = []
    with (source / "a.csv").open("wb") as file:
        file.write(b"id,comment\n")
        for number in range(RECORDS):
            good += [2 * number, 2 * number + 1]
            file.write(b"%d,one line\n" % (2 * number))
            record = f'{800_000 + number},"{INNER}{number}, said ""she"""'.encode()
            bad.append((file.tell(), record))
            file.write(record + b"\n")
            file.write(b'%d,"with ""quotes"", and a comma"\n' % (2 * number + 1))
    refs = [LocalStore(source).describe(source / "a.csv")]
    assert len(_partitions(refs, runtime_of(spark).tasks_at_once(), {}, bytes_max=1 << 40)) >= 4, "it is read in pieces"
    events: list[Event] = []
    request = IngestRequest(
        source=str(source),
        table=str(tmp_path / "table"),
        format="csv",
        schema="id int, comment string",
        settings=Settings(),
    )
    report = ingest(request, stop=StopSignal(), listeners=[events.append], spark=spark)

    assert (report.rows_written, report.lines_quarantined, report.objects_dead) == (len(good), RECORDS, 0)
    assert sorted(DeltaTable(tmp_path / "table").to_pyarrow_table()["id"].to_pylist()) == good
    assert report.quarantine_table is not None
    found = DeltaTable(report.quarantine_table).to_pyarrow_table().to_pylist()
    assert sorted((row["offset"], row["raw"]) for row in found) == bad
    (event,) = [event for event in events if isinstance(event, LinesQuarantined)]
    row = OBJECT_ROWS[LinesQuarantined]
    assert isinstance(row, LogRow)
    logged = row.fields["sample"]
    assert callable(logged)
    assert event.count == RECORDS
    assert sum(event.reasons.values()) == RECORDS
    sample = logged(event)
    assert isinstance(sample, list)
    assert len(sample) == SAMPLES_MAX
    assert all(line.startswith(tuple(f"{offset}: " for offset, _ in bad)) for line in sample)
