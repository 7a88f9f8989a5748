"""The status of the queues for commands: the health of each, its dead letters, and the workers of this host."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol, runtime_checkable

from penstock.app.brokers import broker_exists, broker_file, capabilities_of, open_broker
from penstock.app.registry import WorkerRecord, Workers
from penstock.app.system_health import AgeReader, QueueHealth, read_queue, tier_by_dlq
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError, UsageError
from penstock.messaging.broker import Broker, listed_name, names_dead_letters
from penstock.messaging.tracing import unwrapped
from penstock.messaging.wording import counted


@runtime_checkable
class HasSenderKeys(Protocol):
    """A broker to which other clients can send without Penstock, by writing to a key."""

    def sender_key(self, queue: str) -> str:
        """Return the key for other clients."""
        ...

    def unread_stream(self, queue: str) -> tuple[str, int] | None:
        """Return a key that is used by mistake and read by no worker, with its number of messages, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus(QueueHealth):
    """The health of one queue, its dead letters, and what this host knows of its workers."""

    dead_letters: int  # in the DLQ and the final DLQ, including those that wait for their replay
    dead_letters_set_aside: int  # in the final DLQ, which is not replayed automatically
    paused: bool
    breaker: str | None  # the error that opened the circuit breaker of a worker with this data directory
    unserved: str | None  # any other reason why a worker with this data directory does not serve it, as a sentence
    workers: tuple[str, ...]  # with this data directory; a shared broker may have others
    sender_key: str | None = None  # for XADD by other clients, on Redis
    unread: str | None = None  # a sentence about messages under a key that no worker reads


@contextmanager
def opened(settings: Settings, *, make: bool = False) -> Iterator[Broker]:
    """Open the broker from a process that is not a worker.

    Raises `ConfigurationError` for a broker that lives inside one process, and `UsageError` for a SQLite queue that
    does not exist, unless ``make`` is set.
    """
    check_shared(settings)
    if not make and not broker_exists(settings):
        raise UsageError(
            f"There is no queue in {broker_file(settings)} yet: the first message that is sent creates it. The setting "
            "broker names the file."
        )
    broker = open_broker(settings, holder="")
    try:
        yield broker
    finally:
        broker.close()


def check_shared(settings: Settings) -> None:
    """Raise `ConfigurationError` for a broker that another process cannot reach."""
    if capabilities_of(settings).in_process:
        raise ConfigurationError(
            f"The broker {settings.broker} exists only inside its process, so no other process can use it; set broker "
            "to sqlite:///FILE."
        )


def queue_statuses(
    settings: Settings, broker: Broker, names: Sequence[str] | None = None, *, ages: AgeReader | None = None
) -> Sequence[QueueStatus]:
    """Return the status of these queues, or of all that the broker knows.

    Pass the same ``ages`` to repeated calls, or one with CloudWatch to query it.
    """
    ages = ages or AgeReader(broker)
    workers = Workers(Path(settings.data_dir)).records()
    names = broker.queue_names() if names is None else names
    cloudwatch_ages: Mapping[str, float] = {}
    with suppress(PenstockError):  # without CloudWatch's ages, everything else is still reported
        cloudwatch_ages = ages.query(names)
    return [_status_of(broker, name, workers, ages, cloudwatch_ages) for name in names]


def queue_status(settings: Settings, broker: Broker, queue: str, *, ages: AgeReader | None = None) -> QueueStatus:
    """Return the status of one queue. Raises `UsageError` if the broker does not know it."""
    check_known(broker, queue)
    return queue_statuses(settings, broker, [queue], ages=ages)[0]


def check_known(broker: Broker, queue: str) -> None:
    """Raise `UsageError`, listing the known queues, for a queue that the broker does not know."""
    known = broker.queue_names()
    if listed_name(queue) not in known:
        raise UsageError(f"There is no queue {queue}; existing queues: {', '.join(known) or 'none'}.")


def messages_in(broker: Broker, queue: str) -> int:
    """Return the number of all messages, including those in flight and delayed; 0 for a queue that does not exist."""
    return broker.stats(queue).messages


def _status_of(
    broker: Broker, queue: str, workers: Sequence[WorkerRecord], ages: AgeReader, cloudwatch_ages: Mapping[str, float]
) -> QueueStatus:
    health = read_queue(broker, queue, ages, cloudwatch_ages=cloudwatch_ages, workers=workers)
    key, unread = _sender_keys(broker, queue)
    dlqs = {} if names_dead_letters(queue) else tier_by_dlq(broker, queue)
    dead_letters = {name: messages_in(broker, name) for name in dlqs}
    return QueueStatus(
        **{field.name: getattr(health, field.name) for field in fields(health)},
        dead_letters=sum(dead_letters.values()),
        dead_letters_set_aside=sum(count for name, count in dead_letters.items() if dlqs[name] == "dead"),
        paused=broker.paused(queue),
        breaker=next((record.paused[queue] for record in workers if queue in record.paused), None),
        unserved=next((record.unserved[queue] for record in workers if queue in record.unserved), None),
        workers=tuple(record.worker for record in workers if queue in record.queues),
        sender_key=key,
        unread=unread,
    )


def _sender_keys(broker: Broker, queue: str) -> tuple[str | None, str | None]:
    """Return the key for other clients, and a sentence about messages that they wrote to another key by mistake."""
    inner = unwrapped(broker)
    if not isinstance(inner, HasSenderKeys):
        return None, None
    key = inner.sender_key(queue)
    found = inner.unread_stream(queue)
    if found is None:
        return key, None
    unread, entries = found
    return key, (
        f"the key {unread} holds {counted(entries, 'entry', 'entries')} that no worker reads: the key of "
        f"the queue {queue} is {key}; send with XADD to that key, and move the entries there"
    )
