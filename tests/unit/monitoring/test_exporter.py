"""Exports of metrics: changes since the last export, intervals, flushes, failing and hanging destinations."""

import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.app.metering import Metering
from penstock.errors import ConfigurationError
from penstock.events import Event, MetricsExportFailed
from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.export_log import QUIET_SECONDS
from penstock.monitoring.logs.lines import LineWriter
from penstock.monitoring.metrics.catalogue import METRICS
from penstock.monitoring.metrics.cloudwatch import CALLS_MAX, DATA_MAX, CloudWatchDestination, EmfDestination
from penstock.monitoring.metrics.exporter import Exporter, MetricsDestination
from penstock.monitoring.metrics.meters import NOTHING_READ, Meters, Reading, changes

DEADLINE_SECONDS = 60.0
RECEIVED = "messages_received_total"


class RecordingDestination:
    """A destination that records exports, and fails or hangs while the test says so."""

    def __init__(self, name: str = "destination") -> None:
        self.name = name
        self.exported: list[Mapping[tuple[str, ...], float]] = []
        self.failing = False
        self.may_return = threading.Event()
        self.may_return.set()

    def export(self, reading: Reading) -> None:
        self.may_return.wait(DEADLINE_SECONDS)
        if self.failing:
            raise OSError("unavailable")
        self.exported.append(reading.values[RECEIVED])


class SkewedClock(SystemClock):
    """The machine's clock, moved ahead by `ahead_seconds`."""

    ahead_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_seconds


@contextmanager
def exporting(
    meters: Meters,
    destination: MetricsDestination,
    *,
    emitted: list[Event] | None = None,
    clock: Clock | None = None,
    seconds: float = 600.0,
) -> Iterator[Exporter]:
    exporter = Exporter(
        meters,
        destination,
        every_seconds=seconds,
        clock=clock or SystemClock(),
        emit=(emitted if emitted is not None else []).append,
    )
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.end()


def flush(exporter: Exporter) -> None:
    exporter.begin_flush()
    assert exporter.await_flush(DEADLINE_SECONDS)


def test_each_export_has_the_changes_since_the_last() -> None:
    meters, destination = Meters(), RecordingDestination()
    with exporting(meters, destination) as exporter:
        for received in (2, 3, 0):
            if received:
                meters.count(RECEIVED, ("q",), received)
            flush(exporter)
    assert destination.exported == [{("q",): 2}, {("q",): 3}, {}]


def test_the_exporter_exports_at_each_interval() -> None:
    meters, exported_twice = Meters(), threading.Event()

    class NotifyingDestination(RecordingDestination):
        def export(self, reading: Reading) -> None:
            super().export(reading)
            if len(self.exported) == 2:
                exported_twice.set()

    with exporting(meters, NotifyingDestination(), seconds=0.01):
        assert exported_twice.wait(DEADLINE_SECONDS)


def test_a_failing_destination_is_reported_periodically() -> None:
    meters, broken, emitted, clock = Meters(), RecordingDestination("broken"), list[Event](), SkewedClock()
    broken.failing = True
    with exporting(meters, broken, emitted=emitted, clock=clock) as exporter:
        flush(exporter)
        flush(exporter)
        clock.ahead_seconds = QUIET_SECONDS
        flush(exporter)
        assert emitted == [MetricsExportFailed(exporter="broken", error="OSError: unavailable")] * 2
        broken.failing = False
        flush(exporter)
        broken.failing = True
        flush(exporter)
    assert len(emitted) == 3, "an export succeeded in between"


def test_a_hanging_destination_does_not_delay_the_others() -> None:
    meters, hanging, destination = Meters(), RecordingDestination("hanging"), RecordingDestination()
    hanging.may_return.clear()
    with exporting(meters, hanging) as one, exporting(meters, destination) as other:
        metering = Metering(meters, listener=lambda _: None, endpoint=None, exporters=[one, other])
        meters.count(RECEIVED, ("q",), 2)
        metering.begin_flush()
        assert other.await_flush(DEADLINE_SECONDS)
        assert destination.exported == [{("q",): 2}]
        assert not metering.await_flush(0.05), "the other destination still hangs"
        hanging.may_return.set()
        assert metering.await_flush(DEADLINE_SECONDS)


def test_a_flush_waits_no_longer_than_its_timeout() -> None:
    meters, destination = Meters(), RecordingDestination()
    destination.may_return.clear()
    with exporting(meters, destination) as exporter:
        exporter.begin_flush()
        assert not exporter.await_flush(0.05)
        destination.may_return.set()
        assert exporter.await_flush(DEADLINE_SECONDS)


def test_a_flush_works_without_a_start() -> None:
    meters, destination = Meters(), RecordingDestination()
    exporter = Exporter(meters, destination, every_seconds=600.0, clock=SystemClock(), emit=lambda _: None)
    meters.count(RECEIVED, ("q",))
    flush(exporter)
    exporter.end()
    assert destination.exported == [{("q",): 1}]


