"""A real Prometheus over a real worker and monitor: alerts fire with the metrics as they are, and the dashboard has
answers to what it asks."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.cli.process import Process
from tests.deploy.test_grafana import expressions, filled_in
from tests.deploy.tools import DEPLOY
from tests.services.prometheus_server import PrometheusServer

from penstock.app.registry import Workers
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.message import Outgoing

DEADLINE_SECONDS = 60.0
APP = """
from penstock import App, Reject

app = App.from_config()

@app.handler("orders")
def take(message):
    if message.body == b'"never"':
        raise Reject("no such order")

@app.handler("mails")
def post(message):
    pass
"""
SETTINGS = """
metrics_address = "127.0.0.1:0"
monitor_address = "127.0.0.1:0"
monitor_seconds = 1
log_format = "json"
"""


@pytest.fixture
def prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrometheusServer]:
    """It scrapes a worker that serves one queue of two, and a monitor of both. Its rules wait for nothing.

    In the one queue a message was given up on, in the other one waits.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    rules = tmp_path / "penstock.rules.yaml"
    text = (DEPLOY / "prometheus/penstock.rules.yaml").read_text(encoding="utf-8")
    rules.write_text(re.sub(r"for: \d+m", "for: 0s", text), encoding="utf-8")
    with ExitStack() as running:
        worker = Process(tmp_path, "worker", "shop:app", "--queues", "orders")
        running.callback(worker.kill)
        worker.expect("worker.started")
        broker = running.enter_context(closing(SqliteBroker(tmp_path / ".penstock/queue.db", holder="test")))
        broker.send("orders", [Outgoing(body=b'"well"'), Outgoing(body=b'"never"')])
        broker.send("mails", [Outgoing(body=b'"nobody takes it"')])
        worker.expect("message.dead_lettered")  # before the monitor's first look: it counts letters once a minute
        monitor = Process(tmp_path, "monitor", "shop:app")
        running.callback(monitor.kill)
        monitor.expect("monitor.started")
        server = PrometheusServer(
            tmp_path / "prometheus",
            rules=rules,
            targets={"penstock-worker": [address_of_worker(tmp_path)], "penstock-monitor": [address_of(monitor)]},
        )
        running.callback(server.close)
        yield server


def address_of_worker(folder: Path) -> str:
    workers = Workers(folder / ".penstock")
    eventually(lambda: any(one.metrics_address for one in workers.records()), lambda: workers.records())
    (address,) = [one.metrics_address for one in workers.records() if one.metrics_address]
    return address


def address_of(monitor: Process) -> str:
    (line,) = [json.loads(line) for line in monitor.said if "monitor.started" in line]
    return str(line["address"])


def eventually(true: Callable[[], object], seen: Callable[[], object]) -> None:
    ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not true():
        assert time.monotonic() < ends_at, seen()
        tick.wait(0.1)


def firing(server: PrometheusServer) -> set[tuple[str, str]]:
    """Names and queues."""
    return {
        (one["labels"]["alertname"], one["labels"].get("queue", ""))
        for one in server.alerts()
        if one["state"] == "firing"
    }


def test_alerts_fire_on_what_a_worker_and_a_monitor_tell_and_the_dashboard_is_answered(
    prometheus: PrometheusServer,
) -> None:
    expected = {
        ("PenstockQueueUnconsumed", "mails"),
        ("PenstockDeadLetters", "orders"),
        ("PenstockHandlerGivesUp", "orders"),
    }
    eventually(lambda: firing(prometheus) == expected, lambda: firing(prometheus))
    told = {one["labels"]["alertname"]: one["annotations"]["summary"] for one in prometheus.alerts()}
    assert told["PenstockDeadLetters"] == "Messages of queue orders were given up on: 1."
    answered = {who for who, expression in expressions() if prometheus.query(filled_in(expression))}
    assert {"Late", "Lost", "Dead, for people", "Unconsumed", "Workers alive", "Measured", "Queues now"} <= answered
    assert {"queue", "job"} <= answered
