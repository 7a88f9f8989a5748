"""Archive ledger rows of processed objects: the rows that are due, and the job that archives them."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.app.cleanup import Keep
from penstock.app.jobs.elected import ElectedJob, JobTask, TaskRun, elected_job, is_overlong
from penstock.app.object_service import ObjectService
from penstock.app.paths import STATE_FOLDER, TablePaths, declared_table_paths
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.pipelines.service import PipelineService
from penstock.app.service import Service, ServiceContext
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.events import Bus, ObjectsArchived
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.pipeline.maintenance.archive import ArchiveResult, Archivist
from penstock.pipeline.maintenance.cleanup import TASK as CLEANUP
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.storage.roots import files_at

ARCHIVE_FOLDER = "archive"
NAME = "archive"
CLAIMED_AS = "penstock archive"  # two holders do no harm: the ledger ensures that
EVERY_SECONDS = 3_600.0
FILES_MAX = 5  # per pipeline and pass
MORE_SECONDS = 60.0  # before the next pass after one that reached its limit
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineArchive:
    """A pipeline, the location of its archive, and the conditions for archiving its rows."""

    pipeline: str
    location: Files
    tables: Tables | None = None  # None: an object handler, which publishes nothing
    cleans_up: bool | None = None  # True if a cleanup of its source is declared; None: unknown

    def up_to_seq(self, ledger: Ledger, *, older_than_seconds: float) -> int:
        """Return the last batch to archive: old enough, published in both tables, and its source cleaned up."""
        done = ledger.progress(self.pipeline, ARCHIVING)
        seq = ledger.last_batch_older_than(self.pipeline, after_seq=done, older_than_seconds=older_than_seconds)
        cleaned = ledger.progress(self.pipeline, CLEANUP)
        if self.cleans_up or (self.cleans_up is None and cleaned):
            seq = min(seq, cleaned)
        return seq if self.tables is None or seq <= done else self.tables.shown_to(done, seq)

    def archivist(self, ledger: Ledger, *, probe: Probe, clock: Clock) -> Archivist:
        return Archivist(ledger=ledger, pipeline=self.pipeline, location=self.location, probe=probe, clock=clock)


def archive_location(pipeline: str, settings: Settings, where: TablePaths | None) -> Files:
    """Return the folder for a pipeline's archive files.

    It is below the setting ``objects.archive``; else beside the plans of its table's runs, where every host finds it;
    for an object handler, which has no table, in the data directory of this host.
    """
    if settings.objects_archive is not None:
        return files_at(settings.objects_archive, settings.aws).below(_folder(pipeline))
    if where is not None:
        return where.table.below(f"{STATE_FOLDER}/{ARCHIVE_FOLDER}")
    return LocalFiles(Path(settings.data_dir).resolve()).below(f"{ARCHIVE_FOLDER}/{_folder(pipeline)}")


def stores(
    tables: Mapping[str, TablePaths],
    tableless: Sequence[str],
    ledger: Ledger,
    settings: Settings,
    *,
    cleans_up: Mapping[str, bool],
) -> Sequence[PipelineArchive]:
    """Return the archives of pipelines with tables, and of object handlers.

    Raises `UsageError` if the setting ``objects.archive`` is not a valid folder or prefix.
    """
    with_tables = [
        PipelineArchive(
            pipeline=pipeline,
            location=archive_location(pipeline, settings, where),
            tables=Tables(where, ledger, partition_by=None, bus=Bus()),
            cleans_up=cleans_up.get(pipeline),
        )
        for pipeline, where in tables.items()
    ]
    without = [
        PipelineArchive(pipeline=name, location=archive_location(name, settings, None), cleans_up=cleans_up.get(name))
        for name in tableless
    ]
    return [*with_tables, *without]


def cleanups_of(readers: Iterable[Pipeline | ObjectService]) -> dict[str, bool]:
    """Return by name whether these pipelines and object handlers declare a cleanup other than `Keep`."""
    return {
        one.name: not isinstance(
            one.source_cleanup if isinstance(one, ObjectService) else one.declaration.source.cleanup, Keep
        )
        for one in readers
    }


def archive(
    store: PipelineArchive,
    ledger: Ledger,
    *,
    older_than_seconds: float,
    probe: Probe,
    clock: Clock,
    files_max: int | None = None,
    dry_run: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> ArchiveResult:
    """Archive the due rows of one pipeline. ``stopped`` is called between units of work, see `Archivist.run`.

    Raises as `Archivist.run` does, and `PublishHalted` if table and ledger do not belong together.
    """
    archivist = store.archivist(ledger, probe=probe, clock=clock)
    up_to_seq = store.up_to_seq(ledger, older_than_seconds=older_than_seconds)
    if dry_run:
        return archivist.would(older_than_seconds=older_than_seconds, up_to_seq=up_to_seq)
    return archivist.run(
        older_than_seconds=older_than_seconds, up_to_seq=up_to_seq, files_max=files_max, stopped=stopped
    )


def _folder(pipeline: str) -> str:
    """Return a folder name for a pipeline's name, which may be any address."""
    if _PLAIN.fullmatch(pipeline):
        return pipeline
    return hashlib.sha256(pipeline.encode(errors="surrogateescape")).hexdigest()[:16]


def archive_job(services: Sequence[Service], context: ServiceContext, *, older_than_seconds: float) -> ElectedJob:
    """Return the job for the pipelines and object handlers among a worker's services.

    A file that an interrupted pass left incomplete is deleted by the next one. Raises `UsageError` if the setting
    ``objects.archive`` is not a valid folder or prefix.
    """
    pipelines = [service.pipeline for service in services if isinstance(service, PipelineService)]
    objects = [service for service in services if isinstance(service, ObjectService)]
    found = stores(
        {one.name: declared_table_paths(one.name, one.declaration.sink.address, context.settings) for one in pipelines},
        [service.name for service in objects],
        context.ledger(),
        context.settings,
        cleans_up=cleanups_of([*pipelines, *objects]),
    )
    return elected_job(
        NAME,
        [
            JobTask(
                name=one.pipeline,
                run=archive_pass(one, context, older_than_seconds=older_than_seconds),
                is_stuck=is_overlong,
            )
            for one in found
        ],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=EVERY_SECONDS,
    )


def archive_pass(
    store: PipelineArchive, context: ServiceContext, *, older_than_seconds: float
) -> Callable[[TaskRun], float | None]:
    """Return the pass over one pipeline's rows, which archives a bounded number of files."""

    def run(task_run: TaskRun) -> float | None:
        done = archive(
            store,
            context.ledger(),
            older_than_seconds=older_than_seconds,
            files_max=FILES_MAX,
            probe=context.probe,
            clock=context.clock,
            stopped=task_run.is_over,
        )
        if done.objects:
            context.bus.emit(ObjectsArchived(pipeline=store.pipeline, objects=done.objects, files=done.files))
        return MORE_SECONDS if done.more else None

    return run
