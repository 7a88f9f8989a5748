"""The meters of one process: its counters, gauges and histograms. Thread-safe.

Each thread counts for itself, and a reading adds the counts up: with one shared lock, the threads of a pool spent more
time on waiting than on counting (measured). Memory is bounded: a metric has a maximum number of series. Further label
values are counted in a series whose declared labels are ``other``, where everyone can see it.

`changes` returns the difference of two readings.
"""

import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from penstock.monitoring.metrics.catalogue import METRICS, OTHER, Metric

SERIES_MAX = 1_000  # of one metric
VALUE_CHARACTERS_MAX = 200  # of a label
FOLDED_MAX = 1_000  # remembered per thread
THREADS_CHECK = 100  # after this many new counting threads, merge the counts of those that have ended

Labels = tuple[str, ...]  # the values, in the order of the metric's labels
_Key = tuple[str, Labels]  # metric and labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The values in a histogram. ``counts`` per bucket, not cumulative; the last is for values above all bounds."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The values of all meters at one moment. A metric that was never written is included, without series."""

    values: Mapping[str, Mapping[Labels, float]]  # of counters and gauges, by the metric's name
    distributions: Mapping[str, Mapping[Labels, Distribution]]  # of histograms


class Meters:
    """Counters, gauges and histograms, by the names of the catalogue.

    Counters and histograms only grow; for the change since the last reading use `changes`. A name missing from the
    catalogue, or of another kind, is a defect of the caller: `KeyError`.
    """

    def __init__(self, *, catalogue: Mapping[str, Metric] = METRICS, series_max: int = SERIES_MAX) -> None:
        self._catalogue = catalogue
        self._series_max = series_max
        self._counters = [metric.name for metric in catalogue.values() if metric.kind == "counter"]
        self._bounds = {metric.name: metric.bounds for metric in catalogue.values() if metric.kind == "histogram"}
        self._lock = threading.Lock()
        # All written under the lock; _collectors is replaced whole, so that it can be read without.
        self._collectors: tuple[Callable[[], None], ...] = ()
        self._gauges: dict[str, Mapping[Labels, float]] = {
            metric.name: {} for metric in catalogue.values() if metric.kind == "gauge"
        }
        self._known: dict[str, set[Labels]] = {metric.name: set() for metric in catalogue.values()}
        self._threads: list[tuple[weakref.ref[_ThreadLife], _ThreadCounts]] = []
        self._ended = _ThreadCounts()  # of threads that have ended
        self._own = _OwnCounts(self._join)

    @property
    def catalogue(self) -> Mapping[str, Metric]:
        """Return the catalogue of the metrics."""
        return self._catalogue

    def count(self, name: str, labels: Labels, amount: float = 1.0) -> None:
        """Add to a counter."""
        own, key = self._own.counts, (name, labels)
        counts = own.counts
        if key not in counts:
            if name not in self._counters:
                raise KeyError(name)
            key = self._series_key(own, key)
            counts.setdefault(key, 0.0)
        counts[key] += amount

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Add a value to a histogram."""
        bounds = self._bounds[name]
        own, key = self._own.counts, (name, labels)
        cells = own.cells
        cell = cells.get(key)
        if cell is None:
            key = self._series_key(own, key)
            cell = cells.setdefault(key, [0.0] * (len(bounds) + 2))
        cell[bisect_left(bounds, value)] += 1
        cell[-1] += value

    def replace(self, name: str, samples: Mapping[Labels, float]) -> None:
        """Replace all series of a gauge.

        Series beyond the bound are combined: to their maximum for gauges in seconds, otherwise to their sum.
        """
        if name not in self._gauges:
            raise KeyError(name)
        greatest = self._catalogue[name].unit == "seconds"
        fresh: dict[Labels, float] = {}
        for given, value in samples.items():
            labels = self._series(name, given, fresh)
            if labels not in fresh:
                fresh[labels] = value
            else:
                fresh[labels] = max(fresh[labels], value) if greatest else fresh[labels] + value
        with self._lock:
            self._gauges[name] = fresh

    def before_reading(self, collect: Callable[[], None]) -> Callable[[], None]:
        """Call ``collect`` before each reading, in the reading thread, for gauges that are computed on demand.

        ``collect`` must not block. Returns a function that removes it.
        """
        with self._lock:
            self._collectors = (*self._collectors, collect)
        return partial(self._forget, collect)

    def read(self) -> Reading:
        """Return the current values. Counts made at this moment may be in this reading or in the next one."""
        for collect in self._collectors:
            with suppress(Exception):  # one gauge that keeps its old value must not prevent the reading
                collect()
        values: dict[str, Mapping[Labels, float]] = {}
        with self._lock:
            values.update(self._gauges)
            total = self._total()
        counts: dict[str, dict[Labels, float]] = {name: {} for name in self._counters}
        for (name, labels), count in total.counts.items():
            counts[name][labels] = count
        distributions: dict[str, dict[Labels, Distribution]] = {name: {} for name in self._bounds}
        for (name, labels), cell in total.cells.items():
            distributions[name][labels] = Distribution(counts=tuple(map(int, cell[:-1])), sum=cell[-1])
        return Reading(values={**values, **counts}, distributions=distributions)

    def _total(self) -> "_ThreadCounts":
        """Return the sum over all threads; merge the counts of ended threads. Call it under the lock."""
        total, living = _ThreadCounts(), []
        for thread, counts in self._threads:
            if thread() is None:  # its thread has ended, so its counts are final
                self._ended.add(counts)
            else:
                living.append((thread, counts))
                total.add(counts)
        self._threads = living
        total.add(self._ended)
        return total

    def _join(self, thread: "_ThreadLife", counts: "_ThreadCounts") -> None:
        with self._lock:
            self._threads.append((weakref.ref(thread), counts))
            if len(self._threads) % THREADS_CHECK == 0:  # threads end even if nothing reads the meters
                self._total()

    def _forget(self, collect: Callable[[], None]) -> None:
        with self._lock:
            self._collectors = tuple(collector for collector in self._collectors if collector is not collect)

    def _series_key(self, own: "_ThreadCounts", key: _Key) -> _Key:
        """Return the series to count in. Labels counted as ``other`` are remembered: finding them takes a lock."""
        series = own.folded.get(key)
        if series is None:
            series = (key[0], self._admitted(*key))
            if series != key:
                if len(own.folded) >= FOLDED_MAX:
                    own.folded.clear()
                own.folded[key] = series
        return series

    def _admitted(self, name: str, labels: Labels) -> Labels:
        """Return the series to count these labels in, and register it if it is new."""
        with self._lock:
            known = self._known[name]
            if labels not in known:
                labels = self._series(name, labels, known)
                known.add(labels)
            return labels

    def _series(self, name: str, labels: Labels, known: Collection[Labels]) -> Labels:
        """Return the series for these labels.

        A value missing from its label's list becomes ``other``, and so do all declared labels of a series beyond the
        bound.
        """
        metric = self._catalogue[name]
        if len(labels) != len(metric.labels):
            raise ValueError(f"{name} has the labels {metric.labels}, and was given {labels!r}")
        pairs = [(metric.values.get(label), value) for label, value in zip(metric.labels, labels, strict=True)]
        series = tuple(_listed_value(listed, value) for listed, value in pairs)
        if series in known or len(known) < self._series_max:
            return series
        return tuple(OTHER if listed is None else _listed_value(listed, value) for listed, value in pairs)


class _ThreadCounts:
    """The counts of one thread. Only that thread writes them; others read copies."""

    def __init__(self) -> None:
        self.counts: dict[_Key, float] = {}
        self.cells: dict[_Key, list[float]] = {}  # the count of each bucket, then the sum of the values
        self.folded: dict[_Key, _Key] = {}  # the series of labels that are counted as ``other``; a series stays folded

    def add(self, other: "_ThreadCounts") -> None:
        """Add the counts of another instance, whose thread may still be counting."""
        for key, amount in other.counts.copy().items():
            self.counts[key] = self.counts.get(key, 0.0) + amount
        for key, cell in other.cells.copy().items():
            mine = self.cells.get(key)
            self.cells[key] = cell.copy() if mine is None else [a + b for a, b in zip(mine, cell, strict=True)]


class _ThreadLife:
    """A marker that lives as long as its thread, or as its meters."""


class _OwnCounts(threading.local):
    """The counts of the calling thread, made on its first access."""

    def __init__(self, join: Callable[[_ThreadLife, _ThreadCounts], None]) -> None:
        self._thread = _ThreadLife()
        self.counts = _ThreadCounts()
        join(self._thread, self.counts)


def _listed_value(listed: tuple[str, ...] | None, value: str) -> str:
    if listed is None:
        return _plain(value)
    return value if value in listed else OTHER


def _plain(value: str) -> str:
    """Return the value in a form that can be written anywhere: a lone surrogate would abort every scrape."""
    return value[:VALUE_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode("utf-8")


NO_SERIES: Mapping[Labels, float] = {}
NOTHING_SEEN: Mapping[Labels, Distribution] = {}
NOTHING_READ = Reading(values={}, distributions={})


def changes(before: Reading, now: Reading, catalogue: Mapping[str, Metric]) -> Reading:
    """Return gauges as they are now, and the increase of counters and histograms, without unchanged series."""
    return Reading(
        values={
            name: series if catalogue[name].kind == "gauge" else _added(before.values.get(name, NO_SERIES), series)
            for name, series in now.values.items()
        },
        distributions={
            name: _seen(before.distributions.get(name, NOTHING_SEEN), series)
            for name, series in now.distributions.items()
        },
    )


def _added(before: Mapping[Labels, float], now: Mapping[Labels, float]) -> Mapping[Labels, float]:
    return {
        labels: value - before.get(labels, 0.0) for labels, value in now.items() if value != before.get(labels, 0.0)
    }


def _seen(before: Mapping[Labels, Distribution], now: Mapping[Labels, Distribution]) -> Mapping[Labels, Distribution]:
    return {
        labels: distribution if (earlier_one := before.get(labels)) is None else _since(earlier_one, distribution)
        for labels, distribution in now.items()
        if distribution != before.get(labels)
    }


def _since(earlier_one: Distribution, now: Distribution) -> Distribution:
    counts = tuple(count - earlier for count, earlier in zip(now.counts, earlier_one.counts, strict=True))
    return Distribution(counts=counts, sum=now.sum - earlier_one.sum)
