"""Rounds beside a worker: a failure is told once while it stays the same, and an end is heard."""

import threading
from collections.abc import Callable, Sequence

import pytest

from penstock.app.rounds import PeriodicJob
from penstock.events import Event, JobFailed
from penstock.messaging.clock import SystemClock
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0
LONG_SECONDS = 3_600.0


class Watchman(PeriodicJob):
    """Does what the test says; each round is one call."""

    def __init__(self, go: Callable[["Watchman"], float], told: list[Event], stop: StopSignal | None = None) -> None:
        super().__init__("watch", clock=SystemClock(), random=lambda: 0.5, emit=told.append, stop=stop)
        self._go = go

    def _round(self) -> float:
        return self._go(self)

    def goes_wrong(self, text: str, whose: str = "") -> None:
        self._record_failure(RuntimeError(text), whose=whose)

    def goes_well(self, whose: str = "") -> None:
        self._record_success(whose=whose)


def texts(told: Sequence[Event]) -> list[str]:
    return [event.error for event in told if isinstance(event, JobFailed) and event.job == "watch"]


def test_each_ones_failure_is_told_once_while_it_stays_the_same() -> None:
    told: list[Event] = []
    watchman = Watchman(lambda _: 0.0, told)
    for _ in range(3):
        watchman.goes_wrong("away", "a")
        watchman.goes_wrong("away", "b")
        watchman.goes_well("c")
    assert texts(told) == ["a: RuntimeError: away", "b: RuntimeError: away"]
    watchman.goes_well("a")
    watchman.goes_wrong("away", "a")
    watchman.goes_wrong("denied", "b")
    assert texts(told)[2:] == ["a: RuntimeError: away", "b: RuntimeError: denied"]


def test_an_end_is_heard_in_a_rest() -> None:
    began = threading.Event()

    def go(_: Watchman) -> float:
        began.set()
        return LONG_SECONDS

    with Watchman(go, []).beside():
        assert began.wait(DEADLINE_SECONDS)
    assert "penstock-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("ask", [StopSignal.request, StopSignal.pause])
def test_no_round_begins_once_the_worker_is_asked_to_stop(ask: Callable[[StopSignal], None]) -> None:
    stop, rounds, ended = StopSignal(), [0], threading.Event()

    def go(_: Watchman) -> float:
        rounds[0] += 1
        ask(stop)
        ended.set()
        return 0.0

    watchman = Watchman(go, [], stop)
    watchman.start()
    assert ended.wait(DEADLINE_SECONDS)
    watchman.end()
    assert rounds == [1]
