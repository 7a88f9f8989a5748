"""A real Prometheus scrapes a real worker, the elected monitor: alerts fire, and the dashboard has results."""

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
from penstock.messaging.settlement import DeadLetter

DEADLINE_SECONDS = 180.0
APP = """
from penstock import App, Reject

app = App.from_config()

@app.handler("orders", idempotency=lambda message: message.id)
def take(message):
    if message.body == b'"never"':
        raise Reject("no such order")

@app.handler("mails")
def post(message):
    pass
"""
SETTINGS = """
[metrics]
address = "127.0.0.1:0"
monitor_every = 1

[log]
format = "json"
"""


@pytest.fixture
def prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrometheusServer]:
    """Scrape a worker that serves one of the app's two queues and monitors both. The rules fire without a delay.

    In the first queue a message is dead-lettered, in the other one a message waits.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    rules = tmp_path / "penstock.rules.yaml"
    text = (DEPLOY / "prometheus/penstock.rules.yaml").read_text(encoding="utf-8")
    rules.write_text(re.sub(r"for: \d+m", "for: 0s", text), encoding="utf-8")
    with ExitStack() as running:
        (tmp_path / ".penstock").mkdir()
        broker = running.enter_context(closing(SqliteBroker(tmp_path / ".penstock/queue.db", holder="test")))
        # Before the worker starts, because dead letters are counted only once a minute.
        broker.send("orders", [Outgoing(body=b'"dead"')])
        (dead,) = broker.receive("orders", messages_max=1, lease_seconds=60)
        assert not broker.settle([(dead, DeadLetter(reason="for the test"))])
        worker = Process(tmp_path, "worker", "shop:app", "--queues", "orders")
        running.callback(worker.kill)
        worker.expect("worker.started")
        broker.send("orders", [Outgoing(body=b'"well"'), Outgoing(body=b'"never"')])
        broker.send("mails", [Outgoing(body=b'"not served"')])
        worker.expect("message.dead_lettered")
        worker.expect("monitor.started")
        server = PrometheusServer(
            tmp_path / "prometheus",
            rules=rules,
            targets={"penstock": [address_of_worker(tmp_path)]},
        )
        running.callback(server.close)
        yield server


def address_of_worker(folder: Path) -> str:
    workers = Workers(folder / ".penstock")
    eventually(lambda: any(one.metrics_address for one in workers.records()), lambda: workers.records())
    (address,) = [one.metrics_address for one in workers.records() if one.metrics_address]
    return address


def eventually(condition: Callable[[], object], state: Callable[[], object]) -> None:
    ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < ends_at, state()
        tick.wait(0.1)


def firing(server: PrometheusServer) -> set[tuple[str, str]]:
    """Return the names and queues of firing alerts."""
    return {
        (one["labels"]["alertname"], one["labels"].get("queue", ""))
        for one in server.alerts()
        if one["state"] == "firing"
    }


def test_alerts_fire_on_the_metrics_of_a_worker_and_the_dashboard_has_results(
    prometheus: PrometheusServer,
) -> None:
    expected = {
        ("PenstockQueueUnconsumed", "mails"),
        ("PenstockDeadLetters", "orders"),
        ("PenstockHandlerGivesUp", "orders"),
    }
    eventually(lambda: firing(prometheus) == expected, lambda: firing(prometheus))
    summaries = {one["labels"]["alertname"]: one["annotations"]["summary"] for one in prometheus.alerts()}
    assert re.fullmatch(r"Messages of queue orders were dead-lettered: [12]\.", summaries["PenstockDeadLetters"])
    with_results = {title for title, expression in expressions() if prometheus.query(filled_in(expression))}
    assert {"Late", "Lost", "Dead, for people", "Unconsumed", "Workers alive", "Measured", "Queues now"} <= with_results
    assert {"queue", "job"} <= with_results
