"""Measure queues and their DLQs for the monitor: a few calls to the broker per queue, and never a receive."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.app.queues import AgeReader, ages_of, tiers
from penstock.app.registry import WorkerRecord, Workers
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError
from penstock.messaging.broker import Broker, QueueStats, listed_name, names_second_tier
from penstock.messaging.clock import Clock
from penstock.operations.monitor.look import DeadLetterSample, QueueSample, Tier

TIERS_SECONDS = 300.0  # how long the names of DLQs are cached
LETTERS_SECONDS = 50.0  # dead letters wait for hours, so they are measured less often: they are most of the queues


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """The measurement of the broker. ``refused``: errors of single queues, while the others were measured."""

    queues: Sequence[QueueSample]
    dead_letters: Sequence[DeadLetterSample]
    refused: Sequence[str]
    asks_cloudwatch: bool
    cloudwatch_error: str | None


@dataclass(slots=True, kw_only=True)
class _SampleRound:
    """One measurement in progress."""

    broker: Broker
    told: Mapping[str, float]
    workers: Sequence[WorkerRecord]
    refused: list[str] = field(default_factory=list)


class QueueWatch:
    """Measure these queues. For one thread.

    ``broker`` returns the broker, or None if it does not exist yet, so that no queue ever had a message.
    """

    def __init__(
        self, queues: Sequence[str], *, broker: Callable[[], Broker | None], settings: Settings, clock: Clock
    ) -> None:
        self._queues = queues
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._workers = Workers(Path(settings.state))
        self._ages: AgeReader | None = None
        self._tiers: Mapping[str, tuple[str, Tier]] = {}
        self._tiers_at: float | None = None  # monotonic
        self._known: Sequence[DeadLetterSample] = ()
        self._letters_at: float | None = None  # monotonic

    def look(self) -> BrokerSample:
        """Return a sample.

        Raises `TemporaryError` if the broker is unavailable, and `ConfigurationError` if it is unusable.
        """
        broker = self._broker()
        if broker is None:
            return BrokerSample(queues=(), dead_letters=(), refused=(), asks_cloudwatch=False, cloudwatch_error=None)
        ages = self._ages = self._ages or ages_of(self._settings, broker, clock=self._clock)
        letters = self._letter_queues(broker)
        told, error = self._asked(ages, [*self._queues, *letters])
        exact = broker.capabilities.exact_stats
        now = _SampleRound(broker=broker, told=told, workers=() if exact else self._workers.records())
        found = [self._queue(queue, ages, now) for queue in self._queues]
        dead = self._letters(letters, now)
        return BrokerSample(
            queues=[one for one in found if one is not None],
            dead_letters=dead,
            refused=now.refused,
            asks_cloudwatch=ages.cloudwatch is not None,
            cloudwatch_error=error,
        )

    def _queue(self, queue: str, ages: AgeReader, now: _SampleRound) -> QueueSample | None:
        stats = _stats(queue, now)
        if stats is None:
            return None
        age = ages.of(queue, stats, told=now.told, workers=now.workers)
        return QueueSample(
            queue=queue,
            visible=stats.visible,
            in_flight=stats.in_flight,
            delayed=stats.delayed,
            oldest_message_age_seconds=age.oldest_seconds,
            oldest_message_age_source=ages.oldest_source,
            oldest_visible_message_age_seconds=0.0 if stats.visible == 0 else age.oldest_visible_seconds,
            oldest_visible_message_age_source=ages.oldest_visible_source,
        )

    def _letters(self, queues: Mapping[str, tuple[str, Tier]], now: _SampleRound) -> Sequence[DeadLetterSample]:
        """Return the sample of the DLQs, new or cached."""
        at = self._clock.monotonic()
        if self._letters_at is None or at - self._letters_at >= LETTERS_SECONDS:
            self._letters_at = None  # until this measurement succeeds
            found = [self._tier(name, label, tier, now) for name, (label, tier) in queues.items()]
            self._known = [one for one in found if one is not None]
            self._letters_at = at if len(self._known) == len(found) else None
        return self._known

    def _tier(self, name: str, label: str, tier: Tier, now: _SampleRound) -> DeadLetterSample | None:
        stats = _stats(name, now)
        if stats is None:
            return None
        exact = now.broker.capabilities.exact_stats
        age = stats.oldest_enqueued_age_seconds if exact else now.told.get(name)
        return DeadLetterSample(
            queue=label, tier=tier, letters=stats.messages, oldest_age_seconds=age if stats.messages else 0.0
        )

    def _asked(self, ages: AgeReader, queues: Sequence[str]) -> tuple[Mapping[str, float], str | None]:
        try:
            return ages.asked(queues), None
        except PenstockError as error:
            return {}, str(error)

    def _letter_queues(self, broker: Broker) -> Mapping[str, tuple[str, Tier]]:
        """Return the DLQs, each with the queue that it is reported under and its tier."""
        now = self._clock.monotonic()
        if self._tiers_at is None or now - self._tiers_at >= TIERS_SECONDS:
            self._tiers, self._tiers_at = _letter_queues(broker, self._queues), now
        return self._tiers


def _stats(queue: str, now: _SampleRound) -> QueueStats | None:
    try:
        return now.broker.stats(queue)
    except ConfigurationError as error:  # of this queue: a missing permission, an invalid name
        now.refused.append(str(error))
        return None


def _letter_queues(broker: Broker, queues: Sequence[str]) -> Mapping[str, tuple[str, Tier]]:
    whose: dict[tuple[str, Tier], list[str]] = {}
    for queue in queues:
        if names_second_tier(listed_name(queue)):
            continue
        first, second = tiers(broker, queue)
        kinds: Sequence[tuple[str, Tier]] = ((first, "dlq"), (second, "dead"))
        if first == second or names_second_tier(listed_name(first)):
            kinds = ((first, "dead"),)
        for name, tier in kinds:
            whose.setdefault((name, tier), []).append(queue)
    return {name: (owners[0] if len(owners) == 1 else name, tier) for (name, tier), owners in whose.items()}
