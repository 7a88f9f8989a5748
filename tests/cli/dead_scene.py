"""Dead letters of an app on each broker, for the verbs that people use on them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ledger import Ledger
from penstock.messaging.broker import Broker
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

LEASE_SECONDS = 600.0
QUEUE, FIRST, SECOND = "orders", "orders-dlq", "orders-dead"


@dataclass(frozen=True, kw_only=True)
class DeadScene:
    """The queue `orders`, its dead letters, and the ledger, as other processes see them."""

    folder: Path
    broker: Broker

    def bury(self, *bodies: str, reason: str = "no such order", queue: str = QUEUE, **fields: Any) -> None:
        """Messages that become dead letters at their first attempt, one after the other."""
        attributes = fields.pop("attributes", {})
        group = fields.pop("group", None)
        for body in bodies:
            self.broker.send(queue, [Outgoing(body=body.encode(), attributes=attributes, group=group)])
            self.kill(reason=reason, queue=queue, **fields)

    def kill(self, *, reason: str = "again", queue: str = QUEUE, **fields: Any) -> None:
        """The next message of the queue dies."""
        (delivery,) = self.broker.receive(queue, messages_max=1, lease_seconds=LEASE_SECONDS, wait_seconds=1)
        assert not self.broker.settle([(delivery, DeadLetter(reason=reason, **fields))])

    def set_aside(self, *, reason: str = "replayed 3 times, and dead again") -> None:
        """Move the next dead letter of the DLQ to the final DLQ."""
        self.kill(reason=reason, queue=FIRST, set_aside=True)

    def finish(self, queue: str = QUEUE) -> None:
        """The next message is done."""
        (delivery,) = self.broker.receive(queue, messages_max=1, lease_seconds=LEASE_SECONDS, wait_seconds=1)
        assert not self.broker.settle([(delivery, Ack())])

    def messages(self, queue: str = QUEUE) -> Sequence[Message]:
        """All that is visible there, sorted by body; it stays visible."""
        held: list[Delivery] = []
        while got := self.broker.receive(queue, messages_max=10, lease_seconds=LEASE_SECONDS):
            held += got
        assert not self.broker.settle([(delivery, Release(uncounted=True)) for delivery in held])
        return sorted((delivery.message for delivery in held), key=lambda message: message.body)

    def bodies(self, queue: str = QUEUE) -> list[str]:
        return [message.body.decode() for message in self.messages(queue)]

    def audit(self) -> list[tuple[str, str, int, str | None]]:
        """Return the audit's entries, newest first."""
        file = self.folder / ".penstock" / "ledger.db"
        if not file.exists():
            return []
        ledger = Ledger.open(f"sqlite:///{file}")
        try:
            return [(row.action, row.queue, row.messages, row.outcome) for row in ledger.audits.latest(limit=100)]
        finally:
            ledger.close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an export."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
