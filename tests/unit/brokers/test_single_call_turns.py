"""A turn made of single calls: what is called, with which arguments, and when to stop."""

from collections.abc import Sequence

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.shared import one_by_one
from penstock.errors import TemporaryError
from penstock.messaging.broker import ReceiveRequest, SettleFailure
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, Settlement

DELIVERY = Delivery(
    message=Message(id="m", body=b"", enqueued_at=0.0), queue="a", receipt="nobody's", attempt=1, received_at=0.0
)


class Spied(MemoryBroker):
    """Tells its calls; some queues are away."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []
        self.away: set[str] = set()
        self.settle_error: Exception | None = None

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        self.calls.append((queue, messages_max, lease_seconds, wait_seconds))
        if queue in self.away:
            raise TemporaryError(f"{queue} is away")
        return super().receive(queue, messages_max=messages_max, lease_seconds=lease_seconds)

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        self.calls.append("settle")
        if self.settle_error is not None:
            raise self.settle_error
        return super().settle(settlements)


@pytest.fixture
def broker() -> Spied:
    return Spied()


def asks(**counts: int) -> list[ReceiveRequest]:
    return [ReceiveRequest(queue=queue, messages_max=count) for queue, count in counts.items()]


def test_all_are_asked_in_order_until_one_has_messages_and_none_waits_beside_others(broker: Spied) -> None:
    broker.send("b", [Outgoing(body=b"1")])
    turn = one_by_one(broker, [(DELIVERY, Ack())], asks(a=1, b=2, c=3), lease_seconds=9.0, wait_seconds=5.0)
    assert broker.calls == ["settle", ("a", 1, 9.0, 0.0), ("b", 2, 9.0, 0.0)]
    assert [delivery.queue for delivery in turn.deliveries] == ["b"]
    assert [failure.delivery for failure in turn.failures] == [DELIVERY]


def test_one_alone_may_wait_and_without_settlements_nothing_is_settled(broker: Spied) -> None:
    one_by_one(broker, [], asks(a=1), lease_seconds=9.0, wait_seconds=5.0)
    assert broker.calls == [("a", 1, 9.0, 5.0)]


def test_behind_a_queue_that_is_away_none_is_asked(broker: Spied) -> None:
    broker.away = {"b"}
    turn = one_by_one(broker, [(DELIVERY, Ack())], asks(a=1, b=1, c=1), lease_seconds=9.0, wait_seconds=0.0)
    assert broker.calls[1:] == [("a", 1, 9.0, 0.0), ("b", 1, 9.0, 0.0)]
    assert turn.receive_error is not None
    assert turn.receive_error[0] == "b"
    assert isinstance(turn.receive_error[1], TemporaryError)
    assert [failure.delivery for failure in turn.failures] == [DELIVERY], "the settlements have their own answer"


def test_a_settle_that_fails_keeps_nobody_from_receiving(broker: Spied) -> None:
    broker.settle_error = TemporaryError("away")
    broker.send("a", [Outgoing(body=b"1")])
    turn = one_by_one(broker, [(DELIVERY, Ack())], asks(a=1), lease_seconds=9.0, wait_seconds=0.0)
    assert turn.settle_error is broker.settle_error
    assert len(turn.deliveries) == 1
