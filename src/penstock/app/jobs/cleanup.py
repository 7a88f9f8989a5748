"""The job that cleans up the sources of a worker's pipelines and object handlers.

An interrupted pass is repeated by the next one, in this worker or another, which is harmless: the ledger records the
last batch that is done, and each action is idempotent.
"""

from collections.abc import Callable, Sequence

from penstock.app.cleanup_runner import MORE_SECONDS, PASS_OBJECTS, REST_SECONDS
from penstock.app.jobs.elected import RUN_SECONDS_MAX, ElectedJob, JobTask, TaskRun, elected_job, is_overlong
from penstock.app.object_service import ObjectService
from penstock.app.pipelines.cleanup import pipeline_cleanup
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import Service, ServiceContext
from penstock.app.sources import source_at
from penstock.pipeline.maintenance.cleanup import CleanupPass, SourceCleanup

NAME = "cleanup"
CLAIMED_AS = "penstock cleanup"  # two holders do no harm, see `SourceCleanup`
PASS_SECONDS = RUN_SECONDS_MAX / 3  # then the next pipeline gets its turn


def cleanup_job(services: Sequence[Service], context: ServiceContext) -> ElectedJob | None:
    """Return the job for those of these services that declare a cleanup; None if none does.

    Raises `UsageError` for a target that overlaps with a source or a table.
    """
    found = {service.name: _cleanup_of(service, context) for service in services}
    works = {name: work for name, work in found.items() if work is not None}
    if not works:
        return None
    for name in works:
        context.ledger().ensure_pipeline(name)
    return elected_job(
        NAME,
        [JobTask(name=name, run=_cleanup_pass(work, context), is_stuck=is_overlong) for name, work in works.items()],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=REST_SECONDS,
    )


def _cleanup_of(service: Service, context: ServiceContext) -> SourceCleanup | None:
    if isinstance(service, PipelineService):
        return pipeline_cleanup(
            service.pipeline.declaration,
            settings=context.settings,
            ledger=context.ledger(),
            bus=context.bus,
            probe=context.probe,
            clock=context.clock,
        )
    if isinstance(service, ObjectService):
        source = source_at(service.source, context.settings.aws)
        return service.cleaning(
            source, ledger=context.ledger(), bus=context.bus, probe=context.probe, clock=context.clock
        )
    return None


def _cleanup_pass(work: SourceCleanup, context: ServiceContext) -> Callable[[TaskRun], float | None]:
    """Return the pass over one source, bounded by objects and time."""

    def run(task_run: TaskRun) -> float | None:
        end_at = context.clock.monotonic() + PASS_SECONDS

        def is_over() -> bool:
            return task_run.is_over() or context.clock.monotonic() >= end_at

        swept = work.run(CleanupPass(objects_max=PASS_OBJECTS, stopped=is_over))
        return MORE_SECONDS if swept.more else None

    return run
