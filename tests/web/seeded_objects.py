"""Objects, batches, reconciles and archives in every state, recorded with the ledger's own calls, without Spark."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.scene import SCHEMA, Scene
from tests.web.hostile import IMAGE, NAMES, SCRIPT
from tests.web.past import DAY, HOUR, MINUTE, PastClock
from tests.web.shop import CLICKS, LONG_PIPELINE, THUMBNAILS, settings_of
from ulid import ULID

from penstock.app.jobs.archive import PipelineArchive, archive, archive_location
from penstock.app.paths import LEDGER_FILE, declared_table_paths
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.state import QUEUE_FILE, StateFolder
from penstock.app.tables import Tables
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.pipelines import ReconcileResult
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    BatchRecord,
    FailedObject,
    ObjectClaims,
    ObjectResult,
    OnChange,
)
from penstock.ledger.retractions import Retraction
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe
from penstock.sinks.manifest import encode
from penstock.sinks.schema import encode as encode_schema

HUGE_ROWS, HUGE_BYTES = 98_765_432_109, 8 * 1024**5
STAGES = {"plan": 0.4, "read and write": 1_234.5, "commit": 0.03, "publish": 2.2}
REASON = "failed 4 times, the last time with ValueError: unknown format b'<script>'"
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/thumbnails.py", line 41, in draw
    image = Image.open(source.open())
  File "/srv/shop/thumbnails.py", line 77, in _checked
    raise ValueError(f"unknown format {head!r}")
ValueError: unknown format b'<script>'
"""


@dataclass(kw_only=True)
class PastScene(Scene):
    """The history of one pipeline or object handler, at the times of a clock and by the workers of the shop."""

    clock: PastClock
    worker_id: str

    @classmethod
    def of_shop(cls, folder: Path, name: str, *, clock: PastClock, worker: str) -> "PastScene":
        where = declared_table_paths(name, folder / "tables" / name, settings_of(folder))
        source = folder / "landing" / name
        return cls(where=where, source=source, queue=f"{name}-files", clock=clock, worker_id=worker)

    def leave(self, name: str, failure: AttemptFailure, reason: str, *, traceback: str | None = None) -> None:
        """End an attempt on an object without rows."""
        with self._state() as state:
            claim = self._claim(state, [name])
            failed = [
                FailedObject(object_id=id, failure=failure, reason=reason, traceback=traceback) for id in claim.claimed
            ]
            pipeline, attempt = self.where.pipeline, claim.attempt_id
            state.ledger.commit(BatchOutcome(pipeline=pipeline, attempt_id=attempt, processed=(), failed=failed))

    def hold(self, *names: str) -> None:
        """Claim objects, whose attempt stays open."""
        with self._state() as state:
            self._claim(state, names)

    def handle(self, *names: str) -> None:
        """Process objects as an object handler does, which has no rows."""
        with self._state() as state:
            claim = self._claim(state, names)
            results = [ObjectResult(object_id=id, rows=0, lines_quarantined=0) for id in claim.claimed]
            pipeline, attempt = self.where.pipeline, claim.attempt_id
            state.ledger.commit(BatchOutcome(pipeline=pipeline, attempt_id=attempt, processed=results))

    def process_huge(self, *names: str, spark_ui_url: str) -> None:
        """Commit a batch of huge numbers, which nothing publishes."""
        with self._state() as state:
            claim = self._claim(state, names)
            row, schema = state.ledger.ensure_pipeline(self.where.pipeline), encode_schema(SCHEMA)
            record = BatchRecord(
                rows=HUGE_ROWS,
                lines_quarantined=HUGE_ROWS // 2,
                bytes=HUGE_BYTES,
                manifest=encode(self._write(claim.attempt_id, 1)),
                stage_seconds=STAGES,
                spark_ui_url=spark_ui_url,
                transform="shop.refunds:clean",
            )
            state.ledger.commit(
                BatchOutcome(
                    pipeline=self.where.pipeline,
                    attempt_id=claim.attempt_id,
                    processed=[_huge(claim, number) for number in range(len(names))],
                    record=record,
                    schema_id=row.schema_id,
                    new_schema=None if row.table_schema == schema else schema,
                )
            )

    def retract(self, *names: str) -> None:
        """Take the rows of processed objects out of the table, by hand."""
        with self._state() as state:
            state.ledger.retractions.retract(
                Retraction(
                    pipeline=self.where.pipeline,
                    attempt_id=str(ULID()),
                    worker="anna@laptop",
                    addresses=[self.ref(name).uri for name in names],
                    reason="wrong customer",
                )
            )

    def reconcile(self, *, missing: int, sent: int, listed: int) -> None:
        """Record the result of a reconcile."""
        with self._state() as state:
            state.ledger.record_reconciliation(
                ReconcileResult(
                    pipeline=self.where.pipeline,
                    as_of=self.clock.now() - MINUTE,
                    source=f"file://{self.source}",
                    listed=listed,
                    missing=missing,
                    sent=sent,
                    seconds=12.5,
                )
            )

    def archive(self) -> int:
        """Archive the rows of old batches; return their number."""
        with self._state() as state:
            store = PipelineArchive(
                pipeline=self.where.pipeline,
                location=archive_location(self.where.pipeline, settings_of(self.where.state.parent), self.where),
                tables=Tables(self.where, state.ledger, partition_by=None, bus=Bus()),
            )
            clock = SystemClock()
            return archive(store, state.ledger, older_than_seconds=30 * DAY, probe=no_probe, clock=clock).objects

    @contextmanager
    def _state(self) -> Iterator[StateFolder]:
        folder = self.where.state
        folder.mkdir(parents=True, exist_ok=True)
        with (
            closing(Ledger.open(folder / LEDGER_FILE, now=self.clock.now)) as ledger,
            closing(SqliteBroker(folder / QUEUE_FILE, holder=self.worker_id, clock=self.clock)) as broker,
        ):
            ledger.ensure_pipeline(self.where.pipeline)
            processes = ProcessRegistry(folder / PROCESSES_FOLDER)
            yield StateFolder(
                directory=folder, worker=self.worker_id, ledger=ledger, broker=broker, processes=processes
            )


