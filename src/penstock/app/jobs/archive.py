"""Archive ledger rows of processed objects: find the rows that are due, and run the background job of a worker.

One worker at a time archives a pipeline, a bounded number of files per pass.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ulid import ULID

from penstock.app.cleanup import Keep
from penstock.app.object_service import ObjectService
from penstock.app.paths import STATE_FOLDER, TablePaths, declared_places
from penstock.app.pipelines.pipeline import Pipeline
from penstock.app.pipelines.service import PipelineService
from penstock.app.rounds import PeriodicJob
from penstock.app.service import Service, ServiceContext
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.events import Bus, ObjectsArchived
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING
from penstock.ledger.records import WorkBegun
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.pipeline.maintenance.archive import ArchiveResult, Archivist
from penstock.pipeline.maintenance.cleanup import TASK as CLEANUP
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.storage.roots import files_at
from penstock.worker.shutdown import StopSignal

ARCHIVE_FOLDER = "archive"
ONE_AT_A_TIME = "penstock archive"  # the work that an archiving worker claims
LEASE_SECONDS = 900.0  # for a holder that died; two holders do no harm, the ledger ensures that
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineArchive:
    """A pipeline, the location of its archive, and the conditions for archiving its rows."""

    pipeline: str
    place: Files
    tables: Tables | None = None  # None: an object handler, which publishes nothing
    cleans_up: bool | None = None  # True if a cleanup of its source is declared; None: unknown

    def up_to_seq(self, ledger: Ledger, *, older_than_seconds: float) -> int:
        """Return the last batch to archive: old enough, published in both tables, and its source cleaned up."""
        done = ledger.progress(self.pipeline, ARCHIVING)
        seq = ledger.ripe_batches(self.pipeline, after_seq=done, older_than_seconds=older_than_seconds)
        cleaned = ledger.progress(self.pipeline, CLEANUP)
        if self.cleans_up or (self.cleans_up is None and cleaned):
            seq = min(seq, cleaned)
        return seq if self.tables is None or seq <= done else self.tables.shown_to(done, seq)

    def archivist(self, ledger: Ledger, *, probe: Probe, clock: Clock) -> Archivist:
        return Archivist(ledger=ledger, pipeline=self.pipeline, place=self.place, probe=probe, clock=clock)


def archive_place(pipeline: str, settings: Settings, where: TablePaths | None) -> Files:
    """Return the folder for a pipeline's archive files.

    It is below the setting ``archive``; else beside the plans of its table's runs, where every host finds it; for an
    object handler, which has no table, in the data directory of this host.
    """
    if settings.archive is not None:
        return files_at(settings.archive, settings.aws).below(_folder(pipeline))
    if where is not None:
        return where.table.below(f"{STATE_FOLDER}/{ARCHIVE_FOLDER}")
    return LocalFiles(Path(settings.state).resolve()).below(f"{ARCHIVE_FOLDER}/{_folder(pipeline)}")


def stores(
    tables: Mapping[str, TablePaths],
    tableless: Sequence[str],
    ledger: Ledger,
    settings: Settings,
    *,
    cleans_up: Mapping[str, bool],
) -> Sequence[PipelineArchive]:
    """Return the archives of pipelines with tables, and of object handlers.

    Raises `UsageError` if the setting ``archive`` is not a valid folder or prefix.
    """
    with_tables = [
        PipelineArchive(
            pipeline=pipeline,
            place=archive_place(pipeline, settings, where),
            tables=Tables(where, ledger, partition_by=None, bus=Bus()),
            cleans_up=cleans_up.get(pipeline),
        )
        for pipeline, where in tables.items()
    ]
    without = [
        PipelineArchive(pipeline=name, place=archive_place(name, settings, None), cleans_up=cleans_up.get(name))
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
) -> ArchiveResult:
    """Archive the due rows of one pipeline.

    Raises as `Archivist.run` does, and `PublishHalted` if table and ledger do not belong together.
    """
    archivist = store.archivist(ledger, probe=probe, clock=clock)
    up_to_seq = store.up_to_seq(ledger, older_than_seconds=older_than_seconds)
    if dry_run:
        return archivist.would(older_than_seconds=older_than_seconds, up_to_seq=up_to_seq)
    return archivist.run(older_than_seconds=older_than_seconds, up_to_seq=up_to_seq, files_max=files_max)


def archive_alone(
    store: PipelineArchive,
    ledger: Ledger,
    *,
    worker: str,
    older_than_seconds: float,
    files_max: int,
    probe: Probe,
    clock: Clock,
) -> ArchiveResult | None:
    """Archive as `archive` does, in a worker. Return None if another worker does so now: each file is written once."""
    attempt_id = str(ULID())
    standing = ledger.begin_work(
        ONE_AT_A_TIME, store.pipeline, attempt_id=attempt_id, worker=worker, lease_seconds=LEASE_SECONDS
    )
    if not isinstance(standing, WorkBegun):
        return None
    try:
        return archive(
            store, ledger, older_than_seconds=older_than_seconds, files_max=files_max, probe=probe, clock=clock
        )
    finally:
        ledger.end_work(attempt_id, outcome="given_back", reason="archived for now")


def _folder(pipeline: str) -> str:
    """Return a folder name for a pipeline's name, which may be any address."""
    if _PLAIN.fullmatch(pipeline):
        return pipeline
    return hashlib.sha256(pipeline.encode(errors="surrogateescape")).hexdigest()[:16]


