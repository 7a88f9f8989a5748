"""When a queue is taken for empty."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.app.pending import CALM_SECONDS, QueueDrainCheck
from penstock.brokers.memory.broker import MemoryBroker
from penstock.messaging.broker import Capabilities
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock


class Vague(MemoryBroker):
    """Its counts are only nearly right."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, exact_stats=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def emptiness(broker: Any, clock: FakeClock) -> QueueDrainCheck:
    return QueueDrainCheck(broker, "q", clock=clock)


def test_exact_counts_are_believed_at_once(clock: FakeClock) -> None:
    broker = MemoryBroker()
    assert emptiness(broker, clock).sure()
    broker.send("q", [Outgoing(body=b"1")])
    assert not emptiness(broker, clock).sure()


def test_vague_counts_are_believed_when_they_last(clock: FakeClock) -> None:
    found = emptiness(Vague(), clock)
    assert not found.sure()
    clock.advance(CALM_SECONDS - 0.1)
    assert not found.sure()
    clock.advance(0.1)
    assert found.sure()


@pytest.mark.parametrize("heard", ["counted", "told"])
def test_a_message_in_between_begins_it_anew(clock: FakeClock, heard: str) -> None:
    broker = Vague()
    found = emptiness(broker, clock)
    assert not found.sure()
    clock.advance(CALM_SECONDS)
    if heard == "counted":
        broker.send("q", [Outgoing(body=b"1")])
        assert not found.sure()
        broker.purge("q")
    else:
        found.doubt()
    assert not found.sure()
    clock.advance(CALM_SECONDS)
    assert found.sure()
