"""The values of a queue and of a pipeline at one time, and how the values of several slots become one.

A value that is unknown is None. Of counts and ages the highest one stays, so that a short peak is still visible after
two weeks; of rates the mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from statistics import fmean

Values = Sequence[float | None]  # in the order of the fields


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePoint:
    """One queue at one time."""

    visible: float | None = None
    in_flight: float | None = None
    delayed: float | None = None
    oldest_visible_age_seconds: float | None = None  # 0 if no message is visible
    dead_letters: float | None = None  # in the DLQ and the final DLQ
    settled_per_second: float | None = None
    arrived_per_second: float | None = None

    @property
    def values(self) -> Values:
        return tuple(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePoint:
    """One pipeline or object handler at one time."""

    processed: float | None = None
    waiting: float | None = None  # objects that are not in a terminal state
    failed: float | None = None
    batches: float | None = None
    unpublished: float | None = None
    publish_lag_seconds: float | None = None

    @property
    def values(self) -> Values:
        return tuple(getattr(self, one.name) for one in fields(self))


class SeriesKind(IntEnum):
    """The subject of a series; the number is stored."""

    QUEUE = 0
    PIPELINE = 1


QUEUE_FIELDS = tuple(one.name for one in fields(QueuePoint))
PIPELINE_FIELDS = tuple(one.name for one in fields(PipelinePoint))
FIELDS: Mapping[SeriesKind, Sequence[str]] = {
    SeriesKind.QUEUE: QUEUE_FIELDS,
    SeriesKind.PIPELINE: PIPELINE_FIELDS,
}
RATES = frozenset({"settled_per_second", "arrived_per_second"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySample:
    """Everything at one time: ``at`` is in epoch seconds."""

    at: float
    queues: Mapping[str, QueuePoint] = field(default_factory=dict)
    pipelines: Mapping[str, PipelinePoint] = field(default_factory=dict)

    @property
    def series(self) -> Mapping[tuple[SeriesKind, str], Values]:
        """The values by kind and name."""
        return {
            **{(SeriesKind.QUEUE, name): point.values for name, point in self.queues.items()},
            **{(SeriesKind.PIPELINE, name): point.values for name, point in self.pipelines.items()},
        }


def merged(rows: Sequence[Values], kind: SeriesKind) -> Values:
    """Return one row for the rows of several slots."""
    return tuple(_merged(name, column) for name, column in zip(FIELDS[kind], zip(*rows, strict=True), strict=False))


def _merged(name: str, column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    combine: Callable[[list[float]], float] = fmean if name in RATES else max
    return combine(known) if known else None
