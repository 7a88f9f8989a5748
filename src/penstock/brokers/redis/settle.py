"""Settlements: the arguments and replies of the settle script, and the death records of dead letters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.brokers import shared
from penstock.brokers.redis.keys import QueueKeys, new_store
from penstock.brokers.redis.records import entry_of, milliseconds, state_of
from penstock.brokers.redis.server import Command, Server, script
from penstock.messaging.broker import SettleFailure
from penstock.messaging.death import TRIES_MAX, AttemptRecord, Death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

VANISHED = "another client deleted its entry from the stream, so there is nothing to requeue"


@dataclass(slots=True, kw_only=True)
class QueueSettlements:
    """The settlements of one queue in one call."""

    queue: str
    by_entry: dict[str, Delivery] = field(default_factory=dict)
    acks: list[str] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)  # the script's arguments for releases and dead letters
    dead_letter_queue: str = ""  # set if there is a dead letter

    def release(self, entry: str, *, delay_seconds: float, uncounted: bool, reason: str | None) -> None:
        """Add a release: the message will be delivered again."""
        kept = shared.storable_reason(reason) or ""
        self.others += ("release", entry, milliseconds(delay_seconds), "G" if uncounted else "F", kept)

    def add_dead_letter(self, delivery: Delivery, entry: str, head: str) -> None:
        """Add a dead-lettering, with the attributes of the dead-lettered message."""
        self.by_entry[entry] = delivery
        self.others += ("dead", entry, head)

    def command(self, keys: QueueKeys, worker: str) -> Command:
        """Return the command that applies them."""
        streams = (keys.stream(self.queue), keys.stream(self.dead_letter_queue or self.queue))
        return script("settle", streams, new_store(), worker, len(self.acks), *self.acks, *self.others)

    def failures(self, reply: Sequence[Any]) -> Iterable[SettleFailure]:
        """Yield the settlements that `settle.lua` reported as failed."""
        for ids, reason in ((reply[0], shared.LOST), (reply[1], VANISHED)):
            for id in ids:
                yield SettleFailure(delivery=self.by_entry[id.decode()], reason=reason, lost=True)

    def refused(self, reason: str) -> Iterable[SettleFailure]:
        """Return a retryable failure for every settlement: which of them were applied is unknown."""
        return [SettleFailure(delivery=delivery, reason=reason, lost=False) for delivery in self.by_entry.values()]


def grouped(
    settlements: Sequence[tuple[Delivery, Settlement]],
    *,
    heads: Mapping[str, str | None],
    dead_letter_queues: Mapping[str, str],
) -> tuple[Sequence[QueueSettlements], Sequence[SettleFailure]]:
    """Group settlements by queue. Also return those lost already: invalid receipt handles, and repeated deliveries.

    The first settlement of a delivery counts. ``heads`` are the dead letters' attributes by receipt handle;
    ``dead_letter_queues`` are by queue.
    """
    groups: dict[str, QueueSettlements] = {}
    lost: list[SettleFailure] = []
    for delivery, settlement in settlements:
        group = groups.get(delivery.queue)
        if group is None:
            group = groups[delivery.queue] = QueueSettlements(
                queue=delivery.queue, dead_letter_queue=dead_letter_queues.get(delivery.queue, "")
            )
        entry = entry_of(delivery.receipt)
        if entry is None or entry in group.by_entry:
            lost.append(SettleFailure(delivery=delivery, reason=shared.LOST, lost=True))
            continue
        group.by_entry[entry] = delivery
        match settlement:
            case Ack():
                group.acks.append(entry)
            case Release(delay_seconds=delay_seconds, uncounted=uncounted, reason=reason):
                group.release(entry, delay_seconds=delay_seconds, uncounted=uncounted, reason=reason)
            case DeadLetter():
                group.add_dead_letter(delivery, entry, heads[delivery.receipt] or "")
    return [group for group in groups.values() if group.by_entry], lost


def deaths_by_settlement(
    server: Server, keys: QueueKeys, dead: Sequence[tuple[Delivery, DeadLetter]], *, worker: str
) -> dict[str, Death]:
    """Return the deaths by receipt handle.

    The first failure and the earlier attempts are read from the entry, which does not change while the message is
    leased.
    """
    if not dead:
        return {}
    queues: dict[str, list[tuple[Delivery, DeadLetter]]] = {}
    for delivery, settlement in dead:
        queues.setdefault(delivery.queue, []).append((delivery, settlement))
    deaths: dict[str, Death] = {}
    for queue, group in queues.items():
        ids = [entry_of(delivery.receipt) or "0-0" for delivery, _ in group]
        now, states = server.call(*script("peek", [keys.stream(queue)], *ids))
        for (delivery, settlement), state in zip(group, states, strict=True):
            deaths[delivery.receipt] = shared.death_by_settlement(
                settlement,
                delivery,
                worker=worker,
                first_failed_at=state_of(state).first_failed_at if state else None,
                now=int(now) / 1000,
                tries=state_of(state).tries if state else (),
            )
    return deaths


def death_by_broker(
    delivery: Delivery,
    reason: str,
    *,
    attempts: int,
    first_failed_at: float | None,
    last_failed_at: float,
    worker: str,
    tries: Sequence[AttemptRecord],
) -> Death:
    """Return the death of a message that the broker gave up: delivered too often, expired, or unreadable."""
    return Death(
        reason=reason,
        attempts=attempts,
        first_failed_at=first_failed_at,
        last_failed_at=last_failed_at,
        worker=worker,
        queue=delivery.queue,
        message_id=delivery.message.id,
        enqueued_at=delivery.message.enqueued_at,
        tries=tuple(tries)[-TRIES_MAX:],
        poison=UNREADABLE_ATTRIBUTE in delivery.message.attributes,
    )
