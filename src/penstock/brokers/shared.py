"""What the brokers in SQLite, in memory and in Redis agree on, so that they can be exchanged.

What they can do and refuse, how ids look, when a broker gives up on a message by itself, and what a dead letter then
says. Only the embedded two share the forms of receipts and the order of the ring: Redis keeps both in its scripts.

How brokers that keep text write attributes and groups down.

A turn at a broker made of its single calls, for brokers that win nothing by combining them.

Who waits for messages in this process, and how they hear of them.
"""

import base64
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from penstock.errors import ConfigurationError
from penstock.messaging.broker import (
    SECOND_TIER_SUFFIX,
    Broker,
    Capabilities,
    QueueSettings,
    QueueStats,
    ReceiveRequest,
    SettleFailure,
    TurnResult,
    conventional_dead_letter_queue,
    names_dead_letters,
)
from penstock.messaging.death import DIED, TRIES_MAX, AttemptRecord, Death
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.message import NO_ATTRIBUTES, UNREADABLE_ATTRIBUTE, Attributes, Outgoing
from penstock.messaging.settlement import DeadLetter, Release, Settlement

G = TypeVar("G")

QUEUE_CHARS_MAX = 1_024  # of a name; those of SQS are far shorter

CAPABILITIES = Capabilities(
    delay_seconds_max=14 * 86_400.0,
    hold_seconds_max=14 * 86_400.0,
    lease_seconds_max=12 * 3_600.0,  # of one call; extending again and again has no end
    body_bytes_max=1024 * 1024,  # what SQS takes, so that what runs here fits there
    receive_max=1_000,
    fenced=True,
    refunds=True,
    deduplicates=True,
    browsable=True,
    remembers_attempts=True,
    pausable=True,
)
NEVER_HEARD_OF = QueueStats(  # what `stats` says of a queue that nothing was sent to
    visible=0, in_flight=0, delayed=0, oldest_visible_message_age_seconds=None, oldest_message_age_seconds=None
)
ATTRIBUTES_BYTES_MAX = 256 * 1024
_RETENTION_SECONDS_MAX = 10 * 366 * 86_400.0
DEDUPLICATION_WINDOW_SECONDS = 300.0  # as on SQS FIFO queues
REASON_BYTES_MAX = 4 * 1024  # of what is kept of a release's reason, in UTF-8
RESET_EVERY = 3  # unsuccessful hand-overs after which a message's age begins again, as measured on SQS
LAST_TIER_HOLD_SECONDS = 900.0  # between two tries to give up on a letter that has no other place to go
CLOCK_BACK_SECONDS = (
    1.0  # behind the last lease or delay by more: the host's clock was set back, and no look was merely late
)
LOST = "the lease ended, or the message is settled already, or gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptHandle:
    """What a receipt says: which message, and which of its hand-overs. Hand-overs are numbered without a gap and for
    ever, dead-lettering and refunds included, so a receipt never repeats."""

    seq: int
    number: int


def message_id(store: str, seq: int) -> str:
    """Ids sort by age within one store; the store's own id keeps them apart from those of any other store."""
    return f"{store}-{seq:012d}"


def seq_of(store: str, id: str) -> int | None:
    """The reverse of `message_id`; None for an id that is not of this store."""
    head, _, tail = id.rpartition("-")
    return _number(tail) if head == store else None


def receipt(store: str, hand_over: ReceiptHandle) -> str:
    """What the holder of this hand-over settles and extends with."""
    return f"{store}-{hand_over.seq}-{hand_over.number}"


def hand_over_of(store: str, receipt: str) -> ReceiptHandle | None:
    """The reverse of `receipt`; None for a receipt that this store never gave."""
    parts = receipt.rsplit("-", 2)
    if len(parts) != 3 or parts[0] != store:
        return None
    seq, number = _number(parts[1]), _number(parts[2])
    return None if seq is None or number is None else ReceiptHandle(seq=seq, number=number)


def _number(text: str) -> int | None:
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


