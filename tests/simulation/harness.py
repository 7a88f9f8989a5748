"""One schedule: real broker, real ledger, real batch protocol, real publish and gc, under an adversarial scheduler.

Workers, a sweeper and their clock belong to `Schedule`. A schedule has two phases. In chaos, every step may crash,
stall, lose a reply, expire, be repeated or be overtaken. Then, in calm, one healthy worker must complete all work.
oracle.py checks the final state.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest import mock

from tests.claims import extended
from tests.simulation.bindings import Tables
from tests.simulation.fakes import FakeEngine, FakeTable, Kind, SimulatedObject, World
from tests.simulation.scheduler import Crash, Scheduler
from ulid import ULID

from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import PublishHalted, TemporaryError, TransformError, UserError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.database import Database
from penstock.ledger.records import TERMINAL, UNREAD, BatchOutcome, Committed, OnChange
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, Release, Settlement
from penstock.messaging.steps import Step
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
from penstock.pipeline.attempt import AttemptSettings, PipelineRuntime
from penstock.pipeline.batch import BatchExecution, PipelineHandler
from penstock.pipeline.engine import Engine
from penstock.pipeline.failures import FailureStreak
from penstock.pipeline.spark.table_schema import agreement
from penstock.testing import FakeClock

LEASE_SECONDS = 15.0
ATTEMPTS_MAX = 4
QUEUE = "landing"
CALM_ROUNDS_MAX = 200

KINDS = (*[Kind.GOOD] * 8, *[Kind.LINES] * 2, Kind.FLAKY, Kind.UNREADABLE, Kind.CULPRIT, Kind.GONE, Kind.SUPERSEDED)


class Violation(AssertionError):
    """The promise was broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """Rules that the harness breaks on purpose, to check that the oracle detects it."""

    ack_before_commit: bool = False
    publish_unconditionally: bool = False
    delete_open_attempts: bool = False
    commit_without_fence: bool = False
    count_released_attempts: bool = False
    uncount_crashed_attempts: bool = False
    drop_dead_letters: bool = False


class Faulty:
    """Calls of a package as a worker sees them: other actors may run before and after each, and replies may be lost."""

    def __init__(self, target: object, package: str, scheduler: Scheduler) -> None:
        self._target, self._package, self._scheduler = target, package, scheduler

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._scheduler.step(f"{self._package}.{name}")
        if self._scheduler.chance(0.008):
            raise TemporaryError(f"{self._package} is unreachable")
        answer = method(*args, **kwargs)
        if self._scheduler.chance(0.008):
            self._scheduler.log.append(f"{self._package} reply lost")
            raise TemporaryError(f"the reply of {self._package}.{name} was lost")
        return answer


@dataclass(slots=True, kw_only=True)
class RunningBatch:
    """A batch that the harness's worker is running."""

    deliveries: Sequence[Delivery]
    execution: BatchExecution
    ended: bool = False


