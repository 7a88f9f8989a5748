"""Measure queues and their DLQs for the monitor: a few calls to the broker per queue, and never a receive."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from penstock.app.registry import WorkerRecord, Workers
from penstock.app.system_health import (
    AgeReader,
    DeadLetterHealth,
    QueueHealth,
    Tier,
    ages_of,
    read_dead_letters,
    read_queue,
    tier_by_dlq,
)
from penstock.config import Settings
from penstock.errors import ConfigurationError, PenstockError
from penstock.messaging.broker import Broker, listed_name, names_final_dlq
from penstock.messaging.clock import Clock

DLQS_SECONDS = 300.0  # how long the names of DLQs are cached
DEAD_LETTERS_SECONDS = 50.0  # DLQs are measured less often: dead letters wait for hours, and each queue has two DLQs

Health = TypeVar("Health")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """The measurement of the broker. ``refused``: errors of single queues, while the others were measured."""

    queues: Sequence[QueueHealth]
    dead_letters: Sequence[DeadLetterHealth]
    refused: Sequence[str]
    asks_cloudwatch: bool
    cloudwatch_error: str | None


@dataclass(slots=True, kw_only=True)
class _SampleRound:
    """One measurement in progress."""

    broker: Broker
    ages: AgeReader
    cloudwatch_ages: Mapping[str, float]
    workers: Sequence[WorkerRecord]
    refused: list[str] = field(default_factory=list)

    def try_read(self, read: Callable[[], Health]) -> Health | None:
        """Return the health; None if this queue is refused: a missing permission, or an invalid name."""
        try:
            return read()
        except ConfigurationError as error:
            self.refused.append(str(error))
            return None


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
        self._workers = Workers(Path(settings.data_dir))
        self._ages: AgeReader | None = None
        self._dlqs_by_name: Mapping[str, tuple[str, Tier]] = {}
        self._dlqs_read_at: float | None = None  # monotonic
        self._known: Sequence[DeadLetterHealth] = ()
        self._dead_letters_at: float | None = None  # monotonic

    def measure(self) -> BrokerSample:
        """Return a sample.

        Raises `TemporaryError` if the broker is unavailable, and `ConfigurationError` if it is unusable.
        """
        broker = self._broker()
        if broker is None:
            return BrokerSample(queues=(), dead_letters=(), refused=(), asks_cloudwatch=False, cloudwatch_error=None)
        ages = self._ages = self._ages or ages_of(self._settings, broker, clock=self._clock)
        dlqs = self._dlqs(broker)
        cloudwatch_ages, error = _cloudwatch_ages(ages, [*self._queues, *dlqs])
        workers = () if broker.capabilities.exact_stats else self._workers.records()
        sampling = _SampleRound(broker=broker, ages=ages, cloudwatch_ages=cloudwatch_ages, workers=workers)
        found = [self._queue(queue, sampling) for queue in self._queues]
        dead_letters = self._dead_letters(dlqs, sampling)
        return BrokerSample(
            queues=[one for one in found if one is not None],
            dead_letters=dead_letters,
            refused=sampling.refused,
            asks_cloudwatch=ages.cloudwatch is not None,
            cloudwatch_error=error,
        )

    def _queue(self, queue: str, sampling: _SampleRound) -> QueueHealth | None:
        return sampling.try_read(
            lambda: read_queue(
                sampling.broker,
                queue,
                sampling.ages,
                cloudwatch_ages=sampling.cloudwatch_ages,
                workers=sampling.workers,
            )
        )

    def _dead_letters(self, dlqs: Mapping[str, tuple[str, Tier]], sampling: _SampleRound) -> Sequence[DeadLetterHealth]:
        """Return the health of the DLQs, new or cached."""
        at = self._clock.monotonic()
        if self._dead_letters_at is None or at - self._dead_letters_at >= DEAD_LETTERS_SECONDS:
            self._dead_letters_at = None  # until this measurement succeeds
            found = [self._dlq(name, queue, tier, sampling) for name, (queue, tier) in dlqs.items()]
            self._known = [one for one in found if one is not None]
            self._dead_letters_at = at if len(self._known) == len(found) else None
        return self._known

    def _dlq(self, name: str, queue: str, tier: Tier, sampling: _SampleRound) -> DeadLetterHealth | None:
        return sampling.try_read(
            lambda: read_dead_letters(
                sampling.broker, name, sampling.ages, queue=queue, tier=tier, cloudwatch_ages=sampling.cloudwatch_ages
            )
        )

    def _dlqs(self, broker: Broker) -> Mapping[str, tuple[str, Tier]]:
        """Return the DLQs, each with the queue that it is reported under and its tier."""
        now = self._clock.monotonic()
        if self._dlqs_read_at is None or now - self._dlqs_read_at >= DLQS_SECONDS:
            self._dlqs_by_name, self._dlqs_read_at = _dlqs_of(broker, self._queues), now
        return self._dlqs_by_name


def _cloudwatch_ages(ages: AgeReader, queues: Sequence[str]) -> tuple[Mapping[str, float], str | None]:
    try:
        return ages.query(queues), None
    except PenstockError as error:
        return {}, str(error)


def _dlqs_of(broker: Broker, queues: Sequence[str]) -> Mapping[str, tuple[str, Tier]]:
    sources: dict[tuple[str, Tier], list[str]] = {}
    for queue in queues:
        if not names_final_dlq(listed_name(queue)):
            for dlq in tier_by_dlq(broker, queue).items():
                sources.setdefault(dlq, []).append(queue)
    return {name: (found[0] if len(found) == 1 else name, tier) for (name, tier), found in sources.items()}
