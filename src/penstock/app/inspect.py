"""Looking at a state without working on it: nothing here claims, sends or settles."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.app.places import LEDGER_FILE, Places
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.state import QUEUE_FILE, check_owner
from penstock.brokers.sqlite import SqliteBroker
from penstock.ledger import Ledger
from penstock.messaging.broker import DEAD_LETTER_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An opened state, for reading."""

    places: Places
    ledger: Ledger
    broker: SqliteBroker

    def living_workers(self) -> list[str]:
        """The ids of the processes that work on this state now."""
        return ProcessRegistry(self.places.state / PROCESSES_FOLDER).living()

    def dead_letter_queues(self) -> list[str]:
        """The queues whose names say that they hold dead letters."""
        return [queue for queue in self.broker.queue_names() if queue.endswith(DEAD_LETTER_SUFFIX)]


@contextmanager
def view(places: Places) -> Iterator[View]:
    """Open the state of these places for reading."""
    ledger = Ledger.open(f"sqlite:///{places.state / LEDGER_FILE}")
    broker = SqliteBroker(places.state / QUEUE_FILE, holder="")
    try:
        check_owner(ledger, places)
        yield View(places=places, ledger=ledger, broker=broker)
    finally:
        broker.close()
        ledger.close()
