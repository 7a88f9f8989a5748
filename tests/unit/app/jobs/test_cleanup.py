"""The cleanup of sources as a job: its passes are bounded, and end when the worker pauses or the claim is lost."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.app.cleanup_runner import MORE_SECONDS, PASS_OBJECTS
from penstock.app.jobs.cleanup import PASS_SECONDS, _cleanup_pass
from penstock.app.jobs.elected import TaskRun
from penstock.pipeline.maintenance.cleanup import CleanupPass, CleanupPassResult, SourceCleanup
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


class FakeCleanup:
    """A cleanup that records the bounds of each pass, and whether a pass has to stop before and after ``during``."""

    def __init__(self, *, more: bool = False, during: Callable[[], object] = lambda: None) -> None:
        self.more = more
        self.during = during
        self.bounds: list[CleanupPass] = []
        self.stopped: list[bool] = []

    def run(self, bounds: CleanupPass) -> CleanupPassResult:
        self.bounds.append(bounds)
        self.stopped.append(bounds.stopped())
        self.during()
        self.stopped.append(bounds.stopped())
        return CleanupPassResult(more=self.more)


def run(work: FakeCleanup, *, stop: StopSignal | None = None, context: Any = None) -> float | None:
    context = context or SimpleNamespace(clock=FakeClock(), stop=StopSignal())
    task_run = TaskRun(stop or StopSignal(), worker_stop=context.stop, clock=context.clock)
    return _cleanup_pass(cast(SourceCleanup, work), context)(task_run)


@pytest.mark.parametrize(("more", "rest_seconds"), [(True, MORE_SECONDS), (False, None)])
def test_a_pass_is_bounded_and_continues_soon_if_more_is_due(more: bool, rest_seconds: float | None) -> None:
    work = FakeCleanup(more=more)
    assert run(work) == rest_seconds
    assert [bounds.objects_max for bounds in work.bounds] == [PASS_OBJECTS]
    assert work.stopped == [False, False]


def test_a_pass_ends_when_its_time_is_over() -> None:
    clock = FakeClock()
    work = FakeCleanup(during=lambda: clock.advance(PASS_SECONDS))
    run(work, context=SimpleNamespace(clock=clock, stop=StopSignal()))
    assert work.stopped == [False, True]


def test_a_pass_ends_when_the_job_is_stopped() -> None:
    stop = StopSignal()
    work = FakeCleanup(during=stop.request)
    run(work, stop=stop)
    assert work.stopped == [False, True]


def test_a_pass_ends_when_the_worker_is_paused() -> None:
    worker_stop = StopSignal()
    work = FakeCleanup(during=worker_stop.pause)
    run(work, context=SimpleNamespace(clock=FakeClock(), stop=worker_stop))
    assert work.stopped == [False, True]
