"""What a dead letter says of its death, by whoever's hand."""

from collections.abc import Sequence

from penstock.brokers import rules
from penstock.brokers.redis_streams.keys import Keys
from penstock.brokers.redis_streams.records import entry_of, state_of
from penstock.brokers.redis_streams.server import Server, script
from penstock.messaging.death import TRIES_MAX, Death, Try
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE
from penstock.messaging.settlement import DeadLetter


def deaths_by_settlement(
    server: Server, keys: Keys, dead: Sequence[tuple[Delivery, DeadLetter]], *, worker: str
) -> dict[str, Death]:
    """By receipt. When a message failed first stands in its entry, which does not change while it is handed over."""
    if not dead:
        return {}
    queues: dict[str, list[tuple[Delivery, DeadLetter]]] = {}
    for delivery, settlement in dead:
        queues.setdefault(delivery.queue, []).append((delivery, settlement))
    deaths: dict[str, Death] = {}
    for queue, group in queues.items():
        ids = [entry_of(delivery.receipt) or "0-0" for delivery, _ in group]
        now, states = server.ask(*script("peek", [keys.stream(queue)], *ids))
        for (delivery, settlement), state in zip(group, states, strict=True):
            deaths[delivery.receipt] = rules.death_by_settlement(
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
    tries: Sequence[Try],
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
