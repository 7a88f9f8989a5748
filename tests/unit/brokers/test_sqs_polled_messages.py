"""Messages that a long poll received: returned with the requested lease, or not at all."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, KnownQueues, batches, received, succeeded

from penstock.brokers.sqs.calls import ParallelCalls
from penstock.brokers.sqs.leases import CHANGE, SettledDeliveries, SqsLeases
from penstock.brokers.sqs.receive import (
    TRUSTED_LEASE_SHARE,
    PolledBatch,
    PolledMessages,
    ReceiveCalls,
    SqsReceiver,
)
from penstock.errors import TemporaryError
from penstock.testing import FakeClock

LEASE = 30.0


class ReceiverSetup:
    """An SqsReceiver of a queue with two buffered messages of an earlier poll, and a poll under way."""

    def __init__(self, *, lease_seconds: float = LEASE, was_full: bool = False) -> None:
        self.clock = FakeClock()
        self.api = FakeApi()
        self.polled = PolledMessages(self.clock, unclaimed_seconds=1.0)
        queues, calls = KnownQueues(self.api), batches(self.api)
        self.receiver = SqsReceiver(
            polled=self.polled,
            receiving=ReceiveCalls(self.api, queues, ParallelCalls("test", threads=2), pollers=2, clock=self.clock),
            leases=SqsLeases(queues, calls, SettledDeliveries(), extending=calls, clock=self.clock),
            poll_seconds=5.0,
            clock=self.clock,
        )
        deliveries = [received(n, began_at=self.clock.monotonic()) for n in (1, 2)]
        for batch in (PolledBatch(deliveries=deliveries, lease_seconds=lease_seconds, was_full=was_full), None):
            self.polled.poll_begins("q")
            if batch is not None:
                self.polled.poll_ends("q", batch)

    def take(self) -> Sequence[str]:
        return [delivery.receipt for delivery in self.receiver.take("q", 10, LEASE, 0.0)]


def test_buffered_messages_are_returned_without_a_call() -> None:
    setup = ReceiverSetup()
    assert setup.take() == ["r1", "r2"]
    assert setup.api.calls == []


def test_the_lease_of_older_messages_is_extended_and_expired_ones_are_dropped() -> None:
    setup = ReceiverSetup()
    setup.clock.advance(LEASE / 2)
    assert setup.take() == ["r1", "r2"]
    assert setup.api.operations() == [CHANGE]
    setup = ReceiverSetup()
    setup.clock.advance(LEASE)
    assert setup.take() == []


def test_a_lease_that_may_be_over_at_sqs_is_not_extended() -> None:
    setup = ReceiverSetup()
    setup.clock.advance(TRUSTED_LEASE_SHARE * LEASE)
    assert setup.take() == []
    assert setup.api.calls == []


def test_a_message_whose_lease_ended_while_more_were_received_is_returned_once_with_its_newer_receipt() -> None:
    setup = ReceiverSetup(was_full=True)
    again = {"MessageId": "m1", "ReceiptHandle": "newer", "Body": "{}"}
    setup.api.answers = lambda *_: {"Messages": [again]}
    assert setup.take() == ["newer", "r2"]


def test_expired_messages_do_not_get_the_requested_lease() -> None:
    setup = ReceiverSetup(lease_seconds=10.0)
    setup.clock.advance(10.0)
    assert setup.take() == []
    assert setup.api.calls == []


def test_messages_that_are_no_longer_in_flight_are_left_out() -> None:
    setup = ReceiverSetup(lease_seconds=10.0)
    setup.api.answers = lambda operation, parameters: succeeded(parameters["Entries"], {"0": "MessageNotInflight"})
    assert setup.take() == ["r2"]


def test_messages_whose_lease_cannot_be_changed_stay_buffered() -> None:
    setup = ReceiverSetup(lease_seconds=10.0)

    def unreachable(operation: str, parameters: Mapping[str, Any]) -> Exception:
        return TemporaryError("away")

    setup.api.answers = unreachable
    with pytest.raises(TemporaryError, match="away"):
        setup.take()
    setup.api.answers = None
    assert setup.take() == ["r1", "r2"]
