"""Declared pipelines: run to their end, served by a worker, reported, and read back."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as users write it

from penstock import App, DeltaSink, ObjectSource, Pipeline, PublishedBatch
from penstock.app.serving import serve
from penstock.config import Settings
from penstock.errors import TableError, UsageError
from penstock.events import BatchCommitted, Event, SparkStarted
from penstock.ledger.records import ObjectState
from penstock.pipeline.spark import frames
from penstock.pipeline.spark.frames import frame_of
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.storage.local import LocalFiles
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 400.0
SCHEMA = "id long, v double, ts timestamp, place string"


def clean(frame: DataFrame) -> DataFrame:
    return frame.where("v is not null").withColumn("day", F.to_date("ts"))


class Shop:
    """An app in a folder, with one pipeline."""

    def __init__(self, folder: Path, *, kill_at: str | None = None, **options: Any) -> None:
        self.folder = folder
        self.landing = folder / "landing"
        self.landing.mkdir(exist_ok=True)
        self.table = folder / "lake" / "clicks"
        settings = Settings.model_construct(
            broker=f"sqlite:///{folder}/state/queue.db",
            ledger=f"sqlite:///{folder}/state/ledger.db",
            data_dir=f"{folder}/state",
            kill_at=kill_at,
        )
        self.app = App(settings=settings)
        self.clicks = self.declare(**options)

    def declare(
        self, *, schema: str = SCHEMA, evolve: Any = "none", partition_by: Sequence[str] = (), **options: Any
    ) -> Pipeline:
        return self.app.pipeline(
            "clicks",
            source=ObjectSource(self.landing, queue="clicks-events", schema=schema, evolve=evolve),
            sink=DeltaSink(self.table, partition_by=partition_by),
            **{"transform": clean, **options},
        )

    def write(self, name: str, rows: Sequence[Mapping[str, Any]], *, junk: int = 0) -> Path:
        path = self.landing / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no json\n" * junk)
        return path

    def states(self) -> Mapping[ObjectState, int]:
        found: Mapping[ObjectState, int] = self.app.ledger.counts("clicks")
        return found

    def close(self) -> None:
        self.app.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.close()


KILLED_BEFORE_REPORTING = """
import sys
from pathlib import Path
from tests.chaos.in_process import replace_spark
from tests.spark.test_app_pipeline import Shop, collect_published

replace_spark()
shop = Shop(Path(sys.argv[1]), kill_at="rows_published", transform=None)
collect_published(shop, [])
shop.clicks.run(source=shop.landing)
"""


def collect_published(shop: Shop, received: list[PublishedBatch]) -> None:
    """Declare a handler that collects the published batches."""

    @shop.app.handler(shop.clicks.published)
    def collect(batch: PublishedBatch) -> None:
        received.append(batch)


def row(number: int, *, place: str | None = "here", v: float | None = 1.5) -> dict[str, Any]:
    return {"id": number, "v": v, "ts": f"2024-01-{number % 28 + 1:02}T10:00:00Z", "place": place}


def rows_of_table(table: Path) -> list[dict[str, Any]]:
    """Read the rows with deltalake."""
    return _sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist())


def rows_of_frame(frame: DataFrame) -> list[dict[str, Any]]:
    return _sorted([{name: _zoned(value) for name, value in found.asDict().items()} for found in frame.collect()])


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple((name, str(row[name])) for name in sorted(row)))


def _zoned(value: Any) -> Any:
    """Convert PySpark's naive times, which are in the machine's zone, to UTC."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_a_run_drains_the_queue_and_writes_a_readable_table(shop: Shop, spark: SparkSession) -> None:
    shop.write("a.jsonl", [row(1), row(2, v=None)], junk=1)
    (shop.landing / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(row(3)).encode() + b"\n"))
    shop.app.announce("clicks-events", str(shop.landing))
    report = shop.clicks.run(spark)
    assert (report.objects_processed, report.rows_written, report.lines_quarantined) == (2, 2, 1)
    assert (report.messages_left, report.stopped, report.objects_found) == (0, False, None)
    assert shop.states()[ObjectState.PROCESSED] == 2

    seen = rows_of_frame(shop.clicks.read(spark))
    assert seen == rows_of_table(shop.table)
    assert [(one["id"], one["day"]) for one in seen] == [(1, date(2024, 1, 2)), (3, date(2024, 1, 4))]
    assert {one["_object"] for one in seen} == {path.as_uri() for path in shop.landing.iterdir()}
    (bad,) = shop.clicks.quarantine.read(spark).collect()
    assert bytes(bad["raw"]) == b"no json"
    assert spark.range(1).count() == 1, "the given session is still usable"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96", "and its configuration unchanged"


