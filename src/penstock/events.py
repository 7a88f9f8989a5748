"""Facts in the past tense, and the bus they travel on.

Rooms emit facts; metrics, logs, progress bars and reports listen. An event is told after the thing is recorded and
settled, never before, and nothing in the protocol depends on anybody hearing it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.messaging.settlement import Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettled(Event):
    """The broker took a settlement."""

    queue: str
    message_id: str
    attempt: int
    settlement: Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived(Event):
    """A receive brought these deliveries. ``redelivered`` of them were handed over before."""

    queue: str
    message_ids: tuple[str, ...]
    redelivered: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSent(Event):
    """The message of a scheduled handler was sent, or had been by another worker. ``scheduled_at``: epoch seconds."""

    handler: str
    queue: str
    scheduled_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TickFailed(Event):
    """The message of a scheduled handler could not be sent; it is tried again for a while."""

    handler: str
    scheduled_at: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSent(Event):
    """A relay sent rows of an outbox, and the outbox holds them no more."""

    queue: str
    message_ids: tuple[str, ...]  # the broker's


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
class LedgerAway(Event):
    """A claim could not be made, the first in a row. Messages go back to their queues until the ledger answers."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBack(Event):
    """A claim could be made again."""

    away_seconds: float


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
class InboxForgotten(Event):
    """Rows of an inbox that are old enough were deleted."""

    database: str  # its address, for people
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExtended(Event):
    """A heartbeat extended these leases."""

    queue: str
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFailed(Event):
    """The broker refused a settlement, or could not be reached; ``lost``: the lease is not ours any more."""

    queue: str
    message_id: str
    reason: str
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """A heartbeat found that the lease is not ours any more: it ended, or the broker no longer knows the delivery."""

    queue: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed(Event):
    """A heartbeat could not reach the broker or the ledger; it is tried again."""

    queue: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScanned(Event):
    """A folder was walked; ``unfinished`` of the objects found have no terminal state yet."""

    source: str
    found: int
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsArchived(Event):
    """Rows of objects processed long ago left the ledger for files of the archive."""

    pipeline: str
    objects: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCleaned(Event):
    """Objects of a batch that is published were tagged, moved or deleted at their source; ``skipped`` were left alone
    for good, for the ``reasons`` that are counted."""

    pipeline: str
    action: str  # tag, move or delete
    seq: int  # the batch's
    objects: int
    skipped: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBegan(Event):
    """All that an ingest with --watch needs is there; what comes is taken from now on."""

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchDisturbed(Event):
    """A folder that is watched is gone, or its notifications fail; watching goes on."""

    source: str
    reason: str  # a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaInferred(Event):
    """No schema was given, so one was made from a sample and is remembered."""

    pipeline: str
    schema: str
    notes: tuple[str, ...]  # columns whose values did not agree


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStarted(Event):
    """A Spark session of our own is there."""

    java: str
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaimed(Event):
    """The ledger gave us an attempt on these objects."""

    pipeline: str
    attempt_id: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten(Event):
    """The run of a batch has written its files; they count for nothing until the commit."""

    pipeline: str
    attempt_id: str
    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgressed(Event):
    """Spark finished some of a run's tasks."""

    pipeline: str
    attempt_id: str
    tasks_done: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent(Event):
    """The root of what happens to one object in one attempt."""

    pipeline: str
    object_uri: str
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStarted(ObjectEvent):
    """An attempt that claimed the object begins to work on it."""

    attempt: int  # of the object, 1-based


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFinished(ObjectEvent):
    """The ledger has recorded the object as processed."""

    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectGivenBack(ObjectEvent):
    """The attempt was broken off by a stop, or by a fault that is not the object's; the object is free for another."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFailed(ObjectEvent):
    """One object left its attempt unprocessed; ``outcome`` is retry, dead, gone or superseded.

    The last three fields are there where a user's function raised.
    """

    outcome: str
    reason: str
    error_type: str | None = None
    traceback: str | None = None  # without local variables
    exception: BaseException | None = None  # for error hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCallRetrying(ObjectEvent):
    """A call inside a function for the object failed and is tried again there; no attempt is spent."""

    tries: int
    delay_seconds: float
    error_type: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSkipped(Event):
    """A message named the object and there was nothing to do: ``reason`` is already_processed, in_progress,
    already_dead, gone or superseded."""

    pipeline: str
    object_uri: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesQuarantined(Event):
    """Lines of one object could not be read. ``sample`` holds a few of them: (offset, reason)."""

    pipeline: str
    object_uri: str
    count: int
    sample: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(Event):
    """The ledger recorded the batch: from here on it counts."""

    pipeline: str
    attempt_id: str
    seq: int
    objects: int
    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepairBegan(Event):
    """A ledger that was rolled back is about to be brought up to its table."""

    pipeline: str
    agrees_at: int  # the last batch that both have
    shown_at: int  # the last batch that the table shows


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepairEnded(Event):
    """The ledger has what the table shows."""

    pipeline: str
    batches: int  # imported from the table
    objects: int  # of these batches, as far as they are known
    moved: int  # batches committed since the rollback, which follow behind the imported ones
    withdrawn: int  # batches committed since the rollback that count no more
    abandoned: int  # attempts that were open


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCompacted(Event):
    """Small files of a table were merged."""

    pipeline: str
    sink: str
    table_version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublished(Event):
    """Every batch up to ``seq`` is visible in the table."""

    pipeline: str
    sink: str
    seq: int
    table_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileProgressed(Event):
    """A reconcile went on: ``what`` it counts is tasks (of Spark, as far as they are known) or messages."""

    pipeline: str
    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsMissing(Event):
    """Objects are there that were stored before ``as_of`` and never processed: an incident, for somebody lost them.

    ``where``: the first folders with how many, those with the most first.
    """

    pipeline: str
    source: str
    as_of: float  # epoch seconds
    missing: int
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileFinished(Event):
    """What is there was compared with what is known; ``sent`` of the missing objects were announced anew."""

    pipeline: str
    source: str
    as_of: float  # epoch seconds
    listed: int
    missing: int
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """A run failed and no object could be named as the cause."""

    pipeline: str
    attempt_id: str
    objects: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAbandoned(Event):
    """An attempt was given up durably: given back, expired, or its worker died."""

    pipeline: str
    attempt_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveFailed(Event):
    """A receive could not reach the broker; it is tried again after a wait."""

    queue: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFailed(Event):
    """A handler's batch ended without settlements: it raised, or lost its claim. Its deliveries go back, delayed."""

    handler: str
    message_ids: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFailed(Event):
    """A handler's upkeep failed; it is tried again after a wait."""

    handler: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementMissing(Event):
    """A handler answered no settlement for this delivery, which is a defect of the handler; it goes back, delayed."""

    queue: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBackFailed(Event):
    """One step of giving a batch back raised; the steps after it were taken nevertheless."""

    handler: str
    step: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorHookFailed(Event):
    """The user's error hook raised ``count`` times since this was told last; what it was called with is lost."""

    error: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReportsDropped(Event):
    """The error hook was too slow for what failed: the ``count`` oldest reports since this was told last are lost."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHalted(Event):
    """A handler met what no further try can mend. Its queue is served no more by this worker; the others are."""

    queue: str
    handler: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLeftBehind(Event):
    """A thread did not end in time, so the process has to be left without it."""

    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LifespanFailed(Event):
    """A lifespan raised, or took too long, while it put its resources away; the others were left nevertheless."""

    lifespan: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed(Event):
    """A listener of the user's raised. Told once for each; it goes on being called."""

    listener: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """The worker begins to serve."""

    queues: tuple[str, ...]
    concurrency: int
    broker: str | None = None  # its address, for people, where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksDumped(Event):
    """Somebody asked what every thread is doing."""

    stacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining(Event):
    """No more messages are fetched; what is in flight goes on."""

    reason: str
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Event):
    """The worker cannot go on, and ends; what is in flight goes on or is given back."""

    error_type: str
    error: str
    traceback: str  # without local variables


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """The worker ended, by a failure or without; ``outcome`` is drained, given_back or forced."""

    outcome: str
    given_back: tuple[str, ...]  # message ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded(Event):
    """A worker process that a supervisor watches has ended. ``exit_code`` is negative for a signal, as subprocess has
    it."""

    process: int
    exit_code: int
    restart_in_seconds: float | None  # None: it is not started again


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled(Event):
    """A worker process did not end within the stop timeout, so its supervisor killed it."""

    process: int


Listener = Callable[[Event], None]


def tell_nobody(_: Event) -> None:
    """The listener of those who were given none."""


class ChoosyListener(ABC):
    """A listener that has no use for some kinds of events."""

    @abstractmethod
    def hears(self, kind: type[Event]) -> bool:
        """Whether it is to be told of such events; always the same answer."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Hear one."""


class Bus:
    """Hands each event to every listener, in the emitting thread. A listener that raises is a defect of its own."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners  # fixed at construction, so no lock is needed
        self._hearers: dict[type[Event], tuple[Listener, ...]] = {}  # by kind; whoever meets one first writes it

    def hears(self, kind: type[Event]) -> bool:
        """Whether anybody does: what happens to every message need not be put into words for nobody."""
        return bool(self._hearers_of(kind))

    def emit(self, event: Event) -> None:
        for listener in self._hearers_of(type(event)):
            listener(event)

    def _hearers_of(self, kind: type[Event]) -> tuple[Listener, ...]:
        hearers = self._hearers.get(kind)
        if hearers is None:
            hearers = self._hearers[kind] = tuple(
                listener
                for listener in self._listeners
                if not isinstance(listener, ChoosyListener) or listener.hears(kind)
            )
        return hearers
