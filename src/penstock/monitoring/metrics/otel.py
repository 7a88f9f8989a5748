"""Metrics by OpenTelemetry: the same counts, under its conventions' names where it has some, else as ``penstock.*``.

Counters and gauges are read from the meters whenever a reader collects. A histogram takes each value as it comes, in
the thread that tells of it: so it carries exemplars, which lead from a bucket to a trace. Where the application has a
provider of its own, its readers decide when and where all this goes; else it goes by OTLP over HTTP, when the exporter
of the metrics says so, and OpenTelemetry's standard variables (``OTEL_...``) say where.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http import metric_exporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.util.types import AttributeValue

from penstock.errors import TemporaryError
from penstock.monitoring.export_log import quieten
from penstock.monitoring.metrics.catalogue import Metric
from penstock.monitoring.metrics.meters import Labels, Meters, Reading
from penstock.monitoring.traces.context import DESTINATION, HANDLER, OPERATION, OUTCOME, SCOPE, SYSTEM, ours

SEND_SECONDS = 10.0  # for one export; the next one brings what this one could not, as counts are of the whole process
_UNITS = {"seconds": "s", "bytes": "By", "messages": "{message}", "": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelName:
    """What OpenTelemetry calls a metric of the catalogue. ``labels``: what it calls those that it has a word for."""

    name: str
    unit: str
    labels: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)  # that every series has


def name_of(metric: Metric, *, system: str) -> OtelName:
    """By the conventions for messaging, where they have it; ``system`` is what they call the broker."""
    match metric.name:
        case "process_duration_seconds":
            return OtelName(
                name=messaging_metrics.MESSAGING_PROCESS_DURATION,
                unit="s",
                labels={"queue": DESTINATION, "handler": HANDLER, "outcome": OUTCOME},
                attributes={SYSTEM: system, OPERATION: "process"},
            )
        case "messages_received_total":
            return OtelName(
                name=messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES,
                unit="{message}",
                labels={"queue": DESTINATION},
                attributes={SYSTEM: system, OPERATION: "receive"},
            )
    plain = metric.name.removesuffix("_total").removesuffix("_seconds")
    return OtelName(name=ours(plain), unit=_UNITS[metric.unit])


class OtelMeters(Meters):
    """Meters whose counts OpenTelemetry hears of."""

    def __init__(self, provider: metrics.MeterProvider, *, version: str, system: str) -> None:
        super().__init__()
        meter = provider.get_meter(SCOPE, version)
        self._recorders = {
            metric.name: _HistogramRecorder(
                meter, metric, name_of(metric, system=system), series=partial(self._admitted, metric.name)
            )
            for metric in self.catalogue.values()
            if metric.kind == "histogram"
        }
        for metric in self.catalogue.values():
            if metric.kind != "histogram":
                _observable(meter, metric, name_of(metric, system=system), self.read)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        super().observe(name, labels, value)
        self._recorders[name].record(labels, value)


class OtelDestination:
    """Has the counts sent where the application has no provider of its own. Only the exporter's thread calls it."""

    name = "otel"

    def __init__(self, reader: PeriodicExportingMetricReader, exporter: "OtlpExporter") -> None:
        self._reader = reader
        self._exporter = exporter

    def export(self, fresh: Reading) -> None:  # noqa: ARG002 - the reader collects for itself
        """Raises `TemporaryError` where it was not taken: OpenTelemetry itself only logs that."""
        self._exporter.failed = False
        self._reader.collect(SEND_SECONDS * 1_000)
        if self._exporter.failed:
            raise TemporaryError("no collector took the metrics; OTEL_EXPORTER_OTLP_ENDPOINT says where there is one")


class OtlpExporter(OTLPMetricExporter):
    """Remembers whether the last export failed. Used by one thread."""

    failed = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self.failed = result is not MetricExportResult.SUCCESS
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Otel:
    """The meters of a process, and how they are sent; None where the application's own provider sees to that."""

    meters: OtelMeters
    outlet: OtelDestination | None


def open_otel(resource: Resource, *, version: str, system: str) -> Otel:
    """Meters of this process; ``version`` is Penstock's own, ``system`` what OpenTelemetry calls the broker."""
    found = metrics.get_meter_provider()
    if isinstance(found, MeterProvider):
        return Otel(meters=OtelMeters(found, version=version, system=system), outlet=None)
    quieten(metric_exporter.__name__)  # the outlet tells of it
    exporter = OtlpExporter()
    # It has no thread of its own, which would be one more to wait for at the end: the exporter of the metrics asks.
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meters = OtelMeters(provider, version=version, system=system)
    return Otel(meters=meters, outlet=OtelDestination(reader, exporter))


class _HistogramRecorder:
    """One histogram. Any thread may record. ``series`` answers the one that labels are counted in: the meters say so
    for whoever reads them, and bound them."""

    def __init__(self, meter: Meter, metric: Metric, name: OtelName, series: Callable[[Labels], Labels]) -> None:
        self._labels = metric.labels
        self._name = name
        self._series = series
        self._known: dict[Labels, Mapping[str, AttributeValue]] = {}  # as many as a metric has series; any thread adds
        self._histogram: Histogram = meter.create_histogram(
            name.name, name.unit, metric.help, explicit_bucket_boundaries_advisory=metric.bounds
        )

    def record(self, labels: Labels, value: float) -> None:
        attributes = self._known.get(labels)
        if attributes is None:
            series = self._series(labels)
            attributes = _attributes(self._name, self._labels, series)
            if series == labels:
                self._known[labels] = attributes
        self._histogram.record(value, attributes)


def _observable(meter: Meter, metric: Metric, name: OtelName, read: Callable[[], Reading]) -> None:
    def observed(_: CallbackOptions) -> Iterable[Observation]:
        series = read().values[metric.name]
        return [Observation(value, _attributes(name, metric.labels, labels)) for labels, value in series.items()]

    make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
    make(name.name, [observed], name.unit, metric.help)


def _attributes(name: OtelName, labels: Labels, values: Labels) -> Mapping[str, AttributeValue]:
    named = {name.labels.get(label, label): value for label, value in zip(labels, values, strict=True)}
    return {**name.attributes, **named}
