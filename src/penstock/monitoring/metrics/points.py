"""Changes as CloudWatch takes them: what both ways to it share.

There each combination of dimensions is a metric of its own, with a price. So the label that says which worker is no
dimension: what workers send of one metric adds up there, and the statistics are over all of them. A histogram's values
are told as the middles of their buckets, with how many there were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.monitoring.metrics.catalogue import PREFIX, Metric
from penstock.monitoring.metrics.meters import Distribution, Labels, Reading

NO_DIMENSIONS = frozenset({"worker"})
VALUE_CHARACTERS_MAX = 1_024  # of a dimension

CloudWatchUnit = Literal["Count", "Seconds", "Bytes"]
Dimensions = tuple[tuple[str, str], ...]

_UNITS: Mapping[str, CloudWatchUnit] = {"seconds": "Seconds", "bytes": "Bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One metric under its dimensions: its values, and how often there was each. ``sum`` is exact."""

    name: str
    unit: CloudWatchUnit
    dimensions: Dimensions
    values: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)


def points(fresh: Reading, catalogue: Mapping[str, Metric]) -> Iterator[Point]:
    """All that there is to send of these changes."""
    for name, series in fresh.values.items():
        gathered: dict[Dimensions, list[float]] = {}
        for labels, value in series.items():
            gathered.setdefault(_dimensions(catalogue[name], labels), []).append(value)
        for dimensions, values in gathered.items():
            yield _point(catalogue[name], dimensions, values, [1] * len(values), sum(values))
    for name, distributions in fresh.distributions.items():
        merged: dict[Dimensions, Distribution] = {}
        for labels, seen in distributions.items():
            dimensions = _dimensions(catalogue[name], labels)
            merged[dimensions] = _merged(merged.get(dimensions), seen)
        for dimensions, seen in merged.items():
            yield _point(catalogue[name], dimensions, *_spread(seen, catalogue[name].bounds), seen.sum)


def _point(
    metric: Metric, dimensions: Dimensions, values: Sequence[float], counts: Sequence[int], sum_: float
) -> Point:
    return Point(
        name=PREFIX + metric.name,
        unit=_UNITS.get(metric.unit, "Count"),
        dimensions=dimensions,
        values=tuple(values),
        counts=tuple(counts),
        sum=sum_,
    )


def _dimensions(metric: Metric, labels: Labels) -> Dimensions:
    """Without those that say nothing: CloudWatch takes no empty ones, and of the others printable ASCII alone."""
    pairs = zip(metric.labels, labels, strict=True)
    return tuple((name, _plain(value)) for name, value in pairs if name not in NO_DIMENSIONS and value.strip())


def _plain(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        value = value.encode("unicode_escape").decode("ascii")
    return value[:VALUE_CHARACTERS_MAX]


def _merged(one: Distribution | None, other: Distribution) -> Distribution:
    if one is None:
        return other
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Distribution(counts=counts, sum=one.sum + other.sum)


def _spread(seen: Distribution, bounds: tuple[float, ...]) -> tuple[Sequence[float], Sequence[int]]:
    """Values, and how often there was each. A single one is known."""
    if seen.count == 1:
        return [seen.sum], [1]
    kept = [(middle, count) for middle, count in zip(_middles(bounds), seen.counts, strict=True) if count]
    return [middle for middle, _ in kept], [count for _, count in kept]


def _middles(bounds: tuple[float, ...]) -> Sequence[float]:
    """Of each bucket; of the last, which has no end, where it begins."""
    inner = [(below + above) / 2 for below, above in zip((0.0, *bounds), bounds, strict=False)]
    return [*inner, bounds[-1]]
