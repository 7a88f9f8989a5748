"""Periodic jobs beside a worker: an unchanged failure is reported once, and an end interrupts a rest."""

import threading
from collections.abc import Callable, Sequence

import pytest

from penstock.app.rounds import PeriodicJob
from penstock.cli.exits import leave
from penstock.events import Event, JobFailed
from penstock.messaging.clock import SystemClock
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0
LONG_SECONDS = 3_600.0


class WatchJob(PeriodicJob):
    """A job that calls the test's function once per round."""

    def __init__(
        self, run_round: Callable[["WatchJob"], float], events: list[Event], stop: StopSignal | None = None
    ) -> None:
        super().__init__("watch", clock=SystemClock(), random=lambda: 0.5, emit=events.append, stop=stop)
        self._run_round = run_round

    def _round(self) -> float:
        return self._run_round(self)

    def fail(self, text: str, subject: str = "") -> None:
        self._record_failure(RuntimeError(text), subject=subject)

    def succeed(self, subject: str = "") -> None:
        self._record_success(subject=subject)


def texts(events: Sequence[Event]) -> list[str]:
    return [event.error for event in events if isinstance(event, JobFailed) and event.job == "watch"]


def test_each_unchanged_failure_is_reported_once() -> None:
    events: list[Event] = []
    job = WatchJob(lambda _: 0.0, events)
    for _ in range(3):
        job.fail("away", "a")
        job.fail("away", "b")
        job.succeed("c")
    assert texts(events) == ["a: RuntimeError: away", "b: RuntimeError: away"]
    job.succeed("a")
    job.fail("away", "a")
    job.fail("denied", "b")
    assert texts(events)[2:] == ["a: RuntimeError: away", "b: RuntimeError: denied"]


def test_a_round_that_does_not_end_is_found_at_the_exit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleanup may be inside a library that crashes the process if the interpreter shuts down meanwhile."""
    monkeypatch.setattr("penstock.app.rounds.END_SECONDS", 0.01)
    monkeypatch.setattr("penstock.cli.exits.WORK_END_SECONDS", 0.01)
    codes: list[int] = []
    monkeypatch.setattr("penstock.cli.exits.leave_now", codes.append)
    began, resume = threading.Event(), threading.Event()

    def run_round(_: WatchJob) -> float:
        began.set()
        resume.wait(DEADLINE_SECONDS)
        return LONG_SECONDS

    with WatchJob(run_round, []).beside() as job:
        assert began.wait(DEADLINE_SECONDS)
    with pytest.raises(SystemExit):
        leave(75)
    assert codes == [75]
    resume.set()
    job.end()


def test_an_end_interrupts_a_rest() -> None:
    began = threading.Event()

    def run_round(_: WatchJob) -> float:
        began.set()
        return LONG_SECONDS

    with WatchJob(run_round, []).beside():
        assert began.wait(DEADLINE_SECONDS)
    assert "penstock-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("ask_to_stop", [StopSignal.request, StopSignal.pause])
def test_no_round_begins_after_the_worker_was_asked_to_stop(ask_to_stop: Callable[[StopSignal], None]) -> None:
    stop, rounds, ran = StopSignal(), [0], threading.Event()

    def run_round(_: WatchJob) -> float:
        rounds[0] += 1
        ask_to_stop(stop)
        ran.set()
        return 0.0

    job = WatchJob(run_round, [], stop)
    job.start()
    assert ran.wait(DEADLINE_SECONDS)
    job.end()
    assert rounds == [1]
