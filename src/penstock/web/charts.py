"""The numbers of charts: where they come from, and sparklines as SVG.

`ChartSource` is the history of the data directory, or a Prometheus. Sparklines of all queues and pipelines take longer
than a page may, so a thread reads them; pages show the latest that it has read.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from markupsafe import Markup

from penstock.app.history.chart import Chart
from penstock.app.history.history import SPARKLINE_SECONDS
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.messaging.clock import Clock
from penstock.messaging.threads import WorkThread

SPARKLINE_FIELDS: Mapping[SeriesKind, str] = {SeriesKind.QUEUE: "visible", SeriesKind.PIPELINE: "waiting"}
SPARKLINES_SECONDS = 20.0  # between two readings while someone looks
FIRST_SECONDS = 0.1  # the wait of a page for the first reading
GAP_SECONDS = 180.0  # a line is broken after a pause this long
WIDTH, HEIGHT = 110, 24
_MARGIN = 2.0  # room for half the width of the line
_THREAD = "penstock-web-sparklines"

Line = Sequence[tuple[float, float]]  # epoch seconds, value


class ChartSource(Protocol):
    """The origin of the numbers of charts. Thread-safe."""

    def chart(self, kind: SeriesKind, name: str, range_: HistoryRange, *, at: float) -> Chart:
        """Return the chart of a queue or pipeline up to ``at``; its `Chart.error` says why there is none."""
        ...

    def sparklines(self, kind: SeriesKind, field: str, *, at: float) -> Mapping[str, Line]:
        """Return one value of all queues or pipelines over the last hour, by name; empty if unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SparklineSet:
    """The lines of all queues and pipelines, up to ``at`` (epoch seconds)."""

    at: float
    queues: Mapping[str, Line] = field(default_factory=dict)
    pipelines: Mapping[str, Line] = field(default_factory=dict)


class Sparklines:
    """The latest lines. A thread reads them anew when a page asks for old ones. Thread-safe."""

    def __init__(self, source: ChartSource, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._changed = threading.Condition()
        self._latest: SparklineSet | None = None  # guarded by the condition, as are the next two
        self._read_at = 0.0  # monotonic
        self._reading = False

    def latest(self) -> SparklineSet:
        """Return the latest lines; empty ones if the first reading takes longer than a page should."""
        with self._changed:
            is_old = self._latest is None or self._clock.monotonic() - self._read_at >= SPARKLINES_SECONDS
            if is_old and not self._reading:
                self._reading = True
                WorkThread(self._read, name=_THREAD).start()
            self._changed.wait_for(lambda: self._latest is not None, FIRST_SECONDS)
            return self._latest or SparklineSet(at=self._clock.now())

    def _read(self) -> None:
        at = self._clock.now()
        found = SparklineSet(at=at)
        try:
            lines = {kind: self._source.sparklines(kind, name, at=at) for kind, name in SPARKLINE_FIELDS.items()}
            found = SparklineSet(at=at, queues=lines[SeriesKind.QUEUE], pipelines=lines[SeriesKind.PIPELINE])
        finally:
            with self._changed:
                self._latest, self._read_at, self._reading = found, self._clock.monotonic(), False
                self._changed.notify_all()


def sparkline(line: Line, *, at: float, label: Callable[[float, float], str]) -> Markup:
    """Return the last hour of a line as SVG, broken where there are no values; nothing without two values.

    ``label`` returns the text for people who do not see it, from the latest and the highest value.
    """
    points = [(when, value) for when, value in line if at - SPARKLINE_SECONDS <= when <= at]
    if len(points) < 2:
        return Markup("")
    highest = max(value for _, value in points)
    parts = Markup("").join(
        Markup('<polyline points="{}"/>').format(_places(part, highest, at)) for part in _parts(points)
    )
    text = label(points[-1][1], highest)
    return Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, text, parts
    )


def _parts(points: Sequence[tuple[float, float]]) -> Sequence[Sequence[tuple[float, float]]]:
    parts = [[points[0]]]
    for before, point in itertools.pairwise(points):
        if point[0] - before[0] > GAP_SECONDS:
            parts.append([])
        parts[-1].append(point)
    return parts


def _places(points: Sequence[tuple[float, float]], highest: float, at: float) -> str:
    room = HEIGHT - 2 * _MARGIN
    return " ".join(
        f"{WIDTH * (1 - (at - when) / SPARKLINE_SECONDS):.1f},{HEIGHT - _MARGIN - room * value / (highest or 1.0):.1f}"
        for when, value in points
    )