def lines_of(*readings: Meters, properties: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    stream = io.StringIO()
    destination = EmfDestination(
        LineWriter(stream), namespace="Shop", properties=properties or {}, catalogue=METRICS, clock=SystemClock()
    )
    for meters in readings:
        destination.export(changes(NOTHING_READ, meters.read(), METRICS))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_document_has_the_labels_as_dimensions_and_the_rest_as_properties() -> None:
    meters = Meters()
    meters.count(RECEIVED, ("orders",), 3)
    meters.count("messages_redelivered_total", ("orders",), 1)
    meters.count(RECEIVED, ("mail",), 1)
    orders, mail = lines_of(meters, properties={"service": "shop", "worker": "w1"})
    directive = orders.pop("_aws")["CloudWatchMetrics"]
    assert directive == [
        {
            "Namespace": "Shop",
            "Dimensions": [["queue"]],
            "Metrics": [
                {"Name": "penstock_messages_received_total", "Unit": "Count"},
                {"Name": "penstock_messages_redelivered_total", "Unit": "Count"},
            ],
        }
    ]
    assert orders == {
        "queue": "orders",
        "service": "shop",
        "worker": "w1",
        "penstock_messages_received_total": 3,
        "penstock_messages_redelivered_total": 1,
    }
    assert (mail["queue"], mail["penstock_messages_received_total"]) == ("mail", 1)


def test_a_histogram_is_written_as_values_with_their_counts() -> None:
    meters = Meters()
    for seconds in (0.02, 0.02, 0.021, 100.0, 100_000.0):
        meters.observe("handler_duration_seconds", ("orders", "h", "finished"), seconds)
    [line] = lines_of(meters)
    assert line["penstock_handler_duration_seconds"] == {
        "Values": [pytest.approx(0.0175), 90.0, 14_400.0],
        "Counts": [3, 1, 1],
        "Min": pytest.approx(0.0175),
        "Max": 14_400.0,
        "Count": 5,
        "Sum": pytest.approx(100_100.061),
    }


def test_a_single_value_is_written_as_a_number() -> None:
    meters = Meters()
    meters.observe("handler_duration_seconds", ("orders", "h", "finished"), 0.02)
    [line] = lines_of(meters)
    assert line["penstock_handler_duration_seconds"] == 0.02


def test_the_worker_is_not_a_dimension() -> None:
    meters = Meters()
    meters.observe("loop_lag_seconds", ("w1",), 0.02)
    meters.replace("worker_slots", {("orders", "w1"): 100.0})
    lag, slots = sorted(lines_of(meters), key=lambda line: "queue" in line)
    assert lag["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [[]]
    assert slots["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["queue"]]
    assert (lag["penstock_loop_lag_seconds"], slots["penstock_worker_slots"]) == (0.02, 100.0)


def test_dimension_values_are_escaped_or_omitted_if_empty() -> None:
    meters = Meters()
    meters.count("replays_total", ("", "waiting"))
    meters.count("replays_total", ("bücher\n", "waiting"))
    nameless, books = sorted(lines_of(meters), key=lambda line: "queue" in line)
    assert nameless["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["result"]]
    assert books["queue"] == "b\\xfccher\\n"


def test_an_empty_reading_writes_nothing() -> None:
    assert lines_of(Meters()) == []


def test_an_export_to_a_full_stream_raises() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError("no space")

    meters = Meters()
    meters.count(RECEIVED, ("orders",))
    destination = EmfDestination(
        LineWriter(Full()), namespace="Shop", properties={}, catalogue=METRICS, clock=SystemClock()
    )
    with pytest.raises(OSError, match="did not take it"):
        destination.export(meters.read())


class FakeCloudWatch:
    """The used part of CloudWatch's client. Records the calls."""

    def __init__(self) -> None:
        self.sent: list[Sequence[Mapping[str, Any]]] = []
        self.unavailable = False

    def put_metric_data(self, *, Namespace: str, MetricData: Sequence[Mapping[str, Any]]) -> None:  # noqa: N803 - boto3's
        if self.unavailable:
            raise ConnectionError("unavailable")
        assert Namespace == "Shop"
        self.sent.append(MetricData)


def sender(client: FakeCloudWatch) -> CloudWatchDestination:
    return CloudWatchDestination(lambda: client, namespace="Shop", catalogue=METRICS, clock=SystemClock())


def received(queues: int) -> Reading:
    meters = Meters(series_max=queues)
    for number in range(queues):
        meters.count(RECEIVED, (f"q{number}",))
    return meters.read()


def test_a_call_has_at_most_the_allowed_number_of_data() -> None:
    client, reading = FakeCloudWatch(), received(DATA_MAX + 1)
    sender(client).export(reading)
    assert [len(data) for data in client.sent] == [DATA_MAX, 1]


def test_unsent_data_are_sent_with_the_next_export_and_their_own_time() -> None:
    client = FakeCloudWatch()
    destination = sender(client)
    client.unavailable = True
    with pytest.raises(ConnectionError):
        destination.export(received(1))
    client.unavailable = False
    destination.export(received(2))
    assert [len(data) for data in client.sent] == [1, 2]
    assert client.sent[0][0]["Timestamp"] < client.sent[1][0]["Timestamp"]


def test_the_number_of_unsent_calls_is_bounded() -> None:
    client = FakeCloudWatch()
    destination = sender(client)
    client.unavailable = True
    for _ in range(CALLS_MAX + 5):
        with pytest.raises(ConnectionError):
            destination.export(received(1))
    client.unavailable = False
    destination.export(NOTHING_READ)
    assert len(client.sent) == CALLS_MAX


def test_a_missing_boto3_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from penstock.app.metering import open_metering
    from penstock.config import load_settings

    for loaded in [name for name in sys.modules if name.split(".")[0] == "boto3"]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(sys.modules, "penstock.monitoring.metrics.cloudwatch")
    monkeypatch.setitem(sys.modules, "boto3", None)
    settings = load_settings(metrics_export=["cloudwatch"])
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[aws\]'"):
        open_metering(settings, worker="w1", health=None, queues={}, emit=lambda _: None)
