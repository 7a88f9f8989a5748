"""Build a pipeline's engine, handler and line from its declaration and the context of its worker.

Everything but Spark is ready before a session exists. `penstock ingest` and declared pipelines share this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.app.cleanup_runner import CleanupRunner, moved_to, source_cleanup
from penstock.app.context import PipelineTools
from penstock.app.paths import TablePaths, declared_places
from penstock.app.pipelines.declaration import ObjectSource, PipelineDeclaration
from penstock.app.pipelines.published import PublishNotifier
from penstock.app.service import ServiceContext, busy_seconds_max
from penstock.app.sources import SourceLocation, source_of
from penstock.app.spark import SESSION_END_SECONDS
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.messaging.broker import Broker
from penstock.messaging.handler import ServiceWatch, Unwatched
from penstock.objects.notification import parse_others
from penstock.pipeline.attempt import AttemptSettings, PipelineRuntime
from penstock.pipeline.batch import PipelineHandler
from penstock.pipeline.engine import CheckedEngine
from penstock.pipeline.failures import FailureStreak
from penstock.pipeline.maintenance.cleanup import SourceCleanup
from penstock.pipeline.spark.cluster_checks import prove_shared
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.engine import LateEngine, SparkEngine
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.session import Session
from penstock.pipeline.spark.source.datasource import CsvOptions, ReadOptions, columns_read
from penstock.pipeline.spark.source.options import checked
from penstock.pipeline.spark.table_schema import agreement, check_partitions
from penstock.storage.address import S3Address, s3_address
from penstock.worker.batcher import Limits
from penstock.worker.line import Gate, Gates, Line, SlowStart
from penstock.worker.settings import WorkerSettings, budget

FAULTS_MAX = 3  # consecutive infrastructure faults after which a bounded run fails
FETCH_MAX = 500  # notifications are small, and a batch takes thousands
SPARK = "Spark"  # the dependency that a pipeline's line waits for, as shown to people
WAIT_SECONDS = 30.0  # time for a batch to fill while messages keep arriving


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The size of batches, and how often they are retried."""

    max_objects: int
    max_bytes: int
    max_wait_seconds: float
    max_attempts: int
    lease_seconds: float
    retry_base_seconds: float
    retry_cap_seconds: float
    busy_seconds_max: float | None

    @staticmethod
    def of(settings: Settings, broker: Broker, *, max_wait_seconds: float = WAIT_SECONDS) -> "BatchLimits":
        """Return the limits from the settings."""
        return BatchLimits(
            busy_seconds_max=busy_seconds_max(broker),
            max_objects=settings.max_objects,
            max_bytes=settings.max_bytes,
            max_wait_seconds=max_wait_seconds,
            max_attempts=settings.max_attempts,
            lease_seconds=settings.lease_seconds,
            retry_base_seconds=settings.retry_base_seconds,
            retry_cap_seconds=settings.retry_cap_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBlueprint:
    """One pipeline, complete except for Spark."""

    declaration: Declaration
    buckets: frozenset[str]  # whose notifications it accepts
    numbers: BatchLimits
    worker: str
    ledger: Ledger
    tables: Tables
    publish: Callable[[], object]  # publishes both tables and sends the notifications
    publish_jobs: Mapping[str, Callable[[], object]]  # the same per table: neither waits for the other
    faults_max: int | None  # consecutive infrastructure faults; None: unlimited
    tools: PipelineTools
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)
    store_watch: ServiceWatch = field(default_factory=Unwatched)  # for the stores that runs read and write
    gate: Gate | None = None  # pauses receiving; None: never
    moved_to: tuple[S3Address, ...] = ()  # targets of moved objects, which may trigger notifications again

    def line(self, spark: Session, *, queue: str) -> Line:
        """Return the line that a worker serves the pipeline with.

        Raises `ConfigurationError` if the executors do not share the pipeline's folders.
        """
        return self._line(self._engine(spark), queue=queue)

    def late_line(self, session: Callable[[], Session], *, queue: str, weight: int) -> Line:
        """Return a line whose Spark starts while other queues are served. Its start raises as `line` does."""
        engine = LateEngine(lambda: self._engine(session()))
        return self._line(engine, queue=queue, weight=weight, start=SlowStart(awaits=SPARK, run=engine.start))

    def _line(self, engine: CheckedEngine, *, queue: str, weight: int = 1, start: SlowStart | None = None) -> Line:
        limits = Limits(
            messages_max=self.numbers.max_objects,
            bytes_max=self.numbers.max_bytes,
            wait_seconds=self.numbers.max_wait_seconds,
        )
        return Line(
            queue=queue,
            handler=PipelineHandler(self._attempts(), self._surroundings(engine)),
            weight=weight,
            limits=limits,
            fetch_max=FETCH_MAX,
            gate=self.gate,
            start=start,
        )

    def check_columns(self) -> None:
        """Check the columns before Spark starts, which is possible without a transform."""
        read = self.declaration.read
        if self.declaration.transform is None:
            columns = columns_read(read.schema_ddl, provenance=read.provenance)
            check_partitions(columns, self.declaration.partition_by)
            agreement(self.ledger, self.tables.rows, self.declaration.pipeline, columns)

    def _attempts(self) -> AttemptSettings:
        return AttemptSettings(
            pipeline=self.declaration.pipeline,
            worker=self.worker,
            lease_seconds=self.numbers.lease_seconds,
            objects_max=self.numbers.max_objects,
            attempts_max=self.numbers.max_attempts,
            backoff_base_seconds=self.numbers.retry_base_seconds,
            backoff_cap_seconds=self.numbers.retry_cap_seconds,
            busy_seconds_max=self.numbers.busy_seconds_max,
        )

    def _engine(self, spark: Session) -> CheckedEngine:
        try:
            prove_shared(spark, self.declaration)
            return SparkEngine(
                spark,
                self.declaration,
                agree=partial(agreement, self.ledger, self.tables.rows, self.declaration.pipeline),
                clock=self.tools.clock,
                bus=self.tools.bus,
                probe=self.tools.probe,
                store_watch=self.store_watch,
            )
        except SPARK_ERRORS as error:  # Spark's JVM has ended since it was started
            raise explain(error) from error

    def _surroundings(self, engine: CheckedEngine) -> PipelineRuntime:
        return PipelineRuntime(
            ledger=self.ledger,
            engine=engine,
            # A bounded run notices a dead engine at its next batch; without another batch it is done.
            check_engine=engine.check if self.faults_max is None else None,
            parse=partial(parse_others, buckets_allowed=self.buckets, own=self._own()),
            publish=self.publish,
            publish_jobs=self.publish_jobs,
            streak=FailureStreak(faults_max=self.faults_max),
            bus=self.tools.bus,
            clock=self.tools.clock,
            tracing=self.tools.tracing,
            ledger_watch=self.ledger_watch,
            store_watch=self.store_watch,
        )

    def _own(self) -> Sequence[S3Address]:
        """Return the S3 addresses that the pipeline itself writes to."""
        places = (self.declaration.table, self.declaration.quarantine)
        return [*self.moved_to, *(s3_address(place.uri) for place in places if not place.is_local)]


