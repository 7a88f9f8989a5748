"""A consumer with a gate: nothing begins while it is shut, one message while it admits one, no busy loop."""

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
    """Admits what the test says, and opens when it says."""

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
def test_a_shut_consumer_is_not_asked_and_the_others_are(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    gated(life, FakeGate(0), place)
    life.serve(place, queue="mail")
    life.broker.put(*range(5), queue="gated")
    life.broker.put(*range(10, 30), queue="mail")
    life.start()
    eventually(lambda: len(life.broker.acked()) == 20, "the other queue is served")
    assert "gated" not in life.broker.asked_of
    assert all("gated" not in wanted for wanted in life.broker.ears[0].wanted_sets), "nor listened to"
    life.stop.request()
    assert life.end() == "drained"


def test_it_is_asked_for_one_where_one_is_admitted_and_for_no_more_while_that_is_held(
    life: "Life", eventually: Eventually
) -> None:
    gate = FakeGate(1)
    limits = Limits(messages_max=5, bytes_max=1_000, wait_seconds=1_000.0)  # waits for others to join
    handler = gated(life, gate, limits=limits)
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.put(1, 2, 3, queue="gated")
    life.start(fetch_max=50)
    eventually(lambda: "gated" in life.broker.asked_of, "one is received")
    life.broker.put(*range(10, 60), queue="mail")
    eventually(lambda: len(life.broker.acked()) == 50, "many a turn later")
    assert life.broker.asked_of.count("gated") == 1
    assert life.broker.asked[life.broker.asked_of.index("gated")] == 1
    assert not handler.executions
    life.stop.request()
    assert life.end() == "drained"


@pytest.mark.parametrize("place", [ExecutionPlace.POOL, ExecutionPlace.LOOP])
def test_what_is_held_when_it_shuts_goes_back_unstarted(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    class Shutting(FakeGate):
        def admits(self) -> int | None:
            return 0 if len(life.broker.asked) >= 2 else None

    limits = Limits(messages_max=5, bytes_max=1_000, wait_seconds=1_000.0)
    handler = gated(life, Shutting(), place, limits=limits)
    life.broker.put(1, 2, 3, 4, queue="gated")
    life.start(fetch_max=1)
    eventually(lambda: len(life.broker.released()) == 2, "both that are held go back")
    life.stop.request()
    assert life.end() == "drained"
    assert set(life.broker.released().values()) == {UNCOUNTED}
    assert not handler.executions


def test_a_worker_whose_only_consumer_is_shut_rests_until_it_opens(
    life: "Life", eventually: Eventually, clock: "FakeClock"
) -> None:
    """No busy loop: it looks when somebody wakes it, and when the gate says."""
    gate = FakeGate(0)
    gate.at = clock.time + 7.0
    gated(life, gate)
    life.clock = clock
    life.broker.put(1, queue="gated")
    life.start(upkeep_seconds=10_000.0)
    eventually(lambda: any(seconds == 7.0 for seconds in clock.waits), "it rests for so long")
    rests = len([seconds for seconds in clock.waits if seconds == 7.0])
    assert rests == 1
    gate.admitted, gate.at = 1, None
    clock.time += 7.0
    eventually(lambda: life.broker.acked() == ["m1"], "then it asks")
    assert life.broker.asked[0] == 1
    life.stop.request()
    eventually(lambda: life.conclusion is not None or _moved(clock), "it ends")


def _moved(clock: "FakeClock") -> bool:
    clock.time += 0.1
    return False
