"""The status of the queues, for commands and senders outside the worker processes.

Includes the age of messages and its source: the broker, CloudWatch, or an estimate from the receives of workers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.app.backends import MEMORY, SQLITE, aws_of, is_sqs, open_broker
from penstock.app.registry import SERVING, WorkerRecord, Workers
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError, UsageError
from penstock.messaging.age_estimate import AgeEstimate
from penstock.messaging.broker import AgeSource, Broker, QueueStats, listed_name, names_dead_letters
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.tracing import unwrapped

if TYPE_CHECKING:
    from penstock.brokers.sqs.cloudwatch import CloudWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAges:
    """The message ages of one queue. None if unknown; the visible age also if no message is visible."""

    oldest_seconds: float | None
    oldest_visible_seconds: float | None


class AgeReader:
    """Read the ages of one broker's queues.

    For one thread. Keep the instance between reads: it remembers empty queues.
    """

    def __init__(self, broker: Broker, *, clock: Clock | None = None, cloudwatch: "CloudWatch | None" = None) -> None:
        self.cloudwatch = cloudwatch
        self._exact = broker.capabilities.exact_stats
        self._clock = clock or SystemClock()
        self._empty: dict[str, AgeEstimate] = {}  # when a read found nothing visible, by queue

    @property
    def oldest_source(self) -> AgeSource:
        """The source of the oldest message's age."""
        return "exact" if self._exact else "cloudwatch"

    @property
    def oldest_visible_source(self) -> AgeSource:
        """The source of the oldest visible message's age."""
        return "exact" if self._exact else "estimated"

    def asked(self, queues: Sequence[str]) -> Mapping[str, float]:
        """Return CloudWatch's ages of these queues; empty without CloudWatch.

        Raises as `CloudWatch.oldest_ages` does.
        """
        return {} if self.cloudwatch is None or not queues else self.cloudwatch.oldest_ages(queues)

    def of(
        self, queue: str, stats: QueueStats, *, told: Mapping[str, float], workers: Iterable[WorkerRecord]
    ) -> QueueAges:
        """Return the ages of a queue with these stats.

        ``told`` is the result of `asked`; ``workers`` are those of this host, which may have received from the queue.
        """
        if self._exact:
            return QueueAges(
                oldest_seconds=stats.oldest_message_age_seconds,
                oldest_visible_seconds=stats.oldest_visible_message_age_seconds,
            )
        return QueueAges(
            oldest_seconds=told.get(queue), oldest_visible_seconds=self._estimated(queue, stats.visible, workers)
        )

    def close(self) -> None:
        """Close the connection to CloudWatch."""
        if self.cloudwatch is not None:
            self.cloudwatch.close()

    def _estimated(self, queue: str, visible: int, workers: Iterable[WorkerRecord]) -> float | None:
        now = self._clock.now()
        if visible == 0:
            self._empty[queue] = AgeEstimate(empty_at=now)
            return None
        # A draining worker's receives are outdated: it does not know which messages others have received since.
        seen = [each.seen[queue] for each in workers if each.state == SERVING and queue in each.seen]
        estimate = AgeEstimate.merged([*seen, self._empty.get(queue, AgeEstimate())])
        return estimate.visible_age_seconds(now, visible=visible)


def ages_of(settings: Settings, broker: Broker, *, clock: Clock | None = None) -> AgeReader:
    """Return a reader, with CloudWatch if the broker is SQS; each of its queries is charged.

    Raises `ConfigurationError`.
    """
    clock = clock or SystemClock()
    if broker.capabilities.exact_stats or not is_sqs(settings.broker):
        return AgeReader(broker, clock=clock)
    from penstock.brokers.sqs.cloudwatch import CloudWatch

    return AgeReader(broker, clock=clock, cloudwatch=CloudWatch(aws_of(settings.broker, settings.aws), clock=clock))


@runtime_checkable
class TakesForeign(Protocol):
    """A broker whose queues other clients can write to under a key."""

    def sender_key(self, queue: str) -> str:
        """Return the key for other clients."""
        ...

    def unread_stream(self, queue: str) -> tuple[str, int] | None:
        """Return a key that is used by mistake and read by no worker, with its number of messages, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The status of one queue. Ages are None if nothing waits or the age is unknown.

    The source of an age is the broker (exact), CloudWatch, or an estimate from the receives of this host's workers.
    """

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_visible_message_age_seconds: float | None
    oldest_visible_message_age_source: AgeSource | None
    oldest_message_age_seconds: float | None
    oldest_message_age_source: AgeSource | None
    dead_letters: int  # in the DLQ and the final DLQ, including those that wait for their replay
    dead_letters_set_aside: int  # in the final DLQ, which is not replayed automatically
    paused: bool
    breaker: str | None  # the error that opened the circuit breaker of a worker with this data directory
    unserved: str | None  # any other reason why a worker with this data directory does not serve it, as a sentence
    workers: tuple[str, ...]  # with this data directory; a shared broker may have others
    sender_key: str | None = None  # for XADD by other clients, on Redis
    unread: str | None = None  # a sentence about messages under a key that no worker reads

    @property
    def messages(self) -> int:
        """The number of all messages, including those in flight and delayed."""
        return self.visible + self.in_flight + self.delayed


