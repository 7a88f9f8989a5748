"""The background jobs of a worker: those that its settings ask for and in which it takes part.

`worker.jobs` names the jobs in which a worker takes part. Whether there is anything to do depends on the settings of
each job, and on the handlers and pipelines. `replay` is not here: it is a consumer of each DLQ, see
`penstock.app.replayer`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app.cleanup import Keep
from penstock.app.context import PipelineTools
from penstock.app.jobs.cleanup import cleanup_job
from penstock.app.jobs.elected import ElectedJob
from penstock.app.jobs.expiry import expiry_job
from penstock.app.jobs.reconcile import reconcile_job
from penstock.app.pipelines.service import PipelineService
from penstock.app.reconcile import ReconcileRequest, reconcile
from penstock.app.reconcile_target import ReconcileTarget, targets_in
from penstock.app.replayer import ReplayedQueue
from penstock.app.service import Service, ServiceContext, needs_objects
from penstock.pipeline.extra import require_archive, require_spark, require_tables
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.app import App

JobOf = Callable[[], ElectedJob | None]


def worker_jobs(
    app: "App",
    services: Sequence[Service],
    context: ServiceContext,
    *,
    dlqs: Sequence[ReplayedQueue],
    monitor: JobOf | None,
) -> Sequence[ElectedJob]:
    """Return the jobs for these services and DLQs, not started yet.

    ``monitor`` makes the monitor's job; None: this worker cannot run it. Raises `UserError` for a problem that a person
    has to fix first, such as a missing package: without a pipeline's queue, nothing else has checked for it. The
    modules of a job are loaded only if it runs, because some need Arrow.
    """
    objects = [service for service in services if needs_objects(service)]
    made: Mapping[str, JobOf] = {
        "cleanup": lambda: _cleanup(objects, context),
        "reconcile": lambda: _reconcile(app, objects, context),
        "archive": lambda: _archive(objects, context),
        "gc": lambda: _gc(objects, context),
        "compact": lambda: _compact(objects, context),
        "expiry": lambda: _expiry(app, dlqs, context),
        "monitor": monitor or (lambda: None),
    }
    jobs = [make() for name, make in made.items() if name in context.settings.jobs]
    return [job for job in jobs if job is not None]


def _cleanup(objects: Sequence[Service], context: ServiceContext) -> ElectedJob | None:
    if not objects:
        return None
    _require_tables(service for service in _pipelines(objects) if not isinstance(service.reader.cleanup, Keep))
    return cleanup_job(objects, context)


def _reconcile(app: "App", objects: Sequence[Service], context: ServiceContext) -> ElectedJob | None:
    every_seconds = context.settings.objects_reconcile_every
    if every_seconds is None or not objects:
        return None
    pipelines = _pipelines(objects)
    if pipelines:
        require_spark(*_formats(pipelines))
        context.check_spark()
    request = ReconcileRequest(older_than_seconds=context.settings.objects_reconcile_older_than)

    def work(target: ReconcileTarget, stop: StopSignal) -> None:
        tools = PipelineTools(stop=stop, clock=context.clock, bus=context.bus, probe=context.probe)
        reconcile(target, request, spark=None if target.alone else context.spark(), tools=tools)

    return reconcile_job(targets_in(app, objects), work, context, every_seconds=every_seconds)


def _archive(objects: Sequence[Service], context: ServiceContext) -> ElectedJob | None:
    older_than_seconds = context.settings.objects_archive_after
    if older_than_seconds is None or not objects:
        return None
    require_archive()
    _require_tables(_pipelines(objects))
    from penstock.app.jobs.archive import archive_job

    return archive_job(objects, context, older_than_seconds=older_than_seconds)


def _gc(objects: Sequence[Service], context: ServiceContext) -> ElectedJob | None:
    pipelines = _pipelines(objects)
    if not pipelines:
        return None
    _require_tables(pipelines)
    from penstock.app.jobs.gc import gc_job

    return gc_job(objects, context)


def _compact(objects: Sequence[Service], context: ServiceContext) -> ElectedJob | None:
    every_seconds = context.settings.tables_compact_every
    pipelines = _pipelines(objects)
    if every_seconds is None or not pipelines:
        return None
    _require_tables(pipelines)
    from penstock.app.jobs.compact import compact_job

    return compact_job(objects, context, every_seconds=every_seconds)


def _expiry(app: "App", dlqs: Sequence[ReplayedQueue], context: ServiceContext) -> ElectedJob | None:
    if not dlqs:
        return None
    return expiry_job(dlqs, context, app=app.name, address=app.address)


def _pipelines(services: Iterable[Service]) -> Sequence[PipelineService]:
    return [service for service in services if isinstance(service, PipelineService)]


def _formats(pipelines: Iterable[PipelineService]) -> Sequence[str]:
    return list(dict.fromkeys(service.pipeline.declaration.sink.scheme for service in pipelines))


def _require_tables(pipelines: Iterable[PipelineService]) -> None:
    """Raise `ConfigurationError` if a package for the tables of these pipelines is missing."""
    formats = _formats(pipelines)
    if formats:
        require_tables(
            *formats,
            work="Background jobs of pipelines work on tables",
            otherwise="run none of them here (worker.jobs)",
        )
