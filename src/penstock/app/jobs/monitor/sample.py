"""The monitor's sample of everything, its gauges, and the event for overdue objects.

A value that could not be measured is None or absent, never an old one. Objects missing from the ledger are reported by
the reconcile that found them. Each gauge has the series of the latest sample and no others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.app.system_health import DeadLetterHealth, PipelineHealth, QueueHealth
from penstock.events import Listener, ObjectsOverdue
from penstock.messaging.clock import Clock

Source = Literal["broker", "cloudwatch", "ledger", "tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSample:
    """One measurement of everything, at about ``at`` (epoch seconds)."""

    at: float
    queues: Sequence[QueueHealth] = ()
    dead_letters: Sequence[DeadLetterHealth] = ()
    pipelines: Sequence[PipelineHealth] = ()
    publish_lags_seconds: Mapping[str, float] = field(default_factory=dict)  # since commit, by pipeline with a table
    batches_unpublished: Mapping[str, int] = field(default_factory=dict)  # likewise
    up: Mapping[Source, bool] = field(default_factory=dict)  # whether each source could be read
    errors: Mapping[Source, str] = field(default_factory=dict)


EMIT_EVERY_SECONDS = 3_600.0  # while objects are overdue


class OverdueNotices:
    """Emit an event when objects become overdue, and once an hour while they are. For one thread."""

    def __init__(self, *, after_seconds: float, clock: Clock, emit: Listener) -> None:
        self._after_seconds = after_seconds
        self._clock = clock
        self._emit = emit
        self._emitted_at: dict[str, float] = {}  # monotonic, by pipeline

    def update(self, pipelines: Iterable[PipelineHealth]) -> None:
        """Process the samples of a successful measurement."""
        now = self._clock.monotonic()
        for one in pipelines:
            if not one.objects_overdue:
                self._emitted_at.pop(one.pipeline, None)
                continue
            emitted_at = self._emitted_at.get(one.pipeline)
            if emitted_at is None or now - emitted_at >= EMIT_EVERY_SECONDS:
                self._emitted_at[one.pipeline] = now
                self._emit(
                    ObjectsOverdue(
                        pipeline=one.pipeline,
                        overdue=one.objects_overdue,
                        oldest_age_seconds=one.oldest_unprocessed_age_seconds or 0.0,
                        after_seconds=self._after_seconds,
                    )
                )


Series = Mapping[tuple[str, ...], float]


def gauges(sample: MonitorSample) -> Mapping[str, Series]:
    """Return the monitor's gauges by name in the catalogue; without series if nothing could be measured."""
    queues, dead_letters, pipelines = sample.queues, sample.dead_letters, sample.pipelines
    visible_ages = {(one.queue, one.oldest_visible_message_age_source): visible_age_seconds(one) for one in queues}
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
            labels: seconds for labels, seconds in visible_ages.items() if seconds is not None
        },
        "dead_letters": {(one.queue, one.tier): one.dead_letters for one in dead_letters},
        "dead_letter_oldest_age_seconds": {
            (one.queue, one.tier): one.oldest_age_seconds for one in dead_letters if one.oldest_age_seconds is not None
        },
        "objects": {(one.pipeline, state.value): count for one in pipelines for state, count in one.objects.items()},
        "object_oldest_unprocessed_age_seconds": {
            (one.pipeline,): one.oldest_unprocessed_age_seconds or 0.0 for one in pipelines
        },
        "objects_overdue": {(one.pipeline,): one.objects_overdue for one in pipelines},
        "objects_warned": {(one.pipeline,): one.warned_objects for one in pipelines},
        "objects_missing": {(one.pipeline,): one.objects_missing for one in pipelines if one.reconciled is not None},
        "commit_to_publish_lag_seconds": {
            (pipeline,): seconds for pipeline, seconds in sample.publish_lags_seconds.items()
        },
        "monitor_up": {(source,): float(up) for source, up in sample.up.items()},
    }


def visible_age_seconds(queue: QueueHealth) -> float | None:
    """Return the age of the oldest visible message for a gauge: 0 if none is visible, None if it is unknown."""
    return 0.0 if queue.visible == 0 else queue.oldest_visible_message_age_seconds
