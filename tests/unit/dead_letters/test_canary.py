"""Canary of a replay: one message is sent ahead, and its result is watched."""

import threading
from typing import Any

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.dead_letters.canary import Canary, CanaryResult, watch
from penstock.messaging.clock import Clock
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import Replay, dead_letter_replay_id, replayed
from penstock.messaging.settlement import Ack, DeadLetter
from penstock.testing import FakeClock

QUEUE, DLQ, FINAL_DLQ = "orders", "orders-dlq", "orders-dead"


class SteppingClock(FakeClock):
    """A clock that advances with each wait, and runs the next function of `then` during it."""

    def __init__(self) -> None:
        super().__init__(auto_advance=True)
        self.then: list[Any] = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if self.then:
            self.then.pop(0)()
        return super().wait(event, seconds)


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def broker(clock: SteppingClock) -> MemoryBroker:
    return MemoryBroker(clock=clock)


def send_canary(broker: MemoryBroker) -> Canary:
    """Dead-letter a message, replay it, and return it as a canary."""
    broker.send(QUEUE, [Outgoing(body=b"1")])
    dead_letter_one(broker)
    (dead_letter,) = broker.browse(DLQ, messages_max=1)
    replay_id = dead_letter_replay_id(DLQ, dead_letter)
    replay = Replay(
        replay_id=replay_id, dead_letter_queue=DLQ, dead_letter_id=dead_letter.id, queue=QUEUE, count=0, due_at=0.0
    )
    (id,) = broker.send(QUEUE, [replayed(dead_letter, replay, delay_seconds=0.0)])
    broker.discard(DLQ, [dead_letter.id])
    return Canary(queue=QUEUE, message_id=id, replay_id=replay_id, dead_letter_queues=[DLQ, FINAL_DLQ])


def dead_letter_one(
    broker: MemoryBroker, *, reason: str = "KeyError", queue: str = QUEUE, set_aside: bool = False
) -> None:
    (delivery,) = broker.receive(queue, messages_max=1, lease_seconds=60)
    assert not broker.settle([(delivery, DeadLetter(reason=reason, set_aside=set_aside))])


def ack_one(broker: MemoryBroker) -> None:
    (delivery,) = broker.receive(QUEUE, messages_max=1, lease_seconds=60)
    assert not broker.settle([(delivery, Ack())])


def watched(canary: Canary, broker: MemoryBroker, clock: Clock, *, stopped: bool = False) -> CanaryResult:
    return watch(canary, broker, seconds=30.0, clock=clock, stopped=lambda: stopped)


def test_a_canary_that_left_its_queue_and_did_not_die_is_settled(broker: MemoryBroker, clock: SteppingClock) -> None:
    canary = send_canary(broker)
    broker.send(DLQ, [Outgoing(body=b"another")])
    clock.then = [lambda: None, lambda: ack_one(broker)]
    assert watched(canary, broker, clock).status == "settled"


def test_a_canary_that_is_dead_lettered_again_died(broker: MemoryBroker, clock: SteppingClock) -> None:
    canary = send_canary(broker)
    clock.then = [lambda: dead_letter_one(broker, reason="the same")]
    result = watched(canary, broker, clock)
    assert (result.status, "orders-dlq" in result.text, "the same" in result.text) == ("died", True, True)


def test_a_canary_that_is_set_aside_at_once_died(broker: MemoryBroker, clock: SteppingClock) -> None:
    canary = send_canary(broker)

    def both() -> None:
        dead_letter_one(broker)
        dead_letter_one(broker, queue=DLQ, reason="often enough", set_aside=True)

    clock.then = [both]
    result = watched(canary, broker, clock)
    assert (result.status, "orders-dead" in result.text) == ("died", True)


def test_a_canary_that_was_replayed_again_died(broker: MemoryBroker, clock: SteppingClock) -> None:
    canary = send_canary(broker)

    def both() -> None:
        dead_letter_one(broker)
        (dead_letter,) = broker.browse(DLQ, messages_max=1)
        replay = Replay(
            replay_id="r", dead_letter_queue=DLQ, dead_letter_id=dead_letter.id, queue=QUEUE, count=1, due_at=0.0
        )
        broker.send(QUEUE, [replayed(dead_letter, replay, delay_seconds=0.0)])
        broker.discard(DLQ, [dead_letter.id])

    clock.then = [both]
    assert watched(canary, broker, clock).status == "died"


def test_a_canary_that_is_not_received_is_unknown_after_the_wait(broker: MemoryBroker, clock: SteppingClock) -> None:
    canary = send_canary(broker)
    result = watched(canary, broker, clock)
    assert (result.status, "still in orders" in result.text) == ("unknown", True)
    assert 30.0 <= clock.monotonic() < 40.0


def test_a_stop_request_ends_the_watch_at_once(broker: MemoryBroker, clock: SteppingClock) -> None:
    assert watched(send_canary(broker), broker, clock, stopped=True).status == "unknown"
    assert clock.monotonic() == 0.0
