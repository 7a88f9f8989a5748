"""One schedule of objects that change, under every rule, in a table of any format.

The store changes while workers read it: put, append, correct, delete, restore. Notifications are late, lost, repeated
or replaced by a listing; workers die at any step; a compaction runs beside, other writers append and rewrite, and
objects are retracted. The ledger, the attempts, publishing, replacing rows and compaction are the real code.

Checked at every commit to the table: it shows exactly the rows that the rule (change_rules.py) computes from the
batches up to its position. Checked at every batch: its versions were the store's after every other version of theirs
was committed. Checked in the end: the rule has nothing left to do, and no object was tried without end.

``python -m tests.simulation.changing SEED [FORMAT]`` runs a schedule again, finds a shorter one that fails, and prints
its log.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from tests.simulation.bindings import InstantClock
from tests.simulation.change_rules import RULES, Batch, Version
from tests.simulation.changing_store import SCHEMA, ChangingStore, Stored, StoreEngine, StoreKind
from tests.simulation.changing_tables import FORMATS, ChangingTable
from tests.simulation.harness import (
    LEASE_SECONDS,
    QUEUE,
    Actors,
    Sabotage,
    Violation,
    Worker,
    announcement,
    lossy_commits,
)
from tests.simulation.scheduler import Crash

from penstock.errors import TemporaryError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.database import Database
from penstock.ledger.records import BatchRow, ObjectState, OnChange, replaced_objects
from penstock.ledger.retractions import Retraction
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Step
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef, uri_of
from penstock.pipeline.engine import Engine
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.maintenance.gc import collect
from penstock.pipeline.overwritten import CommitWatch
from penstock.pipeline.publish import Published, publish, rows_schema
from penstock.pipeline.spark.table_schema import agreement
from penstock.sinks.sink import TableSink
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

KEYS = ("/in/a", "/in/b", "/in/c")
CHANGES_MAX = 16
CALM_ROUNDS_MAX = 120
LISTINGS_MAX = 12
ATTEMPTS_MAX = 60  # of one version, crashes and releases included
CALM_ATTEMPTS_MAX = 6  # of one version, once nothing goes wrong any more
HONEST = Sabotage()


class ChangeSabotage(StrEnum):
    """A rule that a test breaks on purpose, to check that the oracle detects it."""

    NOTHING_REPLACED = "the publish leaves the earlier rows in the table"
    UNCHECKED_READS = "a run reads whatever version it was asked for"
    UNCONDITIONAL = "commits to the table have no condition"
    BEGINNING_UNCHECKED = "a longer version is taken for one that was appended to"
    CHANGED_BACK_UNSEEN = "a listing takes a version that was replaced for a known one"


class ChangingSchedule(Actors):
    """The state of one schedule."""

    turns = range(100, 500)
    schema = SCHEMA
    merges = False  # rows are merged by key

    def __init__(
        self,
        seed: int,
        database: Database,
        clock: FakeClock,
        root: Path,
        *,
        format: str,
        changes_max: int = CHANGES_MAX,
        rule: str | None = None,
        sabotage: ChangeSabotage | None = None,
    ) -> None:
        super().__init__(seed, database, clock, HONEST)
        chance, self.broken = self.random, sabotage
        drawn = chance.choice(("replace", "replace", "tail", "add", "refuse"))
        self.rule = RULES[rule or drawn]
        self.on_change = OnChange(self.rule.name)
        self.root = root
        self.store = self.new_store(chance.choice(tuple(StoreKind)))
        self.store.checks_reads = sabotage is not ChangeSabotage.UNCHECKED_READS
        self.table = ChangingTable(format=format, root=LocalFiles(root), pipeline=self.pipeline, schema=self.schema)
        self.table.memory.conditional = sabotage is not ChangeSabotage.UNCONDITIONAL
        self.keys = [self.key(name) for name in KEYS[: chance.choice((1, 1, 2, 3))]]
        self.loses_notifications = chance.random() < 0.4
        self.needs_listing = self.loses_notifications
        self.changes_left = min(chance.randrange(4, CHANGES_MAX + 1), changes_max)
        self.steps: list[str] = []  # the changes, for people
        self.read: dict[str, Sequence[Version]] = {}  # by attempt
        self.retracted: dict[str, str] = {}  # keys by attempt
        self.history: list[Batch] = []
        self._committed_at: list[int] = []  # the turn at which each batch of the history was noticed
        self._late: list[ObjectRef] = []  # notifications that did not arrive yet
        self._sent: list[ObjectRef] = []
        self._lines = 0
        self._commits = 0
        self.checks = 0
        self.grown = 0  # objects of which batches have only what was appended

    def new_store(self, kind: StoreKind) -> ChangingStore:
        return ChangingStore(kind=kind, now=lambda: self.scheduler.turn)

    def key(self, name: str) -> str:
        """Return the key of an object with this name."""
        return name

    # -- for workers ---------------------------------------------------------------------------------------------

    def engine(self, ledger: Ledger) -> Engine:
        return StoreEngine(
            store=self.store,
            table=self.table.root,
            scheduler=self.scheduler,
            probe=self.probe,
            agree=partial(agreement, ledger, self.table.sink(), self.pipeline),
            read=self.read,
            overtake=self.overtake,
            tails=self.on_change is OnChange.TAIL,
            checks_beginnings=self.broken is not ChangeSabotage.BEGINNING_UNCHECKED,
        )

    def tables(self, ledger: Ledger) -> "ChangingTables":
        return ChangingTables(self, ledger)

    def publish(self, tables: Any) -> None:
        tables.publish()

    def sweep(self, tables: Any) -> None:
        tables.sweep()

    def probe(self, step: Step) -> None:
        if step is Step.COMMITTING:
            self._commits += 1
        super().probe(step)

    # -- changes of the store and of the world -------------------------------------------------------------------

    def events(self) -> Sequence[tuple[float, Callable[[], object]]]:
        return (
            (0.08, self.time_passes),
            (0.01, self.leases_expire),
            (0.05, self.workers_beat),
            (0.01, self.shutdown),
            (0.02, self.release_dead_worker),
            (0.03, self.change),
            (0.08, self.deliver_late),
            (0.02, self.deliver_again),
            (0.02, self.list_objects),
            (0.01, self.foreign_append),
            (0.02, self.foreign_rewrite),
            (0.01, self.retract),
        )

    def disturb(self) -> None:
        self.notice_batches()
        super().disturb()

    def idle(self) -> None:
        """Let something happen if workers have no messages; end the chaos if nothing is left."""
        stats = self.broker.stats(QUEUE)
        if stats.visible or stats.in_flight or stats.delayed:
            self.clock.advance(self.random.uniform(0.5, LEASE_SECONDS / 2))
        elif self._late and self.random.random() < 0.7:
            self.deliver_late()
        elif self.changes_left:
            self.change()
        elif not self._late:
            self.scheduler.calm_down()
        else:
            self.deliver_late()

    def change(self) -> None:
        if not self.changes_left:
            return
        self.changes_left -= 1
        often = "append" if self.on_change is OnChange.TAIL else "put"
        name = self.random.choice((often, often, "append", "append", "correct", "delete", "restore", "restore"))
        self._change(name, self.random.choice(self.keys))

    def overtake(self, key: str) -> None:
        """Let a newer version arrive just after a run has read one, and stall that run."""
        if self.changes_left and self.scheduler.chance(0.25):
            self.changes_left -= 1
            self._change(self.random.choice(("append", "put", "restore", "restore")), key)
            self._deliver_all()
            self.scheduler.rest(self.random.randrange(20, 90))

    def _change(self, name: str, key: str) -> None:
        if key not in self.store.current and name in ("append", "correct"):
            name = "put"
        changed: Stored | None = None
        match name:
            case "put":
                changed = self.store.put(key, [self._line() for _ in range(self.random.choice((0, 1, 2, 3)))])
            case "append":
                changed = self.store.append(key, self._line())
            case "correct":
                changed = self.store.correct(key, self._line())
            case "delete":
                self.store.delete(key)
            case _:
                changed = self.store.restore(key, self.random, preferred=self._last_committed(key))
                self.needs_listing |= changed is None
        self.steps.append(
            f"turn {self.scheduler.turn}: {name} {key}{'' if changed is None else ' as ' + _named(changed)}"
        )
        if changed is None:
            return
        if self.loses_notifications and self.random.random() < 0.2:
            self.steps.append("  its notification is lost")
        elif self.random.random() < 0.4:
            self._late.append(changed.ref)
        else:
            self._send([changed.ref])

    def _last_committed(self, key: str) -> bytes | None:
        committed = (version for batch in reversed(self.history) for version in batch.versions)
        return next((version.id for version in committed if version.key == key), None)

    def deliver_late(self) -> None:
        if self._late:
            self._send([self._late.pop(self.random.randrange(len(self._late)))])

    def deliver_again(self) -> None:
        if self._sent:
            self._send(self.random.sample(self._sent, min(len(self._sent), self.random.choice((1, 1, 2)))))

    def list_objects(self) -> bool:
        """Send a message for each object whose version is unknown, as a reconcile does. Return True if there is one."""
        listed = [
            ObjectRef(
                bucket=stored.ref.bucket,
                key=stored.ref.key,
                size_bytes=stored.ref.size_bytes,
                etag=stored.ref.etag,
                version_id=stored.ref.version_id,
            )
            for stored in self.store.current.values()
        ]
        known = self.ledger.known_among(
            self.pipeline,
            [ref.object_id for ref in listed],
            seen_at=self.ledger.now(),
            on_change=OnChange.ADD if self.broken is ChangeSabotage.CHANGED_BACK_UNSEEN else self.on_change,
        )
        unknown = [ref for ref in listed if ref.object_id not in known]
        if unknown:
            self._send(unknown)
        return bool(unknown)

    def foreign_append(self) -> None:
        self.table.foreign_append()
        self.check_table()

    def foreign_rewrite(self) -> None:
        self.table.foreign_rewrite()
        self.check_table()

    def retract(self) -> None:
        """Retract an object that is processed and not being processed, as `penstock objects retract` does."""
        key = self.random.choice(self.keys)
        uri = uri_of(LOCAL_BUCKET if self.store.kind is StoreKind.FOLDER else "landing", key)
        states = [row.state for whose, row in self.ledger.find(uri) if whose == self.pipeline]
        if ObjectState.PROCESSED not in states or ObjectState.PROCESSING in states:
            return
        attempt_id = self.new_attempt_id()
        self.retracted[attempt_id] = key
        done = self.ledger.retractions.retract(
            Retraction(pipeline=self.pipeline, attempt_id=attempt_id, worker="cli", addresses=[uri], reason="retracted")
        )
        self.steps.append(f"turn {self.scheduler.turn}: retract {key}, batch {done.seq}")
        self.notice_batches()

    def _send(self, refs: Sequence[ObjectRef]) -> None:
        self.clock.advance(0.001)  # a message is later than all that happened before it
        self._sent += refs
        self.broker.send(QUEUE, [Outgoing(body=announcement(refs))])

    def _line(self) -> str:
        self._lines += 1
        return f"line {self._lines}"

    # -- running -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run chaos, then calm. Raises `Violation` if the table is ever wrong."""
        for _ in range(self.random.choice((1, 2, 3))):
            self.change()
        for n in range(self.random.choice((1, 2, 2, 2))):
            self.scheduler.enter(f"worker-{n}", partial(self._run_worker, f"worker-{n}"))
        if self.random.random() < 0.3:
            self.scheduler.enter("sweeper", self._run_sweeper)
        if self.random.random() < 0.6:
            self.scheduler.enter("compaction", self._run_compaction)
        with lossy_commits(self.ledger.database, self.scheduler):
            self.scheduler.run()
        self._calm()

    def _run_compaction(self) -> None:
        while self.scheduler.chaos:
            with suppress(Crash, TemporaryError):
                self.compact(self.table.stepped(self.scheduler, self.check_table))
            self.scheduler.rest(self.random.randrange(10, 60))

    def compact(self, sink: TableSink) -> None:
        compact(sink, clock=cast(Any, InstantClock(self.clock)), probe=self.probe)

    def _calm(self) -> None:
        if self.random.random() < 0.5:
            self.changes_left = 0  # what the chaos did last must be right without a later change
        while self.changes_left:
            self.change()
        self.notice_batches()
        before = self._attempts_by_object()
        worker = Worker(self, "calm")
        self._process_all(worker)
        for _ in range(self.random.choice((0, 0, 1, 2))):  # everything was processed before these
            self._change(self.random.choice(("restore", "restore", "append")), self.random.choice(self.keys))
            self._process_all(worker)
        tables = self.tables(self.ledger)
        tables.publish()
        self.compact(self.table.sink())
        tables.publish()
        self.check_table()
        self._check_end(before)
        tables.sweep()
        self.check_table()

    def _process_all(self, worker: Worker) -> None:
        self._deliver_all()
        for _ in range(LISTINGS_MAX):
            self._drain(worker)
            if not self.needs_listing or not self.list_objects():
                self._check_finished()
                return
        raise Violation("each listing finds unknown versions again")

    def _deliver_all(self) -> None:
        while self._late:
            self.deliver_late()

    def _drain(self, worker: Worker) -> None:
        for _ in range(CALM_ROUNDS_MAX):
            worker.round()
            self.clock.advance(LEASE_SECONDS / 3)
            if self._is_stable():
                return
        raise Violation(f"does not become stable: {self.broker.stats(QUEUE)}, {self.ledger.counts(self.pipeline)}")

    # -- checks --------------------------------------------------------------------------------------------------

    def notice_batches(self) -> None:
        """Read new batches of the ledger, and check the order of the versions in them."""
        if not self._commits:
            return
        self._commits = 0
        for row in self.ledger.batches(self.pipeline, after_seq=len(self.history)):
            if row.seq != len(self.history) + 1:
                raise Violation(f"batch {row.seq} follows batch {len(self.history)}")
            key = self.retracted.get(row.attempt_id)
            batch = Batch(versions=self.read[row.attempt_id]) if key is None else Batch(retracted=[key])
            if self.rule.orders_versions:
                for version in batch.versions:
                    self._check_order(version)
            self.history.append(batch)
            self.grown += row.grown_objects
            self._committed_at.append(self.scheduler.turn)
            self.steps.append(f"turn {self.scheduler.turn}: batch {row.seq}: {[v.lines for v in batch.versions]}")

    def _check_order(self, version: Version) -> None:
        since = 0
        for batch, turn in zip(self.history, self._committed_at, strict=True):
            if any(other.key == version.key and other.id != version.id for other in batch.versions):
                since = turn
        if not self.store.was_current(version, since=since):
            raise Violation(f"{version} was not the store's version after another one was committed")

    def check_table(self) -> None:
        """Check that the table shows the rows that the rule computes from the batches up to its position."""
        self._commits += 1
        self.notice_batches()
        self.checks += 1
        table = self.table.sink().load()
        seq = 0 if table is None else table.position.seq
        bucket = LOCAL_BUCKET if self.store.kind is StoreKind.FOLDER else "landing"
        expected: Counter[tuple[str, str]] = Counter()
        for (key, line), times in self.rule.rows(self.history[:seq]).items():
            expected[uri_of(bucket, key), line] += times
        expected += self.table.foreign
        shown = self.table.rows()
        if shown != expected:
            raise Violation(
                f"at batch {seq} of {len(self.history)} the table has {dict(shown - expected)} too many "
                f"and lacks {dict(expected - shown)}"
            )

    def _check_finished(self) -> None:
        self.notice_batches()
        lacking = self.rule.unfinished(self.history, self.store.versions())
        if lacking is not None:
            raise Violation(lacking)

    def _check_end(self, before: Counter[bytes]) -> None:
        seq = len(self.history)
        table = self.table.sink().load()
        if table is not None and self.rule.rows(self.history[: table.position.seq]) != self.rule.rows(self.history):
            raise Violation(f"batches up to {seq} are not published")
        after = self._attempts_by_object()
        if after and max(after.values()) > ATTEMPTS_MAX:
            raise Violation(f"a version had {max(after.values())} attempts")
        if (calm := after - before) and max(calm.values()) > CALM_ATTEMPTS_MAX:
            raise Violation(f"a version had {max(calm.values())} attempts though nothing went wrong")

    def _attempts_by_object(self) -> Counter[bytes]:
        rows = self.ledger.objects(self.pipeline)
        return Counter({row.object_id: len(self.ledger.attempts_of(self.pipeline, row.object_id)) for row in rows})


