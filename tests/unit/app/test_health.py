"""The responses to a worker's probes, and its gauges at the time of a reading."""

import time
from collections.abc import Sequence

import pytest

from penstock.app.health import gauged, update_gauges, worker_health
from penstock.monitoring.metrics.meters import Meters
from penstock.testing.fake_clock import FakeClock
from penstock.worker.liveness import ConsumerHealth, Liveness, Phase
from penstock.worker.shutdown import StopSignal


def consumer(
    queue: str, *, halted: bool = False, polled_at: float | None = 5.0, awaits: str | None = None
) -> ConsumerHealth:
    return ConsumerHealth(queue=queue, in_flight=3, slots=10, polled_at=polled_at, halted=halted, awaits=awaits)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def liveness(clock: FakeClock) -> Liveness:
    """The liveness of a worker that serves two queues."""
    liveness = Liveness(clock)
    liveness.phase = Phase.SERVING
    liveness.consumers = lambda: [consumer("mails"), consumer("orders")]
    liveness.io.give(10.0, "resting")
    liveness.heartbeat.give(60.0, "waiting")
    return liveness


def test_a_starting_worker_is_alive_and_neither_ready_nor_started(clock: FakeClock) -> None:
    health = worker_health(Liveness(clock), StopSignal())
    assert health.live() == (True, "the worker is starting")
    assert health.ready() == (False, "the worker is starting")
    assert health.started() == (False, "the worker is starting")


def test_a_serving_worker_is_alive_ready_and_started(liveness: Liveness) -> None:
    health = worker_health(liveness, StopSignal())
    assert health.live() == (True, "the worker is serving")
    assert health.ready() == (True, "serving mails, orders")
    assert health.started() == (True, "the worker has started")


def test_a_queue_that_waits_for_spark_is_named_and_other_queues_are_ready(liveness: Liveness) -> None:
    health = worker_health(liveness, StopSignal())
    liveness.consumers = lambda: [consumer("mails"), consumer("clicks", awaits="Spark")]
    assert health.ready() == (True, "serving mails; waiting: clicks for Spark")
    liveness.consumers = lambda: [consumer("clicks", awaits="Spark")]
    assert health.ready() == (False, "no queue is served yet; waiting: clicks for Spark")
    liveness.consumers = lambda: [consumer("mails"), consumer("clicks", halted=True, awaits="Spark")]
    assert health.ready() == (True, "serving mails; halted until a restart: clicks")


def test_a_worker_with_a_stuck_thread_is_not_alive(liveness: Liveness, clock: FakeClock) -> None:
    health = worker_health(liveness, StopSignal())
    clock.advance(11.0)
    liveness.heartbeat.give(60.0, "waiting")
    ok, sentence = health.live()
    assert not ok
    assert "penstock-io has not moved for 11 s while resting" in sentence
    assert health.started() == (True, "the worker has started")


def test_all_stuck_threads_are_named(liveness: Liveness, clock: FakeClock) -> None:
    clock.advance(100.0)
    ok, sentence = worker_health(liveness, StopSignal()).live()
    assert not ok
    assert "penstock-io" in sentence
    assert "penstock-heartbeat" in sentence


def test_a_paused_worker_is_alive_and_not_ready_from_the_signal_on(liveness: Liveness) -> None:
    stop = StopSignal()
    health = worker_health(liveness, stop)
    stop.pause()
    assert health.ready() == (False, "the worker was asked to take no more messages")
    liveness.phase = Phase.PAUSED
    assert health.live() == (True, "the worker is paused")
    assert health.started()[0]


def test_a_stopping_worker_is_alive_and_not_ready_from_the_signal_on(liveness: Liveness, clock: FakeClock) -> None:
    stop = StopSignal()
    health = worker_health(liveness, stop)
    stop.request()
    assert health.ready() == (False, "the worker is stopping")
    liveness.phase = Phase.STOPPING
    clock.advance(10_000.0)
    assert health.live() == (True, "the worker is stopping")


@pytest.mark.parametrize(
    ("consumers", "response"),
    [
        ([consumer("mails"), consumer("orders", halted=True)], (True, "serving mails; halted until a restart: orders")),
        ([], (True, "running background jobs only")),
        ([consumer("orders", halted=True)], (False, "no queue is served any more; halted until a restart: orders")),
    ],
)
def test_a_worker_is_ready_while_it_serves_a_queue_or_has_none_to_serve(
    liveness: Liveness, consumers: Sequence[ConsumerHealth], response: tuple[bool, str]
) -> None:
    liveness.consumers = lambda: consumers
    assert worker_health(liveness, StopSignal()).ready() == response


# Gauges


def test_gauges_have_a_value_for_each_queue_of_the_worker(liveness: Liveness) -> None:
    meters = Meters()
    liveness.consumers = lambda: [consumer("mails", polled_at=None), consumer("orders")]
    update_gauges(liveness, meters, worker="w1")
    values = meters.read().values
    assert values["worker_in_flight_messages"] == {("mails", "w1"): 3, ("orders", "w1"): 3}
    assert values["worker_slots"] == {("mails", "w1"): 10, ("orders", "w1"): 10}
    assert values["worker_last_poll_timestamp_seconds"] == {("orders", "w1"): 5.0}, "mails was never polled"


def test_gauges_are_computed_at_each_reading_and_the_loop_lag_is_sampled(liveness: Liveness, clock: FakeClock) -> None:
    meters = Meters()
    calls = 0

    def consumers() -> Sequence[ConsumerHealth]:
        nonlocal calls
        calls += 1
        return [consumer("mails")]

    liveness.consumers = consumers
    clock.auto_advance = True  # each wait takes exactly its time, so there is no lag
    with gauged(liveness, meters, worker="w1"):
        assert calls == 0, "gauges were computed before a reading"
        ends_at = time.monotonic() + 10
        while not (samples := meters.read().distributions["loop_lag_seconds"]):
            assert time.monotonic() < ends_at, "nothing was sampled"
        assert calls >= 1
    assert samples[("w1",)].sum == 0.0
    calls_inside = calls
    values = meters.read().values
    assert calls == calls_inside, "gauges were computed after the end"
    gauges = ("worker_in_flight_messages", "worker_slots", "worker_last_poll_timestamp_seconds")
    assert [values[name] for name in gauges] == [{}, {}, {}], "gauges keep old values after the end"
