"""Real senders and workers whose spans and metrics arrive at a collector, in the OTLP format."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.process import SRC, Process
from tests.integration.otlp_collector import Collector, values

DEADLINE_SECONDS = 180.0
APP = """
from opentelemetry import trace
from penstock import App, Queue

app = App.from_config()

@app.handler(Queue("orders", dict))
def take(order):
    with trace.get_tracer("shop").start_as_current_span("price"):
        app.send("parcels", b"{}")

@app.handler(Queue("parcels"), isolation="process")
def pack(message):
    with trace.get_tracer("shop").start_as_current_span("pack"):
        pass
"""
SETTINGS = """
[tracing]
enabled = true

[metrics]
export = ["otel"]
export_every = 1

[log]
service = "shop"
service_version = "7"
environment = "test"
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds
    yield collector
    collector.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    return tmp_path


def send(here: Path) -> str:
    command = [sys.executable, "-m", "penstock", "send", "--app", "shop:app", "orders"]
    done = subprocess.run(
        command,
        input="{}\n",
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_message_is_traced_from_its_sender_through_a_worker_into_a_child(here: Path, collector: Collector) -> None:
    send(here)
    worker = Process(here, "worker", "shop:app")
    try:

        def spans(name: str) -> Sequence[tuple[dict[str, Any], Any]]:
            return [(resource, span) for resource, span in collector.spans() if span.name == name]

        wanted = ("send orders", "receive orders", "process orders", "price", "send parcels", "process parcels", "pack")
        arrived = collector.wait_for(lambda: all(map(spans, wanted)), seconds=DEADLINE_SECONDS)
        assert arrived, ([span.name for _, span in collector.spans()], worker.log_lines)
        found = {name: spans(name)[0][1] for name in wanted}
        assert [link.span_id for link in found["process orders"].links] == [found["send orders"].span_id]
        assert not found["process orders"].parent_span_id
        assert found["price"].parent_span_id == found["process orders"].span_id
        assert found["send parcels"].parent_span_id == found["price"].span_id
        assert found["send parcels"].trace_id == found["process orders"].trace_id
        assert [link.span_id for link in found["process parcels"].links] == [found["send parcels"].span_id]
        assert found["pack"].parent_span_id == found["process parcels"].span_id, "in another process"
        assert found["pack"].trace_id == found["process parcels"].trace_id
        for resource, _ in (spans("process orders")[0], spans("pack")[0]):
            named = [resource[name] for name in ("service.name", "service.version", "deployment.environment.name")]
            assert named == ["shop", "7", "test"]
        line = worker.expect("message.started", queue="orders")
        assert (line["trace_id"], line["span_id"]) == (
            found["process orders"].trace_id.hex(),
            found["process orders"].span_id.hex(),
        )
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    finally:
        worker.kill()
    metrics = collector.metrics()
    consumed = {
        values(point.attributes)["messaging.destination.name"]: point.as_double or point.as_int
        for point in metrics["messaging.client.consumed.messages"].sum.data_points
    }
    assert consumed == {"orders": 1, "parcels": 1}
    durations = metrics["messaging.process.duration"].histogram.data_points
    assert sorted(values(point.attributes)["penstock.handler"] for point in durations) == ["pack", "take"]
    assert [point.count for point in durations] == [1, 1]
    ends = metrics["penstock.shutdowns"].sum.data_points
    (end,) = [point for point in ends if point.as_double or point.as_int]
    assert values(end.attributes) == {"outcome": "drained"}


def test_an_unavailable_collector_is_logged_and_changes_nothing(here: Path, collector: Collector) -> None:
    collector.close()
    assert "Transient error" not in send(here)
    worker = Process(here, "worker", "shop:app")
    try:
        worker.expect("message.acked", queue="parcels")
        assert "Connection" in worker.expect("traces_export.failed")["error.message"]
        failed = worker.expect("metrics_export.failed")
        assert (failed["exporter"], "no collector" in failed["error.message"]) == ("otel", True)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
        assert [line for line in worker.log_lines if not line.startswith("{")] == [], (
            "OpenTelemetry logs nothing itself"
        )
        assert sum("traces_export.failed" in line for line in worker.log_lines) == 1
    finally:
        worker.kill()
