"""What a broker is: a few sentences that every queue system has to keep.

Sending several messages so that the outcome of each one is known: who sends again sends only what was not taken.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Settlement

DEAD_LETTER_SUFFIX = "-dlq"  # of a queue's name: where its dead letters go unless it names another queue
SECOND_TIER_SUFFIX = "-dead"  # where those go that nothing brings back by itself: for people
_FIFO_SUFFIX = ".fifo"  # what such queues end in on SQS: the other one comes before it


def listed_name(queue: str) -> str:
    """By what name a broker lists a queue, which may be given by its URL or ARN."""
    return re.split("[:/]", queue)[-1] if queue.startswith(("https://", "http://", "arn:")) else queue


def same_queue(one: str, other: str) -> bool:
    """Return True if both name the same queue, each by its name, URL or ARN. A bare name matches any account and
    region, since a broker serves only one."""
    if one == other or listed_name(one) != listed_name(other):
        return one == other
    places = zip(_place(one), _place(other), strict=True)
    return all(None in pair or pair[0] == pair[1] for pair in places)


def _place(queue: str) -> tuple[str | None, str | None]:
    """Return region and account of a URL or ARN; None for what it does not contain."""
    parts = re.split("[:/]", queue)
    if len(parts) < 3:
        return None, None
    region = re.search(r"\b[a-z]{2,3}(?:-[a-z]+)+-[0-9]\b", queue.rpartition(parts[-1])[0])
    return region[0] if region else None, parts[-2] if parts[-2].isdigit() else None


def names_dead_letters(queue: str) -> bool:
    """Whether the queue's name says that it holds dead letters, of either tier."""
    return queue.removesuffix(_FIFO_SUFFIX).endswith((DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX))


def names_second_tier(queue: str) -> bool:
    """Whether the queue's name says that it holds dead letters for people."""
    return queue.removesuffix(_FIFO_SUFFIX).endswith(SECOND_TIER_SUFFIX)


def conventional_dead_letter_queue(queue: str) -> str:
    """Where dead letters of a queue go by its name alone: first ``<queue>-dlq``, from there ``<queue>-dead``, and from
    there nowhere else."""
    if names_second_tier(queue):
        return queue
    if names_dead_letters(queue):
        head, suffix, fifo = queue.rpartition(DEAD_LETTER_SUFFIX)
        return f"{head}{SECOND_TIER_SUFFIX}{fifo}" if suffix else queue
    return f"{queue}{DEAD_LETTER_SUFFIX}"


def conventional_source(queue: str) -> str | None:
    """The reverse, by the name alone: whose dead letters these are, of the second tier the first one; else None."""
    head, fifo = queue.removesuffix(_FIFO_SUFFIX), _FIFO_SUFFIX if is_fifo(queue) else ""
    for suffix, of in ((DEAD_LETTER_SUFFIX, ""), (SECOND_TIER_SUFFIX, DEAD_LETTER_SUFFIX)):
        if head.endswith(suffix) and head != suffix:
            return head.removesuffix(suffix) + of + fifo
    return None