def _huge(claim: ObjectClaims, number: int) -> ObjectResult:
    object_id = sorted(claim.claimed)[number]
    return ObjectResult(object_id=object_id, rows=HUGE_ROWS, lines_quarantined=HUGE_ROWS // 2)


def seed_objects(folder: Path, clock: PastClock, *, busy: str, dead: str) -> None:
    """Seed the pipelines and the object handler, oldest first. The attempts of `dead` look as if it had crashed."""
    clicks = PastScene.of_shop(folder, CLICKS, clock=clock, worker=busy)
    _seed_clicks(clicks)
    _seed_refunds(PastScene.of_shop(folder, LONG_PIPELINE, clock=clock, worker=busy))
    _seed_thumbnails(PastScene.of_shop(folder, THUMBNAILS, clock=clock, worker=busy))
    clock.ago_seconds = 3 * HOUR
    crashing = PastScene.of_shop(folder, CLICKS, clock=clock, worker=dead)
    crashing.leave("2026-11-29/overdue.jsonl", AttemptFailure.RETRY, "OSError: the executor was lost")
    clock.ago_seconds = 0.0


def _seed_clicks(clicks: PastScene) -> None:
    clock = clicks.clock
    clock.ago_seconds = 60 * DAY
    clicks.process("2026-09-30/archived-a.jsonl", "2026-09-30/archived-b.jsonl", rows=100)
    clicks.publish()
    clock.ago_seconds = 5 * DAY
    assert clicks.archive() == 2
    clicks.read({"2026-11-24/replaced.jsonl": range(40), "2026-11-24/plain.jsonl": range(1_200)})
    clicks.process(*(f"2026-11-24/part-{number:05}.jsonl" for number in range(120)), rows=3)
    clicks.leave("2026-11-24/failed-then-replaced.jsonl", AttemptFailure.DEAD, "every line is unreadable")
    clicks.leave("2026-11-24/deleted.jsonl", AttemptFailure.DELETED, "deleted before it was read")
    clicks.leave("2026-11-24/superseded.jsonl", AttemptFailure.SUPERSEDED, "overwritten before it was read")
    clock.ago_seconds = 2 * DAY
    clicks.read({"2026-11-24/replaced.jsonl": range(55)}, version="2", on_change=OnChange.REPLACE)
    clicks.process("2026-11-24/failed-then-replaced.jsonl", version="2", rows=9)
    clicks.process("2026-11-27/empty.jsonl", rows=0)
    clicks.process(*(f"2026-11-27/{name}" for name in NAMES), rows=1)
    clicks.quarantine("2026-11-27/bad-lines.jsonl", *(b'{"id": "%d"' % number for number in range(60)), rows=40)
    clicks.quarantine("2026-11-27/hostile-lines.jsonl", SCRIPT.encode(), b"\x00\xff\x1b[31m", rows=2)
    clicks.process("2026-11-27/retracted.jsonl", rows=4)
    clicks.retract("2026-11-27/retracted.jsonl")
    clicks.publish()
    clock.ago_seconds = 4 * HOUR
    for number in range(130):
        reason = "OSError: the object ends within a compressed block" if number % 3 else f"{SCRIPT} {IMAGE}"
        clicks.leave(f"2026-11-28/failed-{number:03}.jsonl.gz", AttemptFailure.DEAD, reason, traceback=TRACEBACK)
    clicks.reconcile(missing=7, sent=0, listed=1_234_567)
    clock.ago_seconds = 12 * MINUTE
    clicks.process("2026-11-29/unpublished-a.jsonl", "2026-11-29/unpublished-b.jsonl", rows=10)
    clicks.leave("2026-11-29/waiting.jsonl", AttemptFailure.RETRY, "TimeoutError: the store did not answer")
    clicks.hold("2026-11-29/claimed-a.jsonl", "2026-11-29/クリック-東京.jsonl")
    clicks.send("2026-11-29/announced.jsonl")


def _seed_refunds(refunds: PastScene) -> None:
    refunds.clock.ago_seconds = HOUR
    refunds.process_huge("a" * 180 + ".jsonl", spark_ui_url="http://spark.example.com:4040/jobs/job/?id=7")
    refunds.process_huge("b.jsonl", spark_ui_url="javascript:document.title='broken'")
    refunds.reconcile(missing=0, sent=0, listed=2)


def _seed_thumbnails(thumbnails: PastScene) -> None:
    thumbnails.clock.ago_seconds = 30 * MINUTE
    thumbnails.handle("cat.png", "dog.png", "写真/富士山.png")
    thumbnails.leave("broken.png", AttemptFailure.DEAD, REASON, traceback=TRACEBACK)
