"""Pausing a queue: no message is delivered, and everything else continues."""

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, bodies, outgoing, receive, waiting

from penstock.errors import ConfigurationError
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.settlement import Ack


@pytest.fixture
def broker(harness: BrokerHarness) -> Broker:
    broker = harness.broker("w1")
    if not broker.capabilities.pausable:
        pytest.skip("not applicable: this broker cannot pause a queue")
    return broker


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(harness: BrokerHarness, broker: Broker) -> None:
    other = harness.broker("w2")
    broker.send("q", outgoing("a"))
    broker.pause("q")
    broker.pause("q")
    broker.send("q", outgoing("b"))
    assert receive(broker) == receive(other) == []
    assert broker.paused("q")
    assert other.paused("q")
    assert broker.stats("q").visible == 2
    other.resume("q")
    assert not broker.paused("q")
    assert bodies(receive(broker)) == ["a", "b"]


def test_other_queues_continue_during_a_pause(harness: BrokerHarness, broker: Broker) -> None:
    broker.pause("q")
    broker.send("other", outgoing("a"))
    assert not broker.paused("other")
    assert bodies(receive(broker, queue="other")) == ["a"]


def test_leases_are_extended_settled_and_end_during_a_pause(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("acked", "extended", "lost"))
    acked, extended, lost = receive(broker)
    broker.pause("q")
    assert not broker.settle([(acked, Ack())])
    assert not broker.extend([extended], lease_seconds=2 * LEASE)
    harness.advance(LEASE)
    assert receive(broker) == []
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (1, 1)
    assert list(broker.extend([lost], lease_seconds=LEASE)) == [lost]
    broker.resume("q")
    assert bodies(receive(broker)) == ["lost"]


def test_a_message_is_dead_lettered_at_its_last_lease_during_a_pause(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q", receives_max=1)])
    if not broker.capabilities.pausable:
        pytest.skip("not applicable: this broker cannot pause a queue")
    broker.send("q", outgoing("a"))
    receive(broker)
    broker.pause("q")
    harness.advance(LEASE)
    assert receive(broker) == []
    assert bodies(receive(broker, queue="q-dlq")) == ["a"]


def test_a_queue_can_be_paused_before_its_first_send_and_settings_keep_the_pause(
    harness: BrokerHarness, broker: Broker
) -> None:
    assert not broker.paused("q")
    broker.resume("q")
    assert list(broker.queue_names()) == []
    broker.pause("q")
    assert list(broker.queue_names()) == ["q"]
    again = harness.broker("w2", queues=[QueueSettings(name="q", receives_max=3)])
    again.send("q", outgoing("a"))
    assert again.paused("q")
    assert receive(again) == []


def test_purging_keeps_the_pause(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c"))
    receive(broker, 1)
    broker.pause("q")
    assert broker.purge("q") == 3
    assert broker.purge("never heard of") == 0
    assert broker.paused("q")


def test_a_waiting_receiver_continues_when_the_queue_is_resumed(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    broker.pause("q")
    receiving = waiting(harness, broker, wait_seconds=3_600)
    harness.broker("w2").resume("q")
    assert bodies(receiving.over(within_seconds=600)) == ["a"]


def test_an_invalid_queue_name_is_refused(harness: BrokerHarness, broker: Broker) -> None:
    with pytest.raises(ConfigurationError):
        broker.pause("")