def check_outgoing(queue: str, messages: Sequence[Outgoing]) -> None:
    """Refuse a send of which one message can never be taken; then none is."""
    check_queue(queue)
    for message in messages:
        _check_size(queue, message)
        check_seconds("delay_seconds", message.delay_seconds, CAPABILITIES.delay_seconds_max)
        for text in (message.group, message.deduplication_id):
            if text is not None and not text.isascii():
                _check_text(queue, text)


def check_queue(queue: str) -> None:
    """Refuse a name that no queue can have."""
    if not queue:
        raise ConfigurationError("a queue needs a name: give it one of at least one character")
    if (chars := len(queue)) > QUEUE_CHARS_MAX:
        raise ConfigurationError(
            f"the queue {queue[:60]}... has a name of {chars:,} characters: {QUEUE_CHARS_MAX:,} is the most"
        )
    if not queue.isascii():
        _check_text(queue, queue)


def check_settings(settings: QueueSettings) -> None:
    """Refuse settings that no queue can live with."""
    check_queue(settings.name)
    if settings.dead_letter_queue == settings.name:
        raise ConfigurationError(f"queue {settings.name!r} is its own dead-letter queue: name another one")
    if settings.receives_max is not None and dead_letter_queue(settings) == settings.name:
        raise ConfigurationError(
            f"queue {settings.name!r} holds the dead letters that go nowhere else: give it no receives_max, or a "
            "dead-letter queue"
        )
    if settings.receives_max is not None and settings.receives_max < 1:
        raise ConfigurationError(
            f"queue {settings.name!r}: receives_max is {settings.receives_max}: make it at least 1"
        )
    check_seconds(f"retention_seconds of queue {settings.name!r}", settings.retention_seconds, _RETENTION_SECONDS_MAX)


def check_seconds(name: str, seconds: float, seconds_max: float) -> None:
    """Refuse a duration beyond 0 to ``seconds_max``."""
    if not 0 <= seconds <= seconds_max:  # NaN fails this too
        raise ConfigurationError(f"{name} is {seconds}: give it a value between 0 and {seconds_max:g}")


def check_hold(release: Release) -> None:
    """Refuse a release that hides a message for too long."""
    check_seconds("delay_seconds", release.delay_seconds, CAPABILITIES.hold_seconds_max)


def check_wait(wait_seconds: float) -> None:
    """Refuse a wait that is negative or has no end."""
    if not 0 <= wait_seconds < math.inf:
        raise ConfigurationError(f"wait_seconds is {wait_seconds}: give it a value of 0 or more, with an end")


def _check_size(queue: str, message: Outgoing) -> None:
    if len(message.body) > CAPABILITIES.body_bytes_max:
        raise ConfigurationError(
            f"a message for queue {queue!r} has a body of {len(message.body)} bytes: give it at "
            f"most {CAPABILITIES.body_bytes_max} and send a reference to what is larger"
        )
    if message.attributes and sum(len(k) + len(v) for k, v in message.attributes.items()) > ATTRIBUTES_BYTES_MAX:
        raise ConfigurationError(
            f"a message for queue {queue!r} has more than {ATTRIBUTES_BYTES_MAX} bytes of attributes: put them into "
            "its body"
        )


def _check_text(queue: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"queue {queue!r}: {text!r} holds a lone surrogate; give queue, group and deduplication id as valid Unicode"
        ) from None


def dead_letter_queue(settings: QueueSettings, *, holds_dead: bool = False) -> str:
    """Where the queue's dead letters go. Of a queue that was named as another one's dead-letter queue
    (``holds_dead``), whatever it is called, they go to a second tier."""
    if settings.dead_letter_queue is None and holds_dead and not names_dead_letters(settings.name):
        return f"{settings.name}{SECOND_TIER_SUFFIX}"
    return settings.dead_letter_queue or conventional_dead_letter_queue(settings.name)


def interleave(heads: Iterable[tuple[G, Sequence[int]]], count: int) -> list[tuple[G, int]]:
    """One message of each group in the ring's order, then the next of each, until ``count`` are taken.

    ``heads`` holds each group's oldest messages, oldest first.
    """
    lines = [(group, seqs) for group, seqs in heads if seqs]
    taken: list[tuple[G, int]] = []
    turn = 0
    while lines and len(taken) < count:
        taken += [(group, seqs[turn]) for group, seqs in lines[: count - len(taken)]]
        turn += 1
        lines = [(group, seqs) for group, seqs in lines if len(seqs) > turn]
    return taken


