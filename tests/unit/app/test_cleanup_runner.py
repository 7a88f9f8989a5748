"""Cleanup beside a worker: bounded, a failure is reported once, and a stop does not wait for it."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.app.cleanup_runner import MORE_SECONDS, PASS_OBJECTS, REST_SECONDS, CleanupRunner
from penstock.app.rounds import END_SECONDS
from penstock.errors import TemporaryError
from penstock.events import Bus, Event, JobFailed
from penstock.pipeline.maintenance.cleanup import CleanupPass, CleanupPassResult, SourceCleanup
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0


class Rests:
    """A clock that writes down how long is rested, and ends the thread after so many rests."""

    def __init__(self, rests_max: int = 1) -> None:
        self.rests: list[float] = []
        self.over = threading.Event()
        self._rests_max = rests_max

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.rests.append(seconds)
        if len(self.rests) >= self._rests_max:
            self.over.set()
            return event.wait(DEADLINE_SECONDS)
        return False


class Work:
    """Answers each pass by the test's function, and remembers its bounds."""

    def __init__(self, answer: Callable[[CleanupPass], CleanupPassResult]) -> None:
        self.answer = answer
        self.passes: list[CleanupPass] = []

    def run(self, bounds: CleanupPass) -> CleanupPassResult:
        self.passes.append(bounds)
        return self.answer(bounds)


def caretaker(work: Work, clock: Any, *, told: list[Event], stop: StopSignal | None = None) -> CleanupRunner:
    return CleanupRunner(
        cast(SourceCleanup, work),
        stop=stop or StopSignal(),
        bus=Bus(told.append),
        clock=clock,
        random=lambda: 0.5,
    )


@pytest.fixture
def told() -> list[Event]:
    return []


def test_a_pass_is_bounded_and_rests_follow_by_what_is_left(told: list[Event]) -> None:
    left = [CleanupPassResult(more=True), CleanupPassResult()]
    work, clock = Work(lambda bounds: left.pop(0)), Rests(2)
    keeper = caretaker(work, clock, told=told)
    keeper.start()
    assert clock.over.wait(DEADLINE_SECONDS)
    keeper.end()
    assert [one.objects_max for one in work.passes] == [PASS_OBJECTS] * 2
    assert clock.rests == [MORE_SECONDS, REST_SECONDS]


def test_the_same_failure_is_told_once_and_again_after_a_success(told: list[Event]) -> None:
    answers: list[Exception | None] = [TemporaryError("away")] * 3 + [None, TemporaryError("away")]

    def answer(bounds: CleanupPass) -> CleanupPassResult:
        failure = answers.pop(0)
        if failure is not None:
            raise failure
        return CleanupPassResult()

    keeper = caretaker(Work(answer), Rests(), told=told)
    assert [keeper.once() is None for _ in range(5)] == [True, True, True, False, True]
    assert told == [JobFailed(job="cleanup", error="TemporaryError: away")] * 2


def test_another_failure_is_told_too(told: list[Event]) -> None:
    answers = [TemporaryError("away"), TemporaryError("denied")]

    def answer(bounds: CleanupPass) -> CleanupPassResult:
        raise answers.pop(0)

    keeper = caretaker(Work(answer), Rests(), told=told)
    keeper.once()
    keeper.once()
    assert len(told) == 2


@pytest.mark.parametrize("ask", [StopSignal.request, StopSignal.pause])
def test_a_worker_that_drains_ends_the_pass(told: list[Event], ask: Callable[[StopSignal], None]) -> None:
    stop = StopSignal()
    heard: list[bool] = []

    def answer(bounds: CleanupPass) -> CleanupPassResult:
        heard.append(bounds.stopped())
        ask(stop)
        heard.append(bounds.stopped())
        return CleanupPassResult()

    caretaker(Work(answer), Rests(), told=told, stop=stop).once()
    assert heard == [False, True]


def test_an_end_does_not_wait_for_a_store_that_hangs(told: list[Event]) -> None:
    hanging, released = threading.Event(), threading.Event()

    def answer(bounds: CleanupPass) -> CleanupPassResult:
        hanging.set()
        released.wait(DEADLINE_SECONDS)
        return CleanupPassResult()

    keeper = caretaker(Work(answer), Rests(), told=told)
    keeper.start()
    assert hanging.wait(DEADLINE_SECONDS)
    ended = threading.Thread(target=keeper.end, daemon=True)
    ended.start()
    ended.join(END_SECONDS + DEADLINE_SECONDS / 2)
    try:
        assert not ended.is_alive()
    finally:
        released.set()
