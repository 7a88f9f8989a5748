"""The job that deletes the leftovers of dead attempts and compactions in a worker's tables."""

from collections.abc import Callable, Sequence
from functools import partial

from penstock.app.jobs.elected import ElectedJob, JobTask, TaskRun, elected_job, is_overlong
from penstock.app.paths import declared_table_paths
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import Service, ServiceContext
from penstock.app.tables import Tables
from penstock.events import Bus, GarbageCollected

NAME = "gc"
CLAIMED_AS = "penstock gc"
EVERY_SECONDS = 6 * 3_600.0
FIRST_REST_SECONDS = 300.0


def gc_job(services: Sequence[Service], context: ServiceContext) -> ElectedJob:
    """Return the job for the pipelines among these services. An interrupted pass does no harm."""
    pipelines = [service.pipeline for service in services if isinstance(service, PipelineService)]
    return elected_job(
        NAME,
        [
            JobTask(name=one.name, run=partial(_collect_declared, one, context), is_stuck=is_overlong)
            for one in pipelines
        ],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=EVERY_SECONDS,
        first_rest_seconds=FIRST_REST_SECONDS,
    )


def collect(pipeline: str, tables: Tables, bus: Bus, *, stopped: Callable[[], bool]) -> None:
    """Collect the garbage of one pipeline until ``stopped``, and emit an event if there was any."""
    found = tables.collect_garbage(dry_run=False, stopped=stopped)
    if found.files:
        bus.emit(
            GarbageCollected(
                pipeline=pipeline,
                attempts=found.attempts,
                compactions=found.compactions,
                files=found.files,
                bytes=found.bytes,
            )
        )


def _collect_declared(pipeline: Pipeline, context: ServiceContext, task_run: TaskRun) -> None:
    where = declared_table_paths(pipeline.name, pipeline.declaration.sink.address, context.settings)
    tables = Tables(where, context.ledger(), partition_by=None, bus=context.bus, probe=context.probe)
    collect(pipeline.name, tables, context.bus, stopped=task_run.is_over)
