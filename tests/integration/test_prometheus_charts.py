"""Charts from a real Prometheus that scrapes Penstock's gauges."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.services.prometheus_server import PrometheusServer
from tests.web.clients import client_of

from penstock import App
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.app.jobs.monitor.process import to_meters
from penstock.app.jobs.monitor.sample import MonitorSample
from penstock.app.system_health import DeadLetterHealth, PipelineHealth, QueueHealth
from penstock.config import Settings
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.monitoring.endpoint import Address, Endpoint
from penstock.monitoring.health import Health
from penstock.monitoring.metrics.meters import Meters
from penstock.web.prometheus import EXPRESSIONS, PrometheusCharts, PrometheusFailed

DEADLINE_SECONDS = 60.0
NAMES = ("orders", 'a"}\\n<b>{', "キュー")


def queue(name: str, visible: int) -> QueueHealth:
    return QueueHealth(
        queue=name,
        visible=visible,
        in_flight=2,
        delayed=1,
        oldest_visible_message_age_seconds=9.5,
        oldest_visible_message_age_source="exact",
        oldest_message_age_seconds=11.0,
        oldest_message_age_source="exact",
    )


SAMPLE = MonitorSample(
    at=0.0,
    queues=[queue(name, number + 10) for number, name in enumerate(NAMES)],
    dead_letters=[
        DeadLetterHealth(queue="orders", tier="dlq", dead_letters=3, oldest_age_seconds=1.0),
        DeadLetterHealth(queue="orders", tier="dead", dead_letters=4, oldest_age_seconds=1.0),
    ],
    pipelines=[
        PipelineHealth(
            pipeline="clicks",
            objects={
                ObjectState.PROCESSED: 7,
                ObjectState.UNPROCESSED: 2,
                ObjectState.PROCESSING: 1,
                ObjectState.DEAD: 4,
            },
            objects_overdue=0,
            oldest_unprocessed_age_seconds=1.0,
            batches_committed=5,
            reconciled=None,
        )
    ],
    publish_lags_seconds={"clicks": 2.5},
    up={"broker": True},
)


@pytest.fixture
def meters() -> Meters:
    meters = Meters()
    to_meters(SAMPLE, meters)
    return meters


@pytest.fixture
def prometheus(tmp_path: Path, meters: Meters) -> Iterator[PrometheusServer]:
    with ExitStack() as running:
        well = lambda: (True, "")  # noqa: E731 - one line is enough
        health = Health(live=well, ready=well, started=well)
        endpoint = Endpoint(Address(host="127.0.0.1", port=0), meters=meters, health=health, setting="metrics.address")
        endpoint.open()
        running.callback(endpoint.close)
        rules = tmp_path / "rules.yaml"
        rules.write_text("groups: []")
        server = PrometheusServer(tmp_path / "prometheus", rules=rules, targets={"penstock": [endpoint.address]})
        running.callback(server.close)
        yield server


def charts_of(server: PrometheusServer) -> PrometheusCharts:
    return PrometheusCharts(server.url, measured_every_seconds=20, clock=SystemClock())


def eventually(condition: Callable[[], object], state: Callable[[], object]) -> None:
    ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < ends_at, state()
        tick.wait(0.2)


def test_the_gauges_are_charts(prometheus: PrometheusServer, meters: Meters, tmp_path: Path) -> None:
    charts = charts_of(prometheus)

    def latest(kind: SeriesKind, name: str) -> dict[str, float | None]:
        chart = charts.chart(kind, name, HistoryRange.HOUR, at=time.time())
        assert chart.error is None
        return {field: values[-1] if values else None for field, values in chart.values.items()}

    def has_rates() -> bool:
        meters.count("messages_settled_total", ("orders", "acked"), 5.0)
        meters.count("messages_settled_total", ("orders", "released"), 500.0)
        return bool(latest(SeriesKind.QUEUE, "orders")["settled_per_second"])

    eventually(has_rates, lambda: latest(SeriesKind.QUEUE, "orders"))
    found = latest(SeriesKind.QUEUE, "orders")
    settled = found.pop("settled_per_second")
    assert settled is not None
    assert 0 < settled < 100  # released messages are not settled for good
    arrived = found.pop("arrived_per_second")
    assert arrived == pytest.approx(settled)  # the depth does not change
    assert found == {
        "visible": 10,
        "in_flight": 2,
        "delayed": 1,
        "oldest_visible_age_seconds": 9.5,
        "dead_letters": 7,
    }
    for number, name in enumerate(NAMES):
        assert latest(SeriesKind.QUEUE, name)["visible"] == number + 10
    assert latest(SeriesKind.PIPELINE, "clicks") == {
        "processed": 7,
        "waiting": 3,
        "failed": 4,
        "batches": None,
        "unpublished": None,
        "publish_lag_seconds": 2.5,
    }
    assert charts.chart(SeriesKind.QUEUE, "none", HistoryRange.HOUR, at=time.time()).is_empty
    eventually(
        lambda: charts.sparklines(SeriesKind.QUEUE, "visible", at=time.time()),
        lambda: charts.sparklines(SeriesKind.QUEUE, "visible", at=time.time()),
    )
    lines = charts.sparklines(SeriesKind.QUEUE, "visible", at=time.time())
    assert {name: line[-1][1] for name, line in lines.items()} == {name: n + 10 for n, name in enumerate(NAMES)}


def test_each_query_is_valid_for_each_range(prometheus: PrometheusServer) -> None:
    charts = charts_of(prometheus)
    for kind in EXPRESSIONS:
        for range_ in HistoryRange:
            assert charts.chart(kind, "orders", range_, at=time.time()).error is None


def test_a_query_that_prometheus_refuses_is_a_sentence(prometheus: PrometheusServer) -> None:
    with pytest.raises(PrometheusFailed, match=r"refused a query: .*parse error"):
        charts_of(prometheus)._range("sum by (", since=0.0, until=10.0, step_seconds=10)


def test_the_page_shows_the_charts_of_prometheus(prometheus: PrometheusServer, tmp_path: Path) -> None:
    settings = Settings(
        broker=f"sqlite:///{tmp_path}/queue.db", data_dir=str(tmp_path), web_prometheus_url=prometheus.url
    )
    app = App(name="shop", settings=settings)
    app.broker.send("orders", [Outgoing(body=b"{}")])
    with client_of(app) as client:

        def found() -> list[float]:
            return list(client.get("/history.json", params={"queue": "orders"}).json()["values"]["visible"])

        eventually(lambda: found()[-1:] == [10], found)
        assert "The charts in numbers" in client.get("/queue", params={"name": "orders"}).text
    app.close()
