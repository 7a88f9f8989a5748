"""Build a pipeline's engine, handler and consumer from its declaration and the context of its worker.

Everything but Spark is ready before a session exists. `penstock ingest` and declared pipelines share this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.app.catalogs import TableRegistration
from penstock.app.cleanup_runner import moved_to
from penstock.app.context import PipelineTools
from penstock.app.paths import TablePaths, declared_table_paths
from penstock.app.pipelines.declaration import ObjectSource, PipelineDeclaration, change_rule, reader_name
from penstock.app.pipelines.on_change import ChangeRule, merge_rule
from penstock.app.pipelines.published import PublishNotifier
from penstock.app.pipelines.sources import declared_source
from penstock.app.pipelines.transforms import accepting, check_transform, name_of
from penstock.app.service import ServiceContext, busy_seconds_max
from penstock.app.sources import SourceLocation
from penstock.app.spark import SESSION_END_SECONDS
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.ledger.merges import check_merge
from penstock.messaging.broker import Broker
from penstock.messaging.handler import ServiceWatch, Unwatched
from penstock.objects.notification import parse_others
from penstock.objects.selection import Selection
from penstock.pipeline.attempt import AttemptSettings, PipelineRuntime
from penstock.pipeline.batch import PipelineHandler
from penstock.pipeline.engine import CheckedEngine
from penstock.pipeline.failures import FailureStreak
from penstock.pipeline.merging.order import check_compared
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.engine import DeferredEngine, SparkEngine
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.probe import require_packages
from penstock.pipeline.spark.requirements import FOR_S3
from penstock.pipeline.spark.runtime import Session
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.shared_folders import prove_shared
from penstock.pipeline.spark.source.formats import OWN_FORMAT
from penstock.pipeline.spark.source.options import CsvOptions, GivenCsv, ReadOptions, checked, partitions_ddl
from penstock.pipeline.spark.stopping import cancelled_at_stop
from penstock.pipeline.spark.table_schema import Evolution, agreement, check_partitions
from penstock.storage.address import S3Address, s3_address
from penstock.worker.batcher import Limits
from penstock.worker.consumer import Consumer, Gate, Gates, SlowStart
from penstock.worker.settings import WorkerSettings, budget

FAULTS_MAX = 3  # consecutive infrastructure faults after which a bounded run fails
FETCH_MAX = 500  # notifications are small, and a batch takes thousands
SPARK = "Spark"  # the dependency that a pipeline's consumer waits for, as shown to people
WAIT_SECONDS = 30.0  # time for a batch to fill while messages keep arriving


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The size and number of batches, and how often they are retried."""

    max_batch_objects: int
    max_batch_bytes: int
    max_wait_seconds: float
    max_attempts: int
    lease_seconds: float
    retry_base_seconds: float
    retry_cap_seconds: float
    busy_seconds_max: float | None
    batches_in_flight: int

    @staticmethod
    def of(settings: Settings, broker: Broker, *, max_wait_seconds: float = WAIT_SECONDS) -> "BatchLimits":
        """Return the limits from the settings."""
        return BatchLimits(
            busy_seconds_max=busy_seconds_max(broker),
            batches_in_flight=settings.objects_batches_in_flight,
            max_batch_objects=settings.objects_max_batch_objects,
            max_batch_bytes=settings.objects_max_batch_bytes,
            max_wait_seconds=max_wait_seconds,
            max_attempts=settings.objects_max_attempts,
            lease_seconds=settings.worker_lease,
            retry_base_seconds=settings.objects_retry_base,
            retry_cap_seconds=settings.objects_max_retry_wait,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBlueprint:
    """One pipeline, complete except for Spark."""

    declaration: Declaration
    buckets: frozenset[str]  # it accepts the notifications of these
    selection: Selection  # and processes these objects
    numbers: BatchLimits
    worker: str
    ledger: Ledger
    tables: Tables
    publish: Callable[[], object]  # publishes both tables and sends the notifications
    publish_jobs: Mapping[str, Callable[[], object]]  # the same per table: neither waits for the other
    registration: TableRegistration  # of the tables in a data catalog
    faults_max: int | None  # consecutive infrastructure faults; None: unlimited
    tools: PipelineTools
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)
    store_watch: ServiceWatch = field(default_factory=Unwatched)  # for the stores that runs read and write
    gate: Gate | None = None  # pauses receiving; None: never
    moved_to: tuple[S3Address, ...] = ()  # targets of moved objects, which may trigger notifications again

    def consumer(self, spark: Session, *, queue: str) -> Consumer:
        """Return the consumer that a worker serves the pipeline with.

        Raises `ConfigurationError` if the executors lack packages or do not share the pipeline's folders, and
        `TemporaryError` if the process is asked to stop meanwhile.
        """
        return self._consumer(self._engine(spark), queue=queue)

    def deferred_consumer(self, session: Callable[[], Session], *, queue: str, weight: int) -> Consumer:
        """Return a consumer whose Spark starts while other queues are served. Its start raises as `consumer` does."""
        engine = DeferredEngine(lambda: self._engine(session()))
        return self._consumer(engine, queue=queue, weight=weight, start=SlowStart(awaits=SPARK, run=engine.start))

    def _consumer(
        self, engine: CheckedEngine, *, queue: str, weight: int = 1, start: SlowStart | None = None
    ) -> Consumer:
        limits = Limits(
            messages_max=self.numbers.max_batch_objects,
            bytes_max=self.numbers.max_batch_bytes,
            wait_seconds=self.numbers.max_wait_seconds,
        )
        return Consumer(
            queue=queue,
            handler=PipelineHandler(self._attempts(), self._runtime(engine)),
            weight=weight,
            limits=limits,
            in_flight_max=self.numbers.batches_in_flight,
            fetch_max=FETCH_MAX,
            gate=self.gate,
            start=start,
        )

    @property
    def change_rule(self) -> ChangeRule:
        """The rule for objects that change."""
        return ChangeRule(
            given=self.declaration.on_change,
            provenance=self.declaration.read.provenance,
            ledger=self.ledger,
            sink=self.tables.rows,
            pipeline=self.declaration.pipeline,
            merges=self.declaration.merge is not None,
        )

    def check_columns(self) -> None:
        """Check the columns before Spark starts, which is possible without a transform, and whether rows may leave."""
        self.change_rule.current()
        read = self.declaration.read
        if self.declaration.transform is None:
            check_partitions(read.columns, self.declaration.partition_by)
            if self.declaration.merge is not None and read.evolve != "add":  # "add" may add these columns later
                self.declaration.merge.check_names(read.columns.names)
                check_compared(read.columns, self.declaration.merge)
            agreement(self.ledger, self.tables.rows, self.declaration.pipeline, read.columns)

    def _attempts(self) -> AttemptSettings:
        return AttemptSettings(
            pipeline=self.declaration.pipeline,
            worker=self.worker,
            lease_seconds=self.numbers.lease_seconds,
            objects_max=self.numbers.max_batch_objects,
            attempts_max=self.numbers.max_attempts,
            backoff_base_seconds=self.numbers.retry_base_seconds,
            backoff_cap_seconds=self.numbers.retry_cap_seconds,
            busy_seconds_max=self.numbers.busy_seconds_max,
        )

    def _engine(self, spark: Session) -> CheckedEngine:
        try:
            with cancelled_at_stop(runtime_of(spark), lambda: self.tools.stop.requested):
                if self.declaration.uses_s3:
                    require_packages(spark, FOR_S3, purpose="pipelines on S3", extra="aws")
                prove_shared(spark, self.declaration)
            return SparkEngine(
                spark,
                self.declaration,
                agree=partial(agreement, self.ledger, self.tables.rows, self.declaration.pipeline),
                quarantine=self.tables.quarantine_lines,
                evolution=Evolution(ledger=self.ledger, sink=self.tables.rows, pipeline=self.declaration.pipeline),
                clock=self.tools.clock,
                bus=self.tools.bus,
                probe=self.tools.probe,
                store_watch=self.store_watch,
            )
        except SPARK_ERRORS as error:  # Spark's JVM has ended since it was started
            raise explain(error) from error

    def _runtime(self, engine: CheckedEngine) -> PipelineRuntime:
        return PipelineRuntime(
            ledger=self.ledger,
            engine=engine,
            # A bounded run notices a dead engine at its next batch; without another batch it is done.
            check_engine=engine.check if self.faults_max is None else None,
            parse=partial(parse_others, buckets_allowed=self.buckets, own=self._own(), selection=self.selection),
            publish=self.publish,
            publish_jobs={**self.publish_jobs, **self.registration.jobs},
            streak=FailureStreak(faults_max=self.faults_max),
            bus=self.tools.bus,
            change_rule=self.change_rule.current,
            check_removal=self.change_rule.check_removal,
            clock=self.tools.clock,
            tracing=self.tools.tracing,
            ledger_watch=self.ledger_watch,
            store_watch=self.store_watch,
        )

    def _own(self) -> Sequence[S3Address]:
        """Return the S3 addresses that the pipeline itself writes to."""
        table_paths = (self.declaration.table, self.declaration.quarantine)
        return [*self.moved_to, *(s3_address(files.uri) for files in table_paths if not files.is_local)]


