"""What one look of the monitor found. A number that could not be seen is None, or not there; never an old one.

What the monitor tells people by itself: objects that wait for longer than they should.

Objects that are missing from the ledger are told by the reconcile that found them.

From a look of the monitor to gauges: each has the series of that look and no others.
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
    """One queue. An age is 0 where nothing is there that could have one, and None where nobody can tell."""

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
    """The dead letters of one tier. ``queue`` is whose they are; of a tier that several queues share, its own name."""

    queue: str
    tier: Tier
    letters: int
    oldest_age_seconds: float | None  # since the first of them died


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSample:
    """One pipeline or object handler, as the ledger has it."""

    pipeline: str
    objects: Mapping[str, int]  # by state
    oldest_unprocessed_age_seconds: float
    overdue: int
    committed_seq: int
    missing: int | None  # at the latest reconcile, if there was one
    commit_to_publish_lag_seconds: float | None = None  # None: it has no table, or the table could not be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSample:
    """Everything, at about ``at`` (epoch seconds)."""

    at: float
    queues: Sequence[QueueSample] = ()
    dead_letters: Sequence[DeadLetterSample] = ()
    pipelines: Sequence[PipelineSample] = ()
    up: Mapping[Source, bool] = field(default_factory=dict)  # whether it could be seen, of what there is to be seen
    errors: Mapping[Source, str] = field(default_factory=dict)


TOLD_EVERY_SECONDS = 3_600.0  # while it lasts


class OverdueNotices:
    """When it begins, and once an hour while it lasts. For one thread."""

    def __init__(self, *, after_seconds: float, clock: Clock, tell: Listener) -> None:
        self._after_seconds = after_seconds
        self._clock = clock
        self._tell = tell
        self._told_at: dict[str, float] = {}  # by pipeline, monotonic

    def hear(self, pipelines: Iterable[PipelineSample]) -> None:
        """Of a look that could be taken."""
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
    """Every gauge that the monitor sets, by its name in the catalogue; empty where nothing could be seen."""
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
