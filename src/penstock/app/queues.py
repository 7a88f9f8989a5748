"""How the queues of the settings' broker stand, and who works on them. For looking from outside, and for senders."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.app.backends import MEMORY, SQLITE, open_broker
from penstock.app.registry import WorkerRecord, Workers
from penstock.config import Settings
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.broker import Broker, listed_name, names_dead_letters


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStanding:
    """How one queue stands now. Ages are None where nothing waits, or where the broker cannot tell."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_visible_message_age_seconds: float | None
    oldest_message_age_seconds: float | None
    dead_letters: int  # of both tiers, also those that wait for their replay
    dead_letters_set_aside: int  # those of the second tier, which nothing brings back by itself
    paused: bool
    breaker: str | None  # the error for which a worker of this state folder serves it no more for now
    workers: tuple[str, ...]  # of this state folder; on a broker that hosts share there may be others


@contextmanager
def opened(settings: Settings, *, make: bool = False) -> Iterator[Broker]:
    """The broker, from another process than its workers'.

    Raises `ConfigurationError` for one that only lives inside a process, and `UsageError` for an embedded queue that is
    not there, unless told to ``make`` it.
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


def standings(settings: Settings, broker: Broker, names: Sequence[str] | None = None) -> Sequence[QueueStanding]:
    """Of these queues, or of every one that the broker knows of."""
    workers = Workers(Path(settings.state)).records()
    return [_standing(broker, name, workers) for name in (broker.queue_names() if names is None else names)]


def standing_of(settings: Settings, broker: Broker, queue: str) -> QueueStanding:
    """Of one queue. Raises `UsageError` for one that the broker does not know of."""
    check_known(broker, queue)
    return _standing(broker, queue, Workers(Path(settings.state)).records())


def check_known(broker: Broker, queue: str) -> None:
    """Raise `UsageError` for a queue that the broker does not know of, with those it does."""
    known = broker.queue_names()
    if listed_name(queue) not in known:
        raise UsageError(f"There is no queue {queue}; queues there are: {', '.join(known) or 'none'}.")


def tiers(broker: Broker, queue: str) -> tuple[str, str]:
    """The two queues of its dead letters: those that may be replayed by themselves, and those for people."""
    first = broker.dead_letter_queue(queue)
    return first, broker.dead_letter_queue(first)


def messages_in(broker: Broker, queue: str) -> int:
    """All that are there, in flight and delayed ones too; none in a queue that is not there."""
    stats = broker.stats(queue)
    return stats.visible + stats.in_flight + stats.delayed


def _standing(broker: Broker, queue: str, workers: Sequence[WorkerRecord]) -> QueueStanding:
    stats = broker.stats(queue)
    letters = () if names_dead_letters(queue) else [messages_in(broker, tier) for tier in tiers(broker, queue)]
    return QueueStanding(
        queue=queue,
        visible=stats.visible,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        oldest_visible_message_age_seconds=stats.oldest_visible_message_age_seconds,
        oldest_message_age_seconds=stats.oldest_message_age_seconds,
        dead_letters=sum(letters),
        dead_letters_set_aside=sum(letters[1:]),
        paused=broker.paused(queue),
        breaker=next((record.paused[queue] for record in workers if queue in record.paused), None),
        workers=tuple(record.worker for record in workers if queue in record.queues),
    )
