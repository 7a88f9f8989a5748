"""What came since the last look: the difference of two readings."""

from collections.abc import Mapping

from penstock.monitoring.metrics.catalogue import Metric
from penstock.monitoring.metrics.meters import Distribution, Labels, Reading

NO_SERIES: Mapping[Labels, float] = {}
NOTHING_SEEN: Mapping[Labels, Distribution] = {}
NOTHING_READ = Reading(values={}, distributions={})


def changes(before: Reading, now: Reading, catalogue: Mapping[str, Metric]) -> Reading:
    """Gauges as they are now; of counters and histograms what was added, without series that nothing was added to."""
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
        labels: distribution if (past := before.get(labels)) is None else _since(past, distribution)
        for labels, distribution in now.items()
        if distribution != before.get(labels)
    }


def _since(past: Distribution, now: Distribution) -> Distribution:
    counts = tuple(count - earlier for count, earlier in zip(now.counts, past.counts, strict=True))
    return Distribution(counts=counts, sum=now.sum - past.sum)
