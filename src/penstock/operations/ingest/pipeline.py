"""The pipeline of `penstock ingest`: its checked options, its schema, and a worker on its queue."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.app.backends import has_local_ledger, require_shared_ledger
from penstock.app.brokers import SQS_ADDRESS, check_queues, open_broker
from penstock.app.catalogs import TableRegistration
from penstock.app.cleanup import Cleanup, Keep, check_fits
from penstock.app.cleanup_runner import CleanupRunner, moved_to, source_cleanup
from penstock.app.context import PipelineTools
from penstock.app.paths import TablePaths
from penstock.app.pipelines.declaration import check_change_rule, check_provenance, option_rule
from penstock.app.pipelines.on_change import ChangeRule, check_format, merge_rule
from penstock.app.pipelines.plan import FAULTS_MAX, BatchLimits, PipelineBlueprint, worker_settings
from penstock.app.pipelines.transforms import NO_TRANSFORM, accepting, check_transform
from penstock.app.scope import ScopeRequest
from penstock.app.sources import SourceLocation, StoreOutages
from penstock.app.spark import Spark
from penstock.app.state import StateFolder
from penstock.app.tables import Tables
from penstock.app.tracing import traced
from penstock.app.user_modules import function_named
from penstock.config import Settings
from penstock.errors import RestartNeeded, TemporaryError, UsageError
from penstock.events import SchemaInferred
from penstock.handlers.outage import OutageWatch
from penstock.ledger.merges import check_merge
from penstock.ledger.records import OnChange, PipelineRow
from penstock.objects.reference import ObjectRef
from penstock.objects.watcher import SETTLE_SECONDS
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.spark.declaration import Declaration, Transform
from penstock.pipeline.spark.runtime import GivenSpark
from penstock.pipeline.spark.session import has_session
from penstock.pipeline.spark.source.datasource import canonical_ddl
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.formats import KNOWN_SUFFIXES, follows_from_names, format_of
from penstock.pipeline.spark.source.infer import infer_format, infer_schema
from penstock.pipeline.spark.source.options import (
    CsvOptions,
    GivenCsv,
    ReadOptions,
    as_text,
    check_evolution,
    checked,
    checked_partitions,
    from_text,
    is_by_names,
)
from penstock.pipeline.spark.source.remembered import NOTHING, How, inferred_now, remembered_of
from penstock.worker.consumer import Consumer, Gates
from penstock.worker.worker import Worker

NO_SESSION_YET = "SESSION_OR_CONTEXT_NOT_EXISTS"  # PySpark's error class
_CSV_FLAGS = {
    "header": "--no-header",
    "delimiter": "--delimiter",
    "nulls": "--null",
    "quote": "--quote",
    "escape": "--escape",
    "comment": "--comment",
    "skip_lines": "--skip-lines",
}
_ANY_SCHEMA = "value STRING"  # to check the other options while the schema is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest:
    """The options of `penstock ingest`."""

    source: str
    table: str
    format: str | None = None  # None: as the names of the objects tell
    delimiter: str | None = None  # CSV only; None: as detected, a comma beside a given schema
    header: bool = True  # CSV only
    nulls: tuple[str, ...] = ()  # CSV only: texts that mean NULL
    quote: str | None = None  # CSV only; None, as for the next three: as detected
    escape: str | None = None
    comment: str | None = None
    skip_lines: int | None = None
    schema: str | None = None  # Spark DDL; None: remembered or inferred
    partitions: str | None = None  # Spark DDL of columns from paths; None: as remembered
    transform: str | None = None  # "module:function"
    state: str | None = None
    provenance: bool = True
    evolve: str = "none"  # what happens to fields without a column
    on_change: str | None = None  # what happens to objects that change; None: as the table's columns allow
    merge: Merge | None = None  # how rows are merged by key; None: they are added
    partition_by: tuple[str, ...] = ()
    register: str | None = None  # the table's entry in a data catalog
    catalog: str | None = None  # the Iceberg table in a catalog of PyIceberg's configuration
    watch: bool = False  # keep running and ingest new objects
    settle_seconds: float = SETTLE_SECONDS  # quiet period of a file before it is ingested, when watching
    cleanup: Cleanup = field(default_factory=Keep)  # applied to objects whose rows are published
    queue: str | None = None  # at the configured broker, with notifications of the source; None: scan the source
    include: tuple[str, ...] = ()  # patterns; see `penstock.objects.selection`
    exclude: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def csv(self) -> GivenCsv:
        """The CSV dialect as far as it is given."""
        return GivenCsv(
            header=self.header,
            delimiter=self.delimiter,
            nulls=self.nulls,
            quote=self.quote,
            escape=self.escape,
            comment=self.comment,
            skip_lines=self.skip_lines,
        )

    @property
    def given_rule(self) -> OnChange | None:
        """The rule for objects that change, if it is given. Raises `UsageError` if there is no such rule."""
        return merge_rule(option_rule(self.on_change), self.merge)

    def read(self, format_name: str) -> ReadOptions:
        """Return how files are read; the schema is empty if none was given."""
        return ReadOptions(
            schema_ddl=self.schema or "",
            format=format_name,
            csv=self.csv.over(CsvOptions()),
            partitions_ddl=self.partitions or "",
            provenance=self.provenance,
            quarantine_ratio_max=self.settings.objects_max_quarantine_ratio,
            evolve=self.evolve,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPipeline:
    """One pipeline from one source, complete except for Spark."""

    request: IngestRequest
    transform: Transform | None
    source: SourceLocation
    where: TablePaths
    state: StateFolder
    tables: Tables
    registration: TableRegistration
    tools: PipelineTools

    @property
    def queue(self) -> str:
        """The queue of its notifications: the named one, or one that only this ingest uses."""
        return self.request.queue or self.where.queue(self.source)

    @property
    def change_rule(self) -> ChangeRule:
        """The rule for objects that change."""
        return ChangeRule(
            given=self.request.given_rule,
            provenance=self.request.provenance,
            ledger=self.state.ledger,
            sink=self.tables.rows,
            pipeline=self.where.pipeline,
            merges=self.request.merge is not None,
        )

    def serve(self, *, sample: Sequence[ObjectRef], until: Callable[[], bool], spark: GivenSpark | None = None) -> None:
        """Run a worker on the source's queue until ``until`` or a stop. Raises the error that stopped it.

        Format and schema that are not given are inferred from ``sample``. ``spark``: as for
        `penstock.operations.ingest.ingest`.
        """
        read = self._find_reading(sample)
        seen = self.state.ledger.ensure_pipeline(self.where.pipeline)
        blueprint = self._blueprint(read)
        blueprint.check_columns()
        tools, state, settings = self.tools, self.state, self.request.settings
        own = Spark(
            settings,
            scratch=state.scratch,
            log=state.spark_log,
            clock=tools.clock,
            bus=tools.bus,
            stop=tools.stop,
            given=spark,
        )
        try:
            with self._paused_by_outages(blueprint) as served:
                consumer = self._consumer(served, own)
                if consumer is not None:
                    Worker(
                        broker=state.broker,
                        consumers=traced([consumer], tools.tracing, system=state.broker.capabilities.system),
                        settings=worker_settings(settings),
                        clock=tools.clock,
                        bus=tools.bus,
                        probe=tools.probe,
                    ).run(tools.stop, until)
        finally:
            own.close()
        if self.request.schema is not None:  # it worked, so it is remembered, unless a person changed that meanwhile
            self._remember_given(blueprint.declaration.read, seen)

    def _remember_given(self, read: ReadOptions, seen: PipelineRow) -> None:
        before = remembered_of(seen.source_schema, seen.source_options) or NOTHING
        if before.read is not None and (before.ddl, as_text(before.read)) == (read.schema_ddl, as_text(read)):
            return
        now = before.changed(
            read.schema_ddl, read, how=How.GIVEN, at=self.tools.clock.now(), source=self.source.address
        )
        self.state.ledger.replace_source_schema(seen, now.ddl, now.text())

    def _consumer(self, served: PipelineBlueprint, own: Spark) -> Consumer | None:
        """Return the consumer, with Spark started, which may take a while; None if that was stopped."""
        stop = self.tools.stop
        try:
            session = own.session()
            return None if stop.requested else served.consumer(session, queue=self.queue)
        except (TemporaryError, RestartNeeded):
            if stop.requested:  # it cancels jobs, and a signal may end Spark's JVM too
                return None
            raise

    @contextmanager
    def _paused_by_outages(self, blueprint: PipelineBlueprint) -> Iterator[PipelineBlueprint]:
        """When watching, pause the queue while ledger, source or table is unavailable, inside the block.

        A bounded ingest tolerates a few faults and then fails.
        """
        if not self.request.watch:
            yield blueprint
            return
        tools, state = self.tools, self.state
        make = partial(
            OutageWatch,
            bus=tools.bus,
            clock=tools.clock,
            releases_uncounted=state.broker.capabilities.releases_uncounted,
        )
        ledger, stores = make(ping=state.ledger.ping), StoreOutages(make)
        store = stores.of_pipeline(self.source, self.where)
        gate = Gates(ledger.gate(self.queue), store.gate(self.queue))
        with ledger.watching(), stores.watching():
            yield replace(blueprint, ledger_watch=ledger, store_watch=store, gate=gate)

    def cleanup_runner(self) -> CleanupRunner | None:
        """Return the source's cleanup, not started yet; None if objects are kept."""
        tools, ledger = self.tools, self.state.ledger
        work = source_cleanup(
            self.request.cleanup,
            source=self.source,
            pipeline=self.where.pipeline,
            own=self.where.own,
            shown_to=self.tables.retained_to,
            ledger=ledger,
            bus=tools.bus,
            probe=tools.probe,
            clock=tools.clock,
        )
        if work is None:
            return None
        return CleanupRunner(work, stop=tools.stop, bus=tools.bus, clock=tools.clock, random=random.random)

    def needs_sample(self) -> bool:
        """Return True if the format or the schema is unknown without a sample."""
        return self._known_reading() is None

    def judging_names(self, sample: Sequence[ObjectRef]) -> "IngestPipeline":
        """Return this pipeline without objects whose names end as those of no format, if the format follows from names.

        It does if no format was given and the name of an object in the sample tells one, or one did at the first run.
        """
        if self.request.format is not None:
            return self
        row = self.state.ledger.ensure_pipeline(self.where.pipeline)
        remembered = row.source_options
        if not (is_by_names(remembered) if remembered is not None else follows_from_names(sample)):
            return self
        return replace(self, source=self.source.ending_in(KNOWN_SUFFIXES))

    def _find_reading(self, sample: Sequence[ObjectRef]) -> ReadOptions:
        """Return how objects are read: as given, else as remembered, else infer, report and remember it."""
        known = self._known_reading()
        if known is not None:
            return known
        request, ledger, pipeline = self.request, self.state.ledger, self.where.pipeline
        format_name = request.format or infer_format(sample, self.source.store, source=str(self.source))
        _check_csv(request, format_name)
        known = self._known_reading(format_name)
        if known is not None:
            return known
        given = request.read(format_name)
        source = self.source.address
        inferred = infer_schema(
            sample, self.source.store, given, delimiter_given=request.delimiter is not None, source=source
        )
        self.tools.bus.emit(SchemaInferred(pipeline=pipeline, schema=inferred.ddl, notes=inferred.sentences()))
        dialect = How.INFERRED if given.csv == CsvOptions() else How.GIVEN
        found = inferred_now(
            inferred,
            at=self.tools.clock.now(),
            source=source,
            dialect=dialect,
            by_names=bool(self.source.selection.suffixes),
        )
        ledger.remember_source_schema(pipeline, found.ddl, found.text())
        remembered = self._known_reading()
        assert remembered is not None, "it was remembered just now"
        return remembered

    def _known_reading(self, format_name: str | None = None) -> ReadOptions | None:
        """Return how objects are read if that is given or remembered; None if it has to be inferred.

        ``format_name``: as inferred, if it was; a ledger may have only a schema.
        """
        request = self.request
        row = self.state.ledger.ensure_pipeline(self.where.pipeline)
        remembered = from_text(row.source_options) if row.source_options is not None else None
        format_name = format_name or request.format or (remembered.format if remembered is not None else None)
        if format_name is None:
            return None
        read = request.read(format_name)
        if remembered is not None and remembered.format == format_name:
            read = replace(read, csv=request.csv.over(remembered.csv))
        if remembered is not None and request.partitions is None:
            read = replace(read, partitions_ddl=remembered.partitions_ddl)
        ddl = canonical_ddl(request.schema) if request.schema is not None else row.source_schema
        if ddl is None and not format_of(format_name).has_own_schema:
            return None
        return replace(read, schema_ddl=ddl or "")

    def _blueprint(self, read: ReadOptions) -> PipelineBlueprint:
        check_format(self.request.given_rule, read.format)
        where, settings = self.where, self.request.settings
        declaration = Declaration(
            pipeline=where.pipeline,
            source=self.source.address,
            table=where.table,
            quarantine=where.quarantine,
            work=where.work,
            aws=where.aws,
            read=checked(read),
            transform=self.transform,
            transform_name=self.request.transform or NO_TRANSFORM,
            on_change=self.request.given_rule,
            partition_by=self.request.partition_by,
            merge=self.request.merge,
        )
        return PipelineBlueprint(
            declaration=declaration,
            buckets=self.source.buckets,
            selection=self.source.selection,
            numbers=BatchLimits.of(settings, self.state.broker),
            worker=self.state.worker,
            ledger=self.state.ledger,
            tables=self.tables,
            publish=self.tables.publish,
            publish_jobs=self.tables.publish_jobs,
            registration=self.registration,
            faults_max=None if self.request.watch else FAULTS_MAX,
            tools=self.tools,
            moved_to=moved_to(self.request.cleanup),
        )


