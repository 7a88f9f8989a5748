"""Look at messages in their queues: the details of one message, and peeking where that is a receive.

- `known_queue`: the queues that may be looked at
- `details_of`: facts from a message's attributes and its queue
- `peek_cost`, `receive_to_peek`: peeking on SQS, which has no other way than to receive messages and release them
"""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from penstock.app.scope import scope_ledger
from penstock.app.system_health import dead_letter_queues
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.errors import ConfigurationError, PenstockError, UsageError
from penstock.messaging.broker import CountsReceives, is_fifo, listed_name, names_dead_letters, same_queue
from penstock.messaging.death import Death, EarlierDeath, death_of, earlier_deaths_of, origin_id, set_aside_reason
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import DEDUPLICATION_ATTRIBUTE, OUTBOX_ID_ATTRIBUTE, Attributes
from penstock.messaging.queued import QueuedMessage, QueuedState
from penstock.messaging.schema import SCHEMA_ATTRIBUTE, TYPE_ATTRIBUTE
from penstock.messaging.settlement import Release
from penstock.messaging.tracing import unwrapped
from penstock.operations.dead_letters.selection import OriginQueues
from penstock.operations.inspection import ScopeView

PEEK_MESSAGES_MAX = 10  # per receive that peeks
PEEK_LEASE_SECONDS = 15.0  # after which the messages are visible again, whatever happens to this process
PEEK_WAIT_SECONDS = 1.0
RECEIVES_MIN = 100  # a redrive policy with fewer: one more receive may be the last one of a message
_RELEASE_TRIES = 3
_TRACE_PARENT_PARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDetails:
    """Facts about one message besides its place in the queue. Texts come from its sender."""

    trace_id: str | None
    type: str | None
    schema_version: str | None
    deduplication_id: str | None
    outbox_id: str | None
    is_dead_letter: bool  # it is in a DLQ
    death: Death | None
    earlier_deaths: Sequence[EarlierDeath]
    set_aside_reason: str | None  # why it is not replayed automatically
    first_id: str | None  # the id of its first delivery, if it has another one by now
    destination: str | None  # the queue of its handler: this one, or that of its origin if it is dead; None: unknown
    handlers: Sequence[str]  # those of the app that get it from there; empty if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekCost:
    """The effects of a receive on the messages of a queue that cannot be browsed."""

    receives_max: int | None  # of the redrive policy; None: it has none, or it may not be read
    is_fifo: bool  # groups wait while one of their messages is received

    @property
    def is_too_high(self) -> bool:
        """Return True if one receive more may move a message to the DLQ."""
        return self.receives_max is not None and self.receives_max < RECEIVES_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedPeek:
    """The messages of a receive that peeked. ``held`` could not be released: they stay invisible for some seconds."""

    queue: str
    messages: Sequence[QueuedMessage]
    held: int


def known_queue(seen: ScopeView, queue: str) -> str:
    """Return the queue of the scope that is meant, as the scope names it.

    Raises `UsageError` for a queue that does not exist, or that is none of the scope's on a shared account. An address
    from outside is never used itself: it could name a server of anybody's.
    """
    broker = seen.broker
    if seen.queues is None:
        if queue not in broker.queue_names():
            raise UsageError(f"There is no queue {queue}.")
        return queue
    known = next((each for each in _queues_with_dlqs(seen, seen.queues) if queue in (each, listed_name(each))), None)
    if known is None:
        raise UsageError(
            f"The queue {listed_name(queue)} is none of this app's: only its queues and their DLQs are shown."
        )
    return known


def details_of(seen: ScopeView, queue: str, found: QueuedMessage) -> MessageDetails:
    """Return the details of a message. Forged and unreadable attributes count as absent."""
    message, attributes = found.message, found.message.attributes
    death, is_named_dlq = death_of(attributes), names_dead_letters(listed_name(queue))
    dead_letter = DeadLetteredMessage(queue=queue, message=message)
    origin = OriginQueues(seen.broker).of(dead_letter) if is_named_dlq or death is not None else None
    is_dead = is_named_dlq or origin is not None  # the broker confirms an origin, which a sender may forge
    destination = origin if is_dead else queue
    first = origin_id(message)
    return MessageDetails(
        trace_id=_trace_id(attributes),
        type=_text(attributes, TYPE_ATTRIBUTE),
        schema_version=_text(attributes, SCHEMA_ATTRIBUTE),
        deduplication_id=_text(attributes, DEDUPLICATION_ATTRIBUTE),
        outbox_id=_text(attributes, OUTBOX_ID_ATTRIBUTE),
        is_dead_letter=is_dead,
        death=death,
        earlier_deaths=earlier_deaths_of(attributes),
        set_aside_reason=set_aside_reason(attributes),
        first_id=None if first == message.id else first,
        destination=destination,
        handlers=[] if destination is None else _handlers_of(seen.scope.served, destination),
    )


