"""`ingest --watch`: files are ingested once they are stable, and a stop ends it normally."""

import json
import threading
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.events import BatchCommitted, Event, SourceScanned, WatchDegraded, WatchStarted
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 400.0
SETTLE_SECONDS = 2.5  # longer than any pause of a writer in these tests
LINES = 30


class Watched:
    """A watching ingest in a thread; the test writes files and waits for commits."""

    def __init__(self, folder: Path, spark: SparkSession, *, schema: str | None = "id long") -> None:
        self.source = folder / "in"
        self.source.mkdir()
        self.table = folder / "t"
        self.stop = StopSignal()
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._reports: list[IngestReport] = []
        self._failures: list[BaseException] = []
        request = IngestRequest(
            source=str(self.source),
            table=str(self.table),
            schema=schema,
            watch=True,
            settle_seconds=SETTLE_SECONDS,
        )
        self._thread = threading.Thread(target=self._run, args=(request, spark), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.wait_for(WatchStarted)
        self.wait_for(SourceScanned)

    def wait_for(self, kind: type[Event], count: int = 1) -> None:
        def has_arrived() -> bool:
            return sum(isinstance(event, kind) for event in self.events) >= count or bool(self._failures)

        with self._changed:
            assert self._changed.wait_for(has_arrived, PATIENCE_SECONDS), f"{count} {kind.__name__} did not arrive"
        if self._failures:
            raise self._failures[0]

    def end(self) -> IngestReport:
        self.stop.request()
        self._thread.join(PATIENCE_SECONDS)
        if self._failures:
            raise self._failures[0]
        (report,) = self._reports
        return report

    def ids(self) -> list[int]:
        return sorted(DeltaTable(str(self.table)).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def _run(self, request: IngestRequest, spark: SparkSession) -> None:
        try:
            self._reports.append(ingest(request, stop=self.stop, spark=spark, listeners=(self._hear,)))
        except BaseException as failure:
            self._failures.append(failure)
            self._hear(Event())

    def _hear(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


def lines(*ids: int) -> str:
    return "".join(json.dumps({"id": one}) + "\n" for one in ids)


def test_a_slowly_written_file_is_ingested_once_and_whole(tmp_path: Path, spark: SparkSession) -> None:
    pen = threading.Event()  # never set: the file must grow over several settle times
    watched = Watched(tmp_path, spark)
    (watched.source / "before.jsonl").write_text(lines(1_000))
    watched.start()
    watched.wait_for(BatchCommitted)
    with (watched.source / "slow.jsonl").open("w") as file:
        for number in range(LINES):
            file.write(lines(number))
            file.flush()
            pen.wait(SETTLE_SECONDS / 10)
    watched.wait_for(BatchCommitted, 2)
    report = watched.end()
    assert watched.ids() == [*range(LINES), 1_000]
    assert (report.objects_found, report.objects_processed, report.stopped) == (2, 2, False)
    assert (report.objects_superseded, report.objects_new_versions, report.batches) == (0, 0, 2)


def test_a_schema_is_inferred_from_the_first_file_that_arrives(tmp_path: Path, spark: SparkSession) -> None:
    watched = Watched(tmp_path, spark, schema=None)
    watched.start()
    (watched.source / ".a.tmp").write_text(lines(1, 2))
    (watched.source / ".a.tmp").rename(watched.source / "a.jsonl")
    watched.wait_for(BatchCommitted)
    report = watched.end()
    assert watched.ids() == [1, 2]
    assert (report.schema, report.stopped) == ("id BIGINT", False)


def test_watching_resumes_when_a_removed_folder_returns(tmp_path: Path, spark: SparkSession) -> None:
    watched = Watched(tmp_path, spark)
    watched.start()
    (watched.source / "a.jsonl").write_text(lines(1))
    watched.wait_for(BatchCommitted)
    watched.source.rename(tmp_path / "away")
    watched.wait_for(WatchDegraded)
    watched.source.mkdir()
    (watched.source / "b.jsonl").write_text(lines(2))
    watched.wait_for(BatchCommitted, 2)
    assert watched.end().stopped is False
    assert watched.ids() == [1, 2]


def test_a_watch_stopped_before_any_file_reports_nothing_ingested(tmp_path: Path, spark: SparkSession) -> None:
    watched = Watched(tmp_path, spark, schema=None)
    watched.start()
    report = watched.end()
    assert (report.objects_found, report.table_version, report.stopped) == (0, None, False)
