"""The lag of a process: the delay with which it runs what is due."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.worker.conftest import FakeClock

from penstock.messaging.clock import SystemClock
from penstock.worker.liveness import LagSampler
from penstock.worker.pools import EventLoop

DEADLINE_SECONDS = 60.0
Eventually = Callable[..., None]


class StalledLoop:
    """A loop that runs its calls when the test lets it go on."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def go_on(self) -> None:
        self.calls.pop(0)()


def lag_of(clock: FakeClock, loop: Any = None) -> LagSampler:
    return LagSampler(clock=clock, observe=lambda _: None, loop=lambda: loop)


def test_a_thread_that_wakes_in_time_has_no_lag(clock: FakeClock) -> None:
    lag = lag_of(clock)
    assert lag.sample(clock.time) == 0.0
    assert lag.sample(clock.time + 0.001) == 0.0


def test_the_lag_is_how_late_the_thread_woke(clock: FakeClock) -> None:
    assert lag_of(clock).sample(clock.time - 1.25) == 1.25


def test_a_loop_that_runs_its_call_late_has_a_lag(clock: FakeClock) -> None:
    loop = StalledLoop()
    lag = lag_of(clock, loop)
    assert lag.sample(clock.time) == 0.0
    clock.time += 0.3
    loop.go_on()
    clock.time += 0.2
    assert lag.sample(clock.time) == pytest.approx(0.3)


def test_the_lag_of_a_stalled_loop_grows_with_one_pending_call(clock: FakeClock) -> None:
    loop = StalledLoop()
    lag = lag_of(clock, loop)
    lags = []
    for _ in range(4):
        lags.append(lag.sample(clock.time))
        clock.time += 0.5
    assert lags == [0.0, 0.5, 1.0, 1.5]
    assert len(loop.calls) == 1
    loop.go_on()
    assert lag.sample(clock.time) == 2.0
    assert len(loop.calls) == 1, "it is sampled again"
    loop.go_on()
    assert lag.sample(clock.time) == 0.0


def test_a_loop_that_is_closed_is_forgotten(clock: FakeClock) -> None:
    loops: list[Any] = [StalledLoop()]
    lag = LagSampler(clock=clock, observe=lambda _: None, loop=lambda: loops[0])
    lag.sample(clock.time)
    clock.time += 5.0
    loops[0] = None
    assert lag.sample(clock.time) == 5.0
    clock.time += 5.0
    assert lag.sample(clock.time) == 0.0


def test_samples_continue_until_the_end_and_show_a_blocked_loop(eventually: Eventually) -> None:
    samples: list[float] = []
    event_loop, blocked = EventLoop(), threading.Event()
    loop: asyncio.AbstractEventLoop = event_loop.ensure_started()
    lag = LagSampler(clock=SystemClock(), observe=samples.append, loop=lambda: event_loop.loop, every_seconds=0.005)
    thread = threading.Thread(target=lag.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: len(samples) > 3, "it samples")
        loop.call_soon_threadsafe(blocked.wait, 10)
        eventually(lambda: samples[-1] > 0.2, "the loop is stuck")
    finally:
        blocked.set()
        lag.end()
        thread.join(DEADLINE_SECONDS)
        event_loop.close()
    assert not thread.is_alive()