def death_by_settlement(
    settlement: DeadLetter,
    delivery: Delivery,
    *,
    worker: str,
    first_failed_at: float | None,
    now: float,
    tries: Sequence[AttemptRecord] = (),
) -> Death:
    """Of a message that its holder gave up on; ``tries`` are the attempts before this one."""
    last = AttemptRecord(
        started_at=delivery.received_at, ended_at=now, worker=worker, end=DIED, reason=settlement.reason
    )
    return Death(
        reason=settlement.reason,
        exception=settlement.exception,
        traceback=settlement.traceback,
        poison=settlement.poison,
        fingerprint=settlement.fingerprint,
        handler=settlement.handler,
        attempts=delivery.attempt,
        first_failed_at=now if first_failed_at is None else first_failed_at,
        last_failed_at=now,
        worker=worker,
        queue=delivery.queue,
        message_id=delivery.message.id,
        enqueued_at=delivery.message.enqueued_at,
        tries=(*tries, last)[-TRIES_MAX:],
    )


def tried(attempt: PreviousAttempt) -> AttemptRecord:
    """A hand-over that ended, as a death tells of it."""
    return AttemptRecord(
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        worker=attempt.worker,
        end=attempt.end.value,
        reason=attempt.reason,
    )


def kept_back(settlement: DeadLetter) -> Release:
    """What becomes of a letter of the second tier that is given up on there: it stays, as there is no other place for
    it, and nobody gets it again soon."""
    return Release(delay_seconds=LAST_TIER_HOLD_SECONDS, reason=settlement.reason)


def kept_reason(reason: str | None) -> str | None:
    """What is remembered of a release's reason: bounded, and without lone surrogates, which no database takes."""
    if reason is None:
        return None
    return reason.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def reason_too_large(body_bytes: int) -> str:
    """Why the broker gave up on a message that came into its file past `check_outgoing`."""
    return f"its body has {body_bytes} bytes, over the limit of {CAPABILITIES.body_bytes_max}"


def reason_unreadable() -> str:
    """Return the reason for giving up a message whose attributes another program wrote."""
    return f"its attributes cannot be read: they are in {UNREADABLE_ATTRIBUTE}"


def reason_exhausted(attempts: int) -> str:
    """Why the broker itself gave up on a message that nobody ever settled."""
    return f"handed over {attempts} times and never settled"


def reason_expired(retention_seconds: float) -> str:
    """Why the broker itself gave up on a message that waited too long."""
    return f"waited longer than its queue's retention of {retention_seconds:g} seconds"


_UNREADABLE_CHARS_MAX = 4 * 1024
_REMEMBERED_SIZE_MAX = 512


def encode_group(group: str | None) -> str:
    """Empty for no group, else a colon and the group, so that one comparison serves both."""
    return "" if group is None else f":{group}"


def decode_group(text: str) -> str | None:
    """The group that `encode_group` wrote."""
    return text[1:] if text else None


def encode_attributes(attributes: Attributes) -> str | None:
    """JSON; a binary value is a list of one base64 text, which no text value can be taken for."""
    if not attributes:
        return None
    return json.dumps(
        {
            name: value if isinstance(value, str) else [base64.b64encode(value).decode("ascii")]
            for name, value in attributes.items()
        }
    )


def decode_attributes(text: str | bytes | None) -> Attributes:
    """Return the attributes that `encode_attributes` wrote. Short texts are cached.

    Raises nothing. A text that cannot be decoded becomes one attribute, `UNREADABLE_ATTRIBUTE`, with the beginning of
    the text: a broker makes that message a dead letter, and the rest of its queue is delivered.
    """
    if not text:
        return NO_ATTRIBUTES
    return _remembered(text) if len(text) <= _REMEMBERED_SIZE_MAX else _decoded(text)


