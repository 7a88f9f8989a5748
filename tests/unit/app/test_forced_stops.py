"""Forced stops: recorded by the worker that ends, counted once by the next one with the same data directory."""

from pathlib import Path

import pytest

from penstock.app.running import FOLDER, ForcedShutdowns, forced_shutdowns
from penstock.config import Settings
from penstock.events import WorkerStarted, WorkerStopped
from penstock.monitoring.metrics.meters import Meters

STARTED = WorkerStarted(queues=("q",), concurrency=1)


def forced_count(meters: Meters) -> float:
    return meters.read().values["shutdowns_total"].get(("forced",), 0.0)


def stop_worker(state: Path, worker: str, outcome: str = "forced") -> None:
    ForcedShutdowns(state, worker=worker, meters=Meters())(WorkerStopped(outcome=outcome, released=()))


def counted_by_next_worker(state: Path, worker: str = "next") -> float:
    """Return the forced stops that a starting worker counts."""
    meters = Meters()
    ForcedShutdowns(state, worker=worker, meters=meters)(STARTED)
    return forced_count(meters)


def test_the_next_worker_counts_earlier_forced_stops_and_the_one_after_does_not(tmp_path: Path) -> None:
    stop_worker(tmp_path, "here-1-A")
    stop_worker(tmp_path, "here-1-B")
    assert counted_by_next_worker(tmp_path) == 2
    assert counted_by_next_worker(tmp_path) == 0


@pytest.mark.parametrize("outcome", ["drained", "interrupted"])
def test_other_outcomes_leave_no_record(tmp_path: Path, outcome: str) -> None:
    stop_worker(tmp_path, "here-1-A", outcome)
    assert counted_by_next_worker(tmp_path) == 0
    assert not (tmp_path / FOLDER).exists()


def test_a_record_that_cannot_be_written_prevents_no_stop(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    stop_worker(tmp_path, "here-1-A")
    assert counted_by_next_worker(tmp_path) == 0


def test_forced_stops_are_recorded_only_for_scraped_metrics(tmp_path: Path) -> None:
    scraped = Settings(data_dir=str(tmp_path), metrics_address="127.0.0.1:0")
    sent = Settings(data_dir=str(tmp_path), metrics_address="127.0.0.1:0", metrics_export=["emf"])
    assert len(forced_shutdowns(scraped, worker="w", meters=Meters())) == 1
    assert forced_shutdowns(sent, worker="w", meters=Meters()) == ()
    assert forced_shutdowns(scraped, worker="w", meters=None) == ()
