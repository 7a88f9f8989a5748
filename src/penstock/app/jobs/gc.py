"""Garbage collection in a background job of a worker, by one worker at a time."""

from collections.abc import Callable, Sequence

from ulid import ULID

from penstock.app.paths import declared_places
from penstock.app.pipelines.service import PipelineService
from penstock.app.rounds import PeriodicJob
from penstock.app.service import Service, ServiceContext
from penstock.app.tables import Tables
from penstock.events import Bus, GarbageCollected
from penstock.ledger import Ledger
from penstock.ledger.records import WorkBegun
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal

NAME = "gc"  # the job's name in events about failures
ONE_AT_A_TIME = "penstock gc"  # the work that a collecting worker claims
LEASE_SECONDS = 900.0  # for a holder that died; two holders do no harm
REST_SECONDS = 6 * 3_600.0
FIRST_REST_SECONDS = 300.0  # a starting worker has more urgent work


class GarbageKeeper(PeriodicJob):
    """A background job that collects the garbage of pipelines. An interrupted pass does no harm."""

    def __init__(
        self,
        tables: "Callable[[], dict[str, Tables]]",
        *,
        ledger: Callable[[], Ledger],
        worker: str,
        stop: StopSignal,
        bus: Bus,
        clock: Clock,
        random: Random,
    ) -> None:
        super().__init__(NAME, clock=clock, random=random, tell=bus.emit, stop=stop)
        self._tables = tables
        self._ledger = ledger
        self._worker = worker
        self._bus = bus
        self._begun = False  # used by the thread of the rounds

    def once(self) -> None:
        """Run one pass over all pipelines. A failure is emitted as an event."""
        for pipeline, tables in self._tables().items():
            if self._is_over():
                return
            try:
                self._one(pipeline, tables)
            except Exception as error:  # table or ledger unavailable, or access denied: the next pass retries
                self._failed(error, whose=pipeline)
            else:
                self._succeeded(whose=pipeline)

    def _round(self) -> float:
        if not self._begun:
            self._begun = True
            return FIRST_REST_SECONDS
        self.once()
        return REST_SECONDS

    def _one(self, pipeline: str, tables: Tables) -> None:
        attempt_id = str(ULID())
        ledger = self._ledger()
        standing = ledger.begin_work(
            ONE_AT_A_TIME, pipeline, attempt_id=attempt_id, worker=self._worker, lease_seconds=LEASE_SECONDS
        )
        if not isinstance(standing, WorkBegun):
            return  # another worker does it now
        try:
            done = tables.collect_garbage(dry_run=False)
        finally:
            ledger.end_work(attempt_id, outcome="given_back", reason="collected for now")
        if done.files:
            self._bus.emit(
                GarbageCollected(
                    pipeline=pipeline,
                    attempts=done.attempts,
                    compactions=done.compactions,
                    files=done.files,
                    bytes=done.bytes,
                )
            )


def keeper_of(services: Sequence[Service], host: ServiceContext) -> GarbageKeeper | None:
    """Return the job for the pipelines among these services; None if there are none."""
    pipelines = [service.pipeline for service in services if isinstance(service, PipelineService)]
    if not pipelines:
        return None

    def tables() -> dict[str, Tables]:
        return {
            one.name: Tables(
                declared_places(one.name, one.declaration.sink.table, host.settings),
                host.ledger(),
                partition_by=None,
                bus=host.bus,
                probe=host.probe,
            )
            for one in pipelines
        }

    return GarbageKeeper(
        tables,
        ledger=host.ledger,
        worker=host.worker,
        stop=host.stop,
        bus=host.bus,
        clock=host.clock,
        random=host.random,
    )
