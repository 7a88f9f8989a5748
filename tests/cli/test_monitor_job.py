"""The monitor in workers as processes: one exports the gauges, and after a SIGKILL another one takes over."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.process import DEADLINE_SECONDS, Process
from tests.cli.test_monitor import sample_value, samples

LEASE_SECONDS = 3
APP = """
from penstock import App

app = App.from_config(name="shop")

@app.handler("orders", idempotency=lambda message: message.id)
def take(message):
    pass
"""


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Create two hosts: separate data directories, so that neither can prove the other's death."""
    folders_made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shop.py").write_text(APP)
        (folder / "penstock.toml").write_text(
            f'broker = "sqlite:///{tmp_path}/queue.db"\nledger = "sqlite:///{tmp_path}/ledger.db"\n'
            f'[worker]\nlease = {LEASE_SECONDS}\n[metrics]\naddress = "127.0.0.1:0"\nmonitor_every = 1\n'
        )
        folders_made.append(folder)
    return folders_made


@pytest.fixture
def workers(folders: list[Path]) -> Iterator[list[Process]]:
    started: list[Process] = []
    for folder in folders:
        started.append(Process(folder, "worker", "shop:app"))
        if len(started) == 1:
            started[0].expect("monitor.started")
    yield started
    for worker in started:
        worker.kill()


def exports(address: str) -> bool:
    return sample_value(samples(address), "monitor_up", source="broker") == 1.0


def wait_exports(address: str) -> None:
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not exports(address):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)  # between two requests to another process


def test_another_worker_takes_over_the_monitor_of_a_killed_one(workers: list[Process]) -> None:
    first, second = workers
    addresses = [worker.expect("worker.started")["metrics"] for worker in workers]
    wait_exports(addresses[0])
    assert not exports(addresses[1])
    first.signal(signal.SIGKILL)
    killed_at = time.monotonic()
    second.expect("monitor.started", address=addresses[1])
    wait_exports(addresses[1])
    assert LEASE_SECONDS / 2 < time.monotonic() - killed_at < 5 * LEASE_SECONDS, "about a lease and a half, and slack"


def test_a_worker_that_stops_releases_the_monitor_at_once(workers: list[Process]) -> None:
    first, second = workers
    address = second.expect("worker.started")["metrics"]
    first.signal(signal.SIGTERM)
    assert first.exit_code() == 0
    second.expect("monitor.started", address=address)
    wait_exports(address)
