"""Run one declared pipeline alone in this process: until its queue is empty, or until it is stopped."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike

from penstock.app.backends import check_queues
from penstock.app.context import AppContext
from penstock.app.health import gauged, worker_health
from penstock.app.hosting import host_of
from penstock.app.housekeeping import Presence
from penstock.app.naming import register_pipeline
from penstock.app.pending import PendingObjects, QueueDrainCheck
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.app.pipelines.plan import FAULTS_MAX, PipelinePlan, plan_of, worker_settings
from penstock.app.service import ServiceContext
from penstock.app.sources import SourceScan, source_of
from penstock.app.spark import app_spark
from penstock.app.telemetry import guarded, open_telemetry
from penstock.app.tracing import traced, tracing_of
from penstock.errors import UsageError
from penstock.events import BatchCommitted, Bus, Event, Listener, ObjectFailed
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import SystemClock
from penstock.pipeline.spark.session import Session
from penstock.worker.liveness import Liveness
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker


class RunTally:
    """A listener that counts the results of this process.

    Written by the emitting threads, read when they have ended.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.lines_quarantined = 0
        self.batches = 0
        self.objects_processed = 0
        self.failed: Counter[str] = Counter()  # objects by outcome: retry, dead, gone, superseded

    @property
    def objects(self) -> Counter[ObjectState]:
        """Objects by their terminal state."""
        terminal = (ObjectState.DEAD, ObjectState.GONE, ObjectState.SUPERSEDED)
        ended = {state: self.failed[str(state)] for state in terminal}
        return Counter({ObjectState.PROCESSED: self.objects_processed, **ended})

    def __call__(self, event: Event) -> None:
        match event:
            case BatchCommitted():
                self.rows += event.rows
                self.lines_quarantined += event.lines_quarantined
                self.batches += 1
                self.objects_processed += event.objects
            case ObjectFailed():
                self.failed[event.outcome] += 1
            case _:
                pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The result of one run. Objects, rows, lines and batches are those of this process."""

    pipeline: str
    objects_found: int | None  # below ``source``; None: no folder was scanned
    objects_skipped: int | None  # of these: done before the run
    objects_processed: int
    objects_dead: int
    objects_gone: int
    objects_superseded: int
    messages_left: int  # in the queue, in any state, when the run ended
    rows_written: int
    lines_quarantined: int
    batches: int
    seconds: float
    table: str
    table_version: int | None  # None: no table yet
    quarantine_table: str | None  # None: nothing was ever quarantined
    stopped: bool  # a run with ``available_now`` was stopped before it was done
    problems: tuple[str, ...]  # entries below ``source`` that could not be read


def run(
    declaration: PipelineDeclaration,
    home: AppContext,
    *,
    spark: Session | None,
    available_now: bool,
    source: str | PathLike[str] | None,
    stop: StopSignal,
    listeners: Sequence[Listener],
) -> RunReport:
    """Run the pipeline; see `penstock.app.pipelines.pipeline.Pipeline.run`."""
    clock, tally = SystemClock(), RunTally()
    began_at = clock.monotonic()
    tell = Bus(*listeners).emit
    pulse = Liveness(clock)
    heard = open_telemetry(
        # A bounded run serves no metrics: it may run beside a worker that has the address.
        home.settings.model_copy(update={"metrics_address": None}) if available_now else home.settings,
        worker=home.worker,
        process="run",
        on_error=home.on_error,
        tell=tell,
        health=worker_health(pulse, stop),
        queues={declaration.name: declaration.source.queue},
    )
    with ExitStack() as stack:
        stack.enter_context(heard.told())
        stack.enter_context(gauged(pulse, heard.meters, worker=home.worker))
        check_queues([declaration.source.queue], home.settings, clock=clock, waits=not available_now)
        presence = Presence(
            settings=home.settings,
            broker=home.broker,
            worker=home.worker,
            stop=stop,
            clock=clock,
            metrics_address=lambda: heard.metrics_address,
        )
        bus = Bus(tally, *guarded(home.listeners, tell=tell), *heard.listeners, *presence.listeners)
        own = app_spark(home.settings, worker=home.worker, clock=clock, bus=bus, stop=stop, given=spark)
        tracing = tracing_of(home.settings, worker=home.worker)
        host = host_of(home, sessions=own, bus=bus, clock=clock, stop=stop, tracing=tracing)
        stack.enter_context(home.incidents.passing_to(bus.emit))
        stack.enter_context(presence.kept(ledger=host.ledger, tell=bus.emit, random=host.random))
        stack.callback(own.close)
        register_pipeline(home, declaration.name, queue=declaration.source.queue)
        plan = plan_of(declaration, host, faults_max=FAULTS_MAX if available_now else None)
        plan.blueprint.check_columns()
        caretaker = plan.caretaker(host)
        errand = _RunGoal(plan, host, queue=declaration.source.queue, source=source)
        plan.blueprint.publish()  # batches that an earlier process committed but did not publish
        errand.begin()
        if not (available_now and errand.done()) and not stop.requested:
            worker = _worker(plan, host, queue=errand.queue, pulse=pulse)
            if not stop.requested:
                if not available_now:
                    stack.enter_context(host.outage.watching())
                    stack.enter_context(host.stores.watching())
                if caretaker is not None and not available_now:
                    stack.enter_context(caretaker.beside())
                worker.run(stop, errand.done if available_now else errand.tended)
        plan.blueprint.tables.sweep()
        if available_now and caretaker is not None:
            caretaker.once(objects_max=None)
        seconds = clock.monotonic() - began_at
        return errand.report(tally, stopped=available_now and stop.requested, seconds=seconds)


def _worker(plan: PipelinePlan, host: ServiceContext, *, queue: str, pulse: Liveness) -> Worker:
    """Return the worker, with Spark started, which may take a while."""
    line = plan.blueprint.line(host.spark(), queue=queue)
    return Worker(
        broker=host.broker,
        lines=traced([line], host.tracing, system=host.broker.capabilities.system),
        settings=worker_settings(host.settings),
        clock=host.clock,
        bus=host.bus,
        probe=host.probe,
        pulse=pulse,
    )


class _RunGoal:
    """The completion check of a run: an empty queue and, if a folder was named, all its objects done."""

    def __init__(
        self, plan: PipelinePlan, host: ServiceContext, *, queue: str, source: str | PathLike[str] | None
    ) -> None:
        self.queue = queue
        self._plan = plan
        self._host = host
        self._scan: SourceScan | None = None
        self._goal: PendingObjects | None = None
        self._emptiness = QueueDrainCheck(host.broker, queue, clock=host.clock)
        if source is not None:
            self._scan = _scan(plan, source)
            objects = [ref for chunk in self._scan.chunks() for ref in chunk]
            self._goal = PendingObjects(
                ledger=host.ledger(),
                broker=host.broker,
                pipeline=plan.where.pipeline,
                queue=queue,
                free_the_dead=lambda: None,  # this process's housekeeping does that
                probe=host.probe,
                objects=objects,
            )
            host.bus.emit(self._goal.scanned(str(source)))

    def begin(self) -> None:
        """Send notifications for the objects found that are not done."""
        if self._goal is not None:
            self._goal.begin()

    def done(self) -> bool:
        """Return True if nothing is left, not even messages in flight or waiting for a retry."""
        return (self._goal is None or self._goal.reached()) and self._emptiness.sure()

    def tended(self) -> bool:
        """Send lost notifications again and return False, for a run without an end."""
        if self._goal is not None:
            self._goal.reached()
        return False

    def report(self, tally: RunTally, *, stopped: bool, seconds: float) -> RunReport:
        """Return the report. ``stopped``: the run was asked to stop before it was done."""
        tables, where = self._plan.blueprint.tables, self._plan.where
        left = self._emptiness.messages()
        goal, scanned = self._goal, self._scan.report() if self._scan is not None else None
        unfinished = 0 if goal is None else goal.left()
        return RunReport(
            pipeline=where.pipeline,
            objects_found=None if goal is None else len(goal.objects()),
            objects_skipped=None if goal is None else goal.done_before(),
            objects_processed=tally.objects_processed,
            objects_dead=tally.failed["dead"],
            objects_gone=tally.failed["gone"],
            objects_superseded=tally.failed["superseded"],
            messages_left=left,
            rows_written=tally.rows,
            lines_quarantined=tally.lines_quarantined,
            batches=tally.batches,
            seconds=round(seconds, 3),
            table=str(where.table),
            table_version=tables.version(),
            quarantine_table=str(where.quarantine) if tables.has_quarantine() else None,
            stopped=stopped and (left > 0 or unfinished > 0 or tables.unpublished() > 0),
            problems=() if scanned is None else tuple(scanned.problems),
        )


def _scan(plan: PipelinePlan, source: str | PathLike[str]) -> SourceScan:
    part = source_of(source, plan.where)
    if not plan.source.holds(part):
        raise UsageError(
            f"{part} is not in {plan.source}, which the pipeline {plan.where.pipeline} reads, and its workers read "
            "nothing else; name that, or something in it."
        )
    return plan.source.scan(part, own=plan.where.own)
