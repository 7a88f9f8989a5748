"""Open the data directory of an ingest: a SQLite ledger and queue in one folder, and the processes that use them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.app.backends import file_ledger, open_ledger
from penstock.app.housekeeping import SCRATCH_FOLDER, DeadProcessSweeper
from penstock.app.naming import worker_id
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
    """An opened data directory, and this process's worker id in it."""

    directory: Path
    worker: str
    ledger: Ledger
    broker: Broker
    processes: ProcessRegistry

    @property
    def scratch(self) -> Path:
        """The folder for this process's Spark spills, created on first use."""
        return self.directory / SCRATCH_FOLDER / self.worker

    @property
    def spark_log(self) -> Path:
        return self.directory / SPARK_LOG_FILE

    def release_dead(self) -> int:
        """Release everything held by processes proven dead; return their number.

        Abandons their attempts and works, ends their leases, and deletes their scratch folders.
        """
        scratch = self.directory / SCRATCH_FOLDER
        return DeadProcessSweeper(
            processes=self.processes, broker=self.broker, ledger=lambda: self.ledger, scratch=scratch
        ).sweep()


def check_owner(ledger: Ledger, where: TablePaths) -> None:
    """Raise `ConfigurationError` if the table's folder was moved or copied together with its data directory.

    A ledger inside the table belongs to that one table and knows it by its real path. Under another path it would count
    as a new table without history, and all its data would be added again.
    """
    known = [pipeline.id for pipeline in ledger.pipelines()]
    if str(where.state.parent) == str(where.table) and known and where.pipeline not in known:
        raise ConfigurationError(
            f"The data directory {where.state} is that of {', '.join(known)}, so the table's folder was moved or "
            f"copied; move it back, or ingest into a new table."
        )


@contextmanager
def open_state(
    directory: Path, *, worker: str | None = None, shared: Settings | None = None, probe: Probe = no_probe
) -> Iterator[StateFolder]:
    """Open the data directory, creating it if missing, and register this process in it inside the block.

    ``worker``: this process's worker id; None: a new one. ``shared``: settings whose ledger, shared between hosts,
    replaces the file in the directory.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        processes = ProcessRegistry(directory / PROCESSES_FOLDER)
    except OSError as error:
        raise ConfigurationError(f"The data directory {directory} cannot be created: {error.strerror}.") from error
    worker = worker or worker_id()
    with processes.register(worker):
        if shared is not None:
            ledger = open_ledger(shared, probe=probe)
        else:
            ledger = Ledger.open(file_ledger(directory / LEDGER_FILE), probe=probe)
        broker = SqliteBroker(directory / QUEUE_FILE, holder=worker)
        state = StateFolder(directory=directory, worker=worker, ledger=ledger, broker=broker, processes=processes)
        try:
            yield state
        finally:
            broker.close()
            ledger.close()
            shutil.rmtree(state.scratch, ignore_errors=True)
