"""Build the cleanup of a source, and repeat it in a background thread of an ingest or a run; workers have a job for it.

The thread processes a bounded number of objects per pass and rests in between. The process does not wait for it: an
interrupted pass is repeated by the next process, which is harmless.
"""

from collections.abc import Callable, Sequence

from penstock.app.cleanup import Cleanup, Delete, Keep, Move, Tag, overlap
from penstock.app.paths import real
from penstock.app.rounds import PeriodicJob
from penstock.app.sources import SourceLocation
from penstock.errors import UsageError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.objects.cleanup import Cleaner
from penstock.objects.cleanup_local import FileDeleter, FileMover
from penstock.objects.cleanup_s3 import S3Deleter, S3Mover, S3Tagger
from penstock.pipeline.maintenance.cleanup import CleanupPass, CleanupPassResult, SourceCleanup
from penstock.storage.address import S3Address, is_s3, s3_address
from penstock.storage.files import Files
from penstock.worker.shutdown import StopSignal

NAME = "cleanup"  # the job's name in events about failures
PASS_OBJECTS = 2_000  # per pass, in a worker
REST_SECONDS = 300.0  # after a pass that left nothing to do
MORE_SECONDS = 5.0  # after a pass that reached its limit


def source_cleanup(
    cleanup: Cleanup,
    *,
    source: SourceLocation,
    pipeline: str,
    own: Sequence[Files],
    shown_to: Callable[[int, int], int],
    ledger: Ledger,
    bus: Bus,
    probe: Probe,
    clock: Clock,
) -> SourceCleanup | None:
    """Return the cleanup of a source for a pipeline or an object handler; None if objects are kept.

    ``own`` are the places that Penstock itself writes; ``shown_to`` is passed to `SourceCleanup`. Raises `UsageError`
    for a target that overlaps with the source or with ``own``, checked again here because links may have changed.
    """
    if isinstance(cleanup, Keep):
        return None
    if isinstance(cleanup, Move):
        for written in (source.address, *map(str, own)):
            if overlap(cleanup.target, written):
                raise UsageError(
                    f"Processed objects cannot move to {cleanup.target}, which overlaps with {written}, where objects "
                    "are read or tables written; name a target apart from it."
                )
    return SourceCleanup(
        pipeline=pipeline,
        action=cleanup.action,
        after_seconds=cleanup.after_seconds,
        exclusive=cleanup.removes_source,
        cleaner=_cleaner(cleanup, source, probe),
        ledger=ledger,
        shown_to=shown_to,
        bus=bus,
        probe=probe,
        clock=clock,
    )


def all_visible(_after: int, up_to: int) -> int:
    """Return ``up_to``: the work of an object handler is visible as soon as it is recorded."""
    return up_to


def moved_to(cleanup: Cleanup) -> tuple[S3Address, ...]:
    """Return the S3 target of a move, where objects may trigger notifications again; empty without one."""
    target = str(cleanup.target) if isinstance(cleanup, Move) else ""
    return (s3_address(target),) if is_s3(target) else ()


def _cleaner(cleanup: Tag | Move | Delete, source: SourceLocation, probe: Probe) -> Cleaner:
    if source.is_local:
        if isinstance(cleanup, Move):
            return FileMover(source.address, str(real(cleanup.target)), probe=probe)
        return FileDeleter(source.address, probe=probe)

    address, aws = s3_address(source.address), source.aws
    if isinstance(cleanup, Tag):
        return S3Tagger(address, cleanup.tags, aws, probe=probe)
    if isinstance(cleanup, Move):
        return S3Mover(address, s3_address(str(cleanup.target)), aws, probe=probe)
    return S3Deleter(address, aws, probe=probe)


class CleanupRunner(PeriodicJob):
    """A background job that repeats the cleanup of one source. Owned by an ingest or a run."""

    def __init__(self, work: SourceCleanup, *, stop: StopSignal, bus: Bus, clock: Clock, random: Random) -> None:
        super().__init__(NAME, clock=clock, random=random, emit=bus.emit, stop=stop)
        self._work = work

    def once(self, *, objects_max: int | None = PASS_OBJECTS) -> CleanupPassResult | None:
        """Run one pass. Return None for a failure, which is emitted as an event."""
        try:
            swept = self._work.run(CleanupPass(objects_max=objects_max, stopped=self._is_over))
        except Exception as error:  # store, ledger or table unavailable, or access denied: the next pass retries
            self._record_failure(error)
            return None
        self._record_success()
        return swept

    def _round(self) -> float:
        swept = self.once()
        return MORE_SECONDS if swept is not None and swept.more else REST_SECONDS
