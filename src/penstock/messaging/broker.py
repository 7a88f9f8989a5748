"""The Protocol of a broker, its capabilities and statistics, and the naming convention of dead-letter queues.

`send_each` sends several messages so that the outcome of each is known: a retry then sends only those that were not
accepted.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Settlement

DEAD_LETTER_SUFFIX = "-dlq"  # suffix of the DLQ, unless a queue names another one
FINAL_DLQ_SUFFIX = "-dead"  # suffix of the final DLQ, whose messages wait for people
_FIFO_SUFFIX = ".fifo"  # SQS requires FIFO queues to end in this; the other suffixes come before it


def listed_name(queue: str) -> str:
    """Return the name under which a broker lists a queue that may be given by its URL or ARN."""
    return re.split("[:/]", queue)[-1] if queue.startswith(("https://", "http://", "arn:")) else queue


def same_queue(queue: str, other: str) -> bool:
    """Return True if both name the same queue, each by its name, URL or ARN.

    A bare name matches any account and region, since a broker serves only one.
    """
    if queue == other or listed_name(queue) != listed_name(other):
        return queue == other
    locations = zip(_location(queue), _location(other), strict=True)
    return all(None in pair or pair[0] == pair[1] for pair in locations)


def names_dead_letters(queue: str) -> bool:
    """Return True if the queue's name has the suffix of a DLQ or of a final DLQ."""
    return queue.removesuffix(_FIFO_SUFFIX).endswith((DEAD_LETTER_SUFFIX, FINAL_DLQ_SUFFIX))


def names_final_dlq(queue: str) -> bool:
    """Return True if the queue's name has the suffix of a final DLQ."""
    return queue.removesuffix(_FIFO_SUFFIX).endswith(FINAL_DLQ_SUFFIX)


def conventional_dead_letter_queue(queue: str) -> str:
    """Return the dead-letter queue by naming convention.

    This is ``<queue>-dlq`` for a queue, ``<queue>-dead`` for its DLQ, and the queue itself for a final DLQ.
    """
    if names_final_dlq(queue):
        return queue
    if names_dead_letters(queue):
        head, suffix, fifo = queue.rpartition(DEAD_LETTER_SUFFIX)
        return f"{head}{FINAL_DLQ_SUFFIX}{fifo}" if suffix else queue
    return f"{queue}{DEAD_LETTER_SUFFIX}"


def conventional_source(queue: str) -> str | None:
    """Return the source of a DLQ's messages, by naming convention; None if this is not a DLQ.

    For a final DLQ, this is the DLQ.
    """
    head, fifo = queue.removesuffix(_FIFO_SUFFIX), _FIFO_SUFFIX if is_fifo(queue) else ""
    for suffix, source_suffix in ((DEAD_LETTER_SUFFIX, ""), (FINAL_DLQ_SUFFIX, DEAD_LETTER_SUFFIX)):
        if head.endswith(suffix) and head != suffix:
            return head.removesuffix(suffix) + source_suffix + fifo
    return None


def is_fifo(queue: str) -> bool:
    """Return True if the name, URL or ARN is that of an SQS FIFO queue.

    Such a queue keeps each group in order, and cannot delay single messages.
    """
    return queue.endswith(_FIFO_SUFFIX)


