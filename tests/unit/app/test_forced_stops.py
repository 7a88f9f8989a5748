"""Forced stops: recorded by the worker that ends, counted once by the next one with the same data directory."""

from pathlib import Path

import pytest

from penstock.app.running import FOLDER, ForcedShutdowns, forced_shutdowns
from penstock.config import Settings
from penstock.events import WorkerStarted, WorkerStopped
from penstock.monitoring.metrics.meters import Meters

STARTED = WorkerStarted(queues=("q",), concurrency=1)


def forced_in(meters: Meters) -> float:
    return meters.read().values["shutdowns_total"].get(("forced",), 0.0)


def ended(state: Path, worker: str, outcome: str = "forced") -> None:
    ForcedShutdowns(state, worker=worker, meters=Meters())(WorkerStopped(outcome=outcome, released=()))


def begun(state: Path, worker: str = "next") -> float:
    """What a worker that begins there counts at once."""
    meters = Meters()
    ForcedShutdowns(state, worker=worker, meters=meters)(STARTED)
    return forced_in(meters)


def test_the_next_worker_counts_what_was_forced_before_it_and_the_one_after_does_not(tmp_path: Path) -> None:
    ended(tmp_path, "here-1-A")
    ended(tmp_path, "here-1-B")
    assert begun(tmp_path) == 2
    assert begun(tmp_path) == 0


@pytest.mark.parametrize("outcome", ["drained", "interrupted"])
def test_other_ends_leave_no_note(tmp_path: Path, outcome: str) -> None:
    ended(tmp_path, "here-1-A", outcome)
    assert begun(tmp_path) == 0
    assert not (tmp_path / FOLDER).exists()


def test_a_note_that_cannot_be_written_keeps_nobody_from_ending(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    ended(tmp_path, "here-1-A")
    assert begun(tmp_path) == 0


def test_only_metrics_that_are_scraped_and_not_sent_need_it(tmp_path: Path) -> None:
    scraped = Settings(data_dir=str(tmp_path), metrics_address="127.0.0.1:0")
    sent = Settings(data_dir=str(tmp_path), metrics_address="127.0.0.1:0", metrics_export=["emf"])
    assert len(forced_shutdowns(scraped, worker="w", meters=Meters())) == 1
    assert forced_shutdowns(sent, worker="w", meters=Meters()) == ()
    assert forced_shutdowns(scraped, worker="w", meters=None) == ()
