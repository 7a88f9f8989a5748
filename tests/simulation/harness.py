"""One schedule: real broker, real ledger, real batch protocol, real publish and gc, under a scheduler that means harm.

Workers, a sweeper and their clock live in `Play`. A schedule has two halves: chaos, in which every step may crash,
stall, lose a reply, expire, come twice or be overtaken; then calm, in which one healthy worker has to bring everything
to rest. What must be true then is for oracle.py to say.
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
from tests.simulation.fakes import FakeEngine, FakeTable, Kind, Thing, World
from tests.simulation.stage import Crash, Stage
from ulid import ULID

from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import PublishHalted, TemporaryError, TransformError, UserError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.database import Database
from penstock.ledger.records import TERMINAL, UNREAD, BatchOutcome
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, Release, Settlement
from penstock.messaging.steps import Step
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
from penstock.pipeline.attempt import AttemptSettings, PipelineRuntime
from penstock.pipeline.batch import BatchExecution, PipelineHandler
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
    """Rules that the harness breaks on purpose, to see that the oracle notices."""

    ack_before_commit: bool = False
    publish_unconditionally: bool = False
    delete_open_attempts: bool = False
    commit_without_fence: bool = False
    charge_what_was_given_back: bool = False
    refund_what_crashed: bool = False
    drop_dead_letters: bool = False


class Faulty:
    """Calls of a room as a worker sees them: before and after each, others may go on, or the reply gets lost."""

    def __init__(self, target: object, room: str, stage: Stage) -> None:
        self._target, self._room, self._stage = target, room, stage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._stage.step(f"{self._room}.{name}")
        if self._stage.chance(0.008):
            raise TemporaryError(f"{self._room} is away")
        answer = method(*args, **kwargs)
        if self._stage.chance(0.008):
            self._stage.log.append(f"{self._room} reply lost")
            raise TemporaryError(f"the reply of {self._room}.{name} was lost")
        return answer


@dataclass(slots=True, kw_only=True)
class Flight:
    """A batch at work, as the harness's worker keeps it."""

    deliveries: Sequence[Delivery]
    execution: BatchExecution
    ended: bool = False