def is_fifo(queue: str) -> bool:
    """Whether the queue's name, URL or ARN says that on SQS it keeps its groups in order, and delays none of its
    messages."""
    return queue.endswith(_FIFO_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Where brokers differ; the conformance suite asserts what each one does instead."""

    delay_seconds_max: float  # of a message that is sent
    hold_seconds_max: float  # of one that is released
    lease_seconds_max: float
    body_bytes_max: int
    receive_max: int  # messages one call can bring
    fenced: bool  # a stale receipt can neither extend nor settle
    refunds: bool  # Release(refund=True) gives the attempt back
    deduplicates: bool  # Outgoing.deduplication_id is honoured
    browsable: bool  # `browse` works: messages can be looked at without being received
    remembers_attempts: bool  # `Delivery.previous` tells of the hand-over before
    pausable: bool  # `pause` and `resume` work
    system: str = "memory"  # what OpenTelemetry's conventions call what is behind it
    creates_queues: bool = True  # a queue is there once it is named; else a `ConfigurationError` says that it is not
    ordered: bool = True  # the older comes first, and groups take turns; else nearly so, or as the broker likes
    exact_stats: bool = True  # counts are right at any moment, and ages are told; else both as near as the broker can
    explains_deaths: bool = True  # what the broker gives up on by itself becomes a dead letter that says why
    looks_cost: bool = False  # asking a queue in vain has its price, which listening has not
    settle_batch: int = 1  # settlements that cost no more than one; fewer may wait for others that long:
    settle_linger_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What a queue is told at its creation. Dead letters go to ``dead_letter_queue``, by default ``<name>-dlq``."""

    name: str
    dead_letter_queue: str | None = None
    receives_max: int | None = None  # hand-overs before the broker itself dead-letters; None: never
    retention_seconds: float = 14 * 86_400.0


AgeSource = Literal["exact", "cloudwatch", "estimated"]  # who tells a queue's age: the broker itself, AWS, or a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How a queue stands. The ages are exact, or None where the broker cannot tell.

    ``oldest_visible_message_age_seconds`` is None while nothing is visible, even if messages are in flight or delayed:
    no message waits. Who needs a number there shows 0.

    ``oldest_message_age_seconds`` is what SQS calls ApproximateAgeOfOldestMessage, as it was measured: over all
    messages not deleted, delayed and in flight too; an age counts from the enqueueing, and again from 0 after every
    third hand-over that ended without an ack; a dead letter's counts from its death. 0 where the queue is empty.

    ``oldest_enqueued_age_seconds`` is over the same messages, without resets: of dead letters, since the first of them
    died. None where the queue is empty.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_visible_message_age_seconds: float | None
    oldest_message_age_seconds: float | None
    oldest_enqueued_age_seconds: float | None = None

    @property
    def messages(self) -> int:
        """All that are there, in flight and delayed ones too."""
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFailure:
    """One delivery that could not be settled; ``lost`` means the lease is the caller's no more, so do not try again."""

    delivery: Delivery
    reason: str
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """How many messages of a queue a worker has room for."""

    queue: str
    messages_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What one turn at a broker came to. Its two halves fail apart, so errors are values here.

    ``deliveries`` are all of one queue: the first of those asked that had any. ``receive_error`` names the queue that
    could not be asked; those behind it were not asked either. After a ``settle_error`` nobody knows which settlements
    were applied.
    """

    failures: Sequence[SettleFailure] = ()
    deliveries: Sequence[Delivery] = ()
    settle_error: Exception | None = None
    receive_error: tuple[str, Exception] | None = None
    next_in_seconds: float | None = None  # where nothing came: when a delay ends, as far as the broker can tell


class Listening(Protocol):
    """An ear at some queues, of one worker."""

    def want(self, queues: Set[str]) -> None:
        """Of which queues the next arrival is to be told, once; none: of no arrival any more.

        Does not block. To be said again after each telling.
        """
        ...

    def close(self) -> None:
        """Tell no more. May wait a moment for a thread to end."""
        ...


class Broker(Protocol):
    """Where messages wait. At least once: a message leaves only when acked, dead-lettered or past its retention.

    All methods block and may be called from several threads. They raise `TemporaryError` when the system behind is
    away and `ConfigurationError` when it never can do what was asked.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this broker can do."""
        ...

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Put messages into the queue, durably and in order; answers their ids."""
        ...

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Lease at most that many visible messages; waits up to ``wait_seconds`` for the first one."""
        ...

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        """Let the leases end ``lease_seconds`` from now; answers the deliveries whose lease was lost already."""
        ...

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """End deliveries as said; answers those that could not be."""
        ...

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        asks: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        """Settle, then receive from the first of the queues that has any message; in one round trip where possible.

        As `settle` and `receive` one after the other, but that errors are answered, not raised. It waits as `receive`
        does, but only where one queue is asked.
        """
        ...

    def listen(self, queues: Sequence[str], tell: Callable[[], None]) -> Listening:
        """Let arrivals be told of: a hint, from any thread, that asking makes sense now.

        Some brokers hear little or nothing, and so a worker still asks now and then.
        """
        ...

    def stats(self, queue: str) -> QueueStats:
        """How the queue stands now."""
        ...

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Look at messages, oldest first, without leasing them. Only where `Capabilities.browsable`."""
        ...

    def queue_names(self) -> Sequence[str]:
        """The queues that this broker knows of, sorted."""
        ...

    def dead_letter_queue(self, queue: str) -> str:
        """Where its dead letters go, as it is told or else by convention: a queue's to the first tier, those of the
        first tier to the second. The second tier's go nowhere else: its own name."""
        ...

    def retention_seconds(self, queue: str) -> float | None:
        """How long a message stays there at most; None: for ever, or nobody can tell."""
        ...

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        """Delete these messages, leased ones too; answers how many were there. Only where `Capabilities.browsable`."""
        ...

    def purge(self, queue: str) -> int:
        """Delete every message of the queue, leased ones too; answers how many, as near as the broker can count."""
        ...

    def now(self) -> float:
        """Return the time by the clock that all users of the broker share, in epoch seconds; the host's clock if the
        broker has none that can be asked."""
        ...

    def pause(self, queue: str) -> None:
        """Hand nothing of the queue over, in any process, until `resume`. Only where `Capabilities.pausable`.

        Everything else goes on: sending, extending, settling, and leases end at their time. A queue may be paused
        before anything was ever sent to it.
        """
        ...

    def resume(self, queue: str) -> None:
        """End a pause, if there is one. Only where `Capabilities.pausable`."""
        ...

    def paused(self, queue: str) -> bool:
        """Whether the queue is paused; never where a broker is not `Capabilities.pausable`."""
        ...

    def close(self) -> None:
        """Give back connections. Leases stay as they are."""
        ...


PARTIAL_CHUNK = 10  # messages between two marks of what was taken, by a broker that may take a part: one call of SQS


@runtime_checkable
class TriesEach(Protocol):
    """A broker that may take a part of the messages of one send, and reports which."""

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        """Return the id of each message, or why it is not in the queue: a `ConfigurationError` if the message itself
        can never be taken. Raises an error of the queue only if the queue took none of them."""
        ...


def send_each(broker: Broker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
    """As `TriesEach.try_send`, with any broker. If the broker is away, it took none of them, or it is unknown which.

    Raises an error of the queue, for a person to mend.
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
        if error.__cause__ is not None:  # the server's or the file's word, and not ours on a message
            raise
        if len(messages) == 1:
            return [error]
    # Such a send is taken whole or not at all, so that nothing is sent twice by this.
    return [answer for message in messages for answer in send_each(broker, queue, [message])]


def chunk_of(broker: Broker, most: int) -> int:
    """Return how many messages to send before what was taken is marked."""
    return min(most, PARTIAL_CHUNK) if isinstance(broker, TriesEach) else most