def test_a_run_reads_a_folder_and_a_second_one_finds_nothing_to_do(shop: Shop, spark: SparkSession) -> None:
    for number in range(5):
        shop.write(f"{number}.jsonl", [row(number)])
    shop.clicks.run(spark, source=shop.landing)
    report = shop.clicks.run(source=shop.landing)  # without a session: it is started only if necessary
    assert (report.objects_found, report.objects_skipped, report.objects_processed) == (5, 5, 0)
    assert len(rows_of_table(shop.table)) == 5
    with pytest.raises(UsageError, match="is not in"):
        shop.clicks.run(spark, source=shop.folder)


@pytest.mark.parametrize("union_max", [frames.UNION_MAX, 1], ids=["as a union", "joined to the files"])
def test_partitions_and_columns_added_later_read_as_in_the_table(
    tmp_path: Path, spark: SparkSession, union_max: int
) -> None:
    folder = tmp_path / "an [odd] {name}?"
    folder.mkdir()
    places = ["a b", "ü/%20=x", "{1,2}*", None, "é:'\"", "_under"]
    first = Shop(folder, partition_by=["place", "day"])
    first.write("a.jsonl", [row(number, place=place) for number, place in enumerate(places)])
    first.clicks.run(spark, source=first.landing)
    first.close()
    second = Shop(folder, schema=f"{SCHEMA}, later array<string>", partition_by=["place", "day"])
    second.write("b.jsonl", [{**row(9), "later": ["x", None]}])
    second.clicks.run(spark, source=second.landing)
    second.close()

    loaded = DeltaTableSink(LocalFiles(second.table), pipeline="clicks", partition_by=None).load()
    assert loaded is not None
    seen = rows_of_frame(frame_of(spark, loaded, union_max=union_max))
    assert seen == rows_of_table(second.table)
    assert {one["place"] for one in seen} == {*places, "here"}
    assert [one["later"] for one in seen if one["id"] == 9] == [["x", None]]
    assert {one["later"] for one in seen if one["id"] != 9} == {None}
    frame = frame_of(spark, loaded, union_max=union_max)
    assert frame.columns == DeltaTable(str(second.table)).to_pyarrow_table().column_names
    assert frame.where("day = date'2024-01-10'").select("id").collect() == [(9,)]


def test_a_missing_table_is_reported_and_an_empty_one_has_its_columns(shop: Shop, spark: SparkSession) -> None:
    with pytest.raises(TableError, match=r"no table at .* yet"):
        shop.clicks.read(spark)
    with pytest.raises(TableError, match="cannot be read makes it"):
        shop.clicks.quarantine.read(spark)
    shop.write("a.jsonl", [row(1)])
    shop.clicks.run(spark, source=shop.landing)
    DeltaTable(str(shop.table)).delete()
    frame = shop.clicks.read(spark)
    assert frame.count() == 0
    assert frame.columns == ["id", "v", "ts", "place", "_object", "_offset", "day"]


