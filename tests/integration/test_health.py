"""Health endpoints of worker processes: paused, without a broker, delayed by a handler, stuck."""

import http.client
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.process import Process
from tests.services.plugin import StartRedis
from tests.unit.worker.conftest import ToyHandler

from penstock.app.health import worker_health
from penstock.app.registry import Workers
from penstock.brokers.memory.broker import MemoryBroker
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.monitoring.endpoint import Address, Endpoint
from penstock.monitoring.metrics.meters import Meters
from penstock.worker.consumer import Consumer
from penstock.worker.liveness import Liveness
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

DEADLINE_SECONDS = 180.0
STUCK_SECONDS = 0.3
APP = """
import re
from penstock import App
app = App.from_config()

@app.handler("hogs")
def hog(message):
    re.match(r"(a+)+$", "a" * 25 + "b")  # holds the interpreter's lock all the time
"""


def get(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=DEADLINE_SECONDS)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode().strip()


def eventually(condition: Callable[[], object], description: str) -> None:
    ends_at = time.monotonic() + DEADLINE_SECONDS
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < ends_at, f"never came true: {description}"
        tick.wait(0.05)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[Process, str]]]:
    """Return a function that starts a worker on a broker and returns its process and health address."""
    started: list[Process] = []
    (tmp_path / "hog_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_METRICS_ADDRESS", "127.0.0.1:0")

    def begin(broker: str) -> tuple[Process, str]:
        monkeypatch.setenv("PENSTOCK_BROKER", broker)
        started.append(Process(tmp_path, "worker", "hog_app:app"))
        started[-1].expect("worker.started")
        workers = Workers(tmp_path / ".penstock")
        eventually(lambda: [one for one in workers.records() if one.queues], "its record has its queues")
        (record,) = workers.records()
        assert record.metrics_address is not None
        return started[-1], record.metrics_address

    yield begin
    for process in started:
        process.kill()


def test_a_paused_worker_is_alive_and_not_ready(start: Callable[[str], tuple[Process, str]]) -> None:
    process, address = start("sqlite:///queue.db")
    eventually(lambda: get(address, "/livez") == (200, "the worker is serving"), "it serves")
    assert get(address, "/readyz") == (200, "serving hogs")
    assert get(address, "/startupz") == (200, "the worker has started")
    process.signal(signal.SIGTSTP)
    process.expect("worker.draining")
    eventually(lambda: get(address, "/livez") == (200, "the worker is paused"), "it is paused")
    assert get(address, "/readyz") == (503, "the worker was asked to take no more messages")
    assert get(address, "/startupz")[0] == 200
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0


def test_a_worker_without_its_broker_stays_alive_and_ready(
    start: Callable[[str], tuple[Process, str]], start_redis: StartRedis
) -> None:
    server = start_redis()
    process, address = start(server.url)
    server.kill()
    process.expect("receive.failed", times=3)
    assert get(address, "/livez") == (200, "the worker is serving")
    assert get(address, "/readyz") == (200, "serving hogs")
    server.start()
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0


def test_a_handler_that_holds_the_interpreters_lock_is_visible_in_the_loop_lag(
    start: Callable[[str], tuple[Process, str]],
) -> None:
    process, address = start("sqlite:///queue.db")
    before = lags_over(address, "0.5")
    sender = Process(Path.cwd(), "send", "hogs", "--body", "{}")
    assert sender.exit_code() == 0
    process.expect("message.finished")
    eventually(lambda: lags_over(address, "0.5") > before, "the lag was seen")
    assert get(address, "/livez")[0] == 200, "it stays alive"


def lags_over(address: str, seconds: str) -> float:
    """Return how many samples of the loop's lag were longer."""
    _, text = get(address, "/metrics")
    lines = [line for line in text.splitlines() if line.startswith("penstock_loop_lag_seconds_")]
    (within,) = [float(line.split()[-1]) for line in lines if f'le="{seconds}"' in line] or [0.0]
    (count,) = [float(line.split()[-1]) for line in lines if "_count{" in line] or [0.0]
    return count - within


class HangingBroker(MemoryBroker):
    """A broker whose receive does not return once ``hangs`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        if self.hangs.is_set():
            assert self.go_on.wait(DEADLINE_SECONDS)
        return super().receive(queue, messages_max=messages_max, lease_seconds=lease_seconds, wait_seconds=wait_seconds)


def test_a_worker_whose_receive_hangs_is_not_alive_until_it_returns() -> None:
    broker, stop, clock = HangingBroker(), StopSignal(), SystemClock()
    broker.send("q", [Outgoing(body=b"{}")])
    liveness = Liveness(clock)
    worker = Worker(
        broker=broker,
        consumers=[Consumer(queue="q", handler=ToyHandler([]))],
        settings=WorkerSettings(turn_seconds_max=STUCK_SECONDS),
        clock=clock,
        bus=Bus(),
        liveness=liveness,
    )
    health = worker_health(liveness, stop)
    endpoint = Endpoint(Address(host="127.0.0.1", port=0), meters=Meters(), health=health, setting="metrics_address")
    endpoint.open()
    thread = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    thread.start()
    try:
        eventually(lambda: get(endpoint.address, "/startupz")[0] == 200, "it starts")
        eventually(lambda: get(endpoint.address, "/livez")[0] == 200, "it is alive")
        broker.hangs.set()
        eventually(lambda: get(endpoint.address, "/livez")[0] == 503, "it is stuck")
        assert "penstock-io has not moved for" in get(endpoint.address, "/livez")[1]
        broker.hangs.clear()
        broker.go_on.set()
        eventually(lambda: get(endpoint.address, "/livez")[0] == 200, "it moves again")
    finally:
        broker.hangs.clear()
        broker.go_on.set()
        stop.request()
        thread.join(DEADLINE_SECONDS)
        endpoint.close()
    assert not thread.is_alive()
