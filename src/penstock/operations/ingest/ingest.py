"""Ingest every object of a folder or S3 prefix, or every object that a queue announces, exactly once into a table.

scan -> notify -> worker (claim, Spark, commit, publish, ack) until every scanned object is terminal and published.
After a crash, another run continues where the protocol stopped; after success, it finds nothing to do.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.app.catalogs import TableRegistration
from penstock.app.collector import rare_collections
from penstock.app.context import PipelineTools
from penstock.app.kill import killing_probe
from penstock.app.naming import worker_id
from penstock.app.paths import QUARANTINE_SUFFIX, TablePaths, check_format, record_format, table_paths
from penstock.app.pending import PendingObjects
from penstock.app.pipelines.running import RunCounts
from penstock.app.sources import source_of
from penstock.app.state import check_owner, open_state
from penstock.app.tables import Tables
from penstock.app.telemetry import open_reports, open_telemetry
from penstock.errors import TableFolderTaken, TemporaryError, UsageError
from penstock.events import Bus, JobFailed, Listener, WatchDegraded, WatchStarted
from penstock.ledger.records import ObjectState, OnChange, PipelineRow, ReopeningState
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.threads import WorkThread
from penstock.messaging.tracing import NO_TRACING
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import ScanReport
from penstock.objects.selection import SkipReason
from penstock.objects.watcher import Watcher
from penstock.operations.ingest.pipeline import (
    IngestPipeline,
    IngestRequest,
    check,
    check_remembered_merge,
    check_remembered_transform,
    queue_of,
    shared_settings,
)
from penstock.pipeline.spark.runtime import GivenSpark
from penstock.pipeline.spark.source.added import with_added
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.sinks.catalogs.name import CatalogName, catalog_name, configured_name
from penstock.sinks.partitions import declared
from penstock.sinks.registry import SINKS, CatalogOption, address_in, has_transforms, open_sink
from penstock.worker.shutdown import StopSignal

WATCHER = "watcher"  # the job's name in events, and the thread's
POLL_SECONDS = 0.2  # between two checks for the condition that the main thread waits for
END_SECONDS = 5.0  # for the thread to end
_OPTION_FORMS = {
    CatalogOption.REGISTER: "glue:DATABASE.TABLE or unity:CATALOG.SCHEMA.TABLE",
    CatalogOption.CATALOG: "NAME:NAMESPACE.TABLE",
}
NOT_IN_JSON = ("folders_excluded", "objects_changed")  # fields of the report that only its text has


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """The result of one ingest.

    Objects are those of this scan, or those that a queue announced and this process finished. Rows, lines and batches
    are those of this process.
    """

    queue: str | None  # the named queue; None: the source was scanned
    objects_found: int
    objects_processed: int
    objects_skipped: int  # processed before this run
    objects_dead: int
    objects_gone: int
    objects_superseded: int
    objects_unfinished: int  # only if the run was stopped
    objects_new_versions: int  # files that the ledger also has in another version
    files_ignored: dict[str, int]  # count by reason
    rows_written: int
    lines_quarantined: int
    batches: int
    seconds: float
    table: str
    table_version: int | None  # None: no table yet
    quarantine_table: str | None  # None: nothing was ever quarantined
    objects_retracted: int = 0  # left alone, until `penstock objects retry`
    objects_replayed: int = 0  # objects of which the bad lines were read again
    replaced_objects: int = 0  # objects of which an earlier version was in the table, and was replaced
    replaced_rows: int = 0  # the rows of these versions
    objects_reread: int = 0  # processed objects that were read again, see `penstock objects reprocess`
    objects_kept: int = 0  # objects to be read again that were gone or had changed: their earlier rows stay
    grown_objects: int = 0  # objects of which only appended lines were read
    appended_rows: int = 0  # rows of these lines
    merged_rows: dict[str, int] = field(default_factory=dict)  # inserted, updated, deleted, left_out; see `MergeCounts`
    warned_objects: int = 0  # objects with too many bad lines, in this run or an earlier one; see `QuarantineWarning`
    warned_lines: int = 0  # the bad lines of these objects
    schema: str | None
    stopped: bool  # before everything was scanned, finished and published
    problems: tuple[str, ...]  # entries that could not be read
    unknown_fields: dict[str, int] = field(default_factory=dict)  # fields without a column: the rows that have each
    unknown_objects: int = 0  # objects with such fields
    wrong_type_fields: dict[str, int] = field(default_factory=dict)  # rows with a rescued value, by its column
    wrong_type_objects: int = 0  # objects with such values
    unregistered: tuple[str, ...] = ()  # the reasons why tables are not registered in their data catalog
    # The fields in `NOT_IN_JSON`:
    folders_excluded: tuple[str, ...] = ()  # tables, and folders with a data directory
    objects_changed: int = 0  # of those processed in this run: files whose other versions stay in the table


def ingest(
    request: IngestRequest, *, stop: StopSignal, listeners: Sequence[Listener] = (), spark: GivenSpark | None = None
) -> IngestReport:
    """Ingest; return when every scanned object is terminal and published, or on a stop.

    Args:
        request: The options.
        stop: Ends the ingest early.
        listeners: Called with every event.
        spark: The session to use, or a function that returns one; it is neither changed nor stopped. Default: as the
            setting ``spark.session`` says. One of Penstock's own is started when there is work, and stopped at the end.

    Raises:
        UserError: If a person has to fix something. Batches already committed stay committed.
    """
    counts = RunCounts()
    opened = open_telemetry if request.watch else open_reports
    worker = worker_id()  # the same in logs, reports and traces as in the ledger
    telemetry = opened(request.settings, worker=worker, process="ingest", emit=Bus(*listeners))
    tools = PipelineTools(
        stop=stop,
        clock=SystemClock(),
        bus=Bus(counts, *telemetry.listeners),
        probe=killing_probe(request.settings.kill_at),
        tracing=telemetry.tracing or NO_TRACING,
    )
    with telemetry.running(), rare_collections():
        return _ingested(request, tools, counts, worker=worker, spark=spark)


def _ingested(
    request: IngestRequest, tools: PipelineTools, counts: RunCounts, *, worker: str, spark: GivenSpark | None
) -> IngestReport:
    began_at = tools.clock.monotonic()
    where = table_paths(request.table, request.state, aws=request.settings.aws)
    check_format(where)
    fields = declared(request.partition_by, table=request.table, has_transforms=has_transforms(where.scheme))
    request = replace(request, partition_by=fields)
    source = source_of(request.source, where, include=request.include, exclude=request.exclude)
    transform = check(request, source)
    entry, catalog = _catalogs(request, where)
    shared = shared_settings(request)
    _check_tables(where, catalog)  # before the data directory is created: a folder with one counts as a table then
    with (
        open_state(where.state, worker=worker, shared=shared, probe=tools.probe) as own,
        queue_of(request, own, tools) as state,
    ):
        state = replace(state, broker=tools.tracing.broker(state.broker))
        state.release_dead()
        if shared is None:
            check_owner(state.ledger, where)
        record_format(where)
        check_remembered_transform(request, state.ledger.ensure_pipeline(where.pipeline), where)
        check_remembered_merge(request, state.ledger.ensure_pipeline(where.pipeline), where)
        tables = Tables(
            where,
            state.ledger,
            partition_by=request.partition_by,
            catalog=catalog,
            bus=tools.bus,
            probe=tools.probe,
        )
        registration = TableRegistration(
            tables,
            entry,
            request.settings,
            pipeline=where.pipeline,
            bus=tools.bus,
            clock=tools.clock,
        )
        reopened_before = state.ledger.reopenings.counts(where.pipeline)
        counts.add_replaced(*tables.unpublished_replacements())
        counts.add_grown(*tables.unpublished_growth())
        tables.publish()  # batches that an earlier process committed but did not publish
        work = IngestPipeline(
            request=request,
            transform=transform,
            source=source,
            where=where,
            state=state,
            tables=tables,
            registration=registration,
            tools=tools,
        )
        work.change_rule.current()  # before Spark starts: a setting of the table may forbid to replace rows
        if request.watch:
            tools.bus.emit(WatchStarted(source=str(source)))
        how = _fed if request.queue is not None else _watch if request.watch else _until_done
        cleanup_runner = work.cleanup_runner()
        with cleanup_runner.beside() if cleanup_runner is not None and request.watch else nullcontext():
            pending, scan = how(work, spark)
        # not after a stop, whose time is bounded: a later run registers
        unregistered = () if tools.stop.requested else registration.register(at_once=True)
        tables.sweep()
        if cleanup_runner is not None and not request.watch:
            cleanup_runner.once(objects_max=None)  # everything due; nothing after a stop
        seconds = tools.clock.monotonic() - began_at
        report = _report(work, pending, scan, counts, seconds=seconds, unregistered=unregistered)
        reopened = state.ledger.reopenings.counts(where.pipeline)
        return replace(
            report,
            objects_reread=max(0, reopened[ReopeningState.READ] - reopened_before[ReopeningState.READ]),
            objects_kept=max(0, reopened[ReopeningState.KEPT] - reopened_before[ReopeningState.KEPT]),
        )


def _catalogs(request: IngestRequest, where: TablePaths) -> tuple[CatalogName | None, CatalogName | None]:
    """Return the entry under which the table is registered, and the catalog of its metadata; None if not asked for.

    Raises `UsageError` for an option that the table's format does not have.
    """
    has = SINKS[where.scheme].catalog_option
    given = {CatalogOption.REGISTER: request.register, CatalogOption.CATALOG: request.catalog}
    for option, text in given.items():
        if text is not None and option is not has:
            remedies = ["leave it out" if has is None else f"use --{has} {_OPTION_FORMS[has]}"]
            remedies += [
                f"write {address_in(scheme, str(where.table))} for a table in the format {scheme}"
                for scheme, package in SINKS.items()
                if package.catalog_option is option
            ]
            raise UsageError(
                f"The table {where.table} is in the format {where.scheme}, which has no --{option}; "
                f"{', or '.join(remedies)}."
            )
    entry = None if request.register is None else catalog_name(request.register, table=where.table.uri)
    return entry, None if request.catalog is None else configured_name(request.catalog)


def _check_tables(where: TablePaths, catalog: CatalogName | None) -> None:
    """Check the locations of both tables. Creates nothing.

    Raises `TableFolderTaken` if a folder is no table and holds other files, and `TableError` if a table is in another
    catalog.
    """
    names = (catalog, None if catalog is None else catalog.suffixed(QUARANTINE_SUFFIX))
    try:
        for root, name in zip((where.table, where.quarantine), names, strict=True):
            open_sink(
                root, pipeline=where.pipeline, partition_by=None, scheme=where.scheme, catalog=name
            ).check_location()
    except TableFolderTaken as error:
        raise TableFolderTaken(f"{str(error).rstrip('.')} (SOURCE comes first, TABLE second).") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _IngestScan:
    report: ScanReport | None  # None: no scan
    complete: bool  # False: stopped early, or messages are left in the queue


def _until_done(work: IngestPipeline, spark: GivenSpark | None) -> tuple[PendingObjects, _IngestScan]:
    """Ingest the current objects of the source."""
    stop = work.tools.stop
    scanner = work.source.scan(own=work.where.own)
    objects: list[ObjectRef] = []
    complete = True
    for chunk in scanner.chunks():
        objects.extend(chunk)
        if stop.requested:
            complete = False
            break
    work = work.judging_names(objects)
    found = len(objects)
    objects = [ref for ref in objects if work.source.selection.left_out(ref.key, ref.size_bytes) is None]
    pending = _pending(work, objects)
    work.tools.bus.emit(pending.scanned(str(work.source)))

    def until() -> bool:
        pending.advance()
        return pending.is_done()

    if pending.has_work() and not stop.requested:
        pending.begin()
        work.serve(sample=objects, until=until, spark=spark)
    report = scanner.report()
    if found > len(objects):
        report = replace(report, ignored={**report.ignored, SkipReason.OTHER_SUFFIX: found - len(objects)})
    return pending, _IngestScan(report=report, complete=complete)


def _watch(work: IngestPipeline, spark: GivenSpark | None) -> tuple[PendingObjects, _IngestScan]:
    """Ingest the current objects of the folder, and new objects until a stop."""
    tools, source, folder = work.tools, str(work.source), work.source.address
    work = work.judging_names(_first_objects(work) if work.needs_sample() else ())
    pending = _pending(work, ())
    watcher = Watcher(
        Path(folder),
        store=LocalStore(folder),
        excluded=[Path(str(own)) for own in work.where.own if own.is_local],
        selection=work.source.selection,
        clock=tools.clock,
        warn=lambda sentence: tools.bus.emit(WatchDegraded(source=source, reason=sentence)),
        settle_seconds=work.request.settle_seconds,
    )
    watching = FolderWatch(watcher, pending, stop=tools.stop, bus=tools.bus, clock=tools.clock)
    try:
        watching.start()
        tools.bus.emit(pending.scanned(source))
        pending.begin()
        if work.needs_sample():
            watching.wait_for_objects()
        if not tools.stop.requested:
            work.serve(sample=pending.objects(), until=watching.resend_lost, spark=spark)
    finally:
        watching.end()
    return pending, _IngestScan(report=watcher.report, complete=watcher.scans > 0)


def _fed(work: IngestPipeline, spark: GivenSpark | None) -> tuple[PendingObjects, _IngestScan]:
    """Ingest the objects that a queue announces: the current messages or, when watching, all future ones too."""
    pending = _pending(work, ())
    sample = _first_objects(work) if work.needs_sample() else ()
    work = work.judging_names(sample)
    sample = [ref for ref in sample if work.source.selection.left_out(ref.key, ref.size_bytes) is None]

    def until() -> bool:
        if work.request.watch:
            return False
        pending.drain_check.sample()
        return pending.drain_check.is_drained

    if not until() and not work.tools.stop.requested:
        work.serve(sample=sample, until=until, spark=spark)
    return pending, _IngestScan(report=None, complete=work.request.watch or pending.drain_check.is_empty())


def _first_objects(work: IngestPipeline) -> Sequence[ObjectRef]:
    return next(iter(work.source.scan(own=work.where.own).chunks()), ())


def _pending(work: IngestPipeline, objects: Sequence[ObjectRef]) -> PendingObjects:
    return PendingObjects(
        ledger=work.state.ledger,
        broker=work.state.broker,
        pipeline=work.where.pipeline,
        queue=work.queue,
        release_dead=work.state.release_dead,
        probe=work.tools.probe,
        objects=objects,
        change_rule=work.change_rule.current,
    )


def _report(
    work: IngestPipeline,
    pending: PendingObjects,
    scan: _IngestScan,
    counts: RunCounts,
    *,
    seconds: float,
    unregistered: tuple[str, ...],
) -> IngestReport:
    where, tables, ledger = work.where, work.tables, work.state.ledger
    states = pending.states()
    count = Counter(states.values())
    unfinished = count[ObjectState.UNPROCESSED] + count[ObjectState.PROCESSING]
    skipped = sum(1 for before in pending.before.values() if before is ObjectState.PROCESSED)
    processed = [
        object_id
        for object_id, state in states.items()
        if state is ObjectState.PROCESSED and pending.before.get(object_id) is not ObjectState.PROCESSED
    ]
    if work.request.queue is not None:  # without a scan, report this process's results
        count = counts.objects
    pipeline = ledger.pipeline(where.pipeline)
    other_versions = ledger.other_versions(where.pipeline, list(states))
    adds = work.change_rule.current() is OnChange.ADD and work.request.merge is None
    warning = ledger.quarantines.warning(where.pipeline)
    ignored = scan.report.ignored if scan.report is not None else {}
    return IngestReport(
        queue=work.request.queue,
        objects_found=pending.size or count.total(),
        objects_processed=count[ObjectState.PROCESSED] - skipped,
        objects_skipped=skipped,
        objects_dead=count[ObjectState.DEAD],
        objects_gone=count[ObjectState.DELETED],
        objects_superseded=count[ObjectState.SUPERSEDED],
        objects_retracted=count[ObjectState.RETRACTED],
        objects_unfinished=unfinished,
        objects_new_versions=other_versions,
        files_ignored={str(reason): number for reason, number in ignored.items()},
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
        merged_rows=dict(counts.merged) if work.request.merge is not None else {},
        warned_objects=warning.objects,
        warned_lines=warning.lines,
        schema=_schema(pipeline),
        stopped=work.tools.stop.requested and (bool(unfinished) or not scan.complete or tables.unpublished() > 0),
        problems=() if scan.report is None else tuple(scan.report.problems),
        unregistered=unregistered,
        folders_excluded=() if scan.report is None else tuple(scan.report.excluded),
        objects_changed=ledger.other_versions(where.pipeline, processed) if other_versions and adds else 0,
    )


def _schema(pipeline: PipelineRow | None) -> str | None:
    """Return the recorded schema, with the columns that batches added."""
    if pipeline is None or pipeline.source_schema is None or not pipeline.added_columns:
        return pipeline.source_schema if pipeline else None
    return with_added(ReadOptions(schema_ddl=pipeline.source_schema), pipeline.added_columns).schema_ddl


class FolderWatch:
    """Watch a folder in a thread of its own, and enqueue notifications for files once they are stable.

    The first scan only collects objects; later ones are enqueued at once.
    """

    def __init__(self, watcher: Watcher, pending: PendingObjects, *, stop: StopSignal, bus: Bus, clock: Clock) -> None:
        self._watcher = watcher
        self._pending = pending
        self._stop = stop
        self._bus = bus
        self._clock = clock
        self._ended = threading.Event()
        self._failure: BaseException | None = None  # written once, by the thread
        self._thread = WorkThread(self._run, name=f"penstock-{WATCHER}")

    def start(self) -> None:
        """Start, and return after the first scan or a stop. Raises the thread's error."""
        self._thread.start()
        self._wait(lambda: self._watcher.scans > 0)

    def wait_for_objects(self) -> None:
        """Return when there is an object, or after a stop. Raises the thread's error."""
        self._wait(lambda: bool(self._pending.size))

    def resend_lost(self) -> bool:
        """Enqueue lost notifications again and return False. Called by the idle worker. Raises the thread's error."""
        self._check()
        self._pending.advance()
        return False

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def _wait(self, there: Callable[[], bool]) -> None:
        woken = threading.Event()
        with self._stop.watched_by(woken):
            while not (there() or self._stop.requested):
                self._check()
                woken.clear()
                self._clock.wait(woken, POLL_SECONDS)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        waiting: list[ObjectRef] = []  # objects that ledger or broker could not accept yet
        try:
            for rested in self._watcher.stable(self._ended):
                waiting += rested
                if self._stop.requested:
                    return
                if waiting and self._take(waiting):
                    waiting = []
        except BaseException as failure:
            self._failure = failure

    def _take(self, objects: list[ObjectRef]) -> bool:
        try:
            if self._watcher.scans:
                self._pending.add(objects)
            else:
                self._pending.take(objects)
        except TemporaryError as fault:
            self._bus.emit(JobFailed(job=WATCHER, error=str(fault)))
            return False
        return True
