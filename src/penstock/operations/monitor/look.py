"""The monitor's samples, the event for overdue objects, and the gauges.

A value that could not be measured is None or absent, never an old one. Objects missing from the ledger are reported by
the reconcile that found them. Each gauge has the series of the latest sample and no others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.events import Listener, ObjectsOverdue
from penstock.messaging.broker import AgeSource
from penstock.messaging.clock import Clock

Source = Literal["broker", "cloudwatch", "ledger", "tables"]
Tier = Literal["dlq", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSample:
    """One queue. An age is 0 if no message could have one, and None if it is unknown."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_message_age_seconds: float | None
    oldest_message_age_source: AgeSource
    oldest_visible_message_age_seconds: float | None
    oldest_visible_message_age_source: AgeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSample:
    """One DLQ or final DLQ. ``queue`` is the queue it belongs to, or its own name if several queues share it."""

    queue: str
    tier: Tier
    letters: int
    oldest_age_seconds: float | None  # since the first of them was dead-lettered


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSample:
    """One pipeline or object handler, as recorded in the ledger."""

    pipeline: str
    objects: Mapping[str, int]  # by state
    oldest_unprocessed_age_seconds: float
    overdue: int
    committed_seq: int
    missing: int | None  # at the latest reconcile; None: there was none
    commit_to_publish_lag_seconds: float | None = None  # None: no table, or it could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSample:
    """One measurement of everything, at about ``at`` (epoch seconds)."""

    at: float
    queues: Sequence[QueueSample] = ()
    dead_letters: Sequence[DeadLetterSample] = ()
    pipelines: Sequence[PipelineSample] = ()
    up: Mapping[Source, bool] = field(default_factory=dict)  # whether each source could be read
    errors: Mapping[Source, str] = field(default_factory=dict)


TOLD_EVERY_SECONDS = 3_600.0  # while objects are overdue


class OverdueNotices:
    """Emit an event when objects become overdue, and once an hour while they are. For one thread."""

    def __init__(self, *, after_seconds: float, clock: Clock, tell: Listener) -> None:
        self._after_seconds = after_seconds
        self._clock = clock
        self._tell = tell
        self._told_at: dict[str, float] = {}  # monotonic, by pipeline

    def hear(self, pipelines: Iterable[PipelineSample]) -> None:
        """Process the samples of a successful measurement."""
        now = self._clock.monotonic()
        for one in pipelines:
            if not one.overdue:
                self._told_at.pop(one.pipeline, None)
                continue
            told_at = self._told_at.get(one.pipeline)
            if told_at is None or now - told_at >= TOLD_EVERY_SECONDS:
                self._told_at[one.pipeline] = now
                self._tell(
                    ObjectsOverdue(
                        pipeline=one.pipeline,
                        overdue=one.overdue,
                        oldest_age_seconds=one.oldest_unprocessed_age_seconds,
                        after_seconds=self._after_seconds,
                    )
                )


Samples = Mapping[tuple[str, ...], float]


def gauges(look: MonitorSample) -> Mapping[str, Samples]:
    """Return the monitor's gauges by name in the catalogue; without series if nothing could be measured."""
    queues, letters, pipelines = look.queues, look.dead_letters, look.pipelines
    return {
        "queue_messages": {
            (one.queue, state): count
            for one in queues
            for state, count in (("visible", one.visible), ("in_flight", one.in_flight), ("delayed", one.delayed))
        },
        "queue_oldest_message_age_seconds": {
            (one.queue, one.oldest_message_age_source): one.oldest_message_age_seconds
            for one in queues
            if one.oldest_message_age_seconds is not None
        },
        "queue_oldest_visible_message_age_seconds": {
            (one.queue, one.oldest_visible_message_age_source): one.oldest_visible_message_age_seconds
            for one in queues
            if one.oldest_visible_message_age_seconds is not None
        },
        "dead_letters": {(one.queue, one.tier): one.letters for one in letters},
        "dead_letter_oldest_age_seconds": {
            (one.queue, one.tier): one.oldest_age_seconds for one in letters if one.oldest_age_seconds is not None
        },
        "objects": {(one.pipeline, state): count for one in pipelines for state, count in one.objects.items()},
        "object_oldest_unprocessed_age_seconds": {
            (one.pipeline,): one.oldest_unprocessed_age_seconds for one in pipelines
        },
        "objects_overdue": {(one.pipeline,): one.overdue for one in pipelines},
        "objects_missing": {(one.pipeline,): one.missing for one in pipelines if one.missing is not None},
        "commit_to_publish_lag_seconds": {
            (one.pipeline,): one.commit_to_publish_lag_seconds
            for one in pipelines
            if one.commit_to_publish_lag_seconds is not None
        },
        "monitor_up": {(source,): float(up) for source, up in look.up.items()},
    }
