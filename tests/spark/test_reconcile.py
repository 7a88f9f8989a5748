"""Reconcile finds exactly the objects that were lost on purpose, with the ledger in each database."""

import json
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import delete, insert
from tests.integration.fleet import wait_for

from penstock import App, DeltaSink, ObjectSource, Pipeline
from penstock.app.context import PipelineTools
from penstock.app.pending import announce_all
from penstock.app.reconcile import ReconcileReport, ReconcileRequest, reconcile
from penstock.app.reconcile_target import ReconcileTarget, target_in
from penstock.cli.reconcile import sentence
from penstock.config import Settings
from penstock.errors import UsageError
from penstock.events import Bus, Event, ObjectsMissing, ReconcileFinished, ReconcileProgressed
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    Candidate,
    FailedObject,
    ObjectResult,
    ObjectState,
    OnChange,
    OriginalMessage,
)
from penstock.ledger.schema import archived_objects, objects
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import parse
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner
from penstock.pipeline.reconcile.missing import known_frame
from penstock.worker.shutdown import StopSignal

QUEUE = "clicks-events"
SCHEMA = "id long"
LEDGERS = ("sqlite", "mariadb", "postgresql")
OVER = -1.0  # a lease that has ended when it begins
LEASE_SECONDS = 600.0
NOW = ReconcileRequest(older_than_seconds=0.0)


@dataclass
class Scene:
    """An app with a pipeline, a folder of files, and every way to lose one."""

    folder: Path
    ledger_url: str
    events: list[Event] = field(default_factory=list)
    stop: StopSignal = field(default_factory=StopSignal)

    def __post_init__(self) -> None:
        self.landing = self.folder / "landing"
        self.landing.mkdir()
        settings = Settings.model_construct(
            broker=f"sqlite:///{self.folder}/state/queue.db", ledger=self.ledger_url, data_dir=f"{self.folder}/state"
        )
        self.app = App(settings=settings)
        self.clicks: Pipeline = self.app.pipeline(
            "clicks",
            source=ObjectSource(self.landing, queue=QUEUE, schema=SCHEMA),
            sink=DeltaSink(self.folder / "lake" / "clicks"),
        )
        self.app.ledger.ensure_pipeline("clicks")

    def write(self, *names: str) -> None:
        for number, name in enumerate(names):
            path = self.landing / os.fsdecode(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"id": number}) + "\n")

    def refs(self) -> Sequence[ObjectRef]:
        scanner = Scanner(self.landing, store=LocalStore(self.landing))
        return [ref for chunk in scanner.chunks() for ref in chunk]

    def claim(self, refs: Sequence[ObjectRef], attempt_id: str, *, lease_seconds: float = LEASE_SECONDS) -> None:
        original_message = OriginalMessage(message_id="m", enqueued_at=1.0)
        candidates = [
            Candidate(
                object_id=ref.object_id,
                bucket=ref.bucket,
                key=ref.key_bytes,
                size_bytes=ref.size_bytes,
                uri=ref.uri,
                etag=ref.etag,
                original_message=original_message,
            )
            for ref in refs
        ]
        claim = self.app.ledger.claim(
            "clicks", candidates, attempt_id=attempt_id, worker="w", lease_seconds=lease_seconds
        )
        assert len(claim.claimed) == len(refs)

    def end(self, refs: Sequence[ObjectRef], attempt_id: str, failure: AttemptFailure | None = None) -> None:
        """Record that objects were processed, or failed in that way."""
        self.claim(refs, attempt_id)
        ids = [ref.object_id for ref in refs]
        processed = [] if failure else [ObjectResult(object_id=one, rows=1, lines_quarantined=0) for one in ids]
        failed = [FailedObject(object_id=one, failure=failure, reason="so") for one in ids] if failure else []
        self.app.ledger.commit(
            BatchOutcome(pipeline="clicks", attempt_id=attempt_id, processed=processed, failed=failed)
        )

    def forget(self, refs: Sequence[ObjectRef]) -> None:
        """Delete the objects' rows from the ledger."""
        ids = [ref.object_id for ref in refs]
        statement = delete(objects).where(objects.c.pipeline == "clicks", objects.c.object_id.in_(ids))
        self.app.ledger.database.transact(lambda connection: connection.execute(statement))

    def archive(self, refs: Sequence[ObjectRef]) -> None:
        """Record the objects as archived."""
        rows = [
            {"pipeline": "clicks", "object_id": ref.object_id, "uri_digest": ref.object_id, "archive_id": "a"}
            for ref in refs
        ]
        self.app.ledger.database.transact(lambda connection: connection.execute(insert(archived_objects), rows))

    def reconcile(
        self, spark: SparkSession, request: ReconcileRequest = NOW, *, target: ReconcileTarget | None = None
    ) -> ReconcileReport:
        tools = PipelineTools(stop=self.stop, clock=SystemClock(), bus=Bus(self.events.append), probe=no_probe)
        return reconcile(target or target_in(self.app, "clicks"), request, spark=spark, tools=tools)

    def announced(self) -> list[ObjectRef]:
        """Return the objects that the queue's messages name."""
        messages = self.app.broker.browse(QUEUE, messages_max=10_000)
        return [ref for message in messages for ref in parse(message.body, buckets_allowed=None).objects]

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def ids(refs: Sequence[ObjectRef]) -> list[bytes]:
    """Return the sorted object ids, duplicates included."""
    return sorted(ref.object_id for ref in refs)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.app.close()


