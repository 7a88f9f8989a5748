"""What happens to messages: received, worked on, settled, and the leases on them.

What happens to outboxes and inboxes.

What becomes of dead letters.
"""

from dataclasses import dataclass
from typing import Literal

from penstock.events.bus import Event
from penstock.messaging.settlement import Operation, Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettled(Event):
    """The broker took a settlement."""

    queue: str
    message_id: str
    attempt: int
    settlement: Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementsTaken(Event):
    """The broker took these settlements of one queue in one call: for those who count, and need no event for each."""

    queue: str
    settlements: tuple[Settlement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived(Event):
    """A receive brought these deliveries. ``redelivered`` of them were handed over before, ``orphaned`` since the lease
    of the hand-over before ran out: the only trace that a killed worker leaves."""

    queue: str
    message_ids: tuple[str, ...]
    redelivered: int
    orphaned: int = 0  # 0 where the broker does not remember attempts
    first_enqueued_at: float | None = None  # epoch seconds, of the oldest that came for the first time, if any did


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTakenOver(Event):
    """This worker received a message whose lease ran out in another worker's hands: that worker died, or hung."""

    queue: str
    message_id: str
    attempt: int  # this one
    from_worker: str  # as the broker knows its clients
    from_attempt: int
    reason: str | None  # what the broker knows of the end of that lease


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesVanished(Event):
    """Somebody else deleted from the queue what was in hand: an incident, for it cannot be put back."""

    queue: str
    entries: tuple[str, ...]  # as the broker names them


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent(Event):
    """The root of what happens to one delivery in a handler."""

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
    """The handler raised or ran out of time. ``final``: the message is given up on; else another attempt follows."""

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
    """A call inside a handler failed and is tried again there; no attempt is spent."""

    tries: int
    delay_seconds: float
    error_type: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSkipped(MessageEvent):
    """The handler was not called; ``reason`` is already_done, in_progress or newer_schema."""

    reason: str
    key: str | None = None  # of an idempotent handler


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInvalid(MessageEvent):
    """The message can never be worked on and becomes a dead letter."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGivenBack(MessageEvent):
    """The handler was broken off by a stop; another worker goes on."""

    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExtended(Event):
    """A heartbeat extended these leases."""

    queue: str
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """A heartbeat found that the lease is not ours any more: it ended, or the broker no longer knows the delivery."""

    queue: str
    message_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesEndangered(Event):
    """Leases or claims were not extended for one and a half heartbeats: the service that holds them does not answer, or
    only slowly. Emitted twice a heartbeat while it lasts."""

    queue: str
    held: Literal["message leases", "claims"]
    count: int
    seconds_left: float  # of the one that ends first


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed(Event):
    """A heartbeat could not reach the broker or the ledger; it is tried again, and where it was the ``last`` try of
    this beat, with the next one."""

    queue: str
    error: str
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFailed(Event):
    """The broker refused a settlement, or could not be reached; ``lost``: the lease is not ours any more."""

    queue: str
    message_id: str
    attempt: int
    operation: Operation
    reason: str
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementMissing(Event):
    """A handler answered no settlement for this delivery, which is a defect of the handler; it goes back, delayed."""

    queue: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveFailed(Event):
    """A receive could not reach the broker; it is tried again after a wait."""

    queue: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    """Many messages in a row failed in the same way, so what the handler stands on is down, it seems. This worker takes
    nothing more from the queue, but for one message now and then that tries whether that is over."""

    queue: str
    handler: str
    fingerprint: str  # of the failures: handler|type|file:function
    failures: int  # in a row
    error: str  # the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    """A message was worked on, or failed in another way: the worker takes messages from the queue as before."""

    queue: str
    handler: str
    open_seconds: float
    probes: int  # messages that were tried meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSent(Event):
    """The message of a scheduled handler was sent, or had been by another worker. ``scheduled_at``: epoch seconds."""

    handler: str
    queue: str
    scheduled_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TickFailed(Event):
    """The message of a scheduled handler was not sent, and is tried again for a while; or, as ``error`` then says, the
    outcome of the send is unknown, and it is not sent again."""

    handler: str
    scheduled_at: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSent(Event):
    """A relay sent rows of an outbox, and the outbox holds them no more."""

    queue: str
    message_ids: tuple[str, ...]  # the broker's


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRefused(Event):
    """The broker does not take a row of the outbox. It stays there, and is tried again."""

    queue: str
    outbox_id: str
    tries: int
    reason: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFailed(Event):
    """The broker or the database of an outbox is away; nothing is lost, and it is tried again."""

    database: str  # its address, for people
    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxForgotten(Event):
    """Rows of an inbox that are old enough were deleted."""

    database: str  # its address, for people
    count: int  # messages


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadReplayed(Event):
    """A replayer decided what becomes of a dead letter now. ``result`` is sent, already_sent (before a crash, as it is
    on record), held (its wait is not over), put_back (broker or record are away), or set_aside (to the second tier)."""

    queue: str | None  # where the message died, and goes back to; None: nobody can tell
    letter_queue: str
    message_id: str  # the letter's
    replay_id: str
    count: int  # this is its n-th replay in a row; how many it had, of one that is set aside
    due_at: float | None  # epoch seconds
    new_message_id: str | None  # of what was sent now
    result: Literal["sent", "already_sent", "held", "put_back", "set_aside"]
    reason: str | None = None  # of what is put back or set aside


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaysUnmarked(Event):
    """Messages are in their queues again and the record could not be told; their letters are deleted nevertheless."""

    replay_ids: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersAgeing(Event):
    """Dead letters wait in a queue that deletes them at the end of its retention; told once a day while it lasts."""

    queue: str
    letters: int  # that have waited for the share of their retention that the settings name
    oldest_age_seconds: float
    first_deleted_at: float  # epoch seconds
    archived: bool  # whether they go to the archive before


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersArchived(Event):
    """Dead letters near their end left their queue for a file."""

    queue: str
    letters: int
    file: str
