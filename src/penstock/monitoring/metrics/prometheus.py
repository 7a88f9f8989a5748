"""Expose the meters to Prometheus. The client library defines the output format."""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from penstock.monitoring.metrics import catalogue
from penstock.monitoring.metrics.meters import Distribution, Meters, Reading


def registry_of(meters: Meters) -> CollectorRegistry:
    """Return a registry with this process's meters and the system's data on it (memory, processor, files)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetersCollector(meters))
    ProcessCollector(registry=registry)
    return registry


class MetersCollector(Collector):
    """Prometheus collector that takes one reading per scrape."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def collect(self) -> Iterable[Metric]:
        reading = self._meters.read()
        return [_family(metric, reading) for metric in self._meters.catalogue.values()]

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without series, to reserve their names; takes no reading."""
        empty = Meters(catalogue=self._meters.catalogue).read()
        return [_family(metric, empty) for metric in self._meters.catalogue.values()]


def _family(metric: catalogue.Metric, reading: Reading) -> Metric:
    name = catalogue.PREFIX + metric.name
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for labels, distribution in reading.distributions[metric.name].items():
            histogram.add_metric(labels, _buckets(metric.bounds, distribution), distribution.sum)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for labels, value in reading.values[metric.name].items():
        family.add_metric(labels, value)
    return family


def _buckets(bounds: tuple[float, ...], distribution: Distribution) -> list[tuple[str, float]]:
    """Return each bound with the number of values up to it; the last bound is infinite."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    return [(name, float(count)) for name, count in zip(names, accumulate(distribution.counts), strict=True)]