def test_a_worker_serves_a_pipeline_and_its_published_handler_receives_each_batch(
    tmp_path: Path, spark: SparkSession
) -> None:
    shop = Shop(tmp_path, max_batch_objects=2)
    stop, received = StopSignal(), list[PublishedBatch]()

    @shop.app.handler(shop.clicks.published)
    def refresh(batch: PublishedBatch) -> None:
        received.append(batch)
        if sum(one.objects for one in received) == 6:
            stop.request()

    for number in range(6):
        shop.write(f"{number}.jsonl", [row(number)])
    shop.app.announce("clicks-events", str(shop.landing))
    patience = threading.Timer(PATIENCE_SECONDS, stop.request)
    patience.start()
    conclusion = serve(shop.app, stop=stop, spark=spark)
    patience.cancel()
    shop.close()
    assert conclusion.outcome == "drained"
    assert sorted(one.seq for one in received) == list(range(1, len(received) + 1))
    assert len(received) >= 3
    assert (sum(one.rows for one in received), {one.table for one in received}) == (6, {str(shop.table)})
    assert len(rows_of_table(shop.table)) == 6


def test_a_batch_published_before_a_kill_is_reported_by_the_next_process(tmp_path: Path, spark: SparkSession) -> None:
    shop, received = Shop(tmp_path, transform=None), list[PublishedBatch]()
    collect_published(shop, received)
    shop.write("a.jsonl", [row(1)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_REPORTING, str(tmp_path)],
        env=environment,
        start_new_session=True,  # it kills its process group
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(rows_of_table(shop.table)) == 1
    assert shop.clicks.published.name not in shop.app.broker.queue_names(), "the batch was not reported yet"

    report = shop.clicks.run(spark)
    assert (report.batches, len(rows_of_table(shop.table))) == (0, 1)
    serve(shop.app, stop=StopSignal(), spark=spark, until=lambda: bool(received))
    shop.close()
    assert [one.seq for one in received] == [1]


def test_no_message_about_a_batch_is_sent_without_a_handler(shop: Shop, spark: SparkSession) -> None:
    shop.write("a.jsonl", [row(1)])
    shop.clicks.run(spark, source=shop.landing)
    assert shop.clicks.published.name not in shop.app.broker.queue_names()


def test_a_continuous_run_serves_until_it_is_stopped(shop: Shop, spark: SparkSession) -> None:
    stop, seen = StopSignal(), list[Event]()

    def collect(event: Event) -> None:
        seen.append(event)
        if isinstance(event, BatchCommitted):
            if event.seq == 1:
                shop.write("b.jsonl", [row(2)])
                shop.app.announce("clicks-events", str(shop.landing))
            else:
                stop.request()

    shop.write("a.jsonl", [row(1)])
    shop.app.announce("clicks-events", str(shop.landing))
    patience = threading.Timer(PATIENCE_SECONDS, stop.request)
    patience.start()
    report = shop.clicks.run(spark, available_now=False, stop=stop, listeners=[collect])
    patience.cancel()
    assert (report.batches, report.stopped) == (2, False)
    assert not any(isinstance(event, SparkStarted) for event in seen)


def test_a_failed_object_is_in_the_report_and_its_siblings_are_in_the_table(
    tmp_path: Path, spark: SparkSession
) -> None:
    shop = Shop(tmp_path, max_attempts=1)
    shop.write("a.jsonl", [row(1)])
    (shop.landing / "b.jsonl.gz").write_bytes(gzip.compress(b"x" * 1_000)[:-10])
    report = shop.clicks.run(spark, source=shop.landing)
    shop.close()
    assert (report.objects_processed, report.objects_dead, report.stopped) == (1, 1, False)
    assert [one["id"] for one in rows_of_table(shop.table)] == [1]


def test_two_full_batches_run_at_once_and_their_numbers_follow_their_commits(
    tmp_path: Path, spark: SparkSession
) -> None:
    both_run = threading.Barrier(2)

    def meet(frame: DataFrame) -> DataFrame:
        both_run.wait(PATIENCE_SECONDS)
        return frame

    shop = Shop(tmp_path, transform=meet)
    shop.app.settings = shop.app.settings.model_copy(update={"objects_max_batch_objects": 2})
    for number in range(4):
        shop.write(f"{number}.jsonl", [row(number)])
    events: list[Event] = []
    report = shop.clicks.run(spark, source=shop.landing, available_now=True, listeners=[events.append])
    assert (report.batches, report.rows_written) == (2, 4)
    assert [event.seq for event in events if isinstance(event, BatchCommitted)] == [1, 2]
    assert sorted(DeltaTable(shop.table).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]
    shop.close()
