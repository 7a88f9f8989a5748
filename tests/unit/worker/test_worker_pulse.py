"""What a worker shows of itself to those who look: that its threads move, and how its lines stand."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.errors import TemporaryError, UsageError
from penstock.events import HeartbeatFailed, LineHalted, ReceiveFailed
from penstock.messaging.handler import ExecutionPlace
from penstock.worker.liveness import CALL_SECONDS_MAX, ENDING_SECONDS_MAX, LifeSign, Liveness, Phase

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeClock, Life

Eventually = Callable[..., None]
TURN_SECONDS_MAX = 300.0


@pytest.fixture
def pulse(life: "Life", clock: "FakeClock") -> Liveness:
    """Of the worker of this life, on a clock that the test moves."""
    life.clock = clock
    life.pulse = Liveness(clock)
    return life.pulse


def trouble_of(sign: LifeSign) -> str | None:
    """Now: it changes without anybody's assigning it."""
    return sign.trouble


def phase_of(pulse: Liveness) -> Phase:
    """The same."""
    return pulse.phase


# A sign


def test_a_thread_that_has_not_begun_is_in_no_trouble(clock: "FakeClock") -> None:
    sign = LifeSign("io", clock)
    clock.time += 10_000
    assert trouble_of(sign) is None


def test_a_sign_says_how_long_it_counts(clock: "FakeClock") -> None:
    sign = LifeSign("io", clock)
    sign.give(10.0, "resting")
    clock.time += 10.0
    assert trouble_of(sign) is None
    clock.time += 1.0
    assert trouble_of(sign) == "the thread io has not moved for 11 s while resting, which takes 10 s at most"
    sign.give(10.0, "resting")
    assert trouble_of(sign) is None


def test_a_thread_that_ended_has_a_moment_to_be_noticed(clock: "FakeClock") -> None:
    sign = LifeSign("io", clock)
    sign.end()
    assert trouble_of(sign) is None
    clock.time += ENDING_SECONDS_MAX + 1
    assert trouble_of(sign) == "the thread io has ended, and the worker has not"


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING])
def test_while_a_worker_starts_or_stops_its_threads_are_not_judged(clock: "FakeClock", phase: Phase) -> None:
    pulse = Liveness(clock)
    pulse.io.give(10.0, "resting")
    clock.time += 100
    pulse.phase = Phase.SERVING
    assert len(pulse.troubles) == 1
    pulse.phase = phase
    assert pulse.troubles == ()


# A worker


def test_the_phases_of_a_life(life: "Life", pulse: Liveness, eventually: Eventually) -> None:
    assert phase_of(pulse) is Phase.STARTING
    life.start()
    eventually(lambda: phase_of(pulse) is Phase.SERVING)
    life.stop.pause()
    eventually(lambda: phase_of(pulse) is Phase.PAUSED)
    life.stop.request()
    assert life.end() == "drained"
    assert phase_of(pulse) is Phase.STOPPING