@pytest.fixture(params=LEDGERS)
def any_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/ledger.db" if sqlite else request.getfixturevalue(f"{request.param}_url")
    made = Scene(tmp_path, url)
    yield made
    made.app.close()


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.slow)])
def test_only_deliberately_lost_objects_are_announced(any_scene: Scene, spark: SparkSession, seed: int) -> None:
    scene, chance = any_scene, random.Random(seed)
    scene.write(*(f"{chance.choice('abc')}/{chance.choice('xyz')}-{number:04}.jsonl" for number in range(330)))
    refs = list(scene.refs())
    chance.shuffle(refs)
    parts = iter([refs[start : start + 30] for start in range(0, 330, 30)])
    # Known, each for another reason.
    scene.end(next(parts), "processed")
    scene.end(next(parts), "dead", AttemptFailure.DEAD)
    seemed_deleted, seemed_superseded = next(parts), next(parts)
    scene.end(seemed_deleted, "gone", AttemptFailure.DELETED)
    scene.end(seemed_superseded, "superseded", AttemptFailure.SUPERSEDED)
    scene.archive(next(parts))
    # Lost, each in another way.
    never_announced = next(parts)
    row_lost = next(parts)
    scene.end(row_lost, "whose rows are lost")
    scene.forget(row_lost)
    purged = next(parts)
    announce_all(scene.app.broker, QUEUE, purged)
    scene.app.broker.purge(QUEUE)
    freed = next(parts)
    scene.end(freed, "to be tried again, and its message purged", AttemptFailure.RETRY)
    crashed = next(parts)
    live = next(parts)
    scene.claim(live, "live")
    scene.claim(crashed, "whose worker died", lease_seconds=OVER)
    lost = ids([*seemed_deleted, *seemed_superseded, *never_announced, *row_lost, *purged, *freed, *crashed])

    report = scene.reconcile(spark)
    assert ids(scene.announced()) == lost
    assert (report.listed, report.missing, report.sent, report.stopped) == (330, 210, 210, False)
    assert sum(prefix.missing for prefix in report.prefixes) == 210
    assert {prefix.uri for prefix in report.prefixes} <= {f"file://{scene.landing}/{one}/" for one in "abc"}
    missing = scene.of(ObjectsMissing)
    assert [(event.pipeline, event.missing) for event in missing] == [("clicks", 210)]
    last = scene.app.ledger.reconciliation("clicks")
    assert last is not None
    assert (last.listed, last.missing, last.sent, last.source) == (330, 210, 210, str(scene.landing))


