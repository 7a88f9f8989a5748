"""One pipeline on Spark, wired: schema, transform, Java, session, engine, handler, worker."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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
from penstock.pipeline.java import find_java
from penstock.pipeline.session import Session, SessionSettings, end_session, start_session
from penstock.pipeline.source.api import ReadOptions, canonical_ddl, infer_schema
from penstock.pipeline.spark_engine import SparkEngine
from penstock.pipeline.streak import FailureStreak
from penstock.pipeline.table_schema import agreement
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

FAULTS_MAX = 3  # infrastructure faults in a row that a bounded job bears before it tells a person
SESSION_END_SECONDS = 2.0  # of the stop timeout: Spark gets this long to leave by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRequest:
    """What is to be read, and how. ``schema`` and ``transform`` as the user wrote them."""

    source: Path
    format: str
    schema: str | None
    transform: str | None
    provenance: bool
    partition_by: Sequence[str]
    settings: Settings


def check(request: PipelineRequest) -> Transform | None:
    """Find a user's mistakes before anything is started; answers the transform."""
    if request.schema is not None:
        canonical_ddl(request.schema)
    return _load_transform(request.transform) if request.transform is not None else None


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
    except Exception as error:
        raise UsageError(
            f"The transform's module {module_name} cannot be imported ({type(error).__name__}: {error}); it is looked "
            f"for in {Path.cwd()} and where Python looks."
        ) from error
    function: Transform | None = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"The module {module_name} has no function {function_name}.")
    return function


def serve(
    request: PipelineRequest,
    transform: Transform | None,
    where: Places,
    state: State,
    tables: Tables,
    *,
    sample: Sequence[ObjectRef],
    stop: StopSignal,
    until: Callable[[], bool],
    clock: Clock,
    bus: Bus,
    probe: Probe,
    spark: Session | None = None,
) -> None:
    """Run a worker on the source's queue until ``until`` or a stop. Raises what stopped it.

    A session handed in is used as it is and not stopped; else one is started for the time of the work.
    """
    schema = _source_schema(request, where, state, sample, bus)
    own = _own_session(request.settings, state, stop=stop, clock=clock, bus=bus)
    with own if spark is None else nullcontext(spark) as session:
        if stop.requested:
            return
        engine = SparkEngine(
            session,
            _declaration(request, transform, where, schema),
            agree=partial(agreement, state.ledger, tables.rows, where.pipeline),
            clock=clock,
            bus=bus,
            probe=probe,
        )
        around = Surroundings(
            ledger=state.ledger,
            engine=engine,
            parse=partial(parse, buckets_allowed=frozenset({LOCAL_BUCKET})),
            publish=tables.publish,
            streak=FailureStreak(faults_max=FAULTS_MAX),
            bus=bus,
        )
        worker = Worker(
            broker=state.broker,
            queue=where.queue(request.source),
            handler=PipelineHandler(_attempt_settings(request.settings, where, state), around),
            settings=_worker_settings(request.settings),
            clock=clock,
            bus=bus,
            probe=probe,
        )
        worker.run(stop, until)


def _source_schema(request: PipelineRequest, where: Places, state: State, sample: Sequence[ObjectRef], bus: Bus) -> str:
    """The schema given, else the one remembered, else one inferred from a sample, told and remembered."""
    if request.schema is not None:
        given = canonical_ddl(request.schema)
        state.ledger.remember_source_schema(where.pipeline, given)
        return given
    known = state.ledger.ensure_pipeline(where.pipeline).source_schema
    if known is not None:
        return known
    inferred = infer_schema(sample, LocalStore(request.source))
    bus.emit(SchemaInferred(pipeline=where.pipeline, schema=inferred.ddl, notes=inferred.notes))
    return state.ledger.remember_source_schema(where.pipeline, inferred.ddl)


def _declaration(request: PipelineRequest, transform: Transform | None, where: Places, schema: str) -> Declaration:
    return Declaration(
        pipeline=where.pipeline,
        source_root=request.source,
        table_root=where.table,
        quarantine_root=where.quarantine,
        work_root=where.work,
        read=ReadOptions(
            schema_ddl=schema,
            format=request.format,
            provenance=request.provenance,
            quarantine_ratio_max=request.settings.max_quarantine_ratio,
        ),
        transform=transform,
        partition_by=request.partition_by,
    )


def _attempt_settings(settings: Settings, where: Places, state: State) -> AttemptSettings:
    return AttemptSettings(
        pipeline=where.pipeline,
        worker=state.worker,
        lease_seconds=settings.lease_seconds,
        objects_max=settings.max_objects,
        attempts_max=settings.max_attempts,
        backoff_base_seconds=settings.retry_base_seconds,
        backoff_cap_seconds=settings.retry_cap_seconds,
    )


def _worker_settings(settings: Settings) -> WorkerSettings:
    return WorkerSettings(
        batch_messages_max=settings.max_objects,
        batch_bytes_max=settings.max_bytes,
        lease_seconds=settings.lease_seconds,
        backoff_base_seconds=settings.retry_base_seconds,
        backoff_cap_seconds=settings.retry_cap_seconds,
        stop_timeout_seconds=settings.stop_timeout_seconds - SESSION_END_SECONDS,
        upkeep_seconds=1.0,
    )


@contextmanager
def _own_session(settings: Settings, state: State, *, stop: StopSignal, clock: Clock, bus: Bus) -> Iterator[Session]:
    """A session of our own for as long as the block lasts."""
    began_at = clock.monotonic()
    java = find_java(os.environ)
    spark = start_session(
        SessionSettings(
            master=settings.spark_master,
            java_home=java.home,
            scratch=state.scratch,
            log=state.spark_log,
            driver_memory=settings.spark_driver_memory,
            extra_conf=settings.spark_conf,
        )
    )
    bus.emit(
        SparkStarted(
            java=f"Java {java.version} from {java.source}", notes=java.notes, seconds=clock.monotonic() - began_at
        )
    )
    try:
        yield spark
    finally:
        end_session(spark, at_once=stop.requested, seconds=SESSION_END_SECONDS)
