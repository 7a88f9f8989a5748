"""The embedded state: a ledger and a queue in one folder, and who is alive on them."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ulid import ULID

from penstock.app.backends import open_ledger
from penstock.app.housekeeping import SCRATCH_FOLDER, DeadProcessSweeper
from penstock.app.paths import LEDGER_FILE, TablePaths
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.spark import SPARK_LOG_FILE
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.ledger import Ledger
from penstock.messaging.broker import Broker
from penstock.messaging.steps import Probe, no_probe

QUEUE_FILE = "queue.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFolder:
    """An opened state folder, and this process's name on it."""

    directory: Path
    worker: str
    ledger: Ledger
    broker: Broker
    processes: ProcessRegistry

    @property
    def scratch(self) -> Path:
        """A folder of this process alone; Spark spills there. Not there until somebody makes it."""
        return self.directory / SCRATCH_FOLDER / self.worker

    @property
    def spark_log(self) -> Path:
        return self.directory / SPARK_LOG_FILE

    def free_what_the_dead_held(self) -> int:
        """Abandon attempts and works, end leases and remove scratch of processes proven dead; answers how many."""
        scratch = self.directory / SCRATCH_FOLDER
        return DeadProcessSweeper(
            processes=self.processes, broker=self.broker, ledger=lambda: self.ledger, scratch=scratch
        ).sweep()


def check_owner(ledger: Ledger, where: TablePaths) -> None:
    """Raise `ConfigurationError` for a table whose folder was moved or copied, its state in it.

    A ledger beside the table is that of one table, and knows it by its real path. Under another one it would be a new
    table without history, and all that is in it already would be added once more.
    """
    known = [pipeline.id for pipeline in ledger.pipelines()]
    if str(where.state.parent) == str(where.table) and known and where.pipeline not in known:
        raise ConfigurationError(
            f"The state in {where.state} is that of {', '.join(known)}, so the table's folder was moved or copied; "
            f"move it back, or ingest into a new table."
        )


@contextmanager
def open_state(directory: Path, *, shared: Settings | None = None, probe: Probe = no_probe) -> Iterator[StateFolder]:
    """Open the state in that folder, made if need be, and be registered as alive on it until the block ends.

    ``shared``: settings whose ledger, one that hosts share, stands in for the file in the folder.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        processes = ProcessRegistry(directory / PROCESSES_FOLDER)
    except OSError as error:
        raise ConfigurationError(f"The state folder {directory} cannot be made: {error.strerror}.") from error
    worker = f"{socket.gethostname()}-{os.getpid()}-{ULID()}"
    with processes.registered(worker):
        if shared is not None:
            ledger = open_ledger(shared, probe=probe)
        else:
            ledger = Ledger.open(f"sqlite:///{directory / LEDGER_FILE}", probe=probe)
        broker = SqliteBroker(directory / QUEUE_FILE, holder=worker)
        state = StateFolder(directory=directory, worker=worker, ledger=ledger, broker=broker, processes=processes)
        try:
            yield state
        finally:
            broker.close()
            ledger.close()
            shutil.rmtree(state.scratch, ignore_errors=True)
