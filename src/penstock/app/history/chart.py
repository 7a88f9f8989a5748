"""A chart: times and values of one queue or pipeline over a range, with a gap wherever nothing was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.app.history.points import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSummary:
    """One value over the range of a chart."""

    latest: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The values by name, the oldest first; None where a value is unknown. ``error``: why there is nothing."""

    times: Sequence[float] = ()  # epoch seconds
    values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    error: str | None = None

    @property
    def is_empty(self) -> bool:
        return not any(value is not None for values in self.values.values() for value in values)

    def summary(self, name: str) -> ChartSummary | None:
        """Return the latest, lowest and highest value; None if none is known."""
        known = [value for value in self.values.get(name, ()) if value is not None]
        return ChartSummary(latest=known[-1], lowest=min(known), highest=max(known)) if known else None


def chart_of(
    points: Sequence[tuple[float, Values]], names: Sequence[str], *, slot_seconds: float, gap_seconds: float
) -> Chart:
    """Return a chart of points, the oldest first. After a pause of more than ``gap_seconds`` its lines are broken."""
    times, columns = list[float](), [list[float | None]() for _ in names]
    for at, values in points:
        if times and at - times[-1] > gap_seconds:
            times.append(times[-1] + slot_seconds)
            for column in columns:
                column.append(None)
        times.append(at)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return Chart(times=times, values=dict(zip(names, columns, strict=True)))
