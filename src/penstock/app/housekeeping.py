"""Register a worker in this host's data directory, and release everything that dead processes hold.

A killed worker leaves leases behind in the queue and in the ledger. Its free lock proves that it is dead, so other
processes need not wait for the leases to expire. The proof covers this host only, even if the queue is shared: messages
of a worker on another host return when their leases expire, or when another worker starts on that host.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.app.backends import ledger_exists
from penstock.app.naming import own_version
from penstock.app.processes import PROCESSES_FOLDER, RECORD_SUFFIX, ProcessRegistry
from penstock.app.registry import RecordWriter
from penstock.app.rounds import PeriodicJob
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.events import Listener
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.worker.liveness import Liveness
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.ledger import Ledger

SCRATCH_FOLDER = "scratch"
HOUSEKEEPING = "housekeeping"
SWEEP_SECONDS_MAX = 5.0  # checking the locks is cheap, and a dead worker's messages wait for it


@runtime_checkable
class HolderAwareBroker(Protocol):
    """A broker that knows which worker holds each message."""

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead; return their number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadProcessSweeper:
    """Release the leases, claims and scratch folders of dead processes.

    In the queue if the broker knows the holders, in the ledger if there is one, and on disk.
    """

    processes: ProcessRegistry
    broker: HolderAwareBroker | Broker
    ledger: "Callable[[], Ledger | None]"  # called only if a process is dead
    scratch: Path  # contains one folder per process

    def sweep(self) -> int:
        """Abandon attempts and works, end leases, remove scratch folders. Return the number of dead processes."""
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
    """A background job that sweeps at once and then periodically. Another process can finish an interrupted sweep."""

    def __init__(
        self, sweep: Callable[[], int], *, every_seconds: float, clock: Clock, random: Random, emit: Listener
    ) -> None:
        super().__init__(HOUSEKEEPING, clock=clock, random=random, emit=emit)
        self._sweep = sweep
        self._every_seconds = every_seconds

    def _round(self) -> float:
        try:
            self._sweep()
        except Exception as error:  # broker or ledger unavailable: the lock files stay, so the next sweep retries
            self._record_failure(error)
        else:
            self._record_success()
        return self._every_seconds


class Presence:
    """A worker's registration in the data directory: its lock, its record, and the housekeeping.

    Does nothing for an in-memory queue, which ends with its only worker.
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
        liveness: Liveness | None = None,
    ) -> None:
        self._settings = settings
        self._broker = None if broker.capabilities.in_process else broker
        self._worker = worker
        self._clock = clock
        self._state = Path(settings.data_dir).absolute()  # absolute, since a handler may change the working directory
        version = settings.log_service_version or own_version()
        path = self._state / PROCESSES_FOLDER / f"{worker}{RECORD_SUFFIX}"
        self._record_writer = RecordWriter(
            path,
            worker=worker,
            version=version,
            stop=stop,
            clock=clock,
            metrics_address=metrics_address,
            liveness=liveness,
        )

    @property
    def listeners(self) -> Sequence[Listener]:
        """The listeners that the worker's bus has to include."""
        return () if self._broker is None else (self._record_writer,)

    @contextmanager
    def register(self, *, ledger: "Callable[[], Ledger]", emit: Listener, random: Random) -> Iterator[None]:
        """Hold the lock, keep the record and run the housekeeping inside the block.

        ``emit`` receives the events of failed housekeeping. Raises `ConfigurationError` if the data directory is not
        writable.
        """
        if self._broker is None:
            yield
            return
        with ExitStack() as stack:
            try:
                processes = ProcessRegistry(self._state / PROCESSES_FOLDER)
                stack.enter_context(processes.register(self._worker))
                self._record_writer.start()
            except OSError as error:
                raise ConfigurationError(
                    f"The data directory {self._state} cannot be written: {error.strerror}; name another one in the "
                    "setting data_dir."
                ) from error
            stack.callback(self._record_writer.end)
            sweeper = DeadProcessSweeper(
                processes=processes,
                broker=self._broker,
                ledger=lambda: ledger() if ledger_exists(self._settings) else None,
                scratch=self._state / SCRATCH_FOLDER,
            )
            every_seconds = min(self._settings.worker_lease / 3, SWEEP_SECONDS_MAX)
            house = Housekeeper(sweeper.sweep, every_seconds=every_seconds, clock=self._clock, random=random, emit=emit)
            stack.enter_context(house.beside())
            yield
