"""Sending metrics: what came since the last time, in time, and whatever happens to the place they go to."""

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


class Notebook:
    """An outlet that remembers; it fails while it is told to, and hangs while it is told to."""

    def __init__(self, name: str = "notebook") -> None:
        self.name = name
        self.fresh: list[Mapping[tuple[str, ...], float]] = []
        self.failing = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def export(self, fresh: Reading) -> None:
        self.goes_on.wait(DEADLINE_SECONDS)
        if self.failing:
            raise OSError("away")
        self.fresh.append(fresh.values[RECEIVED])


class Leaping(SystemClock):
    """The machine's clock, some time ahead."""

    ahead_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_seconds


@contextmanager
def exporting(
    meters: Meters,
    outlet: MetricsDestination,
    *,
    told: list[Event] | None = None,
    clock: Clock | None = None,
    seconds: float = 600.0,
) -> Iterator[Exporter]:
    exporter = Exporter(
        meters,
        outlet,
        every_seconds=seconds,
        clock=clock or SystemClock(),
        emit=(told if told is not None else []).append,
    )
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.end()


def flush(exporter: Exporter) -> None:
    exporter.begin_flush()
    assert exporter.await_flush(DEADLINE_SECONDS)


def test_each_time_brings_what_came_since_the_last() -> None:
    meters, notebook = Meters(), Notebook()
    with exporting(meters, notebook) as exporter:
        for received in (2, 3, 0):
            if received:
                meters.count(RECEIVED, ("q",), received)
            flush(exporter)
    assert notebook.fresh == [{("q",): 2}, {("q",): 3}, {}]


def test_it_sends_every_so_often_without_being_asked() -> None:
    meters, came = Meters(), threading.Event()

    class Bell(Notebook):
        def export(self, fresh: Reading) -> None:
            super().export(fresh)
            if len(self.fresh) == 2:
                came.set()

    with exporting(meters, Bell(), seconds=0.01):
        assert came.wait(DEADLINE_SECONDS)


def test_a_place_that_fails_is_told_of_once_in_a_while() -> None:
    meters, broken, told, clock = Meters(), Notebook("broken"), list[Event](), Leaping()
    broken.failing = True
    with exporting(meters, broken, told=told, clock=clock) as exporter:
        flush(exporter)
        flush(exporter)
        clock.ahead_seconds = QUIET_SECONDS
        flush(exporter)
        assert told == [MetricsExportFailed(exporter="broken", error="OSError: away")] * 2
        broken.failing = False
        flush(exporter)
        broken.failing = True
        flush(exporter)
    assert len(told) == 3, "it had been well in between"


def test_a_place_that_hangs_keeps_the_last_counts_from_no_other() -> None:
    meters, hanging, notebook = Meters(), Notebook("hanging"), Notebook()
    hanging.goes_on.clear()
    with exporting(meters, hanging) as one, exporting(meters, notebook) as other:
        metering = Metering(meters, listener=lambda _: None, endpoint=None, exporters=[one, other])
        meters.count(RECEIVED, ("q",), 2)
        metering.begin_flush()
        assert other.await_flush(DEADLINE_SECONDS)
        assert notebook.fresh == [{("q",): 2}]
        assert not metering.await_flush(0.05), "of the other nobody knows"
        hanging.goes_on.set()
        assert metering.await_flush(DEADLINE_SECONDS)


def test_a_flush_waits_no_longer_than_it_may() -> None:
    meters, notebook = Meters(), Notebook()
    notebook.goes_on.clear()
    with exporting(meters, notebook) as exporter:
        exporter.begin_flush()
        assert not exporter.await_flush(0.05)
        notebook.goes_on.set()
        assert exporter.await_flush(DEADLINE_SECONDS)


def test_a_flush_starts_what_was_not_started() -> None:
    meters, notebook = Meters(), Notebook()
    exporter = Exporter(meters, notebook, every_seconds=600.0, clock=SystemClock(), emit=lambda _: None)
    meters.count(RECEIVED, ("q",))
    flush(exporter)
    exporter.end()
    assert notebook.fresh == [{("q",): 1}]


