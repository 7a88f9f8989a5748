"""Cleanup in a background thread: bounded, a failure is reported once, and a stop does not wait for it."""

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


class RestRecorder:
    """A clock that records the length of each rest, and makes the last one last until the thread is asked to end."""

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


class FakeCleanup:
    """A cleanup that calls the test's function for each pass, and records its bounds."""

    def __init__(self, clean: Callable[[CleanupPass], CleanupPassResult]) -> None:
        self.clean = clean
        self.passes: list[CleanupPass] = []

    def run(self, bounds: CleanupPass) -> CleanupPassResult:
        self.passes.append(bounds)
        return self.clean(bounds)


def cleanup_runner(
    work: FakeCleanup, clock: Any, *, events: list[Event], stop: StopSignal | None = None
) -> CleanupRunner:
    return CleanupRunner(
        cast(SourceCleanup, work),
        stop=stop or StopSignal(),
        bus=Bus(events.append),
        clock=clock,
        random=lambda: 0.5,
    )


@pytest.fixture
def events() -> list[Event]:
    return []


def test_a_pass_is_bounded_and_the_rest_is_shorter_if_more_is_due(events: list[Event]) -> None:
    results = [CleanupPassResult(more=True), CleanupPassResult()]
    work, clock = FakeCleanup(lambda bounds: results.pop(0)), RestRecorder(2)
    runner = cleanup_runner(work, clock, events=events)
    runner.start()
    assert clock.over.wait(DEADLINE_SECONDS)
    runner.end()
    assert [bounds.objects_max for bounds in work.passes] == [PASS_OBJECTS] * 2
    assert clock.rests == [MORE_SECONDS, REST_SECONDS]


def test_the_same_failure_is_reported_once_and_again_after_a_success(events: list[Event]) -> None:
    failures: list[Exception | None] = [TemporaryError("away")] * 3 + [None, TemporaryError("away")]

    def clean(bounds: CleanupPass) -> CleanupPassResult:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return CleanupPassResult()

    runner = cleanup_runner(FakeCleanup(clean), RestRecorder(), events=events)
    assert [runner.once() is None for _ in range(5)] == [True, True, True, False, True]
    assert events == [JobFailed(job="cleanup", error="TemporaryError: away")] * 2


def test_a_different_failure_is_reported_too(events: list[Event]) -> None:
    failures = [TemporaryError("away"), TemporaryError("denied")]

    def clean(bounds: CleanupPass) -> CleanupPassResult:
        raise failures.pop(0)

    runner = cleanup_runner(FakeCleanup(clean), RestRecorder(), events=events)
    runner.once()
    runner.once()
    assert len(events) == 2


@pytest.mark.parametrize("ask_to_stop", [StopSignal.request, StopSignal.pause])
def test_a_stop_or_pause_ends_the_pass(events: list[Event], ask_to_stop: Callable[[StopSignal], None]) -> None:
    stop = StopSignal()
    stopped: list[bool] = []

    def clean(bounds: CleanupPass) -> CleanupPassResult:
        stopped.append(bounds.stopped())
        ask_to_stop(stop)
        stopped.append(bounds.stopped())
        return CleanupPassResult()

    cleanup_runner(FakeCleanup(clean), RestRecorder(), events=events, stop=stop).once()
    assert stopped == [False, True]


def test_ending_the_runner_does_not_wait_for_a_hanging_store(events: list[Event]) -> None:
    hanging, released = threading.Event(), threading.Event()

    def clean(bounds: CleanupPass) -> CleanupPassResult:
        hanging.set()
        released.wait(DEADLINE_SECONDS)
        return CleanupPassResult()

    runner = cleanup_runner(FakeCleanup(clean), RestRecorder(), events=events)
    runner.start()
    assert hanging.wait(DEADLINE_SECONDS)
    ended = threading.Thread(target=runner.end, daemon=True)
    ended.start()
    ended.join(END_SECONDS + DEADLINE_SECONDS / 2)
    try:
        assert not ended.is_alive()
    finally:
        released.set()
