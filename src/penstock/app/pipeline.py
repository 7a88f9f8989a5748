"""One pipeline on Spark, wired: schema, transform, Java, session, engine, handler, worker."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.app.places import Places
from penstock.app.state import State
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.errors import UsageError
from penstock.events import Bus, SchemaInferred, SparkStarted
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.objects.local import LocalStore
from penstock.objects.notification import parse
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.pipeline.attempt import AttemptSettings, Surroundings
from penstock.pipeline.declaration import Declaration, Transform
from penstock.pipeline.handler import PipelineHandler
from penstock.pipeline.java import Java, find_java
from penstock.pipeline.session import Session, SessionSettings, end_session, session_is_there, start_session
from penstock.pipeline.source.api import ReadOptions, canonical_ddl, columns_read, infer_schema
from penstock.pipeline.source.plan import FORMATS
from penstock.pipeline.spark_engine import SparkEngine
from penstock.pipeline.streak import FailureStreak
from penstock.pipeline.table_schema import agreement, check_partitions
from penstock.worker.batcher import Limits
from penstock.worker.line import Line
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

NO_SESSION_YET = "SESSION_OR_CONTEXT_NOT_EXISTS"  # PySpark's word for it
FAULTS_MAX = 3  # infrastructure faults in a row that a bounded job bears before it tells a person
BATCH_WAIT_SECONDS = 30.0  # how long a batch that is not full stays open while messages keep coming
FETCH_MAX = 500  # notifications in one receive
SESSION_END_SECONDS = 2.0  # of the stop timeout: Spark gets this long to leave by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest:
    """What `penstock ingest` was asked for."""

    source: str
    table: str
    format: str = "jsonl"
    schema: str | None = None  # Spark DDL; None: remembered or inferred
    transform: str | None = None  # "module:function"
    state: str | None = None
    provenance: bool = True
    partition_by: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every part of a job is handed."""

    stop: StopSignal
    clock: Clock
    bus: Bus
    probe: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pipeline from one source, with all that it needs but Spark."""

    request: IngestRequest
    transform: Transform | None
    source: Path  # real path
    where: Places
    state: State
    tables: Tables
    tools: Tools

    def serve(self, *, sample: Sequence[ObjectRef], until: Callable[[], bool], spark: Session | None = None) -> None:
        """Run a worker on the source's queue until ``until`` or a stop. Raises what stopped it.

        ``sample`` is what a schema is inferred from where there is none. A session handed in is used as it is and not
        stopped; else one is started for the time of the work.
        """
        declaration = self._declaration(self._schema(sample))
        if self.transform is None:
            self._check_columns(declaration)
        with self._own_session() if spark is None else nullcontext(spark) as session:
            if not self.tools.stop.requested:
                self._worker(session, declaration).run(self.tools.stop, until)
        if self.request.schema is not None:  # it worked, so it replaces what was remembered
            self.state.ledger.declare_source_schema(self.where.pipeline, declaration.read.schema_ddl)

    def _schema(self, sample: Sequence[ObjectRef]) -> str:
        """The schema given, else the one remembered, else one inferred from a sample, told and remembered."""
        ledger, pipeline = self.state.ledger, self.where.pipeline
        if self.request.schema is not None:
            return canonical_ddl(self.request.schema)
        known = ledger.ensure_pipeline(pipeline).source_schema
        if known is not None:
            return known
        inferred = infer_schema(sample, LocalStore(self.source))
        self.tools.bus.emit(SchemaInferred(pipeline=pipeline, schema=inferred.ddl, notes=inferred.notes))
        return ledger.remember_source_schema(pipeline, inferred.ddl)

    def _declaration(self, schema: str) -> Declaration:
        return Declaration(
            pipeline=self.where.pipeline,
            source_root=self.source,
            table_root=self.where.table,
            quarantine_root=self.where.quarantine,
            work_root=self.where.work,
            read=ReadOptions(
                schema_ddl=schema,
                format=self.request.format,
                provenance=self.request.provenance,
                quarantine_ratio_max=self.request.settings.max_quarantine_ratio,
            ),
            transform=self.transform,
            partition_by=self.request.partition_by,
        )

    def _check_columns(self, declaration: Declaration) -> None:
        """Without a transform what will be written is known: a mistake in it is told before Spark is started."""
        columns = columns_read(declaration.read.schema_ddl, provenance=declaration.read.provenance)
        check_partitions(columns, declaration.partition_by)
        agreement(self.state.ledger, self.tables.rows, self.where.pipeline, columns)

    def _worker(self, spark: Session, declaration: Declaration) -> Worker:
        return Worker(
            broker=self.state.broker,
            lines=[self._line(PipelineHandler(self._attempt_settings(), self._surroundings(spark, declaration)))],
            settings=self._worker_settings(),
            clock=self.tools.clock,
            bus=self.tools.bus,
            probe=self.tools.probe,
        )

    def _line(self, handler: PipelineHandler) -> Line:
        settings = self.request.settings
        limits = Limits(
            messages_max=settings.max_objects, bytes_max=settings.max_bytes, wait_seconds=BATCH_WAIT_SECONDS
        )
        return Line(queue=self.where.queue(self.source), handler=handler, limits=limits, fetch_max=FETCH_MAX)

    def _surroundings(self, spark: Session, declaration: Declaration) -> Surroundings:
        ledger = self.state.ledger
        engine = SparkEngine(
            spark,
            declaration,
            agree=partial(agreement, ledger, self.tables.rows, self.where.pipeline),
            clock=self.tools.clock,
            bus=self.tools.bus,
            probe=self.tools.probe,
        )
        return Surroundings(
            ledger=ledger,
            engine=engine,
            parse=partial(parse, buckets_allowed=frozenset({LOCAL_BUCKET})),
            publish=self.tables.publish,
            streak=FailureStreak(faults_max=FAULTS_MAX),
            bus=self.tools.bus,
        )

    def _attempt_settings(self) -> AttemptSettings:
        settings = self.request.settings
        return AttemptSettings(
            pipeline=self.where.pipeline,
            worker=self.state.worker,
            lease_seconds=settings.lease_seconds,
            objects_max=settings.max_objects,
            attempts_max=settings.max_attempts,
            backoff_base_seconds=settings.retry_base_seconds,
            backoff_cap_seconds=settings.retry_cap_seconds,
        )

    def _worker_settings(self) -> WorkerSettings:
        settings = self.request.settings
        return WorkerSettings(
            start_jitter_seconds=0.0,  # one job on one machine: nobody to keep apart from
            lease_seconds=settings.lease_seconds,
            backoff_base_seconds=settings.retry_base_seconds,
            backoff_cap_seconds=settings.retry_cap_seconds,
            stop_timeout_seconds=settings.stop_timeout_seconds - SESSION_END_SECONDS,
            upkeep_seconds=1.0,
        )

    @contextmanager
    def _own_session(self) -> Iterator[Session]:
        """A session of our own for as long as the block lasts."""
        began_at = self.tools.clock.monotonic()
        java = find_java(os.environ)
        settings = session_settings(self.request.settings, java, scratch=self.state.scratch, log=self.state.spark_log)
        spark = start_session(settings)
        seconds = self.tools.clock.monotonic() - began_at
        java_found = f"Java {java.version} from {java.source}"
        self.tools.bus.emit(SparkStarted(java=java_found, notes=java.notes, seconds=seconds))
        try:
            yield spark
        finally:
            end_session(spark, at_once=self.tools.stop.requested, seconds=SESSION_END_SECONDS)


def check(request: IngestRequest) -> Transform | None:
    """Find a user's mistakes before anything is started; answers the transform."""
    if request.format not in FORMATS:
        raise UsageError(f"The format {request.format!r} is not known; this version reads {', '.join(FORMATS)}.")
    if request.schema is not None:
        canonical_ddl(request.schema)
    return _load_transform(request.transform) if request.transform is not None else None


def session_settings(settings: Settings, java: Java, *, scratch: Path, log: Path) -> SessionSettings:
    """How a session of our own is started."""
    return SessionSettings(
        master=settings.spark_master,
        java_home=java.home,
        scratch=scratch,
        log=log,
        driver_memory=settings.spark_driver_memory,
        extra_conf=settings.spark_conf,
    )


def _load_transform(name: str) -> Transform:
    """The function that ``module:function`` names; modules of the current folder are found too.

    Raises `UsageError` for a name that leads to no function, and with what the module raised when imported.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UsageError(f"The transform {name!r} is not of the form module:function.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script without a guard may end the process
        if NO_SESSION_YET in str(error) and not session_is_there():
            return lambda frame: _load_transform(name)(frame)  # a module whose decorators need Spark: once it is there
        raise UsageError(
            f"The transform's module {module_name} cannot be imported ({type(error).__name__}: {error}); it is looked "
            f"for in {Path.cwd()} and where Python looks."
        ) from error
    function: Transform | None = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"The module {module_name} has no function {function_name}.")
    return function
