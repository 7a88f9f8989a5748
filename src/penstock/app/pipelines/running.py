"""Run one declared pipeline alone in this process: until its queue is empty, or until it is stopped."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike

from penstock.app.brokers import check_queues
from penstock.app.cleanup_runner import CleanupRunner
from penstock.app.collector import rare_collections
from penstock.app.context import AppContext
from penstock.app.health import gauged, worker_health
from penstock.app.housekeeping import Presence
from penstock.app.naming import register_pipeline
from penstock.app.pending import PendingObjects, QueueDrainCheck
from penstock.app.pipelines.cleanup import pipeline_cleanup
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.app.pipelines.plan import FAULTS_MAX, PipelinePlan, plan_of, worker_settings
from penstock.app.service import ServiceContext
from penstock.app.service_context import service_context
from penstock.app.sources import SourceScan, source_of
from penstock.app.spark import app_spark
from penstock.app.telemetry import guarded, open_telemetry
from penstock.app.tracing import traced, tracing_of
from penstock.errors import RestartNeeded, TemporaryError, UsageError
from penstock.events import (
    MERGE_EFFECTS,
    BatchCommitted,
    BatchPublished,
    Bus,
    Event,
    Listener,
    ObjectFailed,
    SelectiveListener,
    UnknownFieldsFound,
    WrongTypesRescued,
)
from penstock.ledger.records import ObjectState, ReopeningState
from penstock.messaging.clock import SystemClock
from penstock.pipeline.spark.runtime import GivenSpark
from penstock.worker.liveness import Liveness
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

UNKNOWN_FIELDS_MAX = 1_000  # names that one process counts


class RunCounts(SelectiveListener):
    """A listener that counts the results of this process.

    Written by the emitting threads, read when they have ended. The replaced objects and rows include those of batches
    that an earlier process committed and this one publishes.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.lines_quarantined = 0
        self.batches = 0
        self.objects_processed = 0
        self.replaced_objects = 0  # those that replaced an earlier version
        self.replaced_rows = 0  # rows of these versions
        self.grown_objects = 0  # objects of which only appended lines were read
        self.appended_rows = 0  # rows of these lines
        self.replays = 0
        self.merged = Counter(dict.fromkeys(MERGE_EFFECTS, 0))  # rows of batches that this process has published
        self.unknown_fields: Counter[str] = Counter()  # rows that have them, by name
        self.unknown_objects = 0  # objects with such fields
        self.wrong_type_fields: Counter[str] = Counter()  # rows with a rescued value of another type, by column
        self.wrong_type_objects = 0  # objects with such values
        self.failed: Counter[str] = Counter()  # objects by outcome: retry, dead, gone, superseded

    @property
    def objects(self) -> Counter[ObjectState]:
        """Objects by their terminal state."""
        terminal = (ObjectState.DEAD, ObjectState.DELETED, ObjectState.SUPERSEDED)
        ended = {state: self.failed[str(state)] for state in terminal}
        return Counter({ObjectState.PROCESSED: self.objects_processed, **ended})

    def add_replaced(self, objects: int, rows: int) -> None:
        """Count objects that replaced an earlier version, and the rows of these versions."""
        self.replaced_objects += objects
        self.replaced_rows += rows

    def add_grown(self, objects: int, rows: int) -> None:
        """Count objects of which only appended lines were read, and the rows of these lines."""
        self.grown_objects += objects
        self.appended_rows += rows

    def wants(self, kind: type[Event]) -> bool:
        return issubclass(kind, BatchCommitted | BatchPublished | ObjectFailed | UnknownFieldsFound | WrongTypesRescued)

    def __call__(self, event: Event) -> None:
        match event:
            case BatchCommitted():
                self.rows += event.rows
                self.lines_quarantined += event.lines_quarantined
                self.batches += 1
                self.objects_processed += event.objects - event.replays
                self.replays += event.replays
                self.add_replaced(event.replaced_objects, event.replaced_rows)
                self.add_grown(event.grown_objects, event.appended_rows)
            case BatchPublished():
                self.merged.update(event.merged)
            case UnknownFieldsFound():
                self.unknown_objects += 1
                _add(self.unknown_fields, event.fields)
            case WrongTypesRescued():
                self.wrong_type_objects += 1
                _add(self.wrong_type_fields, event.fields)
            case ObjectFailed():
                self.failed[event.outcome] += 1
            case _:
                pass