def worker_settings(settings: Settings) -> WorkerSettings:
    """Return the settings of a worker that serves one pipeline alone.

    A configured drain time is kept, unless ending Spark leaves less.
    """
    stop_timeout_seconds = settings.stop_timeout_seconds - SESSION_END_SECONDS
    longest_seconds = budget(stop_timeout_seconds=stop_timeout_seconds).drain_seconds
    asked_seconds = settings.drain_seconds
    return WorkerSettings(
        lease_seconds=settings.lease_seconds,
        backoff_base_seconds=settings.retry_base_seconds,
        backoff_cap_seconds=settings.retry_cap_seconds,
        stop_timeout_seconds=stop_timeout_seconds,
        drain_seconds=longest_seconds if asked_seconds is None else min(asked_seconds, longest_seconds),
        upkeep_seconds=1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """A pipeline that can be served once there is a session."""

    source: SourceLocation
    where: TablePaths
    blueprint: PipelineBlueprint
    cleanup: SourceCleanup | None  # None: objects are kept

    def caretaker(self, host: ServiceContext) -> CleanupRunner | None:
        """Return the source's cleanup, not started yet; None if objects are kept."""
        if self.cleanup is None:
            return None
        return CleanupRunner(self.cleanup, stop=host.stop, bus=host.bus, clock=host.clock, random=host.random)


def plan_of(declaration: PipelineDeclaration, host: ServiceContext, *, faults_max: int | None) -> PipelinePlan:
    """Build the pipeline.

    Raises `UserError` for a problem that a person has to fix, such as a missing folder or an invalid schema.
    """
    where = declared_places(declaration.name, declaration.sink.table, host.settings)
    source = source_of(declaration.source.folder, where)
    read = read_options(declaration, default_ratio=host.settings.max_quarantine_ratio)
    ledger = host.ledger()
    ledger.ensure_pipeline(where.pipeline)
    chosen = declaration.source.cleanup
    tables = Tables(where, ledger, partition_by=declaration.sink.partition_by, bus=host.bus, probe=host.probe)
    told = _told(declaration, host, where, tables)
    queue, store_outage = declaration.source.queue, host.stores.of_pipeline(source, where)
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
            partition_by=declaration.sink.partition_by,
        ),
        buckets=source.buckets,
        numbers=_numbers(declaration, host),
        worker=host.worker,
        ledger=ledger,
        tables=tables,
        publish=partial(_publish, tables.publish, told),
        publish_jobs={name: partial(_publish, job, told) for name, job in tables.publish_jobs.items()},
        faults_max=faults_max,
        tools=PipelineTools(stop=host.stop, clock=host.clock, bus=host.bus, probe=host.probe, tracing=host.tracing),
        ledger_watch=host.outage,
        store_watch=store_outage,
        # A bounded run does not wait for an outage to end: it fails after a few faults.
        gate=Gates(host.outage.gate(queue), store_outage.gate(queue)) if faults_max is None else None,
        moved_to=moved_to(chosen),
    )
    cleanup = source_cleanup(
        chosen,
        source=source,
        pipeline=where.pipeline,
        own=where.own,
        shown_to=tables.kept_to,
        ledger=ledger,
        bus=host.bus,
        probe=host.probe,
        clock=host.clock,
    )
    return PipelinePlan(source=source, where=where, blueprint=blueprint, cleanup=cleanup)