def _decoded(text: str | bytes) -> Attributes:
    try:
        fields: Mapping[str, object] = json.loads(text)
        return MappingProxyType({name: _value(value) for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, UTF-8 or object; other types of values
        shown = text if isinstance(text, str) else bytes(text).decode("utf-8", "backslashreplace")
        return MappingProxyType({UNREADABLE_ATTRIBUTE: shown[:_UNREADABLE_CHARS_MAX]})


def _value(value: object) -> str | bytes:
    match value:
        case str():
            return value
        case [str(text)]:
            return base64.b64decode(text, validate=True)
    raise TypeError


_remembered = lru_cache(maxsize=256)(_decoded)  # nobody can write to what it answers


def one_by_one(
    broker: Broker,
    settlements: Sequence[tuple[Delivery, Settlement]],
    asks: Sequence[ReceiveRequest],
    *,
    lease_seconds: float,
    wait_seconds: float,
) -> TurnResult:
    """Settle, then receive from one queue after the other until one has messages. Raises nothing: see `TurnResult`."""
    failures, settle_error = _settled(broker, settlements)
    for ask in asks:
        try:
            deliveries = broker.receive(
                ask.queue,
                messages_max=ask.messages_max,
                lease_seconds=lease_seconds,
                wait_seconds=wait_seconds if len(asks) == 1 else 0.0,
            )
        except Exception as error:
            return TurnResult(failures=failures, settle_error=settle_error, receive_error=(ask.queue, error))
        if deliveries:
            return TurnResult(failures=failures, settle_error=settle_error, deliveries=deliveries)
    return TurnResult(failures=failures, settle_error=settle_error)


def _settled(
    broker: Broker, settlements: Sequence[tuple[Delivery, Settlement]]
) -> tuple[Sequence[SettleFailure], Exception | None]:
    try:
        return (broker.settle(settlements) if settlements else ()), None
    except Exception as error:
        return (), error


class Arrivals:
    """Wakes waiting receivers, each by an event of its own, so that none can swallow another's call; and tells ears."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: set[threading.Event] = set()  # written under the lock by receivers
        self._ears: tuple[LocalArrivalListener, ...] = ()  # replaced under the lock by those who listen

    @contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """An event that every `tell` sets while the block lasts."""
        event = threading.Event()
        with self._lock:
            self._events.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._events.discard(event)

    def listen(self, queues: Sequence[str], tell: Callable[[], None]) -> "LocalArrivalListener":
        """An ear at these queues; it is told in the thread that calls `tell` here."""
        ear = LocalArrivalListener(queues, tell, leave=self._forget)
        with self._lock:
            self._ears = (*self._ears, ear)
        return ear

    def tell(self, queue: str | None = None) -> None:
        """Something may have become visible, in this queue or in any."""
        with self._lock:
            for event in self._events:
                event.set()
            ears = self._ears
        for ear in ears:
            ear.hear(queue)

    def _forget(self, gone: "LocalArrivalListener") -> None:
        with self._lock:
            self._ears = tuple(ear for ear in self._ears if ear is not gone)


class LocalArrivalListener:
    """`penstock.messaging.broker.Listening` within one process."""

    def __init__(
        self, queues: Sequence[str], tell: Callable[[], None], *, leave: "Callable[[LocalArrivalListener], None]"
    ) -> None:
        self._queues = frozenset(queues)
        self._tell = tell
        self._leave = leave
        self._lock = threading.Lock()
        self._wanted: Set[str] = frozenset()  # under the lock
        self._closed = False  # as above; never unset

    def want(self, queues: Set[str]) -> None:
        with self._lock:
            self._wanted = frozenset() if self._closed else self._queues & queues

    def hear(self, queue: str | None) -> None:
        """Tell, if that is wanted; called without any lock held, for nobody knows what is done there."""
        with self._lock:
            if not self._wanted or (queue is not None and queue not in self._wanted):
                return
            self._wanted = frozenset()
        self._tell()

    def close(self) -> None:
        with self._lock:
            self._wanted, self._closed = frozenset(), True
        self._leave(self)
