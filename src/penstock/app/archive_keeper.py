"""Archiving beside a worker: rarely, a bounded number of files at a time, in a thread of its own."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.app.archive import Store, archive_alone, cleanups_of, stores
from penstock.app.object_service import ObjectService
from penstock.app.pipelines.service import PipelineService
from penstock.app.places import declared_places
from penstock.app.service import Host, Service
from penstock.events import Bus, ObjectsArchived, UpkeepFailed
from penstock.ledger import Ledger
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.waits import Random
from penstock.worker.shutdown import StopSignal

NAME = "archive"  # of what failed, in events
FILES_MAX = 5  # a pipeline and pass
REST_SECONDS = 3_600.0
MORE_SECONDS = 60.0  # after a pass that ended at its bound
END_SECONDS = 1.0


class ArchiveKeeper:
    """Archives again and again until it is ended, or the worker is asked to stop."""

    def __init__(
        self,
        stores: Sequence[Store],
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
        self._stores = stores
        self._ledger = ledger
        self._worker = worker
        self._older_than_seconds = older_than_seconds
        self._stop = stop
        self._bus = bus
        self._probe = probe
        self._clock = clock
        self._random = random
        self._ended = threading.Event()
        self._told: str | None = None  # the last failure that was told; the thread's alone
        self._thread = threading.Thread(target=self._run, name=f"penstock-{NAME}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Archive no more; a file in the middle is waited for a moment, and left then: the next run sweeps it away."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def once(self) -> bool:
        """One bounded pass over all pipelines; answers whether there is more to do. A failure is told as an event, once
        while it stays the same."""
        more = False
        for store in self._stores:
            if self._stopped():
                return False
            more |= self._one(store)
        return more

    def _one(self, store: Store) -> bool:
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
        except Exception as error:  # place, ledger or table away, or no right to it: another pass tries again
            text = f"{store.pipeline}: {type(error).__name__}: {error}"
            if text != self._told:
                self._told = text
                self._bus.emit(UpkeepFailed(handler=NAME, error=text))
            return False
        self._told = None
        if done is None:
            return False
        if done.objects:
            self._bus.emit(ObjectsArchived(pipeline=store.pipeline, objects=done.objects, files=done.files))
        return done.more

    def _run(self) -> None:
        while not self._stopped():
            rest_seconds = MORE_SECONDS if self.once() else REST_SECONDS
            self._clock.wait(self._ended, rest_seconds * (0.5 + self._random()))

    def _stopped(self) -> bool:
        return self._ended.is_set() or self._stop.requested or self._stop.paused


def keeper_of(services: Sequence[Service], host: Host, *, days: float) -> ArchiveKeeper:
    """One for the pipelines and object handlers among these services of a worker.

    Raises `UsageError` where the setting archive is no place for files.
    """
    pipelines = [service.pipeline for service in services if isinstance(service, PipelineService)]
    handlers = [service.name for service in services if isinstance(service, ObjectService)]
    settings = host.settings
    found = stores(
        {one.name: declared_places(one.name, one.declaration.sink.table, settings) for one in pipelines},
        handlers,
        host.ledger(),
        settings,
        cleans_up=cleanups_of(pipelines) | dict.fromkeys(handlers, False),
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


@contextmanager
def kept(keeper: ArchiveKeeper) -> Iterator[None]:
    """Let it work beside the block."""
    keeper.start()
    try:
        yield
    finally:
        keeper.end()