def _location(queue: str) -> tuple[str | None, str | None]:
    """Return the region and account of a URL or ARN; None for a part that it does not contain."""
    parts = re.split("[:/]", queue)
    if len(parts) < 3:
        return None, None
    region = re.search(r"\b[a-z]{2,3}(?:-[a-z]+)+-[0-9]\b", queue.rpartition(parts[-1])[0])
    return region[0] if region else None, parts[-2] if parts[-2].isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCapabilities:
    """The differences between brokers. The conformance suite asserts the behaviour for each value."""

    delay_seconds_max: float  # of a sent message
    release_delay_seconds_max: float  # of a released message
    lease_seconds_max: float
    body_bytes_max: int
    receive_max: int  # messages per receive call
    fenced: bool  # a stale receipt handle can neither extend nor settle
    releases_uncounted: bool  # Release(uncounted=True) does not count as an attempt
    deduplicates: bool  # Outgoing.deduplication_id is honoured
    browsable: bool  # `browse`, `peek` and `find` read messages without receiving them
    remembers_attempts: bool  # `Delivery.previous` describes the previous delivery
    pausable: bool  # `pause` and `resume` work
    system: str = "memory"  # the value of OpenTelemetry's messaging.system
    is_local: bool = True  # no other host can use it
    in_process: bool = False  # it ends with its process, and no other process can use it
    creates_queues: bool = True  # a queue is created on first use; if False, a missing one raises `ConfigurationError`
    ordered: bool = True  # oldest first, and groups take turns; if False, roughly so or not at all
    exact_stats: bool = True  # counts are always right and ages known; if False, both are approximate
    explains_deaths: bool = True  # dead letters that the broker itself moved carry the reason
    polls_are_billed: bool = False  # empty receives are billed, while long polling is cheap
    stats_are_billed: bool = False  # reading the counts of a queue is billed
    settle_batch: int = 1  # this many settlements cost no more than one
    settle_linger_seconds: float = 0.0  # how long fewer settlements than `settle_batch` may wait for others


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of a queue at its creation. ``dead_letter_queue`` defaults to ``<name>-dlq``."""

    name: str
    dead_letter_queue: str | None = None
    receives_max: int | None = None  # deliveries before the broker itself dead-letters; None: never
    retention_seconds: float = 14 * 86_400.0


AgeSource = Literal["exact", "cloudwatch", "estimated"]  # source of a queue's age


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Counts and ages of one queue. Ages are exact, or None if the broker cannot report them.

    ``oldest_visible_message_age_seconds`` is None while no message is visible, even if messages are in flight or
    delayed. Callers that need a number then show 0.

    ``oldest_message_age_seconds`` follows SQS's ApproximateAgeOfOldestMessage, as measured: it covers all messages
    that are not deleted, including delayed and in-flight ones. The age counts from the time of sending, and restarts
    at 0 after every third delivery that ended without an ack. For dead letters it counts from the time of death. 0
    if the queue is empty.

    ``oldest_enqueued_age_seconds`` covers the same messages without restarts; for dead letters it is the time since
    the first death. None if the queue is empty.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_visible_message_age_seconds: float | None
    oldest_message_age_seconds: float | None
    oldest_enqueued_age_seconds: float | None = None

    @property
    def messages(self) -> int:
        """Count all messages, including in-flight and delayed ones."""
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFailure:
    """One delivery that could not be settled. ``lost`` means that its lease ended: do not retry."""

    delivery: Delivery
    reason: str
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """The number of messages a worker has room for, for one queue."""

    queue: str
    messages_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The result of one `Broker.turn`. Settling and receiving fail independently, so errors are values here.

    All ``deliveries`` are from one queue: the first requested one that had messages. ``receive_error`` names the
    queue whose receive failed; the queues after it were not tried. After a ``settle_error`` it is unknown which
    settlements were applied.
    """

    failures: Sequence[SettleFailure] = ()
    deliveries: Sequence[Delivery] = ()
    settle_error: Exception | None = None
    receive_error: tuple[str, Exception] | None = None
    drained: bool = False  # the broker knows that the queue of the deliveries had no other ready messages
    # After an empty receive, or one that drained the queue: seconds until a delay ends, if known.
    next_in_seconds: float | None = None


class Listening(Protocol):
    """One worker's subscription to arrivals in some queues."""

    def want(self, queues: Set[str]) -> None:
        """Set the queues in which to report the next arrival; an empty set ends the reports. Does not block.

        Each call requests one report. Call it again after every report.
        """
        ...

    def close(self) -> None:
        """Stop reporting. May wait briefly for a thread to end."""
        ...


