"""Dead letters of an app on each broker, for the commands that people use on them."""

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
QUEUE, DLQ, FINAL_DLQ = "orders", "orders-dlq", "orders-dead"


@dataclass(frozen=True, kw_only=True)
class DeadLetterScene:
    """The queue `orders`, its dead letters, and the ledger, as other processes see them."""

    folder: Path
    broker: Broker

    def dead_letter(self, *bodies: str, reason: str = "no such order", queue: str = QUEUE, **fields: Any) -> None:
        """Send messages and dead-letter each at its first attempt, one after the other."""
        attributes = fields.pop("attributes", {})
        group = fields.pop("group", None)
        for body in bodies:
            self.broker.send(queue, [Outgoing(body=body.encode(), attributes=attributes, group=group)])
            self.dead_letter_next(reason=reason, queue=queue, **fields)

    def dead_letter_next(self, *, reason: str = "again", queue: str = QUEUE, **fields: Any) -> None:
        """Dead-letter the next message of the queue."""
        (delivery,) = self.broker.receive(queue, messages_max=1, lease_seconds=LEASE_SECONDS, wait_seconds=1)
        assert not self.broker.settle([(delivery, DeadLetter(reason=reason, **fields))])

    def move_to_final_dlq(self, *, reason: str = "replayed 3 times, and failed again") -> None:
        """Move the next dead letter of the DLQ to the final DLQ."""
        self.dead_letter_next(reason=reason, queue=DLQ, set_aside=True)

    def ack_next(self, queue: str = QUEUE) -> None:
        """Ack the next message of the queue."""
        (delivery,) = self.broker.receive(queue, messages_max=1, lease_seconds=LEASE_SECONDS, wait_seconds=1)
        assert not self.broker.settle([(delivery, Ack())])

    def messages(self, queue: str = QUEUE) -> Sequence[Message]:
        """Return all visible messages of a queue, sorted by body; they stay visible."""
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