def read_options(declaration: PipelineDeclaration, *, default_ratio: float) -> ReadOptions:
    """Return how objects are read. Raises `UsageError` for an invalid format or schema."""
    source, ratio = declaration.source, declaration.max_quarantine_ratio
    return checked(
        ReadOptions(
            schema_ddl=source.schema or "",
            format=source.format,
            csv=_csv(source),
            provenance=declaration.provenance,
            quarantine_ratio_max=default_ratio if ratio is None else ratio,
        )
    )


def _csv(source: ObjectSource) -> CsvOptions:
    default = CsvOptions(header=source.header)
    return default if source.delimiter is None else replace(default, delimiter=source.delimiter)


def _numbers(declaration: PipelineDeclaration, host: ServiceContext) -> BatchLimits:
    given = {
        "max_objects": declaration.max_objects,
        "max_bytes": declaration.max_bytes,
        "max_attempts": declaration.max_attempts,
    }
    numbers = BatchLimits.of(host.settings, host.broker, max_wait_seconds=declaration.max_wait_seconds)
    return replace(numbers, **{name: value for name, value in given.items() if value is not None})


def _publish(publish: Callable[[], None], told: Callable[[], None]) -> None:
    publish()
    told()


def _told(
    declaration: PipelineDeclaration, host: ServiceContext, where: TablePaths, tables: Tables
) -> Callable[[], None]:
    """Return the function that sends messages for published batches.

    It does nothing unless the app has a handler for them, so that no queue fills up without a consumer.
    """
    if declaration.published.name not in host.handled:
        return lambda: None
    herald = PublishNotifier(
        ledger=host.ledger(),
        broker=host.broker,
        queue=declaration.published,
        pipeline=where.pipeline,
        table=str(where.table),
    )
    return lambda: herald.tell(tables.visible_to)
