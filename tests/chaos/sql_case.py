"""Ingests from a queue, with the ledger on an SQL server; everything else is as with a ledger beside the table."""

from pathlib import Path

from tests.chaos.runs import ON_SPARK, Case

from penstock import App

QUEUE = "landing"


class SqlCase(Case):
    """A folder whose files are announced in the queue beside the table, and all processes that use them."""

    def __init__(self, folder: Path, ledger: str, *, module: str = ON_SPARK) -> None:
        self.ledger = ledger
        self._broker = f"sqlite:///{folder / 'table' / '_penstock' / 'queue.db'}"
        super().__init__(folder, module=module, broker=self._broker)

    @property
    def arguments(self) -> tuple[str, ...]:
        return str(self.source), str(self.table), "--queue", QUEUE, "--ledger", self.ledger

    def announce(self) -> int:
        """Send a message for each file and return their number."""
        app = App(broker=self._broker)
        try:
            return app.announce(QUEUE, str(self.source))
        finally:
            app.close()
