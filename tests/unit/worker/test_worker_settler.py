"""How settlements are applied, and the outcome of those that cannot be."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, DeliveryAcked, Event, SettlementFailed, SettlementsApplied
from penstock.messaging.broker import SettleFailure
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, Release, Settlement
from penstock.messaging.steps import Step
from penstock.worker.leases import LeaseBook
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeBroker, SkippingClock

LEASE_SECONDS = 30.0


class Settling:
    def __init__(self, broker: "FakeBroker", clock: "SkippingClock") -> None:
        self.events: list[Event] = []
        self.taken: list[SettlementsApplied] = []
        self.steps: list[Step] = []
        self.lease_book = LeaseBook(clock=clock, lease_seconds=LEASE_SECONDS)
        self.broker = broker
        self.clock = clock
        self.settler = Settler(
            broker=broker,
            lease_book=self.lease_book,
            settings=WorkerSettings(lease_seconds=LEASE_SECONDS, settle_max=500),
            clock=clock,
            bus=Bus(self._record),
            probe=self.steps.append,
            random=lambda: 0.5,
        )

    def _record(self, event: Event) -> None:
        if isinstance(event, SettlementsApplied):
            self.taken.append(event)
        else:
            self.events.append(event)

    def receive(self, count: int) -> list[Delivery]:
        self.broker.put(*range(count))
        deliveries: list[Delivery] = []
        while arrived := self.broker.receive("q", messages_max=1_000, lease_seconds=LEASE_SECONDS):
            deliveries += arrived
        self.lease_book.register(deliveries)
        return deliveries

    def apply_until(self, seconds: float) -> None:
        """Apply whenever settlements are due, for this many seconds."""
        ends_at = self.clock.time + seconds
        while (due_at := self.settler.next_due_at()) is not None and due_at <= ends_at:
            self.clock.time = max(self.clock.time, due_at)
            self.settler.apply_due()


@pytest.fixture
def settling(broker: "FakeBroker", skipping_clock: "SkippingClock") -> Settling:
    return Settling(broker, skipping_clock)


def test_five_thousand_settlements_are_applied_in_groups(settling: Settling) -> None:
    deliveries = settling.receive(5_000)
    settling.settler.submit((delivery, Ack()) for delivery in deliveries)
    settling.settler.apply_due()
    assert settling.broker.journal == ["settle 500"] * 10
    assert len(settling.broker.acked()) == 5_000
    assert settling.settler.next_due_at() is None
    assert len(settling.events) == 5_000
    assert settling.taken == [
        SettlementsApplied(
            queue="q", message_ids=tuple(f"m{n}" for n in range(at, at + 500)), settlements=(Ack(),) * 500
        )
        for at in range(0, 5_000, 500)
    ]


def test_the_probe_is_called_before_and_after_and_the_event_comes_last(settling: Settling) -> None:
    (only,) = settling.receive(1)
    settling.settler.submit([(only, Ack())])
    settling.settler.apply_due()
    assert settling.steps == [Step.SETTLING, Step.SETTLED]
    assert settling.events == [DeliveryAcked(queue="q", message_id="m0", attempt=1, settlement=Ack())]


def test_only_failed_settlements_are_retried(settling: Settling) -> None:
    settling.broker.refuse = {"m1"}
    settling.settler.submit((delivery, Ack()) for delivery in settling.receive(3))
    settling.settler.apply_due()
    assert settling.broker.acked() == ["m0", "m2"]
    settling.broker.refuse = set()
    settling.apply_until(5)
    assert settling.broker.journal == ["settle 3", "settle 1"]
    assert settling.broker.acked() == ["m0", "m2", "m1"]
    assert [len(taken.settlements) for taken in settling.taken] == [2, 1], "refused settlements are not counted"


def test_a_lost_lease_is_reported_and_not_retried(settling: Settling) -> None:
    (only,) = settling.receive(1)
    settling.broker.steal("m0")
    settling.settler.submit([(only, Ack())])
    settling.settler.apply_due()
    assert settling.events == [
        SettlementFailed(queue="q", message_id="m0", attempt=1, operation="ack", reason="the lease expired", lost=True)
    ]
    assert settling.settler.next_due_at() is None


def test_settling_at_an_unreachable_broker_is_retried_until_the_lease_must_have_ended(settling: Settling) -> None:
    (only,) = settling.receive(1)
    began_at = settling.clock.time
    settling.broker.settle_faults = [TemporaryError("down")] * 1_000
    settling.settler.submit([(only, Ack())])
    settling.apply_until(600)
    assert LEASE_SECONDS <= settling.clock.time - began_at < LEASE_SECONDS + 10
    assert settling.settler.next_due_at() is None
    failures = [event for event in settling.events if isinstance(event, SettlementFailed)]
    assert [failure.lost for failure in failures] == [False] * (len(failures) - 1) + [True]
    assert 5 < len(failures) < 100
    assert settling.taken == []


def test_a_broker_that_recovers_gets_the_settlement(settling: Settling) -> None:
    (only,) = settling.receive(1)
    settling.broker.settle_faults = [TemporaryError("down")] * 3
    settling.settler.submit([(only, Release(delay_seconds=7))])
    settling.apply_until(600)
    assert settling.broker.released() == {"m0": Release(delay_seconds=7)}


def test_a_delivery_leaves_the_lease_book_before_it_is_settled(settling: Settling) -> None:
    (only,) = settling.receive(1)
    held: list[bool] = []
    settle = settling.broker.settle

    def spy(settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        held.append(settling.lease_book.holds(only))
        return settle(settlements)

    settling.broker.settle = spy  # type: ignore[method-assign] # a spy
    settling.settler.submit([(only, Ack())])
    settling.settler.apply_due()
    assert held == [False]


def test_a_permanent_error_of_the_broker_is_raised(settling: Settling) -> None:
    settling.broker.settle_faults = [ConfigurationError("no such queue")]
    settling.settler.submit((delivery, Ack()) for delivery in settling.receive(1))
    with pytest.raises(ConfigurationError):
        settling.settler.apply_due()


def test_settling_by_a_deadline_retries_until_then_and_returns_the_rest(settling: Settling) -> None:
    deliveries = settling.receive(2)
    settling.lease_book.unregister(deliveries, wait_seconds=0)
    settling.broker.refuse = {"m1"}
    deadline = settling.clock.time + 3
    left = settling.settler.settle_by([(delivery, Release()) for delivery in deliveries], deadline=deadline)
    assert [delivery.message.id for delivery in left] == ["m1"]
    assert settling.broker.released() == {"m0": Release()}
    assert settling.clock.time == pytest.approx(deadline)
    assert len(settling.broker.journal) > 3


def test_settling_by_a_deadline_survives_a_short_outage_of_the_broker(settling: Settling) -> None:
    deliveries = settling.receive(1)
    settling.lease_book.unregister(deliveries, wait_seconds=0)
    settling.broker.settle_faults = [TemporaryError("down")] * 2
    left = settling.settler.settle_by(
        [(delivery, Release()) for delivery in deliveries], deadline=settling.clock.time + 3
    )
    assert left == []
    assert settling.broker.released() == {"m0": Release()}


@pytest.mark.parametrize(("requested", "applied"), [(1e6, 900.0), (-1.0, 0.0), (5.0, 5.0)])
def test_a_delay_is_limited_to_the_range_of_the_broker(settling: Settling, requested: float, applied: float) -> None:
    (only,) = settling.receive(1)
    settling.settler.submit([(only, Release(delay_seconds=requested, uncounted=True))])
    settling.settler.apply_due()
    assert settling.broker.released() == {"m0": Release(delay_seconds=applied, uncounted=True)}


# --- at a broker whose calls are billed


@pytest.fixture
def thrifty(broker: "FakeBroker", skipping_clock: "SkippingClock") -> Settling:
    broker.capabilities = replace(broker.capabilities, settle_batch=10, settle_linger_seconds=0.1)
    return Settling(broker, skipping_clock)


def test_a_few_settlements_wait_briefly_for_more(thrifty: Settling) -> None:
    began_at = thrifty.clock.time
    deliveries = thrifty.receive(5)
    thrifty.settler.submit((delivery, Ack()) for delivery in deliveries[:3])
    thrifty.clock.time += 0.05
    thrifty.settler.submit((delivery, Ack()) for delivery in deliveries[3:])
    assert not thrifty.settler.take_due().settlements
    assert thrifty.settler.next_due_at() == began_at + 0.1
    assert len(thrifty.settler.unapplied()) == 5
    assert all(thrifty.lease_book.holds(delivery) for delivery in deliveries)
    thrifty.clock.time = began_at + 0.1
    assert len(thrifty.settler.take_due().settlements) == 5


def test_enough_settlements_for_a_call_do_not_wait(thrifty: Settling) -> None:
    deliveries = thrifty.receive(12)
    thrifty.settler.submit((delivery, Ack()) for delivery in deliveries[:9])
    assert not thrifty.settler.take_due().settlements
    thrifty.settler.submit((delivery, Ack()) for delivery in deliveries[9:])
    assert thrifty.settler.next_due_at() == 0.0
    assert len(thrifty.settler.take_due().settlements) == 12


def test_a_settlement_after_a_group_lingers_again(thrifty: Settling) -> None:
    deliveries = thrifty.receive(11)
    thrifty.settler.submit((delivery, Ack()) for delivery in deliveries[:10])
    assert len(thrifty.settler.take_due().settlements) == 10
    thrifty.clock.time += 50
    thrifty.settler.submit([(deliveries[10], Ack())])
    assert not thrifty.settler.take_due().settlements


def test_the_remainder_of_a_call_lingers_too(thrifty: Settling) -> None:
    deliveries = thrifty.receive(503)
    thrifty.settler.submit((delivery, Ack()) for delivery in deliveries)
    thrifty.clock.time += 0.2
    assert len(thrifty.settler.take_due().settlements) == 500
    assert not thrifty.settler.take_due().settlements
    assert thrifty.settler.next_due_at() == thrifty.clock.time + 0.1


def test_a_retried_settlement_and_new_ones_do_not_wait_for_each_other(thrifty: Settling) -> None:
    thrifty.broker.refuse = {"m0"}
    first, second = thrifty.receive(2)
    thrifty.settler.submit([(first, Ack())])
    thrifty.settler.apply_due()
    thrifty.clock.time += 60
    thrifty.settler.submit([(second, Ack())])
    assert [delivery for delivery, _ in thrifty.settler.take_due().settlements] == [first]
    assert thrifty.settler.next_due_at() == thrifty.clock.time + 0.1


def test_applying_everything_due_does_not_linger(thrifty: Settling) -> None:
    thrifty.settler.submit((delivery, Ack()) for delivery in thrifty.receive(3))
    thrifty.settler.apply_due()
    assert thrifty.broker.journal == ["settle 3"]
    assert thrifty.settler.next_due_at() is None


# --- while a lease is being extended


@pytest.fixture
def unfenced(broker: "FakeBroker", skipping_clock: "SkippingClock") -> Settling:
    """Return a settler at a broker that cannot detect a late extension."""
    broker.capabilities = replace(broker.capabilities, fenced=False)
    return Settling(broker, skipping_clock)


def test_an_ack_does_not_wait_for_an_extension_in_progress(unfenced: Settling) -> None:
    (only,) = unfenced.receive(1)
    with unfenced.lease_book.calling("q", [only]):
        unfenced.settler.submit([(only, Ack())])
        unfenced.settler.apply_due()
        assert unfenced.broker.acked() == ["m0"]
    assert unfenced.clock.waits == []


def test_at_a_fenced_broker_a_release_does_not_wait_for_an_extension(settling: Settling) -> None:
    (only,) = settling.receive(1)
    with settling.lease_book.calling("q", [only]):
        settling.settler.submit([(only, Release())])
        settling.settler.apply_due()
        assert settling.broker.released() == {"m0": Release()}
    assert settling.clock.waits == []


def test_at_an_unfenced_broker_only_the_release_of_a_delivery_waits_for_its_extension(
    unfenced: Settling,
) -> None:
    extended, other = unfenced.receive(2)
    with unfenced.lease_book.calling("q", [extended]):
        unfenced.settler.submit([(extended, Release()), (other, Release())])
        unfenced.settler.apply_due()
        assert unfenced.broker.released() == {"m1": Release()}
        assert unfenced.settler.unapplied() == [extended]
        due_at = unfenced.settler.next_due_at()
        assert due_at is not None
        assert due_at > unfenced.clock.time
    assert unfenced.settler.next_due_at() == 0.0
    unfenced.settler.apply_due()
    assert unfenced.broker.released() == {"m1": Release(), "m0": Release()}
    assert unfenced.settler.unapplied() == []
    assert unfenced.clock.waits == []


def test_a_release_waits_for_an_extension_at_most_one_beat(unfenced: Settling) -> None:
    (only,) = unfenced.receive(1)
    began_at = unfenced.clock.time
    with unfenced.lease_book.calling("q", [only]):
        unfenced.settler.submit([(only, Release())])
        unfenced.apply_until(LEASE_SECONDS)
    assert unfenced.broker.released() == {"m0": Release()}
    assert unfenced.clock.time == began_at + LEASE_SECONDS / 3