class Play:
    """Everything of one schedule."""

    def __init__(self, seed: int, database: Database, clock: FakeClock, root: Path, sabotage: Sabotage) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = clock
        self.sabotage = sabotage
        self.pipeline = f"file:///simulated/{seed}"
        self.stage = Stage(
            self.random,
            turns_max=self.random.randrange(30, 200),
            switch=self.random.choice((0.05, 0.2, 0.5)),
            crash=self.random.choice((0.0, 0.01, 0.03)),
            deadly_step=self.random.choice(tuple(Step)).value if self.random.random() < 0.3 else None,
            stall=self.random.choice((0.0, 0.02, 0.05)),
            disturb=self.disturb,
        )
        self.ledger = Ledger(database, self.probe)
        self.ledger.ensure_pipeline(self.pipeline)
        self.broker = MemoryBroker(clock=clock)
        things = [self._thing(n) for n in range(self.random.randrange(2, 7))]
        self.world = World(stage=self.stage, probe=self.probe, root=root, things={t.ref.key: t for t in things})
        conditional = not sabotage.publish_unconditionally
        self.rows = FakeTable(self.world, self.world.table_root, conditional=conditional)
        self.quarantine = FakeTable(self.world, self.world.quarantine_root, conditional=conditional)
        self.workers: dict[str, Worker] = {}  # those alive, by actor
        self.dead: list[str] = []
        self.invalid = 0  # messages that nobody can read
        self._born = 0
        self._attempts = 0

    # -- the cast ------------------------------------------------------------------------------------------------

    def _thing(self, n: int) -> Thing:
        ref = ObjectRef(bucket="landing", key=f"o{n}", size_bytes=10 + n, etag=f"{self.seed:x}")
        # One object is always good: a pipeline in which nothing ever succeeds stops, and waits for a person.
        kind = self.random.choice(KINDS) if n else Kind.GOOD
        return Thing(ref=ref, kind=kind, rows=self.random.randrange(1, 4))

    def new_attempt_id(self) -> str:
        self._attempts += 1
        return str(ULID.from_int((self.seed << 80) + self._attempts))

    def probe(self, step: Step) -> None:
        self.stage.step(step.value, inside=step is Step.COMMITTING)

    def announce(self) -> None:
        """Every object at least once; some in one message with others, some twice, and now and then nonsense."""
        refs = [thing.ref for thing in self.world.things.values()]
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
        things = list(self.world.things.values())
        return announcement([thing.ref for thing in self.random.sample(things, min(len(things), 2))])

    def idle(self) -> None:
        """A worker found nothing: time passes, or there is nothing left that chaos could spoil."""
        stats = self.broker.stats(QUEUE)
        if stats.visible or stats.in_flight or stats.delayed:
            self.clock.advance(self.random.uniform(0.5, LEASE_SECONDS / 2))
        else:
            self.stage.calm_down()

    # -- what may happen at any step -----------------------------------------------------------------------------

    def disturb(self) -> None:
        """At most one thing that nobody controls. It happens between two steps of whoever is on stage."""
        happening = self.random.random()
        for share, event in self.events():
            if happening < share:
                self.stage.log.append(event.__name__)
                event()
                return
            happening -= share

    def events(self) -> Sequence[tuple[float, Callable[[], object]]]:
        return (
            (0.10, self.time_passes),
            (0.01, self.leases_end),
            (0.05, self.heart_beats),
            (0.01, self.shutdown),
            (0.01, self.comes_again),
            (0.02, self.maintain_table),
            (0.02, self.late_executor_writes),
            (0.02, self.bury),
        )

    def time_passes(self) -> None:
        self.clock.advance(self.random.uniform(0.1, 2.0))

    def leases_end(self) -> None:
        self.clock.advance(LEASE_SECONDS + 1.0)

    def heart_beats(self) -> None:
        for worker in list(self.workers.values()):
            if self.random.random() < 0.7:
                worker.beat()

    def shutdown(self) -> None:
        if self.workers:
            self.workers[self.random.choice(list(self.workers))].give_back()

    def comes_again(self) -> None:
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

    def bury(self) -> None:
        """Mark a process as dead, so that its leases are free."""
        if self.dead:
            name = self.dead.pop()
            if self.sabotage.refund_what_crashed:
                _refund(self, name)
            self.ledger.abandon_worker(self.pipeline, name)
            self.broker.release_holder(name)

    # -- the play ------------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Chaos, then calm. Raises `Violation` where it does not come to rest."""
        self.announce()
        for n in range(self.random.choice((1, 2, 2, 3))):
            self.stage.enter(f"worker-{n}", partial(self._lives, f"worker-{n}"))
        if self.random.random() < 0.5:
            self.stage.enter("sweeper", self._sweeps)
        with lossy_commits(self.ledger.database, self.stage):
            self.stage.run()
        self._calm()

    def _lives(self, actor: str) -> None:
        """One process after the other: each may die, and the next knows nothing of it."""
        while self.stage.chaos:
            self._born += 1
            worker = self.workers[actor] = Worker(self, f"process-{self._born}")
            try:
                worker.serve()
            except Crash:
                self.dead.append(worker.name)
            finally:
                del self.workers[actor]

    def _sweeps(self) -> None:
        while self.stage.chaos:
            tables = self.tables(cast(Ledger, Faulty(self.ledger, "ledger", self.stage)))
            with suppress(Crash, TemporaryError):
                self.publish(tables)
                self.sweep(tables)
            self.stage.rest(self.random.randrange(5, 60))

    def _calm(self) -> None:
        worker = Worker(self, "calm")
        for path, text in self.world.late_files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for _ in range(CALM_ROUNDS_MAX):
            worker.round()
            self.clock.advance(LEASE_SECONDS / 3)
            if self._at_rest():
                break
        else:
            raise Violation(f"does not come to rest: {self.broker.stats(QUEUE)}, {self.ledger.counts(self.pipeline)}")
        self.publish(tables := self.tables(self.ledger))
        self.sweep(tables)

    def _at_rest(self) -> bool:
        stats = self.broker.stats(QUEUE)
        return not (stats.visible or stats.in_flight or stats.delayed or self.ledger.open_attempts(self.pipeline))

    def publish(self, tables: Tables) -> None:
        tables.publish(self.rows, self.quarantine)
        self._check_tables()

    def _check_tables(self) -> None:
        for table in (self.rows, self.quarantine):
            rows = table.rows()
            if len(rows) != len(set(rows)):
                raise Violation("rows are visible twice")

    def tables(self, ledger: Ledger) -> Tables:
        """Both tables as a new process sees them."""
        return Tables(self.world, ledger, self.pipeline, self.clock)

    def sweep(self, tables: Tables) -> None:
        tables.sweep()
        if self.sabotage.delete_open_attempts:
            for attempt in self.ledger.open_attempts(self.pipeline):
                for root in (self.world.table_root, self.world.quarantine_root):
                    for path in (root / "data" / attempt.id).rglob("*.parquet"):
                        path.unlink()