class ChangingTables:
    """The table of a schedule, as one process publishes to it."""

    def __init__(self, schedule: ChangingSchedule, ledger: Ledger) -> None:
        self._schedule = schedule
        self._ledger = ledger
        self._sink = schedule.table.stepped(schedule.scheduler, schedule.check_table)
        self._published: Published | None = None

    def publish(self) -> None:
        schedule, log = self._schedule, self._sink.commit_log
        watch = None
        if log is not None:
            watch = CommitWatch(self._ledger, self._sink, log, pipeline=schedule.pipeline, manifest_of=_added_manifest)
        self._published = publish(
            self._ledger,
            self._sink,
            pipeline=schedule.pipeline,
            manifest_of=_manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=()),
            replaces=self._replaces,
            merges=schedule.merges,
            bus=Bus(),
            probe=schedule.probe,
            step=Step.ROWS_PUBLISHED,
            clock=cast(Any, InstantClock(schedule.clock)),
            after=self._published,
            watch=watch,
        )

    def sweep(self) -> None:
        schedule = self._schedule
        root = schedule.table.root
        collect(
            self._ledger,
            pipeline=schedule.pipeline,
            roots=(root,),
            work=root.beside("work"),
            bus=Bus(),
            probe=schedule.probe,
        )

    def _replaces(self, batch: BatchRow) -> Sequence[str]:
        if self._schedule.broken is ChangeSabotage.NOTHING_REPLACED:
            return ()
        return replaced_objects(batch.record.replaces)


