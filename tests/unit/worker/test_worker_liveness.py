"""The liveness report of a worker: its threads move, and the state of its consumers."""

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.errors import TemporaryError, UsageError
from penstock.events import ConsumerHalted, Event, HeartbeatFailed, ReceiveFailed
from penstock.messaging.handler import ExecutionPlace
from penstock.worker.liveness import CALL_SECONDS_MAX, ENDING_SECONDS_MAX, LifeSign, Liveness, Phase

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeClock, Life

Eventually = Callable[..., None]
TURN_SECONDS_MAX = 300.0


@pytest.fixture
def liveness(life: "Life", clock: "FakeClock") -> Liveness:
    """Return the liveness of this life's worker, on a clock that the test moves."""
    life.clock = clock
    life.liveness = Liveness(clock)
    return life.liveness


def trouble_of(sign: LifeSign) -> str | None:
    """Return the current trouble. A function, because mypy would narrow the attribute."""
    return sign.trouble


def phase_of(liveness: Liveness) -> Phase:
    """Return the current phase. A function, because mypy would narrow the attribute."""
    return liveness.phase


# A sign


def test_a_thread_that_has_not_begun_has_no_trouble(clock: "FakeClock") -> None:
    sign = LifeSign("io", clock)
    clock.time += 10_000
    assert trouble_of(sign) is None


def test_a_life_sign_is_valid_for_its_duration(clock: "FakeClock") -> None:
    sign = LifeSign("io", clock)
    sign.give(10.0, "resting")
    clock.time += 10.0
    assert trouble_of(sign) is None
    clock.time += 1.0
    assert trouble_of(sign) == "the thread io has not moved for 11 s while resting, which takes 10 s at most"
    sign.give(10.0, "resting")
    assert trouble_of(sign) is None


def test_a_thread_that_ended_is_in_trouble_only_after_a_grace_period(clock: "FakeClock") -> None:
    sign = LifeSign("io", clock)
    sign.end()
    assert trouble_of(sign) is None
    clock.time += ENDING_SECONDS_MAX + 1
    assert trouble_of(sign) == "the thread io has ended, and the worker has not"


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING])
def test_threads_are_not_judged_while_a_worker_starts_or_stops(clock: "FakeClock", phase: Phase) -> None:
    liveness = Liveness(clock)
    liveness.io.give(10.0, "resting")
    clock.time += 100
    liveness.phase = Phase.SERVING
    assert len(liveness.troubles) == 1
    liveness.phase = phase
    assert liveness.troubles == ()


# A worker


def test_the_phases_of_a_worker(life: "Life", liveness: Liveness, eventually: Eventually) -> None:
    assert phase_of(liveness) is Phase.STARTING
    life.start()
    eventually(lambda: phase_of(liveness) is Phase.SERVING)
    life.stop.pause()
    eventually(lambda: phase_of(liveness) is Phase.PAUSED)
    life.stop.request()
    assert life.end() == "drained"
    assert phase_of(liveness) is Phase.STOPPING


