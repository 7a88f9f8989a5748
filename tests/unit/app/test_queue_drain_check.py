"""The check whether a queue is empty."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.app.pending import CALM_SECONDS, QueueDrainCheck
from penstock.brokers.memory.broker import MemoryBroker
from penstock.messaging.broker import BrokerCapabilities
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock


class ApproximateBroker(MemoryBroker):
    """A broker whose counts are approximate."""

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


def test_exact_counts_are_trusted_at_once(clock: FakeClock) -> None:
    broker = MemoryBroker()
    assert is_drained(drain_check(broker, clock))
    broker.send("q", [Outgoing(body=b"1")])
    assert not is_drained(drain_check(broker, clock))


def test_approximate_counts_are_trusted_when_they_are_stable(clock: FakeClock) -> None:
    check = drain_check(ApproximateBroker(), clock)
    assert not is_drained(check)
    clock.advance(CALM_SECONDS - 0.1)
    assert not is_drained(check)
    clock.advance(0.1)
    assert is_drained(check)


@pytest.mark.parametrize("interruption", ["counted", "restarted"])
def test_a_message_or_a_restart_begins_the_quiet_period_again(clock: FakeClock, interruption: str) -> None:
    broker = ApproximateBroker()
    check = drain_check(broker, clock)
    assert not is_drained(check)
    clock.advance(CALM_SECONDS)
    if interruption == "counted":
        broker.send("q", [Outgoing(body=b"1")])
        assert not is_drained(check)
        broker.purge("q")
    else:
        check.restart()
    assert not is_drained(check)
    clock.advance(CALM_SECONDS)
    assert is_drained(check)


def test_a_queue_is_not_drained_before_the_first_sample(clock: FakeClock) -> None:
    assert not drain_check(MemoryBroker(), clock).is_drained


def test_reading_the_result_takes_no_sample(clock: FakeClock) -> None:
    check = drain_check(ApproximateBroker(), clock)
    check.sample()
    clock.advance(CALM_SECONDS)
    assert not check.is_drained
    assert not check.is_drained, "only a sample counts messages"