def _manifest(batch: BatchRow) -> str:
    return batch.record.manifest


def _added_manifest(batch: BatchRow) -> str:
    return "" if batch.record.merge is not None else batch.record.manifest


def _named(stored: Stored) -> str:
    return f"{stored.ref.version_id or stored.ref.etag} {list(stored.lines)}"


class ChangingRunner:
    """Runs schedules one after another: one ledger for all, a pipeline for each."""

    def __init__(self, root: Path, kind: Callable[..., ChangingSchedule] = ChangingSchedule) -> None:
        self._root = root
        self._kind = kind
        self._clock = FakeClock()
        self.ledger = Ledger.open("sqlite://", now=lambda: self._clock.now())

    @contextmanager
    def schedule(self, seed: int, format: str, **options: Any) -> Iterator[ChangingSchedule]:
        """Yield a schedule that is determined by its arguments alone."""
        self._clock = FakeClock()
        folder = self._root / f"{format}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield self._kind(seed, self.ledger.database, self._clock, folder / "table", format=format, **options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, seed: int, format: str, **options: Any) -> ChangingSchedule:
        """Run one schedule. A failure names its seed and shows what changed."""
        with self.schedule(seed, format, **options) as schedule:
            try:
                schedule.run()
            except Exception as error:
                error.add_note(f"in schedule {seed} ({format}, {schedule.rule.name}, {schedule.store.kind})")
                error.add_note("\n".join(schedule.steps))
                raise
        return schedule


def shortest(folder: Path, seed: int, format: str) -> int | None:
    """Return the smallest number of changes with which the schedule still fails; None if it does not fail."""
    for changes in range(1, CHANGES_MAX + 1):
        runner = ChangingRunner(folder)
        try:
            runner.run(seed, format, changes_max=changes)
        except Exception:  # any failure counts
            return changes
        finally:
            runner.ledger.close()
    return None


def main(seed: int, format: str) -> None:
    """Run the schedule with the fewest changes that fails, and print it."""
    with tempfile.TemporaryDirectory() as folder:
        changes = shortest(Path(folder), seed, format)
        runner = ChangingRunner(Path(folder))
        with runner.schedule(seed, format, changes_max=changes or CHANGES_MAX) as schedule:
            try:
                schedule.run()
            finally:
                sys.stdout.write("\n".join([*schedule.scheduler.log, "", *schedule.steps, ""]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else FORMATS[0])
