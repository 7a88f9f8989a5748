"""`penstock cleanup`: all that is due for one pipeline of an app, now, and an end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.cleanup.cleaning import source_cleanup
from penstock.app.kill import killing_probe
from penstock.app.places import declared_places
from penstock.app.sources import source_of
from penstock.app.tables import Tables
from penstock.app.telemetry import open_reports
from penstock.errors import UsageError
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.pipeline.cleanup import TASK, Pass
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.events import Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """What one cleanup did, or would do. ``done_to`` is the last batch with which all is done."""

    pipeline: str
    action: str
    dry_run: bool
    objects: int  # tagged, moved or deleted
    already: int  # tagged before
    skipped: dict[str, int]  # left alone for good, by the reason
    batches: int
    done_to: int
    waits_for: str | None  # the pipeline that still has to read an object
    stopped: bool  # by a signal, before everything that was due was done
    limited: bool  # more is due than --limit allowed
    seconds: float


def clean_up(
    app: "App",
    pipeline: "Pipeline",
    *,
    dry_run: bool = False,
    limit: int | None = None,
    rate: float | None = None,
    stop: StopSignal,
    listeners: "tuple[Listener, ...]" = (),
) -> CleanupReport:
    """Do it. Raises `UsageError` for a pipeline whose objects are kept, `ObjectDenied` and `TemporaryError` in the
    middle: what was done until then stays so, and the next one goes on from there."""
    heard = open_reports(
        app.settings, worker=app.worker, process="cleanup", on_error=app.on_error, tell=Bus(*listeners).emit
    )
    with heard.told():
        return _cleaned(app, pipeline, dry_run=dry_run, limit=limit, rate=rate, stop=stop, bus=Bus(*heard.listeners))


def _cleaned(
    app: "App",
    pipeline: "Pipeline",
    *,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
    stop: StopSignal,
    bus: Bus,
) -> CleanupReport:
    clock = SystemClock()
    began_at = clock.monotonic()
    declared = pipeline.declaration
    where = declared_places(declared.name, declared.sink.table, app.settings)
    probe = killing_probe(app.settings.kill_at)
    work = source_cleanup(
        declared.source.cleanup,
        source=source_of(declared.source.folder, where),
        where=where,
        tables=Tables(where, app.ledger, partition_by=None, bus=bus, probe=probe),
        ledger=app.ledger,
        bus=bus,
        probe=probe,
        clock=clock,
    )
    if work is None:
        raise UsageError(
            f"The pipeline {declared.name} keeps its objects: declare what is to become of them, such as "
            "ObjectSource(..., cleanup=cleanup.Delete(after='30 days'))."
        )
    bounds = Pass(objects_max=limit, per_second=rate, stopped=lambda: stop.requested)
    swept = work.count() if dry_run else work.run(bounds)
    stopped = swept.more and stop.requested
    return CleanupReport(
        pipeline=declared.name,
        action=declared.source.cleanup.action,
        dry_run=dry_run,
        objects=swept.objects,
        already=swept.already,
        skipped={reason: number for reason, number in swept.skipped.items() if number},
        batches=swept.batches,
        done_to=app.ledger.progress(where.pipeline, TASK),
        waits_for=swept.waits_for,
        stopped=stopped,
        limited=swept.more and not stopped,
        seconds=round(clock.monotonic() - began_at, 3),
    )
