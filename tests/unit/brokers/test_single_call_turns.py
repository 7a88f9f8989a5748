"""A turn made of single calls: their order and arguments, and when the turn stops."""

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
    message=Message(id="m", body=b"", enqueued_at=0.0), queue="a", receipt="unknown", attempt=1, received_at=0.0
)


class RecordingBroker(MemoryBroker):
    """Records its calls. Receives from the queues in `unreachable` fail."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []
        self.unreachable: set[str] = set()
        self.settle_error: Exception | None = None

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        self.calls.append((queue, messages_max, lease_seconds, wait_seconds))
        if queue in self.unreachable:
            raise TemporaryError(f"{queue} is away")
        return super().receive(queue, messages_max=messages_max, lease_seconds=lease_seconds)

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        self.calls.append("settle")
        if self.settle_error is not None:
            raise self.settle_error
        return super().settle(settlements)


@pytest.fixture
def broker() -> RecordingBroker:
    return RecordingBroker()


def requests(**counts: int) -> list[ReceiveRequest]:
    return [ReceiveRequest(queue=queue, messages_max=count) for queue, count in counts.items()]


def test_several_queues_are_polled_in_order_without_waiting_until_one_has_messages(broker: RecordingBroker) -> None:
    broker.send("b", [Outgoing(body=b"1")])
    turn = one_by_one(broker, [(DELIVERY, Ack())], requests(a=1, b=2, c=3), lease_seconds=9.0, wait_seconds=5.0)
    assert broker.calls == ["settle", ("a", 1, 9.0, 0.0), ("b", 2, 9.0, 0.0)]
    assert [delivery.queue for delivery in turn.deliveries] == ["b"]
    assert [failure.delivery for failure in turn.failures] == [DELIVERY]


def test_a_single_queue_may_wait_and_without_settlements_settle_is_not_called(broker: RecordingBroker) -> None:
    one_by_one(broker, [], requests(a=1), lease_seconds=9.0, wait_seconds=5.0)
    assert broker.calls == [("a", 1, 9.0, 5.0)]


def test_queues_after_an_unreachable_one_are_not_polled(broker: RecordingBroker) -> None:
    broker.unreachable = {"b"}
    turn = one_by_one(broker, [(DELIVERY, Ack())], requests(a=1, b=1, c=1), lease_seconds=9.0, wait_seconds=0.0)
    assert broker.calls[1:] == [("a", 1, 9.0, 0.0), ("b", 1, 9.0, 0.0)]
    assert turn.receive_error is not None
    assert turn.receive_error[0] == "b"
    assert isinstance(turn.receive_error[1], TemporaryError)
    assert [failure.delivery for failure in turn.failures] == [DELIVERY], "the settlements have their own result"


def test_a_failed_settle_does_not_prevent_receiving(broker: RecordingBroker) -> None:
    broker.settle_error = TemporaryError("away")
    broker.send("a", [Outgoing(body=b"1")])
    turn = one_by_one(broker, [(DELIVERY, Ack())], requests(a=1), lease_seconds=9.0, wait_seconds=0.0)
    assert turn.settle_error is broker.settle_error
    assert len(turn.deliveries) == 1
