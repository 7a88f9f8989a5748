"""`penstock admin cleanup`: run everything that is due for one pipeline or object handler of an app."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.cleanup import Cleanup
from penstock.app.kill import killing_probe
from penstock.app.naming import object_names
from penstock.app.object_service import ObjectService
from penstock.app.pipelines.cleanup import pipeline_cleanup
from penstock.app.sources import source_at
from penstock.app.telemetry import open_reports
from penstock.errors import UsageError
from penstock.events import Bus
from penstock.messaging.clock import Clock, SystemClock
from penstock.pipeline.extra import require_spark
from penstock.pipeline.maintenance.cleanup import TASK, CleanupPass, SourceCleanup
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.pipelines.pipeline import Pipeline
    from penstock.events import Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """The result of one cleanup or dry run. ``done_to`` is the last batch that is completely cleaned up."""

    pipeline: str
    action: str
    dry_run: bool
    objects: int  # tagged, moved or deleted
    already: int  # tagged before
    skipped: dict[str, int]  # skipped for good, by reason
    batches: int
    done_to: int
    waits_for: str | None  # the pipeline that still has to read an object
    stopped: bool  # by a signal, before everything due was done
    limited: bool  # more is due than --limit allows
    seconds: float


def clean_up(
    app: "App",
    reader: "Pipeline | ObjectService",
    *,
    dry_run: bool = False,
    limit: int | None = None,
    rate: float | None = None,
    although_missing: bool = False,
    stop: StopSignal,
    listeners: "tuple[Listener, ...]" = (),
) -> CleanupReport:
    """Clean up the source of a pipeline or an object handler.

    ``although_missing``: also clean up objects whose rows may have been removed from the table.

    Raises `UsageError` if the declaration keeps objects, and `ConfigurationError` if they belong to another app. Raises
    `PublishHalted` (rows may have left the table), `ObjectDenied` and `TemporaryError` during the work: finished
    objects stay cleaned up, and the next cleanup continues from there.
    """
    telemetry = open_reports(
        app.settings, worker=app.worker, process="cleanup", on_error=app.on_error, emit=Bus(*listeners).emit
    )
    with telemetry.running():
        work, cleanup = _work(
            app, reader, although_missing=although_missing, bus=Bus(*telemetry.listeners), clock=SystemClock()
        )
        return _cleaned(app, reader, work, cleanup, dry_run=dry_run, limit=limit, rate=rate, stop=stop)


def _cleaned(
    app: "App",
    reader: "Pipeline | ObjectService",
    work: SourceCleanup | None,
    cleanup: Cleanup,
    *,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
    stop: StopSignal,
) -> CleanupReport:
    clock = SystemClock()
    began_at = clock.monotonic()
    if work is None:
        raise UsageError(
            f"{reader.name} keeps its objects: declare a cleanup, such as "
            "ObjectSource(..., cleanup=cleanup.Delete(after='30 days')), or of an object handler "
            "source_cleanup=cleanup.Delete(after='30 days')."
        )
    bounds = CleanupPass(objects_max=limit, per_second=rate, stopped=lambda: stop.requested)
    swept = work.count() if dry_run else work.run(bounds)
    stopped = swept.more and stop.requested
    return CleanupReport(
        pipeline=reader.name,
        action=cleanup.action,
        dry_run=dry_run,
        objects=swept.objects,
        already=swept.already,
        skipped={reason: number for reason, number in swept.skipped.items() if number},
        batches=swept.batches,
        done_to=app.ledger.progress(reader.name, TASK),
        waits_for=swept.waits_for,
        stopped=stopped,
        limited=swept.more and not stopped,
        seconds=round(clock.monotonic() - began_at, 3),
    )


def _work(
    app: "App", reader: "Pipeline | ObjectService", *, although_missing: bool, bus: Bus, clock: Clock
) -> tuple[SourceCleanup | None, Cleanup]:
    probe = killing_probe(app.settings.kill_at)
    object_names(app, app.services, only=reader.name).check(app.ledger)
    if isinstance(reader, ObjectService):
        app.ledger.ensure_pipeline(reader.name)
        source = source_at(reader.source, app.settings.aws)
        return reader.cleaning(source, ledger=app.ledger, bus=bus, probe=probe, clock=clock), reader.source_cleanup

    require_spark(reader.declaration.sink.scheme)  # to read which batches the tables show
    work = pipeline_cleanup(
        reader.declaration,
        settings=app.settings,
        ledger=app.ledger,
        bus=bus,
        probe=probe,
        clock=clock,
        although_missing=although_missing,
    )
    return work, reader.declaration.source.cleanup
