"""The job that compacts a worker's tables, and the compaction of one pipeline's two tables.

A compaction needs no Spark. Each merge is a commit of its own, so one that is stopped or dies keeps what it has merged,
and the next one continues with the rest.
"""

from collections.abc import Callable, Sequence

from penstock.app.jobs.elected import ElectedJob, JobTask, TaskRun, elected_job, is_overlong
from penstock.app.paths import TablePaths, declared_table_paths
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import Service, ServiceContext
from penstock.events import Bus, TableCompacted
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.pipeline.maintenance.compact import TARGET_BYTES, CompactionResult, Progress, compact
from penstock.sinks.registry import open_sink
from penstock.sinks.sink import TableSink

NAME = "compact"
CLAIMED_AS = "penstock compact"  # two holders do no harm: each merge is conditional on its files


def compact_job(services: Sequence[Service], context: ServiceContext, *, every_seconds: float) -> ElectedJob | None:
    """Return the job for the pipelines among these services; None without one."""
    pipelines = [service.pipeline for service in services if isinstance(service, PipelineService)]
    if not pipelines:
        return None
    tables = [
        (declared_table_paths(one.name, one.declaration.sink.address, context.settings), one.declaration.sink.order_by)
        for one in pipelines
    ]
    return elected_job(
        NAME,
        [_task(table_paths, order_by, context) for table_paths, order_by in tables],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=every_seconds,
    )


def compact_tables(
    table_paths: TablePaths,
    *,
    bus: Bus,
    probe: Probe,
    clock: Clock,
    target_bytes: int = TARGET_BYTES,
    order_by: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress = lambda _done, _all: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Sequence[CompactionResult]:
    """Merge small files in each of a pipeline's tables that exists. Raises as `compact` does.

    ``order_by`` is for the rows, and not for the quarantine.
    """
    found = []
    rows, quarantine = sinks_of(table_paths)
    for sink, order in ((rows, order_by), (quarantine, ())):
        done = compact(
            sink,
            target_bytes=target_bytes,
            order_by=order,
            dry_run=dry_run,
            clock=clock,
            progress=progress,
            probe=probe,
            stopped=stopped,
        )
        if done is None:
            continue
        found.append(done)
        if done.merged and not dry_run:
            bus.emit(_compacted(table_paths.pipeline, done))
    return found


def sinks_of(table_paths: TablePaths) -> tuple[TableSink, TableSink]:
    """Return the sinks of rows and quarantine, with any partitioning."""
    rows, quarantine = (
        open_sink(files, scheme=table_paths.scheme, pipeline=table_paths.pipeline, partition_by=None)
        for files in (table_paths.table, table_paths.quarantine)
    )
    return rows, quarantine


def _task(table_paths: TablePaths, order_by: Sequence[str], context: ServiceContext) -> JobTask:
    def run(task_run: TaskRun) -> None:
        compact_tables(
            table_paths,
            bus=context.bus,
            probe=context.probe,
            clock=context.clock,
            order_by=order_by,
            stopped=task_run.is_over,
        )

    return JobTask(name=table_paths.pipeline, run=run, is_stuck=is_overlong)


def _compacted(pipeline: str, done: CompactionResult) -> TableCompacted:
    return TableCompacted(
        pipeline=pipeline,
        sink=done.uri,
        table_version=done.table_version,
        files_before=done.files_before,
        files_after=done.files_after,
        bytes_before=done.bytes_before,
        bytes_after=done.bytes_after,
    )