NAME = "archive"  # the job's name in events about failures
FILES_MAX = 5  # per pipeline and pass
REST_SECONDS = 3_600.0
MORE_SECONDS = 60.0  # after a pass that reached its limit


class ArchiveKeeper(PeriodicJob):
    """A background job that archives periodically. The next run deletes a file that was left incomplete."""

    def __init__(
        self,
        stores: Sequence[PipelineArchive],
        *,
        ledger: Callable[[], Ledger],
        worker: str,
        older_than_seconds: float,
        stop: StopSignal,
        bus: Bus,
        probe: Probe,
        clock: Clock,
        random: Random,
    ) -> None:
        super().__init__(NAME, clock=clock, random=random, tell=bus.emit, stop=stop)
        self._stores = stores
        self._ledger = ledger
        self._worker = worker
        self._older_than_seconds = older_than_seconds
        self._bus = bus
        self._probe = probe

    def once(self) -> bool:
        """Run one bounded pass over all pipelines; return True if more is due. A failure is emitted as an event."""
        more = False
        for store in self._stores:
            if self._is_over():
                return False
            more |= self._one(store)
        return more

    def _round(self) -> float:
        return MORE_SECONDS if self.once() else REST_SECONDS

    def _one(self, store: PipelineArchive) -> bool:
        try:
            done = archive_alone(
                store,
                self._ledger(),
                worker=self._worker,
                older_than_seconds=self._older_than_seconds,
                files_max=FILES_MAX,
                probe=self._probe,
                clock=self._clock,
            )
        except Exception as error:  # folder, ledger or table unavailable, or access denied: the next pass retries
            self._failed(error, whose=store.pipeline)
            return False
        self._succeeded(whose=store.pipeline)
        if done is None:
            return False
        if done.objects:
            self._bus.emit(ObjectsArchived(pipeline=store.pipeline, objects=done.objects, files=done.files))
        return done.more


def keeper_of(services: Sequence[Service], host: ServiceContext, *, days: float) -> ArchiveKeeper:
    """Return the job for the pipelines and object handlers among a worker's services.

    Raises `UsageError` if the setting ``archive`` is not a valid folder or prefix.
    """
    pipelines = [service.pipeline for service in services if isinstance(service, PipelineService)]
    objects = [service for service in services if isinstance(service, ObjectService)]
    handlers = [service.name for service in objects]
    settings = host.settings
    found = stores(
        {one.name: declared_places(one.name, one.declaration.sink.table, settings) for one in pipelines},
        handlers,
        host.ledger(),
        settings,
        cleans_up=cleanups_of([*pipelines, *objects]),
    )
    return ArchiveKeeper(
        found,
        ledger=host.ledger,
        worker=host.worker,
        older_than_seconds=days * 86_400.0,
        stop=host.stop,
        bus=host.bus,
        probe=host.probe,
        clock=host.clock,
        random=host.random,
    )
