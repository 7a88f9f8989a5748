"""Metrics of real workers on the embedded queue: scraped while they run, exported when they end."""

import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.process import Process, Start
from tests.unit.monitoring.scraping import samples_in

from penstock.app.registry import WorkerRecord, Workers
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.message import Outgoing

DEADLINE_SECONDS = 180.0
CONFIGURATION = 78
APP = """
import threading
from pathlib import Path
from penstock import App, Reject, Retry

app = App.from_config()
GO_ON = Path("go_on")

@app.handler("orders", max_attempts=3)
def take(message, context):
    match message.body:
        case b'"later"' if context.attempt == 1:
            raise Retry(delay_seconds=0)
        case b'"never"':
            raise Reject("no such order")

@app.handler("slow")
def wait(message):
    while not GO_ON.exists():
        threading.Event().wait(0.02)
"""
SETTINGS = """
[worker]
lease = 600

[metrics]
address = "127.0.0.1:0"
export = ["emf"]
export_every = "1h"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: object) -> Process:
        process = Process(here, "worker", "shop:app", *arguments)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def broker(here: Path) -> Iterator[SqliteBroker]:
    (here / ".penstock").mkdir()
    broker = SqliteBroker(here / ".penstock" / "queue.db", holder="test")
    yield broker
    broker.close()


def send(broker: SqliteBroker, queue: str, *bodies: bytes) -> None:
    broker.send(queue, [Outgoing(body=body) for body in bodies])


def records(count: int = 1, *, state: Path = Path(".penstock")) -> list[WorkerRecord]:
    """Wait for that many serving workers, and return their records."""
    found: list[WorkerRecord] = []

    def serving() -> bool:
        found[:] = [record for record in Workers(state).records() if record.queues]
        return len(found) == count

    wait_until(serving, lambda: found)
    return found


def wait_until(condition: Callable[[], bool], state: Callable[[], object]) -> None:
    never, waits = threading.Event(), 0
    while not condition():
        assert waits < DEADLINE_SECONDS / 0.05, state()
        never.wait(0.05)
        waits += 1


def fetched(address: str | None, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_SECONDS) as response:
        body: bytes = response.read()
        return body.decode()


def scraped(record: WorkerRecord) -> Mapping[str, float]:
    return samples_in(fetched(record.metrics_address, "/metrics"))


def awaited(record: WorkerRecord, name: str, value: float) -> Mapping[str, float]:
    """Wait for and return a scrape in which that sample has that value."""
    found: dict[str, float] = {}

    def is_reached() -> bool:
        found.clear()
        found.update(scraped(record))
        return found.get(name) == value

    wait_until(is_reached, lambda: (name, value, found))
    return found


def documents(worker: Process) -> list[dict[str, Any]]:
    """Return the lines that it wrote for CloudWatch."""
    lines = [json.loads(line) for line in worker.log_lines if line.startswith("{")]
    return [line for line in lines if "_aws" in line]


def test_a_scrape_has_the_outcomes_of_messages(start: Start, broker: SqliteBroker) -> None:
    send(broker, "orders", b'"a"', b'"b"', b'"later"', b'"never"')
    worker = start()
    [record] = records()
    found = awaited(record, "messages_settled_total{outcome=acked,queue=orders}", 3)
    assert {name: value for name, value in found.items() if name.startswith("messages_") and value} == {
        "messages_received_total{queue=orders}": 5,
        "messages_redelivered_total{queue=orders}": 1,
        "messages_settled_total{outcome=acked,queue=orders}": 3,
        "messages_settled_total{outcome=retried,queue=orders}": 1,
        "messages_settled_total{outcome=dead_lettered,queue=orders}": 1,
    }
    counts = {name: value for name, value in found.items() if name.startswith("handler_duration_seconds_count")}
    assert counts == {
        f"handler_duration_seconds_count{{handler=take,outcome={outcome},queue=orders}}": count
        for outcome, count in (("finished", 3), ("retried", 1), ("failed", 1))
    }
    slots = f"worker_slots{{queue=orders,worker={record.worker}}}"
    assert found[slots] > 0
    assert [fetched(record.metrics_address, path) != "" for path in ("/livez", "/readyz", "/startupz")] == [True] * 3
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    settled = {
        (line.get("queue"), line.get("outcome")): line["penstock_messages_settled_total"]
        for line in documents(worker)
        if "penstock_messages_settled_total" in line
    }
    assert settled == {("orders", "acked"): 3, ("orders", "retried"): 1, ("orders", "dead_lettered"): 1}
    ends = [line for line in documents(worker) if "penstock_shutdowns_total" in line]
    assert [(line["outcome"], line["penstock_shutdowns_total"]) for line in ends] == [("drained", 1)]


def test_a_lost_lease_is_counted_once(
    start: Start, broker: SqliteBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_LEASE", "9")  # a heartbeat every three
    send(broker, "slow", b"{}")
    worker = start()
    [record] = records()
    worker.expect("message.started")
    broker.release_holder(record.worker)
    found = awaited(record, "messages_settled_total{outcome=lease_lost,queue=slow}", 1)
    assert "heartbeats_total{queue=slow,result=lost}" not in found, "heartbeats count calls, not leases"
    worker.expect("message.started", times=2)
    (here / "go_on").touch()
    found = awaited(record, "messages_settled_total{outcome=acked,queue=slow}", 1)
    assert found["messages_settled_total{outcome=lease_lost,queue=slow}"] == 1
    assert found["messages_redelivered_total{queue=slow}"] == 1


def test_the_next_worker_counts_the_expired_leases_of_a_killed_one(
    start: Start, broker: SqliteBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_LEASE", "3")
    send(broker, "slow", b"{}")
    first = start()
    first.expect("message.started")
    first.kill()
    monkeypatch.delenv("PENSTOCK_WORKER_LEASE")
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "another")  # as on another host: no process can prove that it is dead
    (here / "go_on").touch()
    start()
    [record] = records(state=Path("another"))
    found = awaited(record, "messages_settled_total{outcome=acked,queue=slow}", 1)
    assert found["expired_leases_total{queue=slow}"] == 1
    assert found["messages_redelivered_total{queue=slow}"] == 1


def test_messages_released_by_a_stop_are_reported_at_the_end(start: Start, broker: SqliteBroker) -> None:
    send(broker, "slow", b"{}")
    worker = start()
    worker.expect("message.started")
    worker.signal(signal.SIGTERM)
    worker.expect("worker.draining")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    settled = [line for line in documents(worker) if line.get("outcome") in ("interrupted", "released")]
    assert {name for line in settled for name in line if name.startswith("penstock_")} == {
        "penstock_shutdowns_total",
        "penstock_messages_settled_total",
        "penstock_handler_duration_seconds",
    }


def test_several_processes_serve_metrics_at_consecutive_ports(start: Start) -> None:
    first, second = consecutive_ports()
    start("--processes", 2, "--metrics-address", f"127.0.0.1:{first}")
    found = records(2)
    assert sorted(record.metrics_address or "" for record in found) == [f"127.0.0.1:{first}", f"127.0.0.1:{second}"]
    for record in found:
        assert f"worker_slots{{queue=orders,worker={record.worker}}}" in scraped(record)


def test_a_port_in_use_ends_the_worker_with_an_error_message(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = start("--metrics-address", f"127.0.0.1:{port}")
        assert worker.exit_code() == CONFIGURATION
    assert (
        f"Nothing can be answered at 127.0.0.1:{port}: another process listens there already" in worker.error_message()
    )


def consecutive_ports() -> tuple[int, int]:
    """Return two free consecutive ports."""
    for _ in range(50):
        with socket.create_server(("127.0.0.1", 0)) as one:
            first = one.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", first + 1)):
                    pass
            except OSError:
                continue
        return first, first + 1
    raise AssertionError("there are no two ports beside each other")
