"""Ending hand-overs: what the settle script is told, and what its answer means."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.brokers import rules
from penstock.brokers.redis_streams.keys import Keys, new_store
from penstock.brokers.redis_streams.records import entry_of, milliseconds
from penstock.brokers.redis_streams.server import Command, script
from penstock.messaging.broker import SettleFailure
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

VANISHED = "somebody deleted its entry from the stream, so there is nothing left to put back"


@dataclass(slots=True, kw_only=True)
class Group:
    """The settlements of one queue in one call."""

    queue: str
    by_entry: dict[str, Delivery] = field(default_factory=dict)
    acks: list[str] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)  # the script's arguments for releases and dead letters
    dead_letter_queue: str = ""  # where there is a dead letter

    def release(self, entry: str, *, delay_seconds: float, refund: bool, reason: str | None) -> None:
        """Let this one be handed over again."""
        kept = rules.kept_reason(reason) or ""
        self.others += ("release", entry, milliseconds(delay_seconds), "G" if refund else "F", kept)

    def bury(self, delivery: Delivery, entry: str, head: str) -> None:
        """Let this one become a dead letter, with these attributes."""
        self.by_entry[entry] = delivery
        self.others += ("dead", entry, head)

    def command(self, keys: Keys, worker: str) -> Command:
        """The one call."""
        streams = (keys.stream(self.queue), keys.stream(self.dead_letter_queue or self.queue))
        return script("settle", streams, new_store(), worker, len(self.acks), *self.acks, *self.others)

    def failures(self, answer: Sequence[Any]) -> Iterable[SettleFailure]:
        """What `settle.lua` said could not be done."""
        for ids, reason in ((answer[0], rules.LOST), (answer[1], VANISHED)):
            for id in ids:
                yield SettleFailure(delivery=self.by_entry[id.decode()], reason=reason, lost=True)

    def refused(self, reason: str) -> Iterable[SettleFailure]:
        """All of it, to be tried again: nobody knows what was done."""
        return [SettleFailure(delivery=delivery, reason=reason, lost=False) for delivery in self.by_entry.values()]


def grouped(
    settlements: Sequence[tuple[Delivery, Settlement]],
    *,
    heads: Mapping[str, str | None],
    dead_letter_queues: Mapping[str, str],
) -> tuple[Sequence[Group], Sequence[SettleFailure]]:
    """Sort settlements by queue; of two for one delivery the first counts. Answers also those that are lost already.

    ``heads`` are the attributes of the dead letters, by receipt; ``dead_letter_queues`` are by queue.
    """
    groups: dict[str, Group] = {}
    lost: list[SettleFailure] = []
    for delivery, settlement in settlements:
        group = groups.get(delivery.queue)
        if group is None:
            group = groups[delivery.queue] = Group(
                queue=delivery.queue, dead_letter_queue=dead_letter_queues.get(delivery.queue, "")
            )
        entry = entry_of(delivery.receipt)
        if entry is None or entry in group.by_entry:
            lost.append(SettleFailure(delivery=delivery, reason=rules.LOST, lost=True))
            continue
        group.by_entry[entry] = delivery
        match settlement:
            case Ack():
                group.acks.append(entry)
            case Release(delay_seconds=delay_seconds, refund=refund, reason=reason):
                group.release(entry, delay_seconds=delay_seconds, refund=refund, reason=reason)
            case DeadLetter():
                group.bury(delivery, entry, heads[delivery.receipt] or "")
    return [group for group in groups.values() if group.by_entry], lost