class Actors:
    """Workers, a sweeper and their clock, with a ledger and a broker. Subclasses add objects and tables."""

    on_change = OnChange.ADD
    turns = range(30, 200)  # how long the chaos may last

    def __init__(self, seed: int, database: Database, clock: FakeClock, sabotage: Sabotage) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = clock
        self.sabotage = sabotage
        self.pipeline = f"file:///simulated/{seed}"
        self.scheduler = Scheduler(
            self.random,
            turns_max=self.random.choice(self.turns),
            switch=self.random.choice((0.05, 0.2, 0.5)),
            crash=self.random.choice((0.0, 0.01, 0.03)),
            deadly_step=self.random.choice(tuple(Step)).value if self.random.random() < 0.3 else None,
            stall=self.random.choice((0.0, 0.02, 0.05)),
            disturb=self.disturb,
        )
        self.ledger = Ledger(database, self.probe)
        self.ledger.ensure_pipeline(self.pipeline)
        self.broker = MemoryBroker(clock=clock)
        self.workers: dict[str, Worker] = {}  # the living workers, by actor
        self.dead: list[str] = []
        self._born = 0
        self._attempts = 0

    # -- what a subclass adds ------------------------------------------------------------------------------------

    def engine(self, ledger: Ledger) -> Engine:
        """Return the engine of a new process."""
        raise NotImplementedError

    def tables(self, ledger: Ledger) -> Any:
        """Return the tables as a new process sees them."""
        raise NotImplementedError

    def publish(self, tables: Any) -> None:
        raise NotImplementedError

    def sweep(self, tables: Any) -> None:
        raise NotImplementedError

    def events(self) -> Sequence[tuple[float, Callable[[], object]]]:
        """Return the events that may happen at any step, each with its probability."""
        raise NotImplementedError

    def check_acked(self, delivery: Delivery) -> None:
        """Check that settled implies recorded, before a message is acked."""

    def new_attempt_id(self) -> str:
        self._attempts += 1
        return str(ULID.from_int((self.seed << 80) + self._attempts))

    def probe(self, step: Step) -> None:
        self.scheduler.step(step.value, inside=step is Step.COMMITTING)

    def idle(self) -> None:
        """Advance the clock for a worker without messages, or end the chaos if no work is left."""
        stats = self.broker.stats(QUEUE)
        if stats.visible or stats.in_flight or stats.delayed:
            self.clock.advance(self.random.uniform(0.5, LEASE_SECONDS / 2))
        else:
            self.scheduler.calm_down()

    def disturb(self) -> None:
        """Let at most one uncontrolled event happen, between two steps of the running actor."""
        happening = self.random.random()
        for share, event in self.events():
            if happening < share:
                self.scheduler.log.append(event.__name__)
                event()
                return
            happening -= share

    def time_passes(self) -> None:
        self.clock.advance(self.random.uniform(0.1, 2.0))

    def leases_expire(self) -> None:
        self.clock.advance(LEASE_SECONDS + 1.0)

    def workers_beat(self) -> None:
        for worker in list(self.workers.values()):
            if self.random.random() < 0.7:
                worker.beat()

    def shutdown(self) -> None:
        if self.workers:
            self.workers[self.random.choice(list(self.workers))].release()

    def release_dead_worker(self) -> None:
        """Declare a process dead, which frees its leases."""
        if self.dead:
            name = self.dead.pop()
            if self.sabotage.uncount_crashed_attempts:
                _uncount(self, name)
            self.ledger.abandon_worker(self.pipeline, name)
            self.broker.release_holder(name)

    def _run_worker(self, actor: str) -> None:
        """Run one process after another. Each may die, and the next knows nothing of it."""
        while self.scheduler.chaos:
            self._born += 1
            worker = self.workers[actor] = Worker(self, f"process-{self._born}")
            try:
                worker.serve()
            except Crash:
                self.dead.append(worker.name)
            finally:
                del self.workers[actor]

    def _run_sweeper(self) -> None:
        while self.scheduler.chaos:
            tables = self.tables(cast(Ledger, Faulty(self.ledger, "ledger", self.scheduler)))
            with suppress(Crash, TemporaryError):
                self.publish(tables)
                self.sweep(tables)
            self.scheduler.rest(self.random.randrange(5, 60))

    def _is_stable(self) -> bool:
        stats = self.broker.stats(QUEUE)
        return not (stats.visible or stats.in_flight or stats.delayed or self.ledger.open_attempts(self.pipeline))


