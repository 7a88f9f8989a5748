"""Events of messages, their settlements and leases; of outboxes and inboxes; and of dead letters."""

from dataclasses import dataclass
from typing import Literal

from penstock.events.bus import Event
from penstock.messaging.settlement import Ack, Operation, Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettled(Event):
    """The broker applied a settlement. For an ack it is a `DeliveryAcked`."""

    queue: str
    message_id: str
    attempt: int
    settlement: Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAcked(DeliverySettled):
    """The broker applied an ack. Its own kind, since it is the most frequent event and few listeners receive it."""

    settlement: Ack


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementsApplied(Event):
    """The broker applied these settlements of one queue in one call.

    For listeners that need no event of their own for each message, which would cost more than the rest of settling it.
    """

    queue: str
    message_ids: tuple[str, ...]
    settlements: tuple[Settlement, ...]  # in the order of ``message_ids``


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived(Event):
    """A receive returned these deliveries.

    ``redelivered`` counts those delivered before; ``expired`` counts those whose previous lease expired, which is
    the only trace of a killed worker.
    """

    queue: str
    message_ids: tuple[str, ...]
    redelivered: int
    expired: int = 0  # 0 if the broker does not remember attempts
    first_enqueued_at: float | None = None  # epoch seconds; of the oldest first delivery, if there is any


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTakenOver(Event):
    """This worker received a message whose lease expired in another worker, which died or hung."""

    queue: str
    message_id: str
    attempt: int  # of this delivery
    from_worker: str  # the broker's name for that client
    from_attempt: int
    reason: str | None  # what the broker recorded about the end of that lease


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDeleted(Event):
    """Messages that this worker held were deleted from the queue by another program. They cannot be restored."""

    queue: str
    entries: tuple[str, ...]  # the broker's names of these messages


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent(Event):
    """The base class of the events of one delivery in a handler."""

    queue: str
    handler: str
    message_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStarted(MessageEvent):
    """A handler was called."""

    enqueued_at: float  # epoch seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFinished(MessageEvent):
    """The handler returned."""

    enqueued_at: float
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFailed(MessageEvent):
    """The handler raised or timed out. ``final`` means that the message is dead-lettered; otherwise it is retried."""

    enqueued_at: float
    duration_seconds: float
    error_type: str
    error: str
    traceback: str | None  # without local variables
    exception: BaseException | None  # for error hooks
    final: bool
    delay_seconds: float | None  # until the next attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRetrying(MessageEvent):
    """A call inside a handler failed and is retried there; this does not count as an attempt."""

    tries: int
    delay_seconds: float
    error_type: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSkipped(MessageEvent):
    """The handler was not called; ``reason`` is already_done, in_progress or newer_schema."""

    reason: str
    key: str | None = None  # the idempotency key, if the handler has one


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInvalid(MessageEvent):
    """The message can never be processed and is dead-lettered."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInterrupted(MessageEvent):
    """A shutdown interrupted the handler; another worker continues."""

    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExtended(Event):
    """A heartbeat extended these leases."""

    queue: str
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """A heartbeat found that the lease ended, or that the broker no longer knows the delivery."""

    queue: str
    message_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExpiring(Event):
    """Leases or claims were not extended for one and a half heartbeats.

    The service that holds them is unavailable or slow. Emitted twice per heartbeat while this lasts.
    """

    queue: str
    kind: Literal["message leases", "claims"]
    count: int
    seconds_left: float  # of the lease that expires first


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed(Event):
    """A heartbeat could not reach the broker or the ledger.

    It is retried; after the ``last`` try of this heartbeat, with the next one.
    """

    queue: str
    error: str
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementFailed(Event):
    """The broker rejected a settlement, or was unavailable. ``lost`` means that the lease had ended."""

    queue: str
    message_id: str
    attempt: int
    operation: Operation
    reason: str
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementMissing(Event):
    """A handler returned no settlement for this delivery: a bug in it. The message is released with a delay."""

    queue: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveFailed(Event):
    """A receive could not reach the broker; it is retried after a wait."""

    queue: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    """Many messages in a row failed in the same way, so a dependency of the handler is probably down.

    This worker receives nothing from the queue except single messages, at intervals, that probe for recovery.
    """

    queue: str
    handler: str
    fingerprint: str  # of the failures: handler|type|file:function
    failures: int  # in a row
    error: str  # the latest one


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    """A message succeeded, or failed in another way: the worker receives from the queue normally again."""

    queue: str
    handler: str
    open_seconds: float
    probes: int  # messages tried while the breaker was open


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMessageSent(Event):
    """This worker sent the message of a scheduled handler; the broker may have dropped it as a duplicate.

    ``scheduled_at``: epoch seconds.
    """

    handler: str
    queue: str
    scheduled_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMessageFailed(Event):
    """The message of a scheduled handler was not sent.

    The send is retried for a while, unless ``error`` reports that its outcome is unknown.
    """

    handler: str
    scheduled_at: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSent(Event):
    """A relay sent rows of an outbox and deleted them."""

    queue: str
    message_ids: tuple[str, ...]  # assigned by the broker


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRejected(Event):
    """The broker rejected a row of the outbox. The row stays there and is retried."""

    queue: str
    outbox_id: str
    tries: int
    reason: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFailed(Event):
    """The broker or the database of an outbox is unavailable. Nothing is lost, and the relay retries."""

    database: str  # its address without the password
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxCleaned(Event):
    """Expired rows of an inbox were deleted."""

    database: str  # its address without the password
    count: int  # messages


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterReplayed(Event):
    """A replayer decided about a dead-lettered message.

    ``result`` is sent, already_sent (before a crash, according to the record), waiting (its delay is not over),
    released (broker or record unavailable; it is tried again), or set_aside (moved to the final DLQ).
    """

    queue: str | None  # where the message died and returns to; None if unknown
    dead_letter_queue: str
    message_id: str  # of the dead-lettered message
    replay_id: str
    count: int  # number of this replay in a row; for set_aside, the number of earlier replays
    due_at: float | None  # epoch seconds
    new_message_id: str | None  # of the message sent now
    result: Literal["sent", "already_sent", "waiting", "released", "set_aside"]
    reason: str | None = None  # of released and set_aside


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaysUnrecorded(Event):
    """Replays were sent but could not be marked in the record. Their dead letters are deleted nevertheless."""

    replay_ids: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersExpiring(Event):
    """Dead letters approach the end of their queue's retention. Emitted daily while this lasts."""

    queue: str
    count: int  # those older than the configured share of the retention
    oldest_age_seconds: float
    first_deleted_at: float  # epoch seconds
    archived: bool  # True if they are archived before they expire


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersArchived(Event):
    """Dead letters that were about to expire were moved to a file."""

    queue: str
    count: int
    file: str