def test_a_receive_that_never_returns_is_a_trouble(
    life: "Life", liveness: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.broker.receive_gate = threading.Event()
    life.start()
    eventually(lambda: life.broker.receiving.is_set(), "it receives")
    clock.time += TURN_SECONDS_MAX
    eventually(lambda: not liveness.troubles, "heartbeats continue, and the turn may take that long")
    clock.time += 1
    trouble = (
        "the thread penstock-io has not moved for 301 s while exchanging messages with the broker, which takes 300 s at"
    )
    eventually(lambda: list(liveness.troubles) == [f"{trouble} most"])
    life.broker.receive_gate.set()
    eventually(lambda: not liveness.troubles, "it moves again")
    life.stop.request()
    assert life.end() == "drained"


def test_an_unreachable_broker_is_not_a_trouble(
    life: "Life", liveness: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(1)
    life.start()
    life.running()
    life.broker.unreachable = {"q"}
    life.broker.extend_faults = [TemporaryError("down")] * 10_000

    def eventually_with_time(condition: Callable[[], object], reason: str) -> None:
        """Advance one second before each check: a beat waits a second between its tries and ends only after them."""

        def check() -> object:
            clock.time += 1.0
            return condition()

        eventually(check, reason)

    def emitted_since(kind: type[Event]) -> bool:
        return len(life.emitted(kind)) > before[kind]

    for _ in range(20):
        before: dict[type[Event], int] = {kind: len(life.emitted(kind)) for kind in (ReceiveFailed, HeartbeatFailed)}
        clock.time += 50.0
        eventually_with_time(partial(emitted_since, ReceiveFailed), "it polls again")
        eventually_with_time(partial(emitted_since, HeartbeatFailed), "it beats again")
        eventually_with_time(lambda: not liveness.troubles, "nothing hangs")
    life.running().let_go()
    life.stop.request()
    life.stop.request()
    life.end()


def test_an_upkeep_may_take_an_hour(
    life: "Life", liveness: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    publishing, done = threading.Event(), threading.Event()

    def upkeep() -> None:
        publishing.set()
        assert done.wait(DEADLINE_SECONDS)

    life.handler.upkeep = upkeep  # type: ignore[method-assign] # a double
    life.start()
    assert publishing.wait(DEADLINE_SECONDS)
    eventually(lambda: phase_of(liveness) is Phase.SERVING)
    clock.time += 3_600
    eventually(lambda: not liveness.troubles)
    clock.time += 1
    eventually(lambda: [trouble for trouble in liveness.troubles if "running a background job of toy" in trouble])
    done.set()
    eventually(lambda: not liveness.troubles)
    life.stop.request()
    assert life.end() == "drained"


def test_a_heartbeat_that_hangs_is_a_trouble_after_a_lease(
    life: "Life", liveness: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(1)
    life.start(lease_seconds=300.0)
    life.running()
    life.broker.extend_gate = threading.Event()
    clock.time += 100.0
    eventually(lambda: life.broker.extending.is_set(), "it extends")
    clock.time += 300.0
    eventually(lambda: not liveness.troubles)
    clock.time += 1.0
    eventually(lambda: [trouble for trouble in liveness.troubles if "penstock-heartbeat" in trouble])
    life.broker.extend_gate.set()
    eventually(lambda: not liveness.troubles)
    life.running().let_go()
    life.stop.request()
    assert life.end() == "drained"


def test_a_call_may_take_longer_than_a_short_lease(
    life: "Life", liveness: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(1)
    life.start(lease_seconds=3.0)
    life.running()
    life.broker.extend_gate = threading.Event()
    clock.time += 2.0
    eventually(lambda: life.broker.extending.is_set(), "it extends")
    clock.time += CALL_SECONDS_MAX
    eventually(lambda: not liveness.troubles)
    life.broker.extend_gate.set()
    life.running().let_go()
    life.stop.request()
    assert life.end() == "drained"


# Consumers


def test_consumers_report_messages_in_flight_and_their_last_poll(
    life: "Life", liveness: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    assert liveness.consumers() == ()
    slow = life.serve(ExecutionPlace.POOL, queue="slow", in_flight_max=2)
    slow.blocking = True
    life.serve(ExecutionPlace.POOL, queue="idle")
    life.broker.put(1, 2, 3, queue="slow")
    life.broker.unreachable = {"idle"}
    life.start(concurrency=7)
    life.running(1, slow)
    eventually(lambda: life.emitted(ReceiveFailed))
    consumers = {consumer.queue: consumer for consumer in liveness.consumers()}
    assert (consumers["slow"].in_flight, consumers["slow"].slots, consumers["slow"].halted) == (2, 2, False)
    assert (consumers["idle"].in_flight, consumers["idle"].slots) == (0, 7)
    assert consumers["slow"].polled_at == 1_000.0
    assert consumers["idle"].polled_at is None, "no receive of it succeeded"
    for number in (0, 1):
        life.running(number, slow).let_go()
    life.running(2, slow).let_go()
    eventually(lambda: len(life.broker.acked()) == 3)
    assert [consumer.in_flight for consumer in liveness.consumers()] == [0, 0]
    life.stop.request()
    assert life.end() == "drained"


def test_a_halted_consumer_is_reported(life: "Life", liveness: Liveness, eventually: Eventually) -> None:
    broken = life.serve(ExecutionPlace.POOL, queue="broken")
    broken.begin_faults = [UsageError("never")]
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(1, queue="broken")
    life.start()
    eventually(lambda: life.emitted(ConsumerHalted))
    assert [(consumer.queue, consumer.halted) for consumer in liveness.consumers()] == [
        ("broken", True),
        ("mail", False),
    ]
    life.stop.request()
    assert life.end() == "drained"


def test_the_event_loop_is_reported_while_it_runs(life: "Life", liveness: Liveness, eventually: Eventually) -> None:
    assert liveness.loop() is None
    handler = life.serve(ExecutionPlace.LOOP, queue="mail")
    life.broker.put(1, queue="mail")
    life.start()
    life.running(0, handler)
    assert liveness.loop() is not None
    life.stop.request()
    assert life.end() == "drained"
    eventually(lambda: liveness.loop() is None)
