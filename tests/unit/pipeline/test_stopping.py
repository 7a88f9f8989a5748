"""The jobs that check a cluster are cancelled when the process is asked to stop."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import RestartNeeded
from penstock.pipeline.spark import stopping
from penstock.pipeline.spark.stopping import cancelled_at_stop

DEADLINE_SECONDS = 120.0


class Runtime:
    """A Spark without a free slot: a job ends only if it is cancelled."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.is_local = is_local
        self.tags: list[str] = []
        self.cancelled: list[str] = []
        self.job_ended = threading.Event()

    @contextmanager
    def tagged(self, tag: str, _description: str) -> Iterator[None]:
        self.tags.append(tag)
        yield

    def cancel(self, tag: str) -> None:
        self.cancelled.append(tag)
        if len(self.cancelled) == 1:  # between two jobs: there is nothing to cancel yet
            raise RestartNeeded("no job")
        self.job_ended.set()


def test_a_job_that_waits_for_a_slot_is_cancelled_at_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "POLL_SECONDS", 0.01)
    runtime, stop = Runtime(), threading.Event()
    with cancelled_at_stop(runtime, stop.is_set):  # type: ignore[arg-type]
        assert not runtime.cancelled
        stop.set()
        assert runtime.job_ended.wait(DEADLINE_SECONDS)
    assert set(runtime.cancelled) == set(runtime.tags)


def test_a_job_that_waits_for_a_slot_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(stopping, "REPORT_AFTER_SECONDS", 0.0)
    asked, reports, many = [0], [0], threading.Event()

    def requested() -> bool:
        asked[0] += 1
        if asked[0] > 3:
            many.set()
        return False

    def report() -> None:
        reports[0] += 1

    with cancelled_at_stop(Runtime(), requested, report):  # type: ignore[arg-type]
        assert many.wait(DEADLINE_SECONDS)
    assert reports == [1]


def test_jobs_in_this_process_are_not_marked() -> None:
    runtime = Runtime(is_local=True)
    with cancelled_at_stop(runtime, lambda: True):  # type: ignore[arg-type]
        pass
    assert runtime.tags == []
