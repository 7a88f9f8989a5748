"""From a declaration, and the worker it is to run in, to a pipeline wired but for Spark."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from penstock.app.cleanup.cleaning import Caretaker, moved_to, source_cleanup
from penstock.app.pipelines.declaration import ObjectSource, PipelineDeclaration
from penstock.app.pipelines.published import Herald
from penstock.app.places import Places, declared_places
from penstock.app.service import Host
from penstock.app.sources import Source, source_of
from penstock.app.tables import Tables
from penstock.app.tools import Tools
from penstock.app.wiring import Blueprint, Numbers
from penstock.pipeline.cleanup import SourceCleanup
from penstock.pipeline.declaration import Declaration
from penstock.pipeline.source.api import CsvOptions, ReadOptions
from penstock.pipeline.source.options import checked
from penstock.worker.line import Gates


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pipeline that can be served once there is a session."""

    source: Source
    where: Places
    blueprint: Blueprint
    cleanup: SourceCleanup | None  # None: objects are kept

    def caretaker(self, host: Host) -> Caretaker | None:
        """Whoever cleans up the source, not begun yet; None where objects are kept."""
        if self.cleanup is None:
            return None
        return Caretaker(self.cleanup, stop=host.stop, bus=host.bus, clock=host.clock, random=host.random)


def plan_of(declaration: PipelineDeclaration, host: Host, *, faults_max: int | None) -> Plan:
    """Raises `UserError` for what a person has to mend: a folder that is not there, a schema that cannot be read."""
    where = declared_places(declaration.name, declaration.sink.table, host.settings)
    source = source_of(declaration.source.folder, where)
    read = read_options(declaration, default_ratio=host.settings.max_quarantine_ratio)
    ledger = host.ledger()
    ledger.ensure_pipeline(where.pipeline)
    chosen = declaration.source.cleanup
    tables = Tables(where, ledger, partition_by=declaration.sink.partition_by, bus=host.bus, probe=host.probe)
    told = _told(declaration, host, where, tables)
    queue, store_outage = declaration.source.queue, host.stores.of_pipeline(source, where)
    blueprint = Blueprint(
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
        tools=Tools(stop=host.stop, clock=host.clock, bus=host.bus, probe=host.probe, tracing=host.tracing),
        ledger_watch=host.outage,
        store_watch=store_outage,
        # A run that is to end does not wait for an outage to pass: it fails after a few faults.
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
    return Plan(source=source, where=where, blueprint=blueprint, cleanup=cleanup)


def read_options(declaration: PipelineDeclaration, *, default_ratio: float) -> ReadOptions:
    """How its objects are read. Raises `UsageError` for a format or a schema that is none."""
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


def _numbers(declaration: PipelineDeclaration, host: Host) -> Numbers:
    given = {
        "max_objects": declaration.max_objects,
        "max_bytes": declaration.max_bytes,
        "max_attempts": declaration.max_attempts,
    }
    numbers = Numbers.of(host.settings, host.broker, max_wait_seconds=declaration.max_wait_seconds)
    return replace(numbers, **{name: value for name, value in given.items() if value is not None})


def _publish(publish: Callable[[], None], told: Callable[[], None]) -> None:
    publish()
    told()


def _told(declaration: PipelineDeclaration, host: Host, where: Places, tables: Tables) -> Callable[[], None]:
    """Return how published batches are announced: to a handler of theirs, and to nobody else, so that no queue grows
    unread."""
    if declaration.published.name not in host.handled:
        return lambda: None
    herald = Herald(
        ledger=host.ledger(),
        broker=host.broker,
        queue=declaration.published,
        pipeline=where.pipeline,
        table=str(where.table),
    )
    return lambda: herald.tell(tables.visible_to)
