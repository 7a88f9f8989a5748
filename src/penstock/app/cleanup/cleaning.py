"""A declared cleanup at work: who does it for a source, and the thread that does it beside a worker.

The thread does a bounded number of objects at a time and rests in between. Nothing waits for it: what it is at when the
process ends is done again by the next one, which is harmless.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.app.cleanup.declaration import Cleanup, Delete, Keep, Move, Tag
from penstock.app.cleanup.overlaps import overlap
from penstock.app.places import Places, real
from penstock.app.sources import Source
from penstock.app.tables import Tables
from penstock.errors import UsageError
from penstock.events import Bus, UpkeepFailed
from penstock.ledger import Ledger
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.waits import Random
from penstock.objects.cleanup import Cleaner
from penstock.pipeline.cleanup import Pass, SourceCleanup, Swept
from penstock.storage.address import S3Address, is_s3, s3_address
from penstock.worker.shutdown import StopSignal

NAME = "cleanup"  # of what failed, in events
PASS_OBJECTS = 2_000  # at a time, beside a worker
REST_SECONDS = 300.0  # between two passes that had nothing left to do
MORE_SECONDS = 5.0  # after one that ended at its bound
END_SECONDS = 1.0


def source_cleanup(
    cleanup: Cleanup,
    *,
    source: Source,
    where: Places,
    tables: Tables,
    ledger: Ledger,
    bus: Bus,
    probe: Probe,
    clock: Clock,
) -> SourceCleanup | None:
    """Whoever cleans up that source; None where it is kept. Raises `UsageError` for a target that is no place for it,
    looked at once more with the links that are there now."""
    if isinstance(cleanup, Keep):
        return None
    if isinstance(cleanup, Move):
        for place in (source.address, *map(str, where.own)):
            if overlap(cleanup.target, place):
                raise UsageError(
                    f"Processed objects cannot move to {cleanup.target}, which overlaps with {place}, where objects "
                    "are read or tables written; name a target apart from it."
                )
    return SourceCleanup(
        pipeline=where.pipeline,
        action=cleanup.action,
        after_seconds=cleanup.after_seconds,
        exclusive=cleanup.takes_away,
        cleaner=_cleaner(cleanup, source, probe),
        ledger=ledger,
        shown_to=tables.shown_to,
        bus=bus,
        probe=probe,
        clock=clock,
    )


def moved_to(cleanup: Cleanup) -> tuple[S3Address, ...]:
    """Where in S3 processed objects go, and announce themselves once more."""
    target = str(cleanup.target) if isinstance(cleanup, Move) else ""
    return (s3_address(target),) if is_s3(target) else ()


def _cleaner(cleanup: Tag | Move | Delete, source: Source, probe: Probe) -> Cleaner:
    if source.is_local:
        from penstock.objects.cleanup_local import FileDeleter, FileMover

        if isinstance(cleanup, Move):
            return FileMover(source.address, str(real(cleanup.target)), probe=probe)
        return FileDeleter(source.address, probe=probe)
    from penstock.objects.cleanup_s3 import S3Deleter, S3Mover, S3Tagger

    address, aws = s3_address(source.address), source.aws
    if isinstance(cleanup, Tag):
        return S3Tagger(address, cleanup.tags, aws, probe=probe)
    if isinstance(cleanup, Move):
        return S3Mover(address, s3_address(str(cleanup.target)), aws, probe=probe)
    return S3Deleter(address, aws, probe=probe)


class Caretaker:
    """Cleans up again and again, in a thread of its own, until it is ended or the worker is asked to stop."""

    def __init__(self, work: SourceCleanup, *, stop: StopSignal, bus: Bus, clock: Clock, random: Random) -> None:
        self._work = work
        self._stop = stop
        self._bus = bus
        self._clock = clock
        self._random = random
        self._ended = threading.Event()
        self._told: str | None = None  # the last failure that was told; the thread's alone
        self._thread = threading.Thread(target=self._run, name=f"penstock-{NAME}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Clean up no more; what is in the middle is waited for a moment, and left then."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def once(self, *, objects_max: int | None = PASS_OBJECTS) -> Swept | None:
        """One pass; a failure is told as an event, once while it stays the same, and is None."""
        try:
            swept = self._work.run(Pass(objects_max=objects_max, stopped=self._stopped))
        except Exception as error:  # store, ledger or table away, or no right to it: another pass tries again
            text = f"{type(error).__name__}: {error}"
            if text != self._told:
                self._told = text
                self._bus.emit(UpkeepFailed(handler=NAME, error=text))
            return None
        self._told = None
        return swept

    def _run(self) -> None:
        while not self._stopped():
            swept = self.once()
            rest_seconds = MORE_SECONDS if swept is not None and swept.more else REST_SECONDS
            self._clock.wait(self._ended, rest_seconds * (0.5 + self._random()))

    def _stopped(self) -> bool:
        return self._ended.is_set() or self._stop.requested or self._stop.paused


@contextmanager
def kept_clean(caretaker: Caretaker | None) -> Iterator[None]:
    """Let it work beside the block, if there is one."""
    if caretaker is None:
        yield
        return
    caretaker.start()
    try:
        yield
    finally:
        caretaker.end()