class Theatre:
    """Where schedules are played one after the other: one ledger for all, a pipeline for each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clock = FakeClock()
        self._ledger = Ledger.open("sqlite://", now=lambda: self._clock.now())

    @contextmanager
    def play(self, seed: int, sabotage: Sabotage) -> Iterator[Play]:
        """A schedule that is decided by its seed alone."""
        self._clock = FakeClock()
        folder = self._root / str(seed)
        try:
            yield Play(seed, self._ledger.database, self._clock, folder, sabotage)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._ledger.close()


class Worker:
    """A process that serves the pipeline: what `penstock.worker` does, without its threads."""

    def __init__(self, play: Play, name: str) -> None:
        self.name = name
        self.flight: Flight | None = None
        self._play = play
        self._stage = play.stage
        self._leaving = False
        self._idle = False
        self._broker = cast(MemoryBroker, Faulty(play.broker.with_holder(name), "broker", play.stage))
        self._ledger = cast(Ledger, self._fenceless(Faulty(play.ledger, "ledger", play.stage)))
        settings = AttemptSettings(
            pipeline=play.pipeline,
            worker=name,
            lease_seconds=LEASE_SECONDS,
            objects_max=50,
            attempts_max=ATTEMPTS_MAX,
            backoff_base_seconds=0.5,
            backoff_cap_seconds=5.0,
        )
        self._tables = play.tables(self._ledger)
        agree = partial(agreement, self._ledger, play.rows, play.pipeline)
        self._settings = settings
        self._around = PipelineRuntime(
            ledger=self._ledger,
            engine=FakeEngine(play.world, agree),
            parse=partial(parse, buckets_allowed=None),
            publish=partial(play.publish, self._tables),
            streak=FailureStreak(),
            bus=Bus(),
            random=play.random.random,
            new_attempt_id=play.new_attempt_id,
        )
        self._handler = PipelineHandler(self._settings, self._around)

    def serve(self) -> None:
        while self._stage.chaos and not self._leaving:
            self.round()
            self._stage.step("round over")

    def round(self) -> None:
        """Upkeep, one batch, settlement. A fault ends the round and nothing else."""
        with suppress(TemporaryError):
            if self._play.random.random() < (0.1 if self._stage.chaos else self._idle):
                self._upkeep()
            if self._stage.chaos and self._play.random.random() < 0.1:
                self._play.sweep(self._tables)
            deliveries = self._broker.receive(
                QUEUE, messages_max=self._play.random.randrange(1, 6), lease_seconds=LEASE_SECONDS
            )
            self._play.probe(Step.RECEIVED)
            self._idle = not deliveries
            if deliveries:
                self._work(deliveries)
            elif self._stage.chaos:
                self._play.idle()

    def _upkeep(self) -> None:
        for job in self._handler.jobs().values():
            job()

    def _work(self, deliveries: Sequence[Delivery]) -> None:
        flight = self.flight = Flight(deliveries=deliveries, execution=self._handler.begin(deliveries))
        if self._play.sabotage.ack_before_commit:
            self._broker.settle([(delivery, Ack()) for delivery in deliveries])
        answer = self._answer(flight)
        if not flight.ended:
            flight.ended = True
            self._play.probe(Step.SETTLING)
            self._settle(flight, answer)
            self._play.probe(Step.SETTLED)
        self.flight = None

    def _answer(self, flight: Flight) -> Mapping[str, Settlement]:
        """What the run came to; a run that raised is put off, its claim freed."""
        try:
            return flight.execution.run()
        except TransformError:  # the pipeline stopped before its first success, and a person started it again
            self._around = replace(self._around, streak=FailureStreak())
            self._handler = PipelineHandler(self._settings, self._around)
            with suppress(TemporaryError):
                flight.execution.release()
            return {}
        except (UserError, PublishHalted, Violation):
            raise  # nothing else in the play calls for a person
        except Exception:
            if not flight.ended:
                with suppress(TemporaryError):
                    flight.execution.release()
            return {}

    def _settle(self, flight: Flight, answer: Mapping[str, Settlement]) -> None:
        late = Release(delay_seconds=1.0)
        settlements = [(delivery, answer.get(delivery.receipt, late)) for delivery in flight.deliveries]
        for delivery, settlement in settlements:
            if isinstance(settlement, Ack):
                self._check_recorded(delivery)
        if self._play.sabotage.drop_dead_letters:
            settlements = [(d, s if isinstance(s, Ack | Release) else Ack()) for d, s in settlements]
        for _ in range(3):
            with suppress(TemporaryError):
                self._broker.settle(settlements)
                return

    def _check_recorded(self, delivery: Delivery) -> None:
        """Settled implies recorded: nothing is acked whose objects are not all in a terminal state."""
        ids = [ref.object_id for ref in parse(delivery.message.body, buckets_allowed=None).objects]
        states = self._play.ledger.states(self._play.pipeline, ids)
        if not all(states.get(id) in TERMINAL or self._had_ended(id, delivery.message.enqueued_at) for id in ids):
            raise Violation("a message is acked before its objects are done")

    def _had_ended(self, object_id: bytes, enqueued_at: float) -> bool:
        """An ended object may live again, by a message of its own, while an older message of it is being acked.

        Older than the look that found nothing to read, that is: of what was announced later such a look says nothing.
        """
        timeline = self._play.ledger.attempts_of(self._play.pipeline, object_id)
        return any(
            attempt.outcome == "dead" or (attempt.outcome in UNREAD and attempt.started_at >= enqueued_at)
            for attempt in timeline
        )

    def beat(self) -> None:
        """Extend the claim and the deliveries, in any order, or only one of them; a lost claim ends the batch here.

        The calls of a heartbeat do not wait for each other, so the claim may be extended after the deliveries, and the
        deliveries while the claim is in the making or the ledger does not answer.
        """
        flight = self.flight
        if flight is None or flight.ended:
            return
        first = self._play.random.random() < 0.5
        if first:
            self._play.broker.extend(flight.deliveries, lease_seconds=LEASE_SECONDS)
        held = extended(flight.execution, lease_seconds=LEASE_SECONDS)
        if self._over(flight):
            return
        if held:
            if not first:
                self._play.broker.extend(flight.deliveries, lease_seconds=LEASE_SECONDS)
        else:
            flight.ended = True
            self._play.broker.settle([(delivery, Release(delay_seconds=1.0)) for delivery in flight.deliveries])
            flight.execution.interrupt()

    def give_back(self) -> None:
        """Do what a shutdown does at its deadline, from another thread: release first, then interrupt."""
        self._leaving = True
        flight = self.flight
        if flight is None or flight.ended or self._busy(flight):
            return
        flight.ended = True
        flight.execution.release()
        self._play.broker.settle([(delivery, Release(uncounted=True)) for delivery in flight.deliveries])
        flight.execution.interrupt()

    def _over(self, flight: Flight) -> bool:
        return flight.ended

    def _busy(self, flight: Flight) -> bool:
        # A thread would wait for the claim in the making; an actor that waited would stop the play.
        return not flight.execution._guard._taken.is_set()

    def _fenceless(self, ledger: Faulty) -> Any:
        """Under sabotage: a ledger whose commit takes back what it lost, and one that charges what was given back."""
        sabotage = self._play.sabotage
        if sabotage.commit_without_fence:
            return _Sabotaged(ledger, commit=partial(_commit_by_force, self._play))
        if sabotage.charge_what_was_given_back:
            return _Sabotaged(ledger, abandon=partial(_abandon_charged, self._play))
        return ledger


class _Sabotaged:
    def __init__(self, ledger: Faulty, **replaced: Callable[..., Any]) -> None:
        self._ledger = ledger
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._ledger, name)


def _commit_by_force(play: Play, outcome: BatchOutcome) -> int | None:
    play.stage.step("ledger.commit")
    ids = [result.object_id for result in outcome.processed] + [failed.object_id for failed in outcome.failed]
    with play.ledger.database.writing() as connection:
        connection.exec_driver_sql("UPDATE attempts SET state = 'open' WHERE id = ?", (outcome.attempt_id,))
        for object_id in ids:
            connection.exec_driver_sql(
                "UPDATE objects SET state = 'processing', attempt_id = ? WHERE pipeline = ? AND object_id = ?",
                (outcome.attempt_id, play.pipeline, object_id),
            )
    return play.ledger.commit(outcome)


def _abandon_charged(play: Play, attempt_id: str, **how: Any) -> bool:
    return play.ledger.abandon(attempt_id, **(how | {"uncounted": False}))


def _refund(play: Play, worker: str) -> None:
    with play.ledger.database.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE objects SET refunds = refunds + 1 WHERE pipeline = ? AND attempt_id IN "
            "(SELECT id FROM attempts WHERE worker = ? AND state = 'open')",
            (play.pipeline, worker),
        )


def announcement(refs: Sequence[ObjectRef]) -> bytes:
    """One message for several objects."""
    records = [record for ref in refs for record in json.loads(announce(ref))["Records"]]
    return json.dumps({"Records": records}).encode()


@contextmanager
def lossy_commits(database: Database, stage: Stage) -> Iterator[None]:
    """COMMITs whose reply gets lost: some took effect, some did not, and the client cannot know."""
    dialect = database.engine.dialect
    do_commit = dialect.do_commit

    def lossy(connection: Any) -> None:
        lost = stage.chance(0.02)
        if lost and stage.random.random() < 0.5:
            stage.log.append("commit lost")
            dialect.do_rollback(connection)
        else:
            do_commit(connection)
        if lost:
            stage.log.append("commit reply lost")
            raise dialect.loaded_dbapi.OperationalError("connection lost")

    with mock.patch.object(dialect, "do_commit", lossy):
        yield