def shared_settings(request: IngestRequest) -> Settings | None:
    """Return the settings if their ledger is shared between hosts; None to use the file beside the table.

    Without a named queue, no other process serves this table's messages. Raises `ConfigurationError` if another host
    may, and the ledger is a file on this host.
    """
    if request.queue is None:
        return None
    settings = _announcing(request)
    require_shared_ledger(settings, recorded=[f"the ingest from {request.queue}"])
    return None if has_local_ledger(settings) else settings


@contextmanager
def queue_of(request: IngestRequest, state: StateFolder, tools: PipelineTools) -> Iterator[StateFolder]:
    """Yield the data directory with the queue's broker: its own, unless a queue was named.

    Raises `ConfigurationError` if SQS has no such queue.
    """
    if request.queue is None:
        yield state
        return
    settings = _announcing(request)
    with closing(open_broker(settings, holder=state.worker, emit=tools.bus.emit)) as broker:
        # A missing queue has the counts of an empty one: the ingest would succeed with nothing done.
        check_queues([request.queue], settings, clock=tools.clock)
        yield replace(state, broker=broker)


def check(request: IngestRequest, source: SourceLocation) -> Transform | None:
    """Check the options before anything starts; return the transform. Raises `UsageError`."""
    if request.watch and request.queue is None and not source.is_local:
        raise UsageError(
            f"{source} cannot be watched; S3 sends notifications to a queue instead: name it with --queue."
        )
    if (source.is_local or request.queue is None) and source.is_table():  # a queue's source in S3 is never listed
        raise UsageError(f"The source {source} is a table; SOURCE comes first, TABLE second.")
    check_fits(request.cleanup, source.address)
    if request.format is not None:
        _check_csv(request, request.format)
        any_schema = "" if format_of(request.format).has_own_schema else _ANY_SCHEMA
        read = request.read(request.format)
        checked(replace(read, schema_ddl=read.schema_ddl or any_schema))
        check_format(request.given_rule, request.format)
    else:
        columns = parse_ddl(request.schema).names if request.schema is not None else ()
        checked_partitions(request.partitions or "", columns)
    check_evolution(request.evolve)
    if request.merge is not None:
        check_change_rule(request.on_change, wants=f"--merge-key and --on-change {request.on_change} were given")
    check_provenance(
        request.given_rule,
        provenance=request.provenance,
        wants=f"--on-change {request.on_change} and --no-provenance were given",
        remedies="leave out --no-provenance, or write --on-change add or refuse",
    )
    return _load_transform(request.transform) if request.transform is not None else None


