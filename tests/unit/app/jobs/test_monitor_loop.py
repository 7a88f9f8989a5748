"""The loop of the monitor, and its probes."""

import pytest

from penstock.app.jobs.monitor.process import JITTER_SHARE, REST_SECONDS_MAX, STUCK_SECONDS, MonitorLoop
from penstock.app.jobs.monitor.sample import MonitorSample
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


def monitor_loop(stop: StopSignal, clock: FakeClock, random: float = 0.5) -> MonitorLoop:
    return MonitorLoop(every_seconds=20.0, stop=stop, clock=clock, random=lambda: random)


def test_the_monitor_is_ready_after_its_first_measurement_and_measures_until_it_is_stopped() -> None:
    stop, clock = StopSignal(), FakeClock(auto_advance=True)
    loop = monitor_loop(stop, clock)
    readiness: list[bool] = []
    samples: list[MonitorSample] = []

    def measure() -> MonitorSample:
        readiness.append(loop.health.ready()[0])
        return MonitorSample(at=clock.now())

    def publish(sample: MonitorSample) -> None:
        samples.append(sample)
        if len(samples) == 3:
            stop.request()

    assert not loop.health.started()[0]
    loop.run(measure, publish)
    assert readiness == [False, True, True]
    assert loop.health.live()[0]
    assert [sample.at - samples[0].at for sample in samples] == [0.0, 20.0, 40.0]


@pytest.mark.parametrize(("random", "share"), [(0.0, 1 - JITTER_SHARE), (1.0, 1 + JITTER_SHARE)])
def test_rests_have_jitter(random: float, share: float) -> None:
    stop, clock = StopSignal(), FakeClock(auto_advance=True)
    at: list[float] = []

    def publish(_: MonitorSample) -> None:
        at.append(clock.now())
        if len(at) == 2:
            stop.request()

    monitor_loop(stop, clock, random).run(lambda: MonitorSample(at=0.0), publish)
    assert at[1] - at[0] == pytest.approx(20.0 * share)


@pytest.mark.parametrize(("cpu_seconds", "rest_seconds"), [(0.1, 20.0), (0.5, 50.0), (60.0, REST_SECONDS_MAX)])
def test_measuring_takes_at_most_a_hundredth_of_a_core(cpu_seconds: float, rest_seconds: float) -> None:
    stop, clock = StopSignal(), FakeClock(auto_advance=True)
    at, used = list[float](), [0.0]

    def measure() -> MonitorSample:
        used[0] += cpu_seconds
        at.append(clock.now())
        if len(at) == 2:
            stop.request()
        return MonitorSample(at=0.0)

    loop = MonitorLoop(every_seconds=20.0, stop=stop, clock=clock, random=lambda: 0.5, cpu_seconds=lambda: used[0])
    loop.run(measure, lambda _: None)
    assert at[1] - at[0] == pytest.approx(rest_seconds)


def test_the_monitor_is_not_live_during_a_stuck_measurement() -> None:
    stop, clock = StopSignal(), FakeClock()
    loop = monitor_loop(stop, clock)
    lives: list[bool] = []

    def measure() -> MonitorSample:
        clock.advance(STUCK_SECONDS)
        lives.append(loop.health.live()[0])
        clock.advance(1)
        lives.append(loop.health.live()[0])
        stop.request()
        return MonitorSample(at=0.0)

    loop.run(measure, lambda _: None)
    assert lives == [True, False]
    assert loop.health.live()[0]


def test_the_monitor_is_not_live_while_its_disk_hangs() -> None:
    stop, clock = StopSignal(), FakeClock()
    loop = monitor_loop(stop, clock)
    lives: list[bool] = []

    def publish(_: MonitorSample) -> None:
        lives.append(loop.health.live()[0])
        clock.advance(STUCK_SECONDS + 1)
        lives.append(loop.health.live()[0])
        stop.request()

    def measure() -> MonitorSample:
        clock.advance(STUCK_SECONDS - 1)
        return MonitorSample(at=0.0)

    loop.run(measure, publish)
    assert lives == [True, False]