def worker_settings(settings: Settings) -> WorkerSettings:
    """Return the settings of a worker that serves one pipeline alone.

    A configured drain time is kept, unless ending Spark leaves less.
    """
    stop_timeout_seconds = settings.worker_stop_timeout - SESSION_END_SECONDS
    longest_seconds = budget(stop_timeout_seconds=stop_timeout_seconds).drain_seconds
    wanted_seconds = settings.worker_drain
    return WorkerSettings(
        lease_seconds=settings.worker_lease,
        backoff_base_seconds=settings.objects_retry_base,
        backoff_cap_seconds=settings.objects_max_retry_wait,
        stop_timeout_seconds=stop_timeout_seconds,
        drain_seconds=longest_seconds if wanted_seconds is None else min(wanted_seconds, longest_seconds),
        upkeep_seconds=1.0,
        start_jitter_seconds=0.0,  # it is started alone, not with the workers of a deploy
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """A pipeline that can be served once there is a session."""

    source: SourceLocation
    where: TablePaths
    blueprint: PipelineBlueprint


def plan_of(declaration: PipelineDeclaration, context: ServiceContext, *, faults_max: int | None) -> PipelinePlan:
    """Build the pipeline.

    Raises `UserError` for a problem that a person has to fix, such as a missing folder or an invalid schema.
    """
    where = declared_table_paths(declaration.name, declaration.sink.address, context.settings)
    source = declared_source(declaration.source, where)
    read = read_options(declaration, default_ratio=context.settings.objects_max_quarantine_ratio)
    ledger = context.ledger()
    transform = name_of(declaration.transform)
    check_transform(
        ledger.ensure_pipeline(where.pipeline),
        transform,
        table=str(where.table),
        has="the app declares",
        remedy=f"declare the same for the pipeline {declaration.name}",
        command=accepting(transform, f" --pipeline {declaration.name}"),
    )
    check_merge(
        ledger.ensure_pipeline(where.pipeline),
        None if declaration.merge is None else declaration.merge.text(),
        table=str(where.table),
        has=f"the pipeline {declaration.name} of the app has",
    )
    tables = Tables(
        where,
        ledger,
        partition_by=declaration.sink.partition_by,
        catalog=declaration.sink.metadata_catalog,
        bus=context.bus,
        probe=context.probe,
    )
    notify = _notify_published(declaration, context, where, tables)
    queue, store_outage = declaration.source.queue, context.stores.of_pipeline(source, where)
    blueprint = PipelineBlueprint(
        declaration=Declaration(
            pipeline=where.pipeline,
            source=source.address,
            table=where.table,
            quarantine=where.quarantine,
            work=where.work,
            aws=where.aws,
            read=read,
            transform=declaration.transform,
            transform_name=transform,
            on_change=merge_rule(change_rule(declaration.source), declaration.merge),
            merge=declaration.merge,
            partition_by=declaration.sink.partition_by,
        ),
        buckets=source.buckets,
        selection=source.selection,
        numbers=_numbers(declaration, context),
        worker=context.worker,
        ledger=ledger,
        tables=tables,
        publish=partial(_publish, tables.publish, notify),
        publish_jobs={name: partial(_publish, job, notify) for name, job in tables.publish_jobs.items()},
        registration=TableRegistration(
            tables,
            declaration.sink.catalog_entry,
            context.settings,
            pipeline=where.pipeline,
            bus=context.bus,
            clock=context.clock,
        ),
        faults_max=faults_max,
        tools=PipelineTools(
            stop=context.stop, clock=context.clock, bus=context.bus, probe=context.probe, tracing=context.tracing
        ),
        ledger_watch=context.outage,
        store_watch=store_outage,
        # A bounded run does not wait for an outage to end: it fails after a few faults.
        gate=Gates(context.outage.gate(queue), store_outage.gate(queue)) if faults_max is None else None,
        moved_to=moved_to(declaration.source.cleanup),
    )
    return PipelinePlan(source=source, where=where, blueprint=blueprint)


def read_options(declaration: PipelineDeclaration, *, default_ratio: float) -> ReadOptions:
    """Return how objects are read. Raises `UsageError` for an invalid format or schema."""
    source, ratio = declaration.source, declaration.max_quarantine_ratio
    return checked(
        ReadOptions(
            schema_ddl=source.schema or "",
            format=source.format if source.reader is None else OWN_FORMAT,
            reader="" if source.reader is None else reader_name(source.reader),
            csv=_csv(source),
            partitions_ddl=partitions_ddl(source.partitions),
            provenance=declaration.provenance,
            quarantine_ratio_max=default_ratio if ratio is None else ratio,
            evolve=source.evolve,
        )
    )


def _csv(source: ObjectSource) -> CsvOptions:
    given = GivenCsv(
        header=source.header,
        delimiter=source.delimiter,
        nulls=tuple(source.null),
        quote=source.quote,
        escape=source.escape,
        comment=source.comment,
        skip_lines=source.skip_lines,
    )
    return given.over(CsvOptions())


def _numbers(declaration: PipelineDeclaration, context: ServiceContext) -> BatchLimits:
    declared_limits = {
        "max_batch_objects": declaration.max_batch_objects,
        "max_batch_bytes": declaration.max_batch_bytes,
        "max_attempts": declaration.max_attempts,
    }
    numbers = BatchLimits.of(context.settings, context.broker, max_wait_seconds=declaration.max_wait_seconds)
    return replace(numbers, **{name: value for name, value in declared_limits.items() if value is not None})


def _publish(publish: Callable[[], None], notify: Callable[[], None]) -> None:
    publish()
    notify()


def _notify_published(
    declaration: PipelineDeclaration, context: ServiceContext, where: TablePaths, tables: Tables
) -> Callable[[], None]:
    """Return the function that sends messages for published batches.

    It does nothing unless the app has a handler for them, so that no queue fills up without a consumer.
    """
    if declaration.published.name not in context.handled:
        return lambda: None
    notifier = PublishNotifier(
        ledger=context.ledger(),
        broker=context.broker,
        queue=declaration.published,
        pipeline=where.pipeline,
        table=str(where.table),
    )
    return lambda: notifier.announce(tables.visible_to)
