"""One pipeline on Spark, wired: engine, handler, line. `penstock ingest` and declared pipelines share it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.app.service import busy_seconds_max
from penstock.app.spark import SESSION_END_SECONDS
from penstock.app.tables import Tables
from penstock.app.tools import Tools
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.messaging.broker import Broker
from penstock.messaging.outages import ServiceWatch, Unwatched
from penstock.objects.own_files import parse_others
from penstock.pipeline.attempt import AttemptSettings, Surroundings
from penstock.pipeline.declaration import Declaration
from penstock.pipeline.engine import StandingEngine
from penstock.pipeline.faults import SPARK_ERRORS, explain
from penstock.pipeline.handler import PipelineHandler
from penstock.pipeline.late_engine import LateEngine
from penstock.pipeline.session import Session
from penstock.pipeline.shared_folders import prove_shared
from penstock.pipeline.source.api import columns_read
from penstock.pipeline.spark_engine import SparkEngine
from penstock.pipeline.streak import FailureStreak
from penstock.pipeline.table_schema import agreement, check_partitions
from penstock.storage.address import S3Address, s3_address
from penstock.worker.batcher import Limits
from penstock.worker.line import Gate, Line, Start
from penstock.worker.settings import WorkerSettings, budget

FAULTS_MAX = 3  # infrastructure faults in a row that a bounded job bears before it tells a person
FETCH_MAX = 500  # notifications are small, and a batch takes thousands
SPARK = "Spark"  # as people are told that it is waited for
WAIT_SECONDS = 30.0  # for a batch to fill while messages keep coming


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """How large batches are, and how often they are tried."""

    max_objects: int
    max_bytes: int
    max_wait_seconds: float
    max_attempts: int
    lease_seconds: float
    retry_base_seconds: float
    retry_cap_seconds: float
    busy_seconds_max: float | None

    @staticmethod
    def of(settings: Settings, broker: Broker, *, max_wait_seconds: float = WAIT_SECONDS) -> "Numbers":
        """Those of the settings."""
        return Numbers(
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
class Blueprint:
    """One pipeline with all that it needs but Spark."""

    declaration: Declaration
    buckets: frozenset[str]  # whose notifications it takes
    numbers: Numbers
    worker: str
    ledger: Ledger
    tables: Tables
    publish: Callable[[], object]  # both tables, and whatever follows from it
    publish_jobs: Mapping[str, Callable[[], object]]  # the same, table by table: neither waits for the other
    faults_max: int | None  # infrastructure faults in a row; None bears any number
    tools: Tools
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)
    store_watch: ServiceWatch = field(default_factory=Unwatched)  # of what runs read and write
    gate: Gate | None = None  # whether it may receive; None: always
    moved_to: tuple[S3Address, ...] = ()  # where processed objects go, and announce themselves once more

    def line(self, spark: Session, *, queue: str) -> Line:
        """Return what a worker serves the pipeline by.

        Raises `ConfigurationError` if the executors do not share the pipeline's folders.
        """
        return self._line(self._engine(spark), queue=queue)

    def late_line(self, session: Callable[[], Session], *, queue: str, weight: int) -> Line:
        """Return the same, of which the session is started while other queues are served; the line raises as `line`
        does then."""
        engine = LateEngine(lambda: self._engine(session()))
        return self._line(engine, queue=queue, weight=weight, start=Start(awaits=SPARK, run=engine.start))

    def _line(self, engine: StandingEngine, *, queue: str, weight: int = 1, start: Start | None = None) -> Line:
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
        """Without a transform what will be written is known: a mistake in it is told before Spark is started."""
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

    def _engine(self, spark: Session) -> StandingEngine:
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
        except SPARK_ERRORS as error:  # it went away since it was started
            raise explain(error) from error

    def _surroundings(self, engine: StandingEngine) -> Surroundings:
        return Surroundings(
            ledger=self.ledger,
            engine=engine,
            # A run that is to end meets a dead engine with its next batch, and without one it is done.
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
        """Where the pipeline itself writes in S3."""
        places = (self.declaration.table, self.declaration.quarantine)
        return [*self.moved_to, *(s3_address(place.uri) for place in places if not place.is_local)]


def worker_settings(settings: Settings) -> WorkerSettings:
    """Of a worker that serves one pipeline alone. A drain that was set is kept, or cut to what Spark's end leaves."""
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
