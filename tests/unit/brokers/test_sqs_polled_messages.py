"""Messages of an earlier poll: handed out with the requested lease, or not at all."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, KnownQueues, batches, received, succeeded

from penstock.brokers.sqs.calls import ParallelCalls
from penstock.brokers.sqs.leases import CHANGE, SettledDeliveries, SqsLeases
from penstock.brokers.sqs.receive import PolledBatch, PolledMessages, ReceiveCalls, SqsReceiver
from penstock.errors import TemporaryError
from penstock.testing import FakeClock

LEASE = 30.0


class Scene:
    """A queue at which a poll is under way, and what one before it brought."""

    def __init__(self, *, lease_seconds: float = LEASE) -> None:
        self.clock = FakeClock()
        self.api = FakeApi()
        self.held = PolledMessages(self.clock, unclaimed_seconds=1.0)
        queues, calls = KnownQueues(self.api), batches(self.api)
        self.taking = SqsReceiver(
            polled=self.held,
            receiving=ReceiveCalls(self.api, queues, ParallelCalls("test", threads=2), pollers=2, clock=self.clock),
            leases=SqsLeases(queues, calls, SettledDeliveries(), extending=calls, clock=self.clock),
            poll_seconds=5.0,
            clock=self.clock,
        )
        deliveries = [received(n, began_at=self.clock.monotonic()) for n in (1, 2)]
        for catch in (PolledBatch(deliveries=deliveries, lease_seconds=lease_seconds, was_full=False), None):
            self.held.poll_begins("q")
            if catch is not None:
                self.held.poll_ends("q", catch)

    def take(self) -> Sequence[str]:
        return [delivery.receipt for delivery in self.taking.take("q", 10, LEASE, 0.0)]


def test_what_is_held_costs_nothing() -> None:
    scene = Scene()
    assert scene.take() == ["r1", "r2"]
    assert scene.api.calls == []


def test_what_was_held_for_long_is_extended_and_past_its_lease_it_is_nobodys() -> None:
    scene = Scene()
    scene.clock.advance(LEASE / 2)
    assert scene.take() == ["r1", "r2"]
    assert scene.api.operations() == [CHANGE]
    scene = Scene()
    scene.clock.advance(LEASE)
    assert scene.take() == []


def test_what_is_past_its_lease_is_taken_from_nobody_with_another_lease() -> None:
    scene = Scene(lease_seconds=10.0)
    scene.clock.advance(10.0)
    assert scene.take() == []
    assert scene.api.calls == []


def test_what_others_have_by_now_is_left_out() -> None:
    scene = Scene(lease_seconds=10.0)
    scene.api.answers = lambda operation, parameters: succeeded(parameters["Entries"], {"0": "MessageNotInflight"})
    assert scene.take() == ["r2"]


def test_what_cannot_be_given_the_lease_that_is_asked_for_is_held_on() -> None:
    scene = Scene(lease_seconds=10.0)

    def away(operation: str, parameters: Mapping[str, Any]) -> Exception:
        return TemporaryError("away")

    scene.api.answers = away
    with pytest.raises(TemporaryError, match="away"):
        scene.take()
    scene.api.answers = None
    assert scene.take() == ["r1", "r2"]
