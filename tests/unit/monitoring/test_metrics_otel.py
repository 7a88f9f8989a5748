"""Values of metrics as read by OpenTelemetry's in-memory reader."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, NumberDataPoint, Sum

from penstock import events
from penstock.messaging.settlement import Ack
from penstock.monitoring.metrics.catalogue import METRICS, WORK_SECONDS
from penstock.monitoring.metrics.listener import MetricsListener
from penstock.monitoring.metrics.meters import SERIES_MAX
from penstock.monitoring.metrics.otel import OtelMeters, name_of


class Scene:
    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meters = OtelMeters(self._provider, version="1", system="aws_sqs")
        self.emit = MetricsListener(self.meters, queues={"clicks": "clicks-events"})

    def metrics(self) -> Mapping[str, Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        assert (scope.scope.name, scope.scope.version) == ("penstock", "1")
        return {metric.name: metric for metric in scope.metrics}

    def values(self, name: str) -> Mapping[frozenset[tuple[str, Any]], float]:
        points = self.metrics()[name].data.data_points
        assert all(isinstance(point, NumberDataPoint) for point in points)
        return {frozenset((point.attributes or {}).items()): point.value for point in points}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def labels(**named: Any) -> frozenset[tuple[str, Any]]:
    return frozenset({name.replace("__", "."): value for name, value in named.items()}.items())


def finished(seconds: float) -> events.MessageFinished:
    return events.MessageFinished(
        queue="q", handler="shop.work", message_id="1", attempt=1, enqueued_at=0.0, duration_seconds=seconds
    )


def test_received_messages_are_counted_as_consumed_messages(scene: Scene) -> None:
    for ids in (("1", "2"), ("3",)):
        scene.emit(events.MessagesReceived(queue="q", message_ids=ids, redelivered=1))
    assert scene.values("messaging.client.consumed.messages") == {
        labels(messaging__system="aws_sqs", messaging__operation__name="receive", messaging__destination__name="q"): 3.0
    }
    metric = scene.metrics()["messaging.client.consumed.messages"]
    assert isinstance(metric.data, Sum)
    assert (metric.unit, metric.data.is_monotonic) == ("{message}", True)
    assert scene.values("penstock.messages_redelivered") == {labels(queue="q"): 2.0}


def test_durations_are_a_histogram_up_to_hours(scene: Scene) -> None:
    for seconds in (0.004, 0.2, 7_300.0):
        scene.emit(finished(seconds))
    metric = scene.metrics()["messaging.process.duration"]
    assert (metric.unit, type(metric.data)) == ("s", Histogram)
    (point,) = metric.data.data_points
    assert dict(point.attributes) == {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "process",
        "messaging.destination.name": "q",
        "penstock.handler": "shop.work",
        "penstock.outcome": "finished",
    }
    assert tuple(point.explicit_bounds) == WORK_SECONDS
    assert (point.count, point.sum, point.min, point.max) == (3, pytest.approx(7_300.204), 0.004, 7_300.0)
    counts = dict(zip((*WORK_SECONDS, "more"), point.bucket_counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {0.005: 1, 0.25: 1, 14_400.0: 1}


def test_other_metrics_have_penstock_names_and_separate_units(scene: Scene) -> None:
    scene.emit(events.SettlementsApplied(queue="q", message_ids=("m",), settlements=(Ack(),)))
    scene.emit(
        events.BatchCommitted(
            pipeline="clicks", attempt_id="a", seq=1, objects=2, rows=3, lines_quarantined=1, bytes=400, seconds=0.5
        )
    )
    scene.emit(events.LinesQuarantined(pipeline="clicks", object_uri="s3://b/k", count=1, reasons={"invalid UTF-8": 1}))
    assert scene.values("penstock.messages_settled") == {labels(queue="q", outcome="acked"): 1.0}
    assert scene.values("penstock.batch_bytes") == {labels(pipeline="clicks"): 400.0}
    assert scene.metrics()["penstock.batch_bytes"].unit == "By"
    assert scene.values("penstock.quarantined_lines") == {labels(pipeline="clicks", reason="invalid UTF-8"): 1.0}
    (point,) = scene.metrics()["penstock.batch_duration"].data.data_points
    assert (dict(point.attributes), point.sum) == ({"pipeline": "clicks", "stage": "commit"}, 0.5)


def test_a_gauge_has_only_its_last_values(scene: Scene) -> None:
    scene.meters.replace("queue_messages", {("q", "visible"): 5.0, ("q", "delayed"): 1.0})
    assert len(scene.values("penstock.queue_messages")) == 2
    scene.meters.replace("queue_messages", {("q", "visible"): 4.0})
    assert scene.values("penstock.queue_messages") == {labels(queue="q", state="visible"): 4.0}


def test_gauges_are_updated_before_a_reader_collects(scene: Scene) -> None:
    scene.meters.before_reading(lambda: scene.meters.replace("worker_slots", {("q", "w"): 8.0}))
    assert scene.values("penstock.worker_slots") == {labels(queue="q", worker="w"): 8.0}


def test_meters_count_as_without_opentelemetry(scene: Scene) -> None:
    scene.emit(finished(0.2))
    reading = scene.meters.read()
    (seen,) = reading.distributions["handler_duration_seconds"].values()
    assert (seen.count, seen.sum) == (1, 0.2)


def test_names_of_metrics_are_unique_and_without_units() -> None:
    names = [name_of(metric, system="redis").name for metric in METRICS.values()]
    assert len(set(names)) == len(METRICS)
    assert not [name for name in names if name.endswith(("_seconds", "_total"))]
    assert all(name.startswith(("penstock.", "messaging.")) for name in names)


def test_a_histogram_has_the_series_of_the_meters(scene: Scene) -> None:
    for number in range(SERIES_MAX + 1):
        scene.meters.observe("handler_duration_seconds", (f"q{number}", "h", "finished"), 1.0)
    scene.meters.observe("handler_duration_seconds", ("q0", "h", "unlisted"), 1.0)
    scene.meters.observe("handler_duration_seconds", ("q0", "h", "finished"), 1.0)
    points = scene.metrics()["messaging.process.duration"].data.data_points
    names = ("messaging.destination.name", "penstock.handler", "penstock.outcome")
    found = {tuple(point.attributes[name] for name in names): point.count for point in points}
    seen = scene.meters.read().distributions["handler_duration_seconds"]
    assert found == {labels: distribution.count for labels, distribution in seen.items()}
    assert (found["other", "other", "finished"], found["other", "other", "other"]) == (1, 1)


def test_series_are_bounded_and_their_names_escaped(scene: Scene) -> None:
    for number in range(SERIES_MAX + 5):
        scene.meters.observe("handler_duration_seconds", (f"q\udc80{number}", "h", "finished"), 1.0)
    points = scene.metrics()["messaging.process.duration"].data.data_points
    found = {str(dict(point.attributes)["messaging.destination.name"]): point.count for point in points}
    assert len(found) == SERIES_MAX + 1
    assert found["other"] == 5
    assert r"q\udc800" in found
