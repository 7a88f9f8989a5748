"""A consumer with a gate: nothing begins while it is shut, one message while it admits one, and no busy loop."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.settlement import UNCOUNTED
from penstock.worker.batcher import Limits
from penstock.worker.consumer import Consumer

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeClock, Life, ToyHandler

Eventually = Callable[..., None]


class FakeGate:
    """A gate that admits as many as the test sets, and opens when the test sets it."""

    def __init__(self, admitted: int | None = 0) -> None:
        self.admitted = admitted
        self.at: float | None = None

    def admits(self) -> int | None:
        return self.admitted

    def release_delay_seconds(self) -> float:
        return 0.0

    def opens_at(self) -> float | None:
        return self.at


def gated(life: "Life", gate: FakeGate, place: ExecutionPlace = ExecutionPlace.POOL, **numbers: object) -> "ToyHandler":
    handler = life.serve(place, queue="gated", **numbers)
    *others, consumer = life.consumers
    life.consumers = [*others, Consumer(queue=consumer.queue, handler=handler, limits=consumer.limits, gate=gate)]
    return handler


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_a_consumer_with_a_shut_gate_is_not_polled_and_the_others_are(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    gated(life, FakeGate(0), place)
    life.serve(place, queue="mail")
    life.broker.put(*range(5), queue="gated")
    life.broker.put(*range(10, 30), queue="mail")
    life.start()
    eventually(lambda: len(life.broker.acked()) == 20, "the other queue is served")
    assert "gated" not in life.broker.polled_queues
    assert all("gated" not in wanted for wanted in life.broker.listenings[0].wanted_sets), "nor listened to"
    life.stop.request()
    assert life.end() == "drained"


def test_a_gate_that_admits_one_receives_one_and_no_more_while_it_is_held(life: "Life", eventually: Eventually) -> None:
    gate = FakeGate(1)
    limits = Limits(messages_max=5, bytes_max=1_000, wait_seconds=1_000.0)  # waits for more messages
    handler = gated(life, gate, limits=limits)
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(1, 2, 3, queue="gated")
    life.start(fetch_max=50)
    eventually(lambda: "gated" in life.broker.polled_queues, "one is received")
    life.broker.put(*range(10, 60), queue="mail")
    eventually(lambda: len(life.broker.acked()) == 50, "after many turns")
    assert life.broker.polled_queues.count("gated") == 1
    assert life.broker.receive_sizes[life.broker.polled_queues.index("gated")] == 1
    assert not handler.executions
    life.stop.request()
    assert life.end() == "drained"


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_messages_held_when_the_gate_shuts_are_released_unstarted(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    class Shutting(FakeGate):
        def admits(self) -> int | None:
            return 0 if len(life.broker.receive_sizes) >= 2 else None

    limits = Limits(messages_max=5, bytes_max=1_000, wait_seconds=1_000.0)
    handler = gated(life, Shutting(), place, limits=limits)
    life.broker.put(1, 2, 3, 4, queue="gated")
    life.start(fetch_max=1)
    eventually(lambda: len(life.broker.released()) == 2, "both held messages are released")
    life.stop.request()
    assert life.end() == "drained"
    assert set(life.broker.released().values()) == {UNCOUNTED}
    assert not handler.executions


def test_a_worker_whose_only_gate_is_shut_rests_until_it_opens(
    life: "Life", eventually: Eventually, clock: "FakeClock"
) -> None:
    """No busy loop: the worker polls when it is woken, and when the gate opens."""
    gate = FakeGate(0)
    gate.at = clock.time + 7.0
    gated(life, gate)
    life.clock = clock
    life.broker.put(1, queue="gated")
    life.start(upkeep_seconds=10_000.0)
    eventually(lambda: any(seconds == 7.0 for seconds in clock.waits), "it rests until the gate opens")
    rests = len([seconds for seconds in clock.waits if seconds == 7.0])
    assert rests == 1
    gate.admitted, gate.at = 1, None
    clock.time += 7.0
    eventually(lambda: life.broker.acked() == ["m1"], "then it polls")
    assert life.broker.receive_sizes[0] == 1
    life.stop.request()
    eventually(lambda: life.conclusion is not None or _moved(clock), "it ends")


def _moved(clock: "FakeClock") -> bool:
    clock.time += 0.1
    return False
