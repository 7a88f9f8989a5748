"""A worker that cannot release its messages exits by force, and the next one in its data directory counts that."""

import signal
import sqlite3
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.process import Process
from tests.unit.monitoring.scraping import samples_in

from penstock.app.registry import Workers
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.message import Outgoing

DEADLINE_SECONDS = 180.0
FAILED = 1
APP = """
import threading
from pathlib import Path
from penstock import App

app = App.from_config()
GO_ON = Path("go_on")

@app.handler("slow")
def wait(message):
    while not GO_ON.exists():
        threading.Event().wait(0.02)
"""
SETTINGS = """
[metrics]
address = "127.0.0.1:0"

[worker]
stop_timeout = 12
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(SETTINGS)
    (tmp_path / ".penstock").mkdir()
    started: list[Process] = []

    def begin() -> Process:
        started.append(Process(tmp_path, "worker", "shop:app"))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def scraped(state: Path, *, forced: float) -> bool:
    """Wait until the only worker reports that count; return False after the deadline."""
    never = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.05)):
        for record in Workers(state).records():
            if record.queues and record.metrics_address:
                with urllib.request.urlopen(
                    f"http://{record.metrics_address}/metrics", timeout=DEADLINE_SECONDS
                ) as response:
                    found = samples_in(response.read().decode())
                if found.get("shutdowns_total{outcome=forced}") == forced:
                    return True
        never.wait(0.05)
    return False


def test_a_forced_end_is_counted_once_by_the_next_worker(start: Callable[[], Process], tmp_path: Path) -> None:
    state = tmp_path / ".penstock"
    with closing(SqliteBroker(state / "queue.db", holder="test")) as broker:
        broker.send("slow", [Outgoing(body=b"{}")])
    first = start()
    first.expect("message.started")
    with closing(sqlite3.connect(state / "queue.db", isolation_level=None)) as locking:
        locking.execute("begin exclusive")  # no other process can write, so no message can be released
        first.signal(signal.SIGTERM)
        first.expect("worker.draining")
        first.signal(signal.SIGTERM)
        first.expect("worker.forced")
        assert first.exit_code() == FAILED
    (tmp_path / "go_on").touch()
    for times in (1.0, 0.0):
        worker = start()
        assert scraped(state, forced=times)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