def lines_of(*readings: Meters, properties: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    stream = io.StringIO()
    outlet = EmfDestination(
        LineWriter(stream), namespace="Shop", properties=properties or {}, catalogue=METRICS, clock=SystemClock()
    )
    for meters in readings:
        outlet.export(changes(NOTHING_READ, meters.read(), METRICS))
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


def test_a_histogram_is_told_as_values_with_their_counts() -> None:
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


def test_a_single_value_is_told_as_it_is() -> None:
    meters = Meters()
    meters.observe("handler_duration_seconds", ("orders", "h", "finished"), 0.02)
    [line] = lines_of(meters)
    assert line["penstock_handler_duration_seconds"] == 0.02


def test_workers_are_no_dimension() -> None:
    meters = Meters()
    meters.observe("loop_lag_seconds", ("w1",), 0.02)
    meters.replace("worker_slots", {("orders", "w1"): 100.0})
    lag, slots = sorted(lines_of(meters), key=lambda line: "queue" in line)
    assert lag["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [[]]
    assert slots["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["queue"]]
    assert (lag["penstock_loop_lag_seconds"], slots["penstock_worker_slots"]) == (0.02, 100.0)


def test_what_no_dimension_may_hold_is_written_out_or_left_out() -> None:
    meters = Meters()
    meters.count("replays_total", ("", "waiting"))
    meters.count("replays_total", ("bücher\n", "waiting"))
    nameless, books = sorted(lines_of(meters), key=lambda line: "queue" in line)
    assert nameless["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["result"]]
    assert books["queue"] == "b\\xfccher\\n"


def test_nothing_is_written_where_nothing_happened() -> None:
    assert lines_of(Meters()) == []


def test_a_stream_that_takes_no_lines_is_a_failure() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError("no space")

    meters = Meters()
    meters.count(RECEIVED, ("orders",))
    outlet = EmfDestination(LineWriter(Full()), namespace="Shop", properties={}, catalogue=METRICS, clock=SystemClock())
    with pytest.raises(OSError, match="did not take it"):
        outlet.export(meters.read())


class Calls:
    """CloudWatch's client, as far as it goes."""

    def __init__(self) -> None:
        self.sent: list[Sequence[Mapping[str, Any]]] = []
        self.away = False

    def put_metric_data(self, *, Namespace: str, MetricData: Sequence[Mapping[str, Any]]) -> None:  # noqa: N803 - boto3's
        if self.away:
            raise ConnectionError("away")
        assert Namespace == "Shop"
        self.sent.append(MetricData)


def sender(calls: Calls) -> CloudWatchDestination:
    return CloudWatchDestination(lambda: calls, namespace="Shop", catalogue=METRICS, clock=SystemClock())


def received(queues: int) -> Reading:
    meters = Meters(series_max=queues)
    for number in range(queues):
        meters.count(RECEIVED, (f"q{number}",))
    return meters.read()


def test_a_call_holds_no_more_than_it_may() -> None:
    calls, reading = Calls(), received(DATA_MAX + 1)
    sender(calls).export(reading)
    assert [len(data) for data in calls.sent] == [DATA_MAX, 1]


def test_what_could_not_be_sent_is_sent_the_next_time_with_the_time_it_was_of() -> None:
    calls = Calls()
    outlet = sender(calls)
    calls.away = True
    with pytest.raises(ConnectionError):
        outlet.export(received(1))
    calls.away = False
    outlet.export(received(2))
    assert [len(data) for data in calls.sent] == [1, 2]
    assert calls.sent[0][0]["Timestamp"] < calls.sent[1][0]["Timestamp"]


def test_what_waits_is_bounded() -> None:
    calls = Calls()
    outlet = sender(calls)
    calls.away = True
    for _ in range(CALLS_MAX + 5):
        with pytest.raises(ConnectionError):
            outlet.export(received(1))
    calls.away = False
    outlet.export(NOTHING_READ)
    assert len(calls.sent) == CALLS_MAX


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