def test_a_file_that_changed_back_is_missing_if_its_rows_were_replaced(any_scene: Scene, spark: SparkSession) -> None:
    scene = any_scene
    scene.write("a", "b")
    first, same = sorted(scene.refs(), key=lambda ref: ref.key)
    scene.end([first, same], "first")
    before = (scene.landing / "a").stat()
    (scene.landing / "a").write_text('{"id": 7}\n{"id": 8}\n')
    assert [ref.key for ref in missing_refs(scene, spark)] == [first.key]
    scene.end([ref for ref in scene.refs() if ref.key == first.key], "changed")
    assert missing_refs(scene, spark) == []

    scene.write("a")
    os.utime(scene.landing / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ids(missing_refs(scene, spark)) == [first.object_id]
    adding = replace(target_in(scene.app, "clicks"), change_rule=lambda: OnChange.ADD)
    assert scene.reconcile(spark, target=adding).missing == 0, "its rows are in the table still"


def missing_refs(scene: Scene, spark: SparkSession) -> list[ObjectRef]:
    """Return the objects that a reconcile enqueues, and leave the queue empty."""
    scene.reconcile(spark)
    found = scene.announced()
    scene.app.broker.purge(QUEUE)
    return found


def test_overwritten_versions_are_not_looked_for_if_only_current_ones_are_read(
    scene: Scene, spark: SparkSession
) -> None:
    with pytest.raises(UsageError, match=r"reads only current ones .*on_change=replace.*leave --all-versions out"):
        scene.reconcile(spark, ReconcileRequest(all_versions=True))


def test_a_report_without_missing_objects_is_one_sentence(scene: Scene, spark: SparkSession) -> None:
    scene.write("a", "b")
    scene.end(scene.refs(), "processed")
    report = scene.reconcile(spark)
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    listed = f"2 objects listed in {re.escape(str(scene.landing))}"
    assert re.fullmatch(rf"Nothing missing as of {moment}: {listed}\.", sentence(report))
    assert scene.announced() == []
    assert scene.of(ObjectsMissing) == []
    assert [(event.listed, event.missing) for event in scene.of(ReconcileFinished)] == [(2, 0)]


def test_a_backfill_is_a_reconcile_with_an_empty_ledger(scene: Scene, spark: SparkSession) -> None:
    scene.write(*(f"in/{number:03}.jsonl" for number in range(40)), "in/日本.jsonl", os.fsdecode(b"in/\xff.jsonl"))
    assert scene.reconcile(spark).sent == 42
    assert scene.reconcile(spark).sent == 42  # no worker has run yet: a repetition sends again, which is harmless
    report = scene.clicks.run(spark)
    assert (report.objects_processed, report.rows_written, report.messages_left) == (42, 42, 0)
    assert scene.clicks.read(spark).count() == 42
    again = scene.reconcile(spark)
    assert (again.missing, again.sent, again.left_out) == (0, 0, {})
    assert scene.app.ledger.counts("clicks")[ObjectState.PROCESSED] == 42


def test_a_dry_run_sends_nothing_and_leaves_the_record_alone(scene: Scene, spark: SparkSession) -> None:
    scene.write("a", "b/c")
    report = scene.reconcile(spark, ReconcileRequest(older_than_seconds=0.0, dry_run=True))
    assert (report.missing, report.sent) == (2, 0)
    assert "Missing as of" in sentence(report)
    assert "enqueued none" in sentence(report)
    assert scene.announced() == []
    assert scene.app.ledger.reconciliation("clicks") is None
    assert scene.reconcile(spark).sent == 2
    sent = scene.app.ledger.reconciliation("clicks")
    report = scene.reconcile(spark, ReconcileRequest(older_than_seconds=0.0, dry_run=True))
    assert (report.missing, report.messages_waiting) == (2, 2)  # in the queue still
    assert scene.app.ledger.reconciliation("clicks") == sent


def test_objects_younger_than_the_margin_are_not_missing_yet(scene: Scene, spark: SparkSession) -> None:
    scene.write("old", "young")
    hour_ago = time.time() - 3_600
    os.utime(scene.landing / "old", (hour_ago, hour_ago))
    report = scene.reconcile(spark, ReconcileRequest(older_than_seconds=900.0))
    assert [ref.uri for ref in scene.announced()] == [f"file://{scene.landing}/old"]
    assert (report.listed, report.missing, dict(report.left_out)) == (2, 1, {"young": 1})


def test_a_limit_and_a_rate_bound_the_messages_sent(scene: Scene, spark: SparkSession) -> None:
    scene.write(*(f"{number:03}" for number in range(30)))
    began_at = time.monotonic()
    report = scene.reconcile(spark, ReconcileRequest(older_than_seconds=0.0, limit=7, rate=5.0))
    assert (report.missing, report.sent, len(scene.announced())) == (30, 7, 7)
    assert time.monotonic() - began_at >= 1.0  # five at once, and the others a second later
    progress = [(event.done, event.total) for event in scene.of(ReconcileProgressed) if event.unit == "messages"]
    assert progress == [(5, 7), (7, 7)]


def test_a_link_to_a_folder_is_reported(scene: Scene, spark: SparkSession) -> None:
    scene.write("a")
    (scene.folder / "elsewhere").mkdir()
    (scene.landing / "link").symlink_to(scene.folder / "elsewhere")
    report = scene.reconcile(spark)
    assert (report.listed, report.missing) == (1, 1)
    assert len(report.problems) == 1
    assert "links to folders are not followed" in report.problems[0]


def test_a_table_below_the_source_is_left_out(tmp_path: Path, spark: SparkSession) -> None:
    scene = Scene(tmp_path, f"sqlite:///{tmp_path}/ledger.db")
    scene.write("a", "made/_delta_log/0.json", "made/part-0.parquet", ".hidden/b")
    assert scene.reconcile(spark).missing == 1
    assert [ref.uri for ref in scene.announced()] == [f"file://{scene.landing}/a"]
    scene.app.close()


def test_a_stopped_reconcile_leaves_no_record(scene: Scene, spark: SparkSession) -> None:
    scene.write("a")
    scene.stop.request()
    report = scene.reconcile(spark)
    assert report.stopped
    assert scene.app.ledger.reconciliation("clicks") is None
    assert scene.of(ReconcileFinished) == []


def test_a_stop_cancels_the_spark_job_of_a_reconcile(
    scene: Scene, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene.write("a")
    real, begun = known_frame, tmp_path / "begun"

    def slow(*arguments: Any, **options: Any) -> Any:
        at_work = str(begun)  # pickled by value, for Spark's Python worker

        def wait(batches: Any) -> Any:
            Path(at_work).touch()
            time.sleep(3_600)  # longer than this test may take: only a cancelled job passes
            yield from batches

        return real(*arguments, **options).mapInArrow(wait, "known_id binary")

    def stop_once_begun() -> None:
        wait_for(begun.exists, "Spark is at work", within=120)
        scene.stop.request()

    monkeypatch.setattr("penstock.app.reconcile_spark.known_frame", slow)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop_once_begun)
        report = scene.reconcile(spark)
        stopping.result()
    assert report.stopped
    assert report.sent == 0


def test_no_password_is_in_the_plan(scene: Scene, spark: SparkSession) -> None:
    class Elsewhere:
        is_in_this_process = is_local = False
        driver = "psycopg"
        secret_url = "postgresql://me:verysecret@db.example/ledger"

    frame = known_frame(spark, Elsewhere(), "clicks", seen_at=0.0)  # type: ignore[arg-type]
    plan = frame._jdf.queryExecution().toString()
    assert "MapInArrow" in plan
    assert "verysecret" not in plan


def test_an_inventory_of_a_folder_is_refused(scene: Scene, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="leave --inventory out"):
        scene.reconcile(spark, ReconcileRequest(inventory=str(scene.folder)))


def test_a_pipeline_that_does_not_exist_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageError, match="no pipeline or object handler nothing; it has: clicks"):
        target_in(scene.app, "nothing")