class Schedule(Actors):
    """One schedule of objects that never change."""

    def __init__(self, seed: int, database: Database, clock: FakeClock, root: Path, sabotage: Sabotage) -> None:
        super().__init__(seed, database, clock, sabotage)
        objects = [self._object(n) for n in range(self.random.randrange(2, 7))]
        self.world = World(
            scheduler=self.scheduler, probe=self.probe, root=root, objects={t.ref.key: t for t in objects}
        )
        conditional = not sabotage.publish_unconditionally
        self.rows = FakeTable(self.world, self.world.table_root, conditional=conditional)
        self.quarantine = FakeTable(self.world, self.world.quarantine_root, conditional=conditional)
        self.invalid = 0  # unreadable messages

    # -- the actors ----------------------------------------------------------------------------------------------

    def engine(self, ledger: Ledger) -> Engine:
        return FakeEngine(self.world, partial(agreement, ledger, self.rows, self.pipeline))

    def _object(self, n: int) -> SimulatedObject:
        ref = ObjectRef(bucket="landing", key=f"o{n}", size_bytes=10 + n, etag=f"{self.seed:x}")
        # One object is always good: a pipeline without any success stops and waits for a person.
        kind = self.random.choice(KINDS) if n else Kind.GOOD
        return SimulatedObject(ref=ref, kind=kind, rows=self.random.randrange(1, 4))

    def send_notifications(self) -> None:
        """Send every object at least once: some in one message, some twice, and occasionally an invalid message."""
        refs = [obj.ref for obj in self.world.objects.values()]
        self.random.shuffle(refs)
        bodies = []
        while refs:
            count = self.random.choice((1, 1, 1, 2, 3))
            bodies.append(announcement(refs[:count]))
            refs = refs[count:]
        if self.random.random() < 0.3:
            bodies.append(self._repeat())
        if self.random.random() < 0.1:
            bodies.append(b"{nonsense")
            self.invalid += 1
        self.broker.send(QUEUE, [Outgoing(body=body) for body in bodies])

    def _repeat(self) -> bytes:
        objects = list(self.world.objects.values())
        return announcement([obj.ref for obj in self.random.sample(objects, min(len(objects), 2))])

    # -- events that may happen at any step ----------------------------------------------------------------------

    def events(self) -> Sequence[tuple[float, Callable[[], object]]]:
        return (
            (0.10, self.time_passes),
            (0.01, self.leases_expire),
            (0.05, self.workers_beat),
            (0.01, self.shutdown),
            (0.01, self.duplicate_message),
            (0.02, self.maintain_table),
            (0.02, self.late_executor_writes),
            (0.02, self.release_dead_worker),
        )

    def duplicate_message(self) -> None:
        self.broker.send(QUEUE, [Outgoing(body=self._repeat())])

    def maintain_table(self) -> None:
        table = self.random.choice((self.rows, self.quarantine))
        if self.random.random() < 0.5:
            table.compact()
        else:
            table.vacuum()

    def late_executor_writes(self) -> None:
        if self.world.late_files:
            path, text = self.random.choice(self.world.late_files)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    # -- running the schedule ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run chaos, then calm. Raises `Violation` if the work does not complete."""
        self.send_notifications()
        for n in range(self.random.choice((1, 2, 2, 3))):
            self.scheduler.enter(f"worker-{n}", partial(self._run_worker, f"worker-{n}"))
        if self.random.random() < 0.5:
            self.scheduler.enter("sweeper", self._run_sweeper)
        with lossy_commits(self.ledger.database, self.scheduler):
            self.scheduler.run()
        self._calm()

    def _calm(self) -> None:
        worker = Worker(self, "calm")
        for path, text in self.world.late_files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for _ in range(CALM_ROUNDS_MAX):
            worker.round()
            self.clock.advance(LEASE_SECONDS / 3)
            if self._is_stable():
                break
        else:
            raise Violation(f"does not become stable: {self.broker.stats(QUEUE)}, {self.ledger.counts(self.pipeline)}")
        self.publish(tables := self.tables(self.ledger))
        self.sweep(tables)

    def publish(self, tables: Tables) -> None:
        tables.publish(self.rows, self.quarantine)
        self._check_tables()

    def _check_tables(self) -> None:
        for table in (self.rows, self.quarantine):
            rows = table.rows()
            if len(rows) != len(set(rows)):
                raise Violation("rows are visible twice")

    def tables(self, ledger: Ledger) -> Tables:
        """Return both tables as a new process sees them."""
        return Tables(self.world, ledger, self.pipeline, self.clock)

    def sweep(self, tables: Tables) -> None:
        tables.sweep()
        if self.sabotage.delete_open_attempts:
            for attempt in self.ledger.open_attempts(self.pipeline):
                for root in (self.world.table_root, self.world.quarantine_root):
                    for path in (root / "data" / attempt.id).rglob("*.parquet"):
                        path.unlink()

    def check_acked(self, delivery: Delivery) -> None:
        """Check that no message is acked before all its objects are in a terminal state."""
        ids = [ref.object_id for ref in parse(delivery.message.body, buckets_allowed=None).objects]
        states = self.ledger.states(self.pipeline, ids)
        if not all(states.get(id) in TERMINAL or self._had_ended(id, delivery.message.enqueued_at) for id in ids):
            raise Violation("a message is acked before its objects are done")

    def _had_ended(self, object_id: bytes, enqueued_at: float) -> bool:
        """Return True if the object ended after the message was sent, even if a later message has revived it since.

        A check that found no content covers only messages older than the check.
        """
        timeline = self.ledger.attempts_of(self.pipeline, object_id)
        return any(
            attempt.outcome == "dead" or (attempt.outcome in UNREAD and attempt.started_at >= enqueued_at)
            for attempt in timeline
        )