@contextmanager
def opened(settings: Settings, *, make: bool = False) -> Iterator[Broker]:
    """Open the broker from a process that is not a worker.

    Raises `ConfigurationError` for a broker that lives inside one process, and `UsageError` for a SQLite queue that
    does not exist, unless ``make`` is set.
    """
    check_shared(settings)
    file = settings.broker.removeprefix(SQLITE)
    if not make and settings.broker.startswith(SQLITE) and not Path(file).is_file():
        raise UsageError(
            f"There is no queue in {Path(file).absolute()} yet: the first message that is sent makes it. The setting "
            "broker names another place."
        )
    broker = open_broker(settings, holder="")
    try:
        yield broker
    finally:
        broker.close()


def check_shared(settings: Settings) -> None:
    """Raise `ConfigurationError` for a broker that another process cannot reach."""
    if settings.broker == MEMORY:
        raise ConfigurationError(
            f"The broker {MEMORY} lives and ends with one process, so nothing can be done with it from outside; set "
            f"broker to {SQLITE}FILE."
        )


def standings(
    settings: Settings, broker: Broker, names: Sequence[str] | None = None, *, ages: AgeReader | None = None
) -> Sequence[QueueStatus]:
    """Return the status of these queues, or of all that the broker knows.

    Pass the same ``ages`` to repeated calls, or one with CloudWatch to query it.
    """
    ages = ages or AgeReader(broker)
    workers = Workers(Path(settings.state)).records()
    names = broker.queue_names() if names is None else names
    told: Mapping[str, float] = {}
    with suppress(PenstockError):  # without CloudWatch's ages, everything else is still reported
        told = ages.asked(names)
    return [_standing(broker, name, workers, ages, told) for name in names]


def standing_of(settings: Settings, broker: Broker, queue: str, *, ages: AgeReader | None = None) -> QueueStatus:
    """Return the status of one queue. Raises `UsageError` if the broker does not know it."""
    check_known(broker, queue)
    return standings(settings, broker, [queue], ages=ages)[0]


def check_known(broker: Broker, queue: str) -> None:
    """Raise `UsageError`, listing the known queues, for a queue that the broker does not know."""
    known = broker.queue_names()
    if listed_name(queue) not in known:
        raise UsageError(f"There is no queue {queue}; queues there are: {', '.join(known) or 'none'}.")


def tiers(broker: Broker, queue: str) -> tuple[str, str]:
    """Return the DLQ of a queue, which may be replayed automatically, and its final DLQ, which waits for people."""
    first = broker.dead_letter_queue(queue)
    return first, broker.dead_letter_queue(first)


def messages_in(broker: Broker, queue: str) -> int:
    """Return the number of all messages, including those in flight and delayed; 0 for a queue that does not exist."""
    return broker.stats(queue).messages


def _standing(
    broker: Broker, queue: str, workers: Sequence[WorkerRecord], ages: AgeReader, told: Mapping[str, float]
) -> QueueStatus:
    stats = broker.stats(queue)
    age: QueueAges = ages.of(queue, stats, told=told, workers=workers)
    key, unread = _foreign(broker, queue)
    letters = () if names_dead_letters(queue) else [messages_in(broker, tier) for tier in tiers(broker, queue)]
    return QueueStatus(
        queue=queue,
        visible=stats.visible,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        oldest_visible_message_age_seconds=age.oldest_visible_seconds,
        oldest_visible_message_age_source=None if age.oldest_visible_seconds is None else ages.oldest_visible_source,
        oldest_message_age_seconds=age.oldest_seconds,
        oldest_message_age_source=None if age.oldest_seconds is None else ages.oldest_source,
        dead_letters=sum(letters),
        dead_letters_set_aside=sum(letters[1:]),
        paused=broker.paused(queue),
        breaker=next((record.paused[queue] for record in workers if queue in record.paused), None),
        unserved=next((record.unserved[queue] for record in workers if queue in record.unserved), None),
        workers=tuple(record.worker for record in workers if queue in record.queues),
        sender_key=key,
        unread=unread,
    )


def _foreign(broker: Broker, queue: str) -> tuple[str | None, str | None]:
    """Return the key for other clients, and a sentence about messages under a key that they mistook for it."""
    inner = unwrapped(broker)
    if not isinstance(inner, TakesForeign):
        return None, None
    key = inner.sender_key(queue)
    found = inner.unread_stream(queue)
    if found is None:
        return key, None
    unread, entries = found
    return key, (
        f"the key {unread} holds {entries:,} {'entry' if entries == 1 else 'entries'} that no worker reads: the key of "
        f"the queue {queue} is {key}; send with XADD to that key, and move the entries there"
    )
