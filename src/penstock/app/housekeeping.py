"""Beside a worker on this host's state: its lock and record, and freeing what processes proven dead held.

A worker that was killed leaves leases behind, in the queue and in the ledger. Its lock is free, which is proof, so its
successor need not wait for them to end. The proof is of this host, wherever the queue is: what a worker of another host
held comes back when its leases end, or when another worker starts over there.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.app.backends import SQLITE
from penstock.app.naming import own_version
from penstock.app.processes import PROCESSES_FOLDER, RECORD_SUFFIX, ProcessRegistry
from penstock.app.registry import RecordKeeper
from penstock.app.rounds import PeriodicJob
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.events import Listener
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.tracing import unwrapped
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.ledger import Ledger

SCRATCH_FOLDER = "scratch"
HOUSEKEEPING = "housekeeping"
SWEEP_SECONDS_MAX = 5.0  # a look at the locks costs next to nothing, and a dead worker's messages wait for it


@runtime_checkable
class HolderAwareBroker(Protocol):
    """A broker that knows who holds what."""

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead; answers how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadProcessSweeper:
    """Frees what the dead held: in a queue that knows who holds what, in the ledger where there is one, on the disk."""

    processes: ProcessRegistry
    broker: HolderAwareBroker | Broker
    ledger: "Callable[[], Ledger | None]"  # asked only when somebody is dead
    scratch: Path  # holds a folder for each process

    def sweep(self) -> int:
        """Abandon attempts and works, end leases, remove scratch; answers of how many processes."""
        with self.processes.dead() as workers:
            ledger = self.ledger() if workers else None
            for worker in workers:
                if ledger is not None:
                    for pipeline in ledger.pipelines():
                        ledger.abandon_worker(pipeline.id, worker)
                    ledger.abandon_worker_works(worker)
                if isinstance(self.broker, HolderAwareBroker):
                    self.broker.release_holder(worker)
                shutil.rmtree(self.scratch / worker, ignore_errors=True)
        return len(workers)


class Housekeeper(PeriodicJob):
    """Sweeps at once and then every so often. What it leaves in the middle another process can finish."""

    def __init__(
        self, sweep: Callable[[], int], *, every_seconds: float, clock: Clock, random: Random, tell: Listener
    ) -> None:
        super().__init__(HOUSEKEEPING, clock=clock, random=random, tell=tell)
        self._sweep = sweep
        self._every_seconds = every_seconds

    def _round(self) -> float:
        try:
            self._sweep()
        except Exception as error:  # broker or ledger away: the files stay, and so does the work
            self._failed(error)
        else:
            self._succeeded()
        return self._every_seconds


class Presence:
    """A worker's place among the others of its state: a lock, a record, and the housekeeping that all of them share.

    On a queue in this process's memory it is nothing at all, for that ends with its only worker.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        broker: Broker,
        worker: str,
        stop: StopSignal,
        clock: Clock,
        metrics_address: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._broker = None if isinstance(unwrapped(broker), MemoryBroker) else broker
        self._worker = worker
        self._clock = clock
        self._state = Path(settings.state).absolute()  # a function may change the working folder
        version = settings.service_version or own_version()
        path = self._state / PROCESSES_FOLDER / f"{worker}{RECORD_SUFFIX}"
        self._keeper = RecordKeeper(
            path, worker=worker, version=version, stop=stop, clock=clock, metrics_address=metrics_address
        )

    @property
    def listeners(self) -> Sequence[Listener]:
        """What has to hear the worker's events."""
        return () if self._broker is None else (self._keeper,)

    @contextmanager
    def kept(self, *, ledger: "Callable[[], Ledger]", tell: Listener, random: Random) -> Iterator[None]:
        """Be known as alive until the block ends, and keep house for those who are not any more.

        ``tell`` hears of a housekeeping that failed. Raises `ConfigurationError` where the state folder cannot be
        written.
        """
        if self._broker is None:
            yield
            return
        with ExitStack() as stack:
            try:
                processes = ProcessRegistry(self._state / PROCESSES_FOLDER)
                stack.enter_context(processes.registered(self._worker))
                self._keeper.start()
            except OSError as error:
                raise ConfigurationError(
                    f"The state folder {self._state} cannot be written: {error.strerror}; name another one in the "
                    "setting state."
                ) from error
            stack.callback(self._keeper.end)
            sweeper = DeadProcessSweeper(
                processes=processes,
                broker=self._broker,
                ledger=lambda: ledger() if _has_ledger(self._settings) else None,
                scratch=self._state / SCRATCH_FOLDER,
            )
            every_seconds = min(self._settings.lease_seconds / 3, SWEEP_SECONDS_MAX)
            house = Housekeeper(sweeper.sweep, every_seconds=every_seconds, clock=self._clock, random=random, tell=tell)
            stack.enter_context(house.beside())
            yield


def _has_ledger(settings: Settings) -> bool:
    """Whether there is a ledger to free anything in: one on this host may never have been made."""
    file = settings.ledger.removeprefix(SQLITE)
    return file == settings.ledger or Path(file).is_file()