def test_a_receive_that_never_returns_shows(
    life: "Life", pulse: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.broker.receive_gate = threading.Event()
    life.start()
    eventually(lambda: life.broker.receiving.is_set(), "it receives")
    clock.time += TURN_SECONDS_MAX
    eventually(lambda: not pulse.troubles, "the heartbeat goes on, and the turn may take that long")
    clock.time += 1
    told = (
        "the thread penstock-io has not moved for 301 s while exchanging messages with the broker, which takes 300 s at"
    )
    eventually(lambda: list(pulse.troubles) == [f"{told} most"])
    life.broker.receive_gate.set()
    eventually(lambda: not pulse.troubles, "it moves again")
    life.stop.request()
    assert life.end() == "drained"


def test_a_broker_that_is_away_does_not_show(
    life: "Life", pulse: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(1)
    life.start()
    life.running()
    life.broker.away = {"q"}
    life.broker.extend_faults = [TemporaryError("away")] * 10_000
    for _ in range(20):
        told = len(life.told(ReceiveFailed)) + len(life.told(HeartbeatFailed))
        clock.time += 50.0
        eventually(lambda told=told: len(life.told(ReceiveFailed)) + len(life.told(HeartbeatFailed)) > told)
        eventually(lambda: not pulse.troubles)
    assert life.told(HeartbeatFailed)
    assert life.told(ReceiveFailed)
    life.running().let_go()
    life.stop.request()
    life.stop.request()
    life.end()


def test_an_upkeep_may_take_its_hour(life: "Life", pulse: Liveness, clock: "FakeClock", eventually: Eventually) -> None:
    publishing, done = threading.Event(), threading.Event()

    def upkeep() -> None:
        publishing.set()
        assert done.wait(DEADLINE_SECONDS)

    life.handler.upkeep = upkeep  # type: ignore[method-assign] # a double
    life.start()
    assert publishing.wait(DEADLINE_SECONDS)
    eventually(lambda: phase_of(pulse) is Phase.SERVING)
    clock.time += 3_600
    eventually(lambda: not pulse.troubles)
    clock.time += 1
    eventually(lambda: [trouble for trouble in pulse.troubles if "in the upkeep of toy" in trouble])
    done.set()
    eventually(lambda: not pulse.troubles)
    life.stop.request()
    assert life.end() == "drained"


def test_a_heartbeat_that_hangs_shows_after_a_lease(
    life: "Life", pulse: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(1)
    life.start(lease_seconds=300.0)
    life.running()
    life.broker.extend_gate = threading.Event()
    clock.time += 100.0
    eventually(lambda: life.broker.extending.is_set(), "it extends")
    clock.time += 300.0
    eventually(lambda: not pulse.troubles)
    clock.time += 1.0
    eventually(lambda: [trouble for trouble in pulse.troubles if "penstock-heartbeat" in trouble])
    life.broker.extend_gate.set()
    eventually(lambda: not pulse.troubles)
    life.running().let_go()
    life.stop.request()
    assert life.end() == "drained"


def test_a_call_may_take_longer_than_a_short_lease(
    life: "Life", pulse: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(1)
    life.start(lease_seconds=3.0)
    life.running()
    life.broker.extend_gate = threading.Event()
    clock.time += 2.0
    eventually(lambda: life.broker.extending.is_set(), "it extends")
    clock.time += CALL_SECONDS_MAX
    eventually(lambda: not pulse.troubles)
    life.broker.extend_gate.set()
    life.running().let_go()
    life.stop.request()
    assert life.end() == "drained"


# Its lines


def test_lines_tell_what_they_hold_and_when_they_were_asked(
    life: "Life", pulse: Liveness, clock: "FakeClock", eventually: Eventually
) -> None:
    assert pulse.lines() == ()
    slow = life.serve(ExecutionPlace.POOL, queue="slow", in_flight_max=2)
    slow.blocking = True
    life.serve(ExecutionPlace.POOL, queue="idle")
    life.broker.put(1, 2, 3, queue="slow")
    life.broker.away = {"idle"}
    life.start(concurrency=7)
    life.running(1, slow)
    eventually(lambda: life.told(ReceiveFailed))
    lines = {line.queue: line for line in pulse.lines()}
    assert (lines["slow"].in_flight, lines["slow"].slots, lines["slow"].halted) == (2, 2, False)
    assert (lines["idle"].in_flight, lines["idle"].slots) == (0, 7)
    assert lines["slow"].polled_at == 1_000.0
    assert lines["idle"].polled_at is None, "it never answered"
    for number in (0, 1):
        life.running(number, slow).let_go()
    life.running(2, slow).let_go()
    eventually(lambda: len(life.broker.acked()) == 3)
    assert [line.in_flight for line in pulse.lines()] == [0, 0]
    life.stop.request()
    assert life.end() == "drained"


def test_a_halted_line_shows(life: "Life", pulse: Liveness, eventually: Eventually) -> None:
    broken = life.serve(ExecutionPlace.POOL, queue="broken")
    broken.begin_faults = [UsageError("never")]
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(1, queue="broken")
    life.start()
    eventually(lambda: life.told(LineHalted))
    assert [(line.queue, line.halted) for line in pulse.lines()] == [("broken", True), ("mail", False)]
    life.stop.request()
    assert life.end() == "drained"


def test_the_event_loop_shows_while_it_runs(life: "Life", pulse: Liveness, eventually: Eventually) -> None:
    assert pulse.loop() is None
    handler = life.serve(ExecutionPlace.LOOP, queue="mail")
    life.broker.put(1, queue="mail")
    life.start()
    life.running(0, handler)
    assert pulse.loop() is not None
    life.stop.request()
    assert life.end() == "drained"
    eventually(lambda: pulse.loop() is None)
