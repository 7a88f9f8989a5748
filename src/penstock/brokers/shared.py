"""Rules and helpers shared by the brokers, in reading order:

- the limits and id formats of the memory, SQLite and Redis brokers, so that one can replace another
- checks of queue names, settings and outgoing messages
- the reasons and death records of messages that a settlement or the broker itself dead-letters
- text encodings of groups and attributes, and of positions in lists of messages
- `one_by_one`: a turn made of single calls, for brokers that gain nothing by combining them
- `Arrivals`: wake-up of receivers and listeners within one process

Only memory and SQLite use the receipt handles and the group rotation defined here; Redis implements both in its
scripts.
"""

import base64
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from penstock.brokers.capabilities import EMBEDDED
from penstock.errors import ConfigurationError
from penstock.messaging.broker import (
    FINAL_DLQ_SUFFIX,
    Broker,
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
from penstock.messaging.queued import PEEK_BODIES_BYTES_MAX
from penstock.messaging.settlement import DeadLetter, Release, Settlement
from penstock.messaging.wording import counted

G = TypeVar("G")
QUEUE_CHARS_MAX = 1_024  # SQS allows far fewer
EMPTY_STATS = QueueStats(  # the `stats` of a queue that never received a message
    visible=0, in_flight=0, delayed=0, oldest_visible_message_age_seconds=None, oldest_message_age_seconds=None
)
ATTRIBUTES_BYTES_MAX = 256 * 1024
_RETENTION_SECONDS_MAX = 10 * 366 * 86_400.0
DEDUPLICATION_WINDOW_SECONDS = 300.0  # as on SQS FIFO queues
REASON_BYTES_MAX = 4 * 1024  # of a release's reason, in UTF-8
RESET_EVERY = 3  # unsuccessful deliveries after which the message's age restarts, as measured on SQS
FINAL_DLQ_RELEASE_SECONDS = 900.0  # how long a message that fails in the final DLQ stays hidden there
# If the clock is further than this behind the last lease or delay, it was set back; by less, it was merely read early.
CLOCK_BACK_SECONDS = 1.0
LOST = "the lease ended, or the message is already settled or deleted"
_UNREADABLE_CHARS_MAX = 4 * 1024
_REMEMBERED_SIZE_MAX = 512
_PAGE_KEY_CHARS_MAX = 16 * 1024


class ReceiptHandle(NamedTuple):
    """The message and the delivery that a receipt handle refers to.

    A message's deliveries are numbered without gaps, through dead-lettering and releases, so a handle is never reused.
    """

    seq: int
    number: int


def message_id(store: str, seq: int) -> str:
    """Return a message id. Ids sort by age within a store; the store's own id makes them unique across stores."""
    return f"{store}-{seq:012d}"


def seq_of(store: str, id: str) -> int | None:
    """Return the number in an id made by `message_id`; None if the id is not from this store."""
    head, _, tail = id.rpartition("-")
    return _number(tail) if head == store else None


def receipt(store: str, handle: ReceiptHandle) -> str:
    """Return the receipt handle with which the holder settles and extends this delivery."""
    return f"{store}-{handle.seq}-{handle.number}"


def parse_receipt(store: str, receipt: str) -> ReceiptHandle | None:
    """Return the parts of a handle made by `receipt`; None if this store did not issue it."""
    parts = receipt.rsplit("-", 2)
    if len(parts) != 3 or parts[0] != store:
        return None
    seq, number = _number(parts[1]), _number(parts[2])
    return None if seq is None or number is None else ReceiptHandle(seq, number)


def check_outgoing(queue: str, messages: Sequence[Outgoing]) -> None:
    """Raise ConfigurationError if any of the messages can never be accepted; the caller then sends none of them."""
    check_queue(queue)
    for message in messages:
        _check_size(queue, message)
        check_seconds("delay_seconds", message.delay_seconds, EMBEDDED.delay_seconds_max)
        for text in (message.group, message.deduplication_id):
            if text is not None and not text.isascii():
                _check_text(queue, text)


def check_queue(queue: str) -> None:
    """Raise ConfigurationError if no queue can have this name."""
    if not queue:
        raise ConfigurationError("a queue needs a name of at least one character")
    if (chars := len(queue)) > QUEUE_CHARS_MAX:
        raise ConfigurationError(
            f"the queue {queue[:60]}... has a name of {chars:,} characters: {QUEUE_CHARS_MAX:,} is the most"
        )
    if not queue.isascii():
        _check_text(queue, queue)


def check_settings(settings: QueueSettings) -> None:
    """Raise ConfigurationError if the settings are invalid or contradict each other."""
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
    """Raise ConfigurationError unless the duration is between 0 and ``seconds_max``."""
    if not 0 <= seconds <= seconds_max:  # also true for NaN
        raise ConfigurationError(f"{name} is {seconds}: give it a value between 0 and {seconds_max:g}")


def check_release(release: Release) -> None:
    """Raise ConfigurationError if the release hides its message for too long."""
    check_seconds("delay_seconds", release.delay_seconds, EMBEDDED.release_delay_seconds_max)


def check_wait(wait_seconds: float) -> None:
    """Raise ConfigurationError unless the wait is finite and not negative."""
    if not 0 <= wait_seconds < math.inf:
        raise ConfigurationError(f"wait_seconds is {wait_seconds}: give it a value of 0 or more, with an end")


def dead_letter_queue(settings: QueueSettings, *, is_dlq: bool = False) -> str:
    """Return the queue for dead letters of the queue with these settings.

    If another queue names this one as its dead-letter queue (``is_dlq``), its own dead letters go to a final DLQ by
    default, even if the name has no dead-letter suffix.
    """
    if settings.dead_letter_queue is None and is_dlq and not names_dead_letters(settings.name):
        return f"{settings.name}{FINAL_DLQ_SUFFIX}"
    return settings.dead_letter_queue or conventional_dead_letter_queue(settings.name)


def interleave(heads: Iterable[tuple[G, Sequence[int]]], count: int) -> list[tuple[G, int]]:
    """Take one message of each group in rotation order, then the next of each, until there are ``count``.

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
    """Return the death record of a message whose holder gave up on it. ``tries`` are the attempts before this one."""
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


def attempt_record(attempt: PreviousAttempt) -> AttemptRecord:
    """Convert an ended delivery to the form stored in a death record."""
    return AttemptRecord(
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        worker=attempt.worker,
        end=attempt.end.value,
        reason=attempt.reason,
    )


def release_in_final_dlq(settlement: DeadLetter) -> Release:
    """Return the release that replaces dead-lettering in the final DLQ.

    No queue follows that one, so the message stays and is hidden for `FINAL_DLQ_RELEASE_SECONDS`.
    """
    return Release(delay_seconds=FINAL_DLQ_RELEASE_SECONDS, reason=settlement.reason)


def storable_reason(reason: str | None) -> str | None:
    """Return the part of a release's reason to store: at most `REASON_BYTES_MAX`, and without lone surrogates, which no
    database accepts.
    """
    if reason is None:
        return None
    return reason.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def reason_too_large(body_bytes: int) -> str:
    """Return the reason for giving up an oversized message that another program wrote to the file, where
    `check_outgoing` did not see it.
    """
    return f"its body has {body_bytes} bytes, over the limit of {EMBEDDED.body_bytes_max}"


def reason_unreadable() -> str:
    """Return the reason for giving up a message whose attributes another program wrote."""
    return f"its attributes cannot be read: they are in {UNREADABLE_ATTRIBUTE}"


def reason_exhausted(attempts: int) -> str:
    """Return the reason for giving up a message that was delivered ``attempts`` times and never settled."""
    return f"delivered {counted(attempts, 'time')} and never settled"


def reason_expired(retention_seconds: float) -> str:
    """Return the reason for giving up a message that outlived its queue's retention."""
    return f"waited longer than its queue's retention of {retention_seconds:g} seconds"


def encode_group(group: str | None) -> str:
    """Return ``""`` for no group, else the group after a colon, so that one string comparison covers both cases."""
    return "" if group is None else f":{group}"


def decode_group(text: str) -> str | None:
    """Return the group that `encode_group` encoded."""
    return text[1:] if text else None


def encode_attributes(attributes: Attributes) -> str | None:
    """Return the attributes as JSON. A binary value is a list holding its base64 text, distinct from any text value."""
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

    Raises nothing. If the text cannot be decoded, return its beginning as the single attribute `UNREADABLE_ATTRIBUTE`:
    the broker then dead-letters that message and delivers the rest of the queue.
    """
    if not text:
        return NO_ATTRIBUTES
    return _remembered(text) if len(text) <= _REMEMBERED_SIZE_MAX else _decoded(text)


def page_key(*values: object) -> str:
    """Return the position after a page, for `Broker.peek`."""
    return json.dumps(values, separators=(",", ":"))


def parse_page_key(after: str | None, *types: type) -> tuple[Any, ...] | None:
    """Return the values in a text by `page_key`, of these types; None without a text.

    Raises `ConfigurationError` for a text that it did not make.
    """
    if after is None:
        return None
    try:
        values = json.loads(after) if len(after) <= _PAGE_KEY_CHARS_MAX else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or [*map(type, values)] != [*types] or not all(map(_is_storable, values)):
        raise invalid_page_key()
    return tuple(values)


def invalid_page_key() -> ConfigurationError:
    """Return the error for a position that `page_key` did not make."""
    return ConfigurationError("The position in the list of messages is not valid: go back to its first page.")


def page_of(rows: Iterable[G], body_bytes: Callable[[G], int]) -> list[G]:
    """Return the first rows, up to the one whose body exceeds `PEEK_BODIES_BYTES_MAX` with those before."""
    taken: list[G] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += body_bytes(row)
        if size > PEEK_BODIES_BYTES_MAX:
            break
    return taken


def one_by_one(
    broker: Broker,
    settlements: Sequence[tuple[Delivery, Settlement]],
    requests: Sequence[ReceiveRequest],
    *,
    lease_seconds: float,
    wait_seconds: float,
) -> TurnResult:
    """Settle, then receive from one queue after the other until one has messages. Raises nothing; see `TurnResult`.

    Waits up to ``wait_seconds`` only if there is a single request.
    """
    failures, settle_error = _settled(broker, settlements)
    for request in requests:
        try:
            deliveries = broker.receive(
                request.queue,
                messages_max=request.messages_max,
                lease_seconds=lease_seconds,
                wait_seconds=wait_seconds if len(requests) == 1 else 0.0,
            )
        except Exception as error:
            return TurnResult(failures=failures, settle_error=settle_error, receive_error=(request.queue, error))
        if deliveries:
            return TurnResult(failures=failures, settle_error=settle_error, deliveries=deliveries)
    return TurnResult(failures=failures, settle_error=settle_error)


class Arrivals:
    """Wake-up of receivers and listeners in this process. Thread-safe.

    Each waiting receiver has its own event, so no receiver can consume another's wake-up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: set[threading.Event] = set()  # changed by receivers under the lock
        self._listeners: tuple[LocalArrivalListener, ...] = ()  # replaced under the lock by `listen` and `_forget`

    @contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """Yield an event that every `notify` sets until the block ends."""
        event = threading.Event()
        with self._lock:
            self._events.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._events.discard(event)

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> "LocalArrivalListener":
        """Return a listener for these queues. Its ``on_arrival`` runs in the thread that calls `notify`."""
        listener = LocalArrivalListener(queues, on_arrival, leave=self._forget)
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return listener

    def notify(self, queue: str | None = None) -> None:
        """Wake all receivers, and the listeners of this queue (None: of any queue), since messages may have become
        visible.
        """
        with self._lock:
            for event in self._events:
                event.set()
            listeners = self._listeners
        for listener in listeners:
            listener.notify(queue)

    def _forget(self, closed: "LocalArrivalListener") -> None:
        with self._lock:
            self._listeners = tuple(listener for listener in self._listeners if listener is not closed)


class LocalArrivalListener:
    """One worker's `penstock.messaging.broker.Listening` within one process. Thread-safe."""

    def __init__(
        self, queues: Sequence[str], on_arrival: Callable[[], None], *, leave: "Callable[[LocalArrivalListener], None]"
    ) -> None:
        self._queues = frozenset(queues)
        self._on_arrival = on_arrival
        self._leave = leave
        self._lock = threading.Lock()
        self._wanted: Set[str] = frozenset()  # written under the lock
        self._closed = False  # written under the lock; never unset

    def want(self, queues: Set[str]) -> None:
        with self._lock:
            self._wanted = frozenset() if self._closed else self._queues & queues

    def notify(self, queue: str | None) -> None:
        """Call ``on_arrival`` if this queue is wanted, after releasing the lock: the callback may do anything."""
        with self._lock:
            if not self._wanted or (queue is not None and queue not in self._wanted):
                return
            self._wanted = frozenset()
        self._on_arrival()

    def close(self) -> None:
        with self._lock:
            self._wanted, self._closed = frozenset(), True
        self._leave(self)


def _number(text: str) -> int | None:
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


def _is_storable(value: object) -> bool:
    """Return True if databases take it: a finite number that fits a double, or a text."""
    return not isinstance(value, int | float) or (math.isfinite(value) and abs(value) < 2**53)


def _check_size(queue: str, message: Outgoing) -> None:
    if len(message.body) > EMBEDDED.body_bytes_max:
        raise ConfigurationError(
            f"a message for queue {queue!r} has a body of {len(message.body)} bytes: give it at "
            f"most {EMBEDDED.body_bytes_max} and send a reference to larger content"
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


def _decoded(text: str | bytes) -> Attributes:
    try:
        fields: Mapping[str, object] = json.loads(text)
        return MappingProxyType({name: _value(value) for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError, RecursionError):  # not JSON, UTF-8, an object or a known value type
        shown = text if isinstance(text, str) else bytes(text).decode("utf-8", "backslashreplace")
        return MappingProxyType({UNREADABLE_ATTRIBUTE: shown[:_UNREADABLE_CHARS_MAX]})


_remembered = lru_cache(maxsize=256)(_decoded)  # safe to share: the mappings are read-only


def _value(value: object) -> str | bytes:
    match value:
        case str():
            return value
        case [str(text)]:
            return base64.b64decode(text, validate=True)
    raise TypeError


def _settled(
    broker: Broker, settlements: Sequence[tuple[Delivery, Settlement]]
) -> tuple[Sequence[SettleFailure], Exception | None]:
    try:
        return (broker.settle(settlements) if settlements else ()), None
    except Exception as error:
        return (), error
