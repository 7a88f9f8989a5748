"""Write and read the history. Neither ever fails: what is wrong with the file is an event, or part of the result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.app.history.chart import Chart, chart_of
from penstock.app.history.file import (
    HISTORY_FILE,
    HistoryBroken,
    HistoryUnusable,
    has_folder,
    identity_of,
    reading,
    set_aside,
    transaction,
)
from penstock.app.history.points import FIELDS, HistorySample, SeriesKind
from penstock.app.history.ring import FINEST, RINGS, HistoryRange, read_field, read_series, record
from penstock.events import HistoryRecovered, HistorySetAside, HistoryUnwritable, Listener

SPARKLINE_SECONDS = 3_600.0
GAP_SLOTS = 3  # a pause of this many slots is a gap
GAP_MEASUREMENTS = 3  # and of this many measurements, if the monitor measures less often
_SPARKLINE_RING = RINGS[1]


def gap_seconds(range_: HistoryRange, *, measured_every_seconds: float) -> float:
    """Return the pause between two points of a chart that is longer than the usual ones."""
    return max(GAP_SLOTS * range_.ring.slot_seconds, GAP_MEASUREMENTS * measured_every_seconds)


def history_file(data_dir: str) -> Path:
    """Return the path of the history in a data directory."""
    return Path(data_dir) / HISTORY_FILE


class HistoryWriter:
    """Write samples to the history of a data directory, at most one for each slot. For one thread.

    The directory is not created: without it there is nothing to be recorded.
    """

    def __init__(self, data_dir: str, *, emit: Listener) -> None:
        self._path = history_file(data_dir)
        self._emit = emit
        self._slot: int | None = None  # the last one that was written
        self._is_failing = False

    def is_due(self, at: float) -> bool:
        """Return True if this writer has not written the slot at ``at`` (epoch seconds) yet."""
        return self._slot != FINEST.slot(at)

    def write(self, sample: HistorySample) -> None:
        """Add the sample, unless this writer has written its slot already. Does not raise."""
        if not self.is_due(sample.at):
            return
        try:
            if not has_folder(self._path):
                return
            self._record(sample)
        except HistoryUnusable as error:
            if not self._is_failing:
                self._emit(HistoryUnwritable(file=str(self._path), error=str(error)))
            self._is_failing = True
            return
        self._slot = FINEST.slot(sample.at)
        if self._is_failing:
            self._emit(HistoryRecovered(file=str(self._path)))
        self._is_failing = False

    def _record(self, sample: HistorySample) -> None:
        identity = identity_of(self._path)
        try:
            self._add(sample)
        except HistoryBroken as broken:
            aside = set_aside(self._path, identity)
            if aside is not None:
                self._emit(HistorySetAside(file=str(self._path), aside=str(aside), error=str(broken)))
            self._record_anew(sample)

    def _record_anew(self, sample: HistorySample) -> None:
        try:
            self._add(sample)
        except HistoryBroken as broken:  # the next sample tries again
            raise HistoryUnusable(str(broken)) from broken

    def _add(self, sample: HistorySample) -> None:
        with transaction(self._path) as connection:
            record(connection, sample)


class HistoryReader:
    """Read the history of a data directory. Thread-safe.

    ``measured_every_seconds`` is how often the monitor measures: twice that is no gap.
    """

    def __init__(self, data_dir: str, *, measured_every_seconds: float) -> None:
        self._path = history_file(data_dir)
        self._measured_every_seconds = measured_every_seconds

    def chart(self, kind: SeriesKind, name: str, range_: HistoryRange, *, at: float) -> Chart:
        """Return the chart of a queue or pipeline up to ``at``; empty if nothing is known."""
        try:
            with reading(self._path) as connection:
                points = [] if connection is None else read_series(connection, kind, name, range_, at=at)
        except (HistoryBroken, HistoryUnusable) as error:
            return Chart(error=str(error))
        gap = gap_seconds(range_, measured_every_seconds=self._measured_every_seconds)
        return chart_of(points, FIELDS[kind], slot_seconds=range_.ring.slot_seconds, gap_seconds=gap)

    def sparklines(self, kind: SeriesKind, field: str, *, at: float) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Return one value of all queues or pipelines over the last hour, by minute and name; empty if unknown."""
        try:
            with reading(self._path) as connection:
                if connection is None:
                    return {}
                since = at - SPARKLINE_SECONDS
                return read_field(connection, kind, field, _SPARKLINE_RING, since=since, until=at)
        except (HistoryBroken, HistoryUnusable):
            return {}
