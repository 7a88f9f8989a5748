"""Handing messages over: asking the scripts, and giving up on what nobody should get any more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.brokers import rules
from penstock.brokers.redis_streams.keys import Keys
from penstock.brokers.redis_streams.queues import settings_of
from penstock.brokers.redis_streams.records import State, delivery_of, first_delivery_of, state_of
from penstock.brokers.redis_streams.server import Command, script
from penstock.messaging.broker import Ask, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one look at some queues brought. Times are epoch seconds by the server's clock."""

    now: float
    settings: QueueSettings | None = None  # of the queue whose messages these are
    deliveries: Sequence[Delivery] = ()
    given_up: Sequence[tuple[Delivery, State, str]] = ()  # handed over to us to be buried: and why
    next_due_at: float | None = None  # where nothing came: when the next delay ends


NOTHING = Taken(now=0.0)


def take(keys: Keys, store: str, consumer: str, asks: Sequence[Ask]) -> Command:
    """The command that asks the queues, in order, until one has messages."""
    counts = [min(ask.messages_max, rules.CAPABILITIES.receive_max) for ask in asks]
    return script("take", [keys.stream(ask.queue) for ask in asks], consumer, store, *counts)


def taken(asks: Sequence[Ask], answer: Sequence[Any]) -> Taken:
    """What `take.lua` answered."""
    which, now = int(answer[0]), int(answer[1]) / 1000
    if which == 0:
        due = answer[2] if len(answer) > 2 else None
        return Taken(now=now, next_due_at=None if due is None else float(due) / 1000)
    queue, store, entries, holds_dead = asks[which - 1].queue, answer[2].decode(), answer[6], bool(answer[7])
    settings = settings_of(queue, retention=answer[3], receives_max=answer[4], dead_letter_queue=answer[5])
    deliveries: list[Delivery] = []
    given_up: list[tuple[Delivery, State, str]] = []
    fresh_from = now - settings.retention_seconds
    for id, fields in entries:
        text, body = fields[1], fields[3]  # in the order of take.lua
        group, head = (fields[5], fields[7]) if len(fields) > 4 else (b"", b"")
        state = None
        if text.count(b" ") == 1:
            delivery = first_delivery_of(queue, store, id, at=now, text=text, body=body, group=group, head=head)
        else:
            state = state_of(text)
            delivery = delivery_of(queue, store, id, at=now, state=state, group=group, head=head, body=body)
        if delivery.message.enqueued_at <= fresh_from and not holds_dead:  # the script drops those
            reason = rules.reason_expired(settings.retention_seconds)
            given_up.append((delivery, state or state_of(text), reason))
        elif head and not holds_dead and UNREADABLE_ATTRIBUTE in delivery.message.attributes:
            given_up.append((delivery, state or state_of(text), rules.reason_unreadable()))
        elif state and settings.receives_max is not None and state.attempts >= settings.receives_max:
            given_up.append((delivery, state, rules.reason_exhausted(state.attempts)))
        else:
            deliveries.append(delivery)
    return Taken(now=now, settings=settings, deliveries=deliveries, given_up=given_up)