def peek_cost(seen: ScopeView, queue: str) -> PeekCost:
    """Return the cost of a receive that peeks. Reads the queue's attributes."""
    broker = unwrapped(seen.broker)
    limit = broker.receives_max(queue) if isinstance(broker, CountsReceives) else None
    return PeekCost(receives_max=limit, is_fifo=is_fifo(queue))


def receive_to_peek(seen: ScopeView, queue: str, *, who: str) -> ReceivedPeek:
    """Receive up to `PEEK_MESSAGES_MAX` messages and make them visible again at once; the audit log records it.

    Each receive counts as an attempt at the broker. Raises `UsageError` if it may be the last one of a message, or if
    the queue can be browsed.
    """
    broker, queue = seen.broker, known_queue(seen, queue)
    if broker.capabilities.browsable:
        raise UsageError(f"The messages of {queue} can be shown without receiving them.")
    cost = peek_cost(seen, queue)
    if cost.is_too_high:
        raise UsageError(
            f"The queue {listed_name(queue)} dead-letters messages after {cost.receives_max} receives, and peeking is "
            f"one: it may be the last one of a message. Set maxReceiveCount to at least {RECEIVES_MIN}."
        )
    details = {"limit": PEEK_MESSAGES_MAX, "receives_max": cost.receives_max}
    with closing(scope_ledger(seen.scope)) as ledger:
        entry = ledger.audits.begin("peek", queue=listed_name(queue), who=who, details=details)
        messages, outcome = 0, "failed"
        try:
            peeked = _receive_and_release(seen, queue)
            messages, outcome = len(peeked.messages), "interrupted" if peeked.held else "done"
            return peeked
        finally:
            ledger.audits.end(entry, messages=messages, outcome=outcome)


def _receive_and_release(seen: ScopeView, queue: str) -> ReceivedPeek:
    deliveries: Sequence[Delivery] = ()
    held = 0
    try:
        deliveries = seen.broker.receive(
            queue,
            messages_max=PEEK_MESSAGES_MAX,
            lease_seconds=PEEK_LEASE_SECONDS,
            wait_seconds=PEEK_WAIT_SECONDS,
        )
        messages = [_queued(delivery) for delivery in deliveries]
    finally:
        held = _release(seen, deliveries)
    return ReceivedPeek(queue=queue, messages=messages, held=held)


def _release(seen: ScopeView, deliveries: Sequence[Delivery]) -> int:
    """Make the messages visible; return how many stay invisible until their short lease ends."""
    left = list(deliveries)
    for _ in range(_RELEASE_TRIES):
        if not left:
            break
        with suppress(PenstockError):  # tried again, and the lease is short
            failures = seen.broker.settle([(delivery, Release(uncounted=True)) for delivery in left])
            left = [failure.delivery for failure in failures if not failure.lost]
    return len(left)


def _queued(delivery: Delivery) -> QueuedMessage:
    """Return a message as it is once released: it waits, and the receive counts."""
    return QueuedMessage(
        message=delivery.message,
        state=QueuedState.WAITING,
        near="",
        deliveries=delivery.attempt,
        attempts=delivery.attempt,
    )


def _queues_with_dlqs(seen: ScopeView, queues: Sequence[str]) -> Sequence[str]:
    found = dict.fromkeys(queues)
    for queue in queues:
        with suppress(ConfigurationError):  # it does not exist yet
            found |= dict.fromkeys(dead_letter_queues(seen.broker, queue))
    return [*found]


def _handlers_of(served: Mapping[str, str], queue: str) -> Sequence[str]:
    return sorted(handler for handler, its in served.items() if same_queue(its, queue))


def _trace_id(attributes: Attributes) -> str | None:
    parts = (_text(attributes, "traceparent") or "").split("-")
    is_valid = len(parts) == _TRACE_PARENT_PARTS and len(parts[1]) == 32 and parts[1].isalnum()
    return parts[1] if is_valid else None


def _text(attributes: Attributes, name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None
