"""A letter that was sent ahead: what can be seen of it."""

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

QUEUE, FIRST, SECOND = "orders", "orders-dlq", "orders-dead"


class Stepping(FakeClock):
    """Time passes where somebody waits, and things happen meanwhile."""

    def __init__(self) -> None:
        super().__init__(auto_advance=True)
        self.then: list[Any] = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if self.then:
            self.then.pop(0)()
        return super().wait(event, seconds)


@pytest.fixture
def clock() -> Stepping:
    return Stepping()


@pytest.fixture
def broker(clock: Stepping) -> MemoryBroker:
    return MemoryBroker(clock=clock)


def sent(broker: MemoryBroker) -> Canary:
    """A letter of a queue, as a message again."""
    broker.send(QUEUE, [Outgoing(body=b"1")])
    die(broker)
    (dead_letter,) = broker.browse(FIRST, messages_max=1)
    replay_id = dead_letter_replay_id(FIRST, dead_letter)
    replay = Replay(
        replay_id=replay_id, dead_letter_queue=FIRST, dead_letter_id=dead_letter.id, queue=QUEUE, count=0, due_at=0.0
    )
    (id,) = broker.send(QUEUE, [replayed(dead_letter, replay, delay_seconds=0.0)])
    broker.discard(FIRST, [dead_letter.id])
    return Canary(queue=QUEUE, message_id=id, replay_id=replay_id, dead_letter_queues=[FIRST, SECOND])


def die(broker: MemoryBroker, *, reason: str = "KeyError", queue: str = QUEUE, set_aside: bool = False) -> None:
    (delivery,) = broker.receive(queue, messages_max=1, lease_seconds=60)
    assert not broker.settle([(delivery, DeadLetter(reason=reason, set_aside=set_aside))])


def done(broker: MemoryBroker) -> None:
    (delivery,) = broker.receive(QUEUE, messages_max=1, lease_seconds=60)
    assert not broker.settle([(delivery, Ack())])


def fate(canary: Canary, broker: MemoryBroker, clock: Clock, *, stopped: bool = False) -> CanaryResult:
    return watch(canary, broker, seconds=30.0, clock=clock, stopped=lambda: stopped)


def test_it_is_settled_when_it_is_gone_and_not_dead(broker: MemoryBroker, clock: Stepping) -> None:
    canary = sent(broker)
    broker.send(FIRST, [Outgoing(body=b"another")])
    clock.then = [lambda: None, lambda: done(broker)]
    assert fate(canary, broker, clock).status == "settled"


def test_it_died_again(broker: MemoryBroker, clock: Stepping) -> None:
    canary = sent(broker)
    clock.then = [lambda: die(broker, reason="the same")]
    found = fate(canary, broker, clock)
    assert (found.status, "orders-dlq" in found.text, "the same" in found.text) == ("died", True, True)


def test_it_died_and_was_set_aside_at_once(broker: MemoryBroker, clock: Stepping) -> None:
    canary = sent(broker)

    def both() -> None:
        die(broker)
        die(broker, queue=FIRST, reason="often enough", set_aside=True)

    clock.then = [both]
    found = fate(canary, broker, clock)
    assert (found.status, "orders-dead" in found.text) == ("died", True)


def test_it_died_and_a_replayer_has_sent_it_back_already(broker: MemoryBroker, clock: Stepping) -> None:
    canary = sent(broker)

    def both() -> None:
        die(broker)
        (dead_letter,) = broker.browse(FIRST, messages_max=1)
        replay = Replay(
            replay_id="r", dead_letter_queue=FIRST, dead_letter_id=dead_letter.id, queue=QUEUE, count=1, due_at=0.0
        )
        broker.send(QUEUE, [replayed(dead_letter, replay, delay_seconds=0.0)])
        broker.discard(FIRST, [dead_letter.id])

    clock.then = [both]
    assert fate(canary, broker, clock).status == "died"


def test_nobody_takes_it(broker: MemoryBroker, clock: Stepping) -> None:
    canary = sent(broker)
    found = fate(canary, broker, clock)
    assert (found.status, "still in orders" in found.text) == ("unknown", True)
    assert 30.0 <= clock.monotonic() < 40.0


def test_somebody_asks_to_stop(broker: MemoryBroker, clock: Stepping) -> None:
    assert fate(sent(broker), broker, clock, stopped=True).status == "unknown"
    assert clock.monotonic() == 0.0