class Broker(Protocol):
    """A queue system with at-least-once delivery: a message stays until acked, dead-lettered or expired.

    All methods block and may be called from several threads. They raise `TemporaryError` if the broker is
    unavailable and `ConfigurationError` if the request can never succeed.
    """

    @property
    def capabilities(self) -> BrokerCapabilities:
        """Return the abilities and limits of this broker."""
        ...

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Put messages into the queue, durably and in order; return their ids."""
        ...

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Lease up to ``messages_max`` visible messages; wait up to ``wait_seconds`` for the first one."""
        ...

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        """Make the leases end ``lease_seconds`` from now; return the deliveries with a lease that was already lost."""
        ...

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """Apply the settlements; return those that failed."""
        ...

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        """Settle, then receive from the first queue that has messages, in one round trip if possible.

        Works like `settle` followed by `receive`, but returns errors instead of raising them. It waits only if
        ``requests`` has a single queue.
        """
        ...

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> Listening:
        """Call ``on_arrival`` from any thread when a message may have arrived: a hint to receive now.

        Some brokers report few arrivals or none, so a worker still polls at intervals.
        """
        ...

    def stats(self, queue: str) -> QueueStats:
        """Return the current counts and ages of the queue. May read an index entry for each message."""
        ...

    def is_empty(self, queue: str) -> bool:
        """Return True if the queue holds no message in any state, as far as `stats` would know.

        Costs the same however many messages there are, so it may be called after every batch.
        """
        ...

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Read messages, oldest first, without leasing them. Requires `BrokerCapabilities.browsable`."""
        ...

    def peek(self, queue: str, state: QueuedState, *, messages_max: int, after: str | None = None) -> QueuedPage:
        """Read a page of the messages in one state, without leasing them. Requires `BrokerCapabilities.browsable`.

        Waiting messages come group by group, oldest first in each; those in flight by the start or the end of their
        lease; delayed ones by their time. ``after`` is the ``next`` of the page before. Every page costs the same. A
        page may be shorter than ``messages_max``, to bound its bytes. While messages move, pages may repeat or miss
        some. Raises `ConfigurationError` if ``after`` is from elsewhere.
        """
        ...

    def find(self, queue: str, id: str, *, near: str | None = None) -> QueuedMessage | None:
        """Return the message with this id in any state; None if the queue does not hold it.

        ``near`` is the `QueuedMessage.near` of the message when it was seen last. A broker without an index of ids
        searches around it and in about a thousand messages of each state; without ``near``, it may miss a message.
        Requires `BrokerCapabilities.browsable`.
        """
        ...

    def queue_names(self) -> Sequence[str]:
        """Return the names of all known queues, sorted."""
        ...

    def dead_letter_queue(self, queue: str) -> str:
        """Return the queue that takes the dead letters of this one, as configured or by naming convention.

        For a queue this is its DLQ, for a DLQ the final DLQ, and for a final DLQ its own name.
        """
        ...

    def retention_seconds(self, queue: str) -> float | None:
        """Return how long a message is kept at most; None if it is kept for ever or the broker cannot report it."""
        ...

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        """Delete these messages, including leased ones; return how many existed.

        Requires `BrokerCapabilities.browsable`.
        """
        ...

    def purge(self, queue: str) -> int:
        """Delete every message of the queue, including leased ones; return their number, which may be approximate."""
        ...

    def now(self) -> float:
        """Return the time in epoch seconds by the clock that all users of the broker share.

        If the broker's clock cannot be read, this is the host's.
        """
        ...

    def pause(self, queue: str) -> None:
        """Deliver no message of the queue, in any process, until `resume`. Requires `BrokerCapabilities.pausable`.

        Sending, extending and settling continue, and leases still expire. A queue may be paused before its first
        message.
        """
        ...

    def resume(self, queue: str) -> None:
        """End a pause, if there is one. Requires `BrokerCapabilities.pausable`."""
        ...

    def paused(self, queue: str) -> bool:
        """Return True if the queue is paused; always False without `BrokerCapabilities.pausable`."""
        ...

    def close(self) -> None:
        """Close the connections. Leases stay as they are."""
        ...


SEND_CHUNK = 1_000  # messages per `Broker.send`, for callers that send any number of them
PARTIAL_CHUNK = 10  # messages between two records of progress, for brokers that accept partially: one SQS call


@runtime_checkable
class TriesEach(Protocol):
    """A broker that may accept only some messages of one send, and reports which."""

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        """Return for each message its id or its error: a `ConfigurationError` if it can never be accepted.

        Raises an error of the queue only if no message was accepted.
        """
        ...


@runtime_checkable
class CountsReceives(Protocol):
    """A broker on which every receive counts, also one that is released, and that may dead-letter by that count."""

    def receives_max(self, queue: str) -> int | None:
        """Return after how many receives the broker itself moves a message to the DLQ.

        None if it does not, or if that cannot be read. Raises errors of the queue.
        """
        ...


def send_each(broker: Broker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
    """Send with any broker, as `TriesEach.try_send`.

    If the broker is unavailable, it accepted no message, or it is unknown which. Raises errors of the queue, which
    need a person.
    """
    if isinstance(broker, TriesEach):
        try:
            return broker.try_send(queue, messages)
        except TemporaryError as error:
            return [error] * len(messages)
    try:
        return broker.send(queue, messages)
    except TemporaryError as error:
        return [error] * len(messages)
    except ConfigurationError as error:
        if error.__cause__ is not None:  # an error of the server or the file, not of one message
            raise
        if len(messages) == 1:
            return [error]
    # Such a broker accepts all messages of a send or none, so nothing is sent twice.
    return [result for message in messages for result in send_each(broker, queue, [message])]


def chunk_of(broker: Broker, most: int) -> int:
    """Return how many messages to send before recording progress: ``most``, or fewer if brokers accept partially."""
    return min(most, PARTIAL_CHUNK) if isinstance(broker, TriesEach) else most
