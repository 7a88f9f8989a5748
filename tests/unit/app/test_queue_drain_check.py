"""When a queue counts as empty."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.app.pending import CALM_SECONDS, QueueDrainCheck
from penstock.brokers.memory.broker import MemoryBroker
from penstock.messaging.broker import BrokerCapabilities
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock


class Vague(MemoryBroker):
    """Its counts are only nearly right."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, exact_stats=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def drain_check(broker: Any, clock: FakeClock) -> QueueDrainCheck:
    return QueueDrainCheck(broker, "q", clock=clock)


def is_drained(check: QueueDrainCheck) -> bool:
    check.sample()
    return check.is_drained


def test_exact_counts_are_believed_at_once(clock: FakeClock) -> None:
    broker = MemoryBroker()
    assert is_drained(drain_check(broker, clock))
    broker.send("q", [Outgoing(body=b"1")])
    assert not is_drained(drain_check(broker, clock))


def test_vague_counts_are_believed_when_they_last(clock: FakeClock) -> None:
    found = drain_check(Vague(), clock)
    assert not is_drained(found)
    clock.advance(CALM_SECONDS - 0.1)
    assert not is_drained(found)
    clock.advance(0.1)
    assert is_drained(found)


@pytest.mark.parametrize("heard", ["counted", "restarted"])
def test_a_message_in_between_begins_it_anew(clock: FakeClock, heard: str) -> None:
    broker = Vague()
    found = drain_check(broker, clock)
    assert not is_drained(found)
    clock.advance(CALM_SECONDS)
    if heard == "counted":
        broker.send("q", [Outgoing(body=b"1")])
        assert not is_drained(found)
        broker.purge("q")
    else:
        found.restart()
    assert not is_drained(found)
    clock.advance(CALM_SECONDS)
    assert is_drained(found)


def test_nothing_is_known_before_the_first_sample(clock: FakeClock) -> None:
    assert not drain_check(MemoryBroker(), clock).is_drained


def test_asking_again_changes_nothing(clock: FakeClock) -> None:
    found = drain_check(Vague(), clock)
    found.sample()
    clock.advance(CALM_SECONDS)
    assert not found.is_drained
    assert not found.is_drained, "only a sample counts messages"
