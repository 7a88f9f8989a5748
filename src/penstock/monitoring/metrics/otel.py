"""Export metrics through OpenTelemetry, named by its conventions if they have a name, else ``penstock.*``.

Counters and gauges are read from the meters whenever a reader collects. A histogram records each value in the thread
that observes it, so it carries exemplars, which lead from a bucket to a trace. If the application has a provider, its
readers decide when and where metrics are sent. Otherwise they go out by OTLP over HTTP whenever the metrics exporter
runs, to the address in OpenTelemetry's standard variables (``OTEL_...``).
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

# for one export; the next one makes up for a lost one, since counts cover the whole life of the process
SEND_SECONDS = 10.0
_UNITS = {"seconds": "s", "bytes": "By", "messages": "{message}", "": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelName:
    """The OpenTelemetry name of a metric. ``labels`` maps labels to the attributes of the conventions, if any."""

    name: str
    unit: str
    labels: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)  # on every series


def name_of(metric: Metric, *, system: str) -> OtelName:
    """Return the metric's name by the conventions for messaging, if they have one.

    ``system`` is the conventions' name of the broker.
    """
    match metric.name:
        case "handler_duration_seconds":
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
    """Meters that also record into OpenTelemetry."""

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
    """The destination that sends the counts if the application has no provider. Only the exporter's thread calls it."""

    name = "otel"

    def __init__(self, reader: PeriodicExportingMetricReader, exporter: "OtlpExporter") -> None:
        self._reader = reader
        self._exporter = exporter

    def export(self, fresh: Reading) -> None:  # noqa: ARG002 - the reader collects for itself
        """Collect and send. Raises `TemporaryError` if no collector accepted it, which OpenTelemetry only logs."""
        self._exporter.failed = False
        self._reader.collect(SEND_SECONDS * 1_000)
        if self._exporter.failed:
            raise TemporaryError("no collector accepted the metrics; OTEL_EXPORTER_OTLP_ENDPOINT has its address")


class OtlpExporter(OTLPMetricExporter):
    """OTLP exporter that remembers whether its last export failed. Used by one thread."""

    failed = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self.failed = result is not MetricExportResult.SUCCESS
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Otel:
    """The meters of a process and their destination; None if the application's own provider sends them."""

    meters: OtelMeters
    destination: OtelDestination | None


def open_otel(resource: Resource, *, version: str, system: str) -> Otel:
    """Return the meters of this process.

    ``version`` is Penstock's own; ``system`` is OpenTelemetry's name of the broker.
    """
    found = metrics.get_meter_provider()
    if isinstance(found, MeterProvider):
        return Otel(meters=OtelMeters(found, version=version, system=system), destination=None)
    quieten(metric_exporter.__name__)  # OtelDestination reports the failures
    exporter = OtlpExporter()
    # With an infinite interval the reader starts no thread, which the end would have to wait for; the metrics exporter
    # collects.
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meters = OtelMeters(provider, version=version, system=system)
    return Otel(meters=meters, destination=OtelDestination(reader, exporter))


class _HistogramRecorder:
    """One histogram. Thread-safe. ``series`` maps labels to the bounded series that the meters count them in."""

    def __init__(self, meter: Meter, metric: Metric, name: OtelName, series: Callable[[Labels], Labels]) -> None:
        self._labels = metric.labels
        self._name = name
        self._series = series
        self._known: dict[Labels, Mapping[str, AttributeValue]] = {}  # bounded by the metric's series; any thread adds
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