def _add(counts: Counter[str], fields: Mapping[str, int]) -> None:
    """Add rows by field. Names beyond a bound are left out."""
    for name, rows in fields.items():
        if name in counts or len(counts) < UNKNOWN_FIELDS_MAX:
            counts[name] += rows


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
    objects_replayed: int = 0  # objects of which the bad lines were read again
    replaced_objects: int = 0  # objects of which an earlier version was in the table, and was replaced
    replaced_rows: int = 0  # the rows of these versions
    objects_reread: int = 0  # processed objects that were read again, see `penstock objects reprocess`
    grown_objects: int = 0  # objects of which only appended lines were read
    appended_rows: int = 0  # rows of these lines
    merged_rows: dict[str, int] = field(default_factory=dict)  # see `MERGE_EFFECTS`; empty: no merge
    warned_objects: int = 0  # objects with too many bad lines, in this run or an earlier one; see `QuarantineWarning`
    warned_lines: int = 0  # the bad lines of these objects
    stopped: bool  # a run with ``available_now`` was stopped before it was done
    problems: tuple[str, ...]  # entries below ``source`` that could not be read
    unknown_fields: dict[str, int] = field(default_factory=dict)  # fields without a column: the rows that have each
    unknown_objects: int = 0  # objects with such fields
    wrong_type_fields: dict[str, int] = field(default_factory=dict)  # rows with a rescued value, by its column
    wrong_type_objects: int = 0  # objects with such values
    unregistered: tuple[str, ...] = ()  # the reasons why tables are not registered in their data catalog


def run(
    declaration: PipelineDeclaration,
    app_context: AppContext,
    *,
    spark: GivenSpark | None,
    available_now: bool,
    source: str | PathLike[str] | None,
    stop: StopSignal,
    listeners: Sequence[Listener],
) -> RunReport:
    """Run the pipeline; see `penstock.app.pipelines.pipeline.Pipeline.run`."""
    clock, counts = SystemClock(), RunCounts()
    began_at = clock.monotonic()
    emit = Bus(*listeners)
    liveness = Liveness(clock)
    telemetry = open_telemetry(
        # A bounded run serves no metrics: it may run beside a worker that has the address.
        app_context.settings.model_copy(update={"metrics_address": None}) if available_now else app_context.settings,
        worker=app_context.worker,
        process="run",
        on_error=app_context.on_error,
        emit=emit,
        health=worker_health(liveness, stop),
        queues={declaration.name: declaration.source.queue},
    )
    with ExitStack() as stack:
        stack.enter_context(telemetry.running())
        stack.enter_context(rare_collections())
        stack.enter_context(gauged(liveness, telemetry.meters, worker=app_context.worker))
        check_queues([declaration.source.queue], app_context.settings, clock=clock, waits=not available_now)
        presence = Presence(
            settings=app_context.settings,
            broker=app_context.broker,
            worker=app_context.worker,
            stop=stop,
            clock=clock,
            metrics_address=lambda: telemetry.metrics_address,
            liveness=liveness,
        )
        bus = Bus(counts, *guarded(app_context.listeners, emit=emit), *telemetry.listeners, *presence.listeners)
        own = app_spark(
            app_context.settings,
            worker=app_context.worker,
            clock=clock,
            bus=bus,
            stop=stop,
            given=app_context.spark if spark is None else spark,
        )
        tracing = tracing_of(app_context.settings, worker=app_context.worker)
        context = service_context(app_context, sessions=own, bus=bus, clock=clock, stop=stop, tracing=tracing)
        stack.enter_context(app_context.incidents.passing_to(bus.emit))
        stack.enter_context(presence.register(ledger=context.ledger, emit=bus.emit, random=context.random))
        stack.callback(own.close)
        register_pipeline(app_context, declaration.name, queue=declaration.source.queue)
        plan = plan_of(declaration, context, faults_max=FAULTS_MAX if available_now else None)
        plan.blueprint.check_columns()
        cleanup_runner = _cleanup_runner(declaration, context)
        completion = _RunCompletion(plan, context, queue=declaration.source.queue, source=source)
        reread_before = _reread(context, plan.where.pipeline)
        counts.add_replaced(*plan.blueprint.tables.unpublished_replacements())
        counts.add_grown(*plan.blueprint.tables.unpublished_growth())
        plan.blueprint.publish()  # batches that an earlier process committed but did not publish
        completion.begin()
        if not (available_now and completion.advance()) and not stop.requested:
            worker = _worker(plan, context, queue=completion.queue, liveness=liveness)
            if worker is not None and not stop.requested:
                if not available_now:
                    stack.enter_context(context.outage.watching())
                    stack.enter_context(context.stores.watching())
                if cleanup_runner is not None and not available_now:
                    stack.enter_context(cleanup_runner.beside())
                worker.run(stop, completion.advance if available_now else completion.advance_endlessly)
        # not after a stop, whose time is bounded: a later run registers
        unregistered = () if stop.requested else plan.blueprint.registration.register(at_once=True)
        plan.blueprint.tables.sweep()
        if available_now and cleanup_runner is not None:
            cleanup_runner.once(objects_max=None)
        seconds = clock.monotonic() - began_at
        stopped = available_now and stop.requested
        report = completion.report(counts, stopped=stopped, seconds=seconds, unregistered=unregistered)
        return replace(report, objects_reread=max(0, _reread(context, plan.where.pipeline) - reread_before))


def _reread(context: ServiceContext, pipeline: str) -> int:
    return context.ledger().reopenings.counts(pipeline)[ReopeningState.READ]


