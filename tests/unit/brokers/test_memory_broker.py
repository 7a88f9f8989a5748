"""The broker in memory, where it could differ from the embedded one."""

from penstock.brokers.memory.broker import MemoryBroker
from penstock.messaging.message import Outgoing


def test_a_delivery_given_twice_is_not_lost_when_its_lease_ends_at_once() -> None:
    broker = MemoryBroker()
    broker.send("q", [Outgoing(body=b"a")])
    (delivery,) = broker.receive("q", messages_max=1, lease_seconds=60.0)
    assert broker.extend([delivery, delivery], lease_seconds=0.0) == []
    assert broker.extend([delivery], lease_seconds=60.0) == [delivery]
