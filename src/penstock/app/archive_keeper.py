"""Archiving beside a worker: rarely, a bounded number of files at a time, in a thread of its own."""

from collections.abc import Callable, Sequence

from penstock.app.archive import Store, archive_alone, cleanups_of, stores
from penstock.app.object_service import ObjectService
from penstock.app.pipelines.service import PipelineService
from penstock.app.places import declared_places
from penstock.app.rounds import Rounds
from penstock.app.service import Host, Service
from penstock.events import Bus, ObjectsArchived
from penstock.ledger import Ledger
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.waits import Random
from penstock.worker.shutdown import StopSignal

NAME = "archive"  # of what failed, in events
FILES_MAX = 5  # a pipeline and pass
REST_SECONDS = 3_600.0
MORE_SECONDS = 60.0  # after a pass that ended at its bound


class ArchiveKeeper(Rounds):
    """Archives again and again. A file that is left in the middle the next run sweeps away."""

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
        super().__init__(NAME, clock=clock, random=random, tell=bus.emit, stop=stop)
        self._stores = stores
        self._ledger = ledger
        self._worker = worker
        self._older_than_seconds = older_than_seconds
        self._bus = bus
        self._probe = probe

    def once(self) -> bool:
        """One bounded pass over all pipelines; answers whether there is more to do. A failure is told as an event."""
        more = False
        for store in self._stores:
            if self._is_over():
                return False
            more |= self._one(store)
        return more

    def _round(self) -> float:
        return MORE_SECONDS if self.once() else REST_SECONDS

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
            self._failed(error, whose=store.pipeline)
            return False
        self._succeeded(whose=store.pipeline)
        if done is None:
            return False
        if done.objects:
            self._bus.emit(ObjectsArchived(pipeline=store.pipeline, objects=done.objects, files=done.files))
        return done.more


def keeper_of(services: Sequence[Service], host: Host, *, days: float) -> ArchiveKeeper:
    """One for the pipelines and object handlers among these services of a worker.

    Raises `UsageError` where the setting archive is no place for files.
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