def _cleanup_runner(declaration: PipelineDeclaration, context: ServiceContext) -> CleanupRunner | None:
    """Return the source's cleanup, not started yet; None if objects are kept."""
    work = pipeline_cleanup(
        declaration,
        settings=context.settings,
        ledger=context.ledger(),
        bus=context.bus,
        probe=context.probe,
        clock=context.clock,
    )
    if work is None:
        return None
    return CleanupRunner(work, stop=context.stop, bus=context.bus, clock=context.clock, random=context.random)


def _worker(plan: PipelinePlan, context: ServiceContext, *, queue: str, liveness: Liveness) -> Worker | None:
    """Return the worker, with Spark started, which may take a while; None if that was stopped."""
    try:
        consumer = plan.blueprint.consumer(context.spark(), queue=queue)
    except (TemporaryError, RestartNeeded):
        if context.stop.requested:  # it cancels jobs, and a signal may end Spark's JVM too
            return None
        raise
    return Worker(
        broker=context.broker,
        consumers=traced([consumer], context.tracing, system=context.broker.capabilities.system),
        settings=worker_settings(context.settings),
        clock=context.clock,
        bus=context.bus,
        probe=context.probe,
        liveness=liveness,
    )


class _RunCompletion:
    """The completion check of a run: an empty queue and, if a folder was named, all its objects done."""

    def __init__(
        self, plan: PipelinePlan, context: ServiceContext, *, queue: str, source: str | PathLike[str] | None
    ) -> None:
        self.queue = queue
        self._plan = plan
        self._context = context
        self._scan: SourceScan | None = None
        self._pending: PendingObjects | None = None
        self._drain_check = QueueDrainCheck(context.broker, queue, clock=context.clock)
        if source is not None:
            self._scan = _scan(plan, source)
            objects = [ref for chunk in self._scan.chunks() for ref in chunk]
            self._pending = PendingObjects(
                ledger=context.ledger(),
                broker=context.broker,
                pipeline=plan.where.pipeline,
                queue=queue,
                release_dead=lambda: None,  # this process's housekeeping does that
                probe=context.probe,
                objects=objects,
                change_rule=plan.blueprint.change_rule.current,
            )
            context.bus.emit(self._pending.scanned(str(source)))

    def begin(self) -> None:
        """Send notifications for the objects found that are not done."""
        if self._pending is not None:
            self._pending.begin()

    def advance(self) -> bool:
        """Send lost notifications again; return True if nothing is left, not even messages in flight or delayed."""
        if self._pending is not None:
            self._pending.advance()
            if not self._pending.is_done():
                return False
        self._drain_check.sample()
        return self._drain_check.is_drained

    def advance_endlessly(self) -> bool:
        """Send lost notifications again and return False, for a run without an end."""
        if self._pending is not None:
            self._pending.advance()
        return False

    def report(self, counts: RunCounts, *, stopped: bool, seconds: float, unregistered: tuple[str, ...]) -> RunReport:
        """Return the report. ``stopped``: the run was asked to stop before it was done."""
        tables, where = self._plan.blueprint.tables, self._plan.where
        left = self._drain_check.messages()
        pending, scanned = self._pending, self._scan.report() if self._scan is not None else None
        unfinished = 0 if pending is None else pending.left()
        warning = self._context.ledger().quarantines.warning(where.pipeline)
        return RunReport(
            pipeline=where.pipeline,
            objects_found=None if pending is None else len(pending.objects()),
            objects_skipped=None if pending is None else pending.done_before(),
            objects_processed=counts.objects_processed,
            objects_dead=counts.failed["dead"],
            objects_gone=counts.failed["gone"],
            objects_superseded=counts.failed["superseded"],
            messages_left=left,
            rows_written=counts.rows,
            lines_quarantined=counts.lines_quarantined,
            unknown_fields=dict(counts.unknown_fields.most_common()),
            unknown_objects=counts.unknown_objects,
            wrong_type_fields=dict(counts.wrong_type_fields.most_common()),
            wrong_type_objects=counts.wrong_type_objects,
            batches=counts.batches,
            seconds=round(seconds, 3),
            table=str(where.table),
            table_version=tables.version(),
            quarantine_table=str(where.quarantine) if tables.has_quarantine() else None,
            objects_replayed=counts.replays,
            replaced_objects=counts.replaced_objects,
            replaced_rows=counts.replaced_rows,
            grown_objects=counts.grown_objects,
            appended_rows=counts.appended_rows,
            merged_rows=dict(counts.merged) if self._plan.blueprint.declaration.merge is not None else {},
            warned_objects=warning.objects,
            warned_lines=warning.lines,
            stopped=stopped and (left > 0 or unfinished > 0 or tables.unpublished() > 0),
            problems=() if scanned is None else tuple(scanned.problems),
            unregistered=unregistered,
        )


def _scan(plan: PipelinePlan, source: str | PathLike[str]) -> SourceScan:
    part = source_of(source, plan.where)
    if not plan.source.contains(part):
        raise UsageError(
            f"{part} is not in {plan.source}, which the pipeline {plan.where.pipeline} reads, and its workers read "
            "nothing else; name that, or something in it."
        )
    return plan.source.scan(part, own=plan.where.own)