class ScheduleRunner:
    """Runs schedules one after another: one ledger for all, a pipeline for each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clock = FakeClock()
        self._ledger = Ledger.open("sqlite://", now=lambda: self._clock.now())

    @contextmanager
    def schedule(self, seed: int, sabotage: Sabotage) -> Iterator[Schedule]:
        """Yield a schedule that is determined by its seed alone."""
        self._clock = FakeClock()
        folder = self._root / str(seed)
        try:
            yield Schedule(seed, self._ledger.database, self._clock, folder, sabotage)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._ledger.close()


class Worker:
    """A process that serves the pipeline, like `penstock.worker` without its threads."""

    def __init__(self, schedule: Actors, name: str) -> None:
        self.name = name
        self.batch: RunningBatch | None = None
        self._schedule = schedule
        self._scheduler = schedule.scheduler
        self._leaving = False
        self._idle = False
        self._broker = cast(MemoryBroker, Faulty(schedule.broker.with_holder(name), "broker", schedule.scheduler))
        self._ledger = cast(Ledger, self._fenceless(Faulty(schedule.ledger, "ledger", schedule.scheduler)))
        settings = AttemptSettings(
            pipeline=schedule.pipeline,
            worker=name,
            lease_seconds=LEASE_SECONDS,
            objects_max=50,
            attempts_max=ATTEMPTS_MAX,
            backoff_base_seconds=0.5,
            backoff_cap_seconds=5.0,
            on_change=schedule.on_change,
        )
        self._tables = schedule.tables(self._ledger)
        self._settings = settings
        self._around = PipelineRuntime(
            ledger=self._ledger,
            engine=schedule.engine(self._ledger),
            parse=partial(parse, buckets_allowed=None),
            publish=partial(schedule.publish, self._tables),
            streak=FailureStreak(),
            bus=Bus(),
            random=schedule.random.random,
            new_attempt_id=schedule.new_attempt_id,
        )
        self._handler = PipelineHandler(self._settings, self._around)

    def serve(self) -> None:
        while self._scheduler.chaos and not self._leaving:
            self.round()
            self._scheduler.step("round over")

    def round(self) -> None:
        """Do upkeep, one batch, and its settlement. A fault ends only this round."""
        with suppress(TemporaryError):
            if self._schedule.random.random() < (0.1 if self._scheduler.chaos else self._idle):
                self._upkeep()
            if self._scheduler.chaos and self._schedule.random.random() < 0.1:
                self._schedule.sweep(self._tables)
            deliveries = self._broker.receive(
                QUEUE, messages_max=self._schedule.random.randrange(1, 6), lease_seconds=LEASE_SECONDS
            )
            self._schedule.probe(Step.RECEIVED)
            self._idle = not deliveries
            if deliveries:
                self._work(deliveries)
            elif self._scheduler.chaos:
                self._schedule.idle()

    def _upkeep(self) -> None:
        for job in self._handler.jobs().values():
            job()

    def _work(self, deliveries: Sequence[Delivery]) -> None:
        batch = self.batch = RunningBatch(deliveries=deliveries, execution=self._handler.begin(deliveries))
        if self._schedule.sabotage.ack_before_commit:
            self._broker.settle([(delivery, Ack()) for delivery in deliveries])
        answer = self._answer(batch)
        if not batch.ended:
            batch.ended = True
            self._schedule.probe(Step.SETTLING)
            self._settle(batch, answer)
            self._schedule.probe(Step.SETTLED)
        self.batch = None

    def _answer(self, batch: RunningBatch) -> Mapping[str, Settlement]:
        """Return the settlements of a run. A run that raised is delayed and its claim released."""
        try:
            return batch.execution.run()
        except TransformError:  # the pipeline stopped before its first success, and a person restarted it
            self._around = replace(self._around, streak=FailureStreak())
            self._handler = PipelineHandler(self._settings, self._around)
            with suppress(TemporaryError):
                batch.execution.release()
            return {}
        except (UserError, PublishHalted, Violation):
            raise  # no other error in the simulation needs a person
        except Exception:
            if not batch.ended:
                with suppress(TemporaryError):
                    batch.execution.release()
            return {}

    def _settle(self, batch: RunningBatch, answer: Mapping[str, Settlement]) -> None:
        late = Release(delay_seconds=1.0)
        settlements = [(delivery, answer.get(delivery.receipt, late)) for delivery in batch.deliveries]
        for delivery, settlement in settlements:
            if isinstance(settlement, Ack):
                self._schedule.check_acked(delivery)
        if self._schedule.sabotage.drop_dead_letters:
            settlements = [(d, s if isinstance(s, Ack | Release) else Ack()) for d, s in settlements]
        for _ in range(3):
            with suppress(TemporaryError):
                self._broker.settle(settlements)
                return

    def beat(self) -> None:
        """Extend the claim and the deliveries, in any order, or only one of them. A lost claim ends the batch here.

        The calls of a heartbeat do not wait for each other. The claim may be extended after the deliveries,
        and the deliveries while the claim is being made or the ledger does not respond.
        """
        batch = self.batch
        if batch is None or batch.ended:
            return
        first = self._schedule.random.random() < 0.5
        if first:
            self._schedule.broker.extend(batch.deliveries, lease_seconds=LEASE_SECONDS)
        held = extended(batch.execution, lease_seconds=LEASE_SECONDS)
        if self._over(batch):
            return
        if held:
            if not first:
                self._schedule.broker.extend(batch.deliveries, lease_seconds=LEASE_SECONDS)
        else:
            batch.ended = True
            self._schedule.broker.settle([(delivery, Release(delay_seconds=1.0)) for delivery in batch.deliveries])
            batch.execution.interrupt()

    def release(self) -> None:
        """Do what a shutdown does at its deadline, from another thread: release first, then interrupt."""
        self._leaving = True
        batch = self.batch
        if batch is None or batch.ended or self._busy(batch):
            return
        batch.ended = True
        batch.execution.release()
        self._schedule.broker.settle([(delivery, Release(uncounted=True)) for delivery in batch.deliveries])
        batch.execution.interrupt()

    def _over(self, batch: RunningBatch) -> bool:
        return batch.ended

    def _busy(self, batch: RunningBatch) -> bool:
        # A thread would wait for the claim being made; an actor that waited would block the schedule.
        return not batch.execution._guard._taken.is_set()

    def _fenceless(self, ledger: Faulty) -> Any:
        """Return the ledger, or under sabotage one that commits lost claims or counts released attempts."""
        sabotage = self._schedule.sabotage
        if sabotage.commit_without_fence:
            return _Sabotaged(ledger, commit=partial(_commit_by_force, self._schedule))
        if sabotage.count_released_attempts:
            return _Sabotaged(ledger, abandon=partial(_abandon_counted, self._schedule))
        return ledger


class _Sabotaged:
    def __init__(self, ledger: Faulty, **replaced: Callable[..., Any]) -> None:
        self._ledger = ledger
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._ledger, name)


def _commit_by_force(schedule: Actors, outcome: BatchOutcome) -> Committed | None:
    schedule.scheduler.step("ledger.commit")
    ids = [result.object_id for result in outcome.processed] + [failed.object_id for failed in outcome.failed]
    with schedule.ledger.database.writing() as connection:
        connection.exec_driver_sql("UPDATE attempts SET state = 'open' WHERE id = ?", (outcome.attempt_id,))
        for object_id in ids:
            connection.exec_driver_sql(
                "UPDATE objects SET state = 'processing', attempt_id = ? WHERE pipeline = ? AND object_id = ?",
                (outcome.attempt_id, schedule.pipeline, object_id),
            )
    return schedule.ledger.commit(outcome)


def _abandon_counted(schedule: Actors, attempt_id: str, **how: Any) -> bool:
    return schedule.ledger.abandon(attempt_id, **(how | {"uncounted": False}))


def _uncount(schedule: Actors, worker: str) -> None:
    with schedule.ledger.database.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE objects SET refunds = refunds + 1 WHERE pipeline = ? AND attempt_id IN "
            "(SELECT id FROM attempts WHERE worker = ? AND state = 'open')",
            (schedule.pipeline, worker),
        )


def announcement(refs: Sequence[ObjectRef]) -> bytes:
    """Return one message for several objects."""
    records = [record for ref in refs for record in json.loads(announce(ref))["Records"]]
    return json.dumps({"Records": records}).encode()


@contextmanager
def lossy_commits(database: Database, scheduler: Scheduler) -> Iterator[None]:
    """Lose the replies of some COMMITs. Some of them took effect, some did not, and the client cannot know."""
    dialect = database.engine.dialect
    do_commit = dialect.do_commit

    def lossy(connection: Any) -> None:
        lost = scheduler.chance(0.02)
        if lost and scheduler.random.random() < 0.5:
            scheduler.log.append("commit lost")
            dialect.do_rollback(connection)
        else:
            do_commit(connection)
        if lost:
            scheduler.log.append("commit reply lost")
            raise dialect.loaded_dbapi.OperationalError("connection lost")

    with mock.patch.object(dialect, "do_commit", lossy):
        yield