def check_remembered_transform(request: IngestRequest, row: PipelineRow, where: TablePaths) -> None:
    """Raise `UsageError` if the rows of the table were made with another transform than the given one."""
    given, recorded = request.transform or NO_TRANSFORM, row.transform
    check_transform(
        row,
        given,
        table=str(where.table),
        has="this ingest has",
        remedy=f"give --transform {recorded}" if recorded else "leave out --transform",
        command=accepting(given, ScopeRequest(table=request.table, state=request.state).options),
    )


def check_remembered_merge(request: IngestRequest, row: PipelineRow, where: TablePaths) -> None:
    """Raise `UsageError` if the rows of the table are merged in another way than the given one."""
    given = None if request.merge is None else request.merge.text()
    check_merge(row, given, table=str(where.table), has="this ingest has")


def _check_csv(request: IngestRequest, format_name: str) -> None:
    if format_name != "csv" and request.csv.names:
        flags = " and ".join(_CSV_FLAGS[name] for name in request.csv.names)
        raise UsageError(f"The format is {format_name}, and only --format csv has {flags}.")


def _announcing(request: IngestRequest) -> Settings:
    """Return the settings with the named queue's broker: SQS, unless they name another."""
    settings = request.settings
    if "broker" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"broker": SQS_ADDRESS})


def _load_transform(name: str) -> Transform:
    """Return the function named ``module:function``; modules in the current folder are found too.

    Raises `UsageError` if the name leads to no function, or with the error that the module raised on import.
    """
    try:
        return function_named(name, purpose="The transform")
    except UsageError as error:
        if NO_SESSION_YET in str(error.__cause__) and not has_session():
            return lambda frame: _load_transform(name)(frame)  # decorators that need Spark: load it once Spark runs
        raise
