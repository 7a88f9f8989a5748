"""Readers of dead-lettered messages: by browsing, or by receiving if the broker cannot browse."""

import threading
from collections.abc import Sequence

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.dead_letters.reader import (
    HIDDEN_SECONDS,
    PAGE,
    BrowsingReader,
    DeadLetterReader,
    ReceivingReader,
    dead_letters_in,
)
from penstock.errors import TemporaryError
from penstock.messaging.broker import BrokerCapabilities, SettleFailure
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Settlement
from penstock.testing import FakeClock

QUEUE = "orders-dlq"
DEADLINE_SECONDS = 60.0


class ObservedBroker(MemoryBroker):
    """A memory broker that signals lease extensions, and whose settlements can fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.extended = threading.Semaphore(0)
        self.failing: tuple[str, bool] | None = None  # reason, and True if the lease is lost
        self.unreachable = False

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Receive without waiting, since no thread advances the clock meanwhile."""
        assert wait_seconds < DEADLINE_SECONDS
        return super().receive(queue, messages_max=messages_max, lease_seconds=lease_seconds)

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        lost = super().extend(deliveries, lease_seconds=lease_seconds)
        self.extended.release()
        return lost

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        if self.unreachable:
            raise TemporaryError("away")
        if self.failing is None:
            return super().settle(settlements)
        reason, lost = self.failing
        return [SettleFailure(delivery=delivery, reason=reason, lost=lost) for delivery, _ in settlements]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> ObservedBroker:
    return ObservedBroker(clock)


def send_dead_letters(broker: ObservedBroker, count: int) -> list[str]:
    return list(broker.send(QUEUE, [Outgoing(body=b"%d" % number) for number in range(count)]))


def ids(dead_letters: DeadLetterReader) -> list[str]:
    return [dead_letter.id for page in dead_letters.pages() for dead_letter in page]


def test_the_kind_of_reader_depends_on_the_broker(broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(dead_letters_in(broker, QUEUE), BrowsingReader)
    blind = {name: getattr(broker.capabilities, name) for name in BrokerCapabilities.__slots__} | {"browsable": False}
    monkeypatch.setattr(ObservedBroker, "capabilities", BrokerCapabilities(**blind))
    assert isinstance(dead_letters_in(broker, QUEUE), ReceivingReader)


def test_a_browsing_reader_yields_pages_and_changes_only_the_messages_it_removes(broker: ObservedBroker) -> None:
    sent = send_dead_letters(broker, 2 * PAGE + 1)
    with BrowsingReader(broker, QUEUE) as dead_letters:
        assert [len(page) for page in dead_letters.pages()] == [PAGE, PAGE, 1]
        assert ids(dead_letters) == sent
        assert dead_letters.remove(sent[:3]) == 3
        assert dead_letters.remove([]) == dead_letters.remove(sent[:3]) == 0
    assert broker.stats(QUEUE).visible == len(sent) - 3


def test_a_receiving_reader_releases_the_messages_that_it_does_not_remove(
    broker: ObservedBroker, clock: FakeClock
) -> None:
    sent = send_dead_letters(broker, 3)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        assert ids(dead_letters) == sent
        assert broker.stats(QUEUE).visible == 0
        assert dead_letters.remove([sent[1], "none of them"]) == 1
    assert [message.id for message in broker.browse(QUEUE, messages_max=9)] == [sent[0], sent[2]]
    assert broker.stats(QUEUE).visible == 2


def test_a_receiving_reader_extends_its_leases_until_it_is_closed(broker: ObservedBroker, clock: FakeClock) -> None:
    send_dead_letters(broker, 2)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        ids(dead_letters)
        for _ in range(6):  # twice the lease
            clock.advance(HIDDEN_SECONDS / 3)
            assert broker.extended.acquire(timeout=DEADLINE_SECONDS)
        assert broker.stats(QUEUE).in_flight == 2
    assert broker.stats(QUEUE).visible == 2


def test_a_failed_removal_is_reported(broker: ObservedBroker, clock: FakeClock) -> None:
    (sent,) = send_dead_letters(broker, 1)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        assert ids(dead_letters) == [sent]
        broker.failing = ("it came too late", True)
        assert dead_letters.remove([sent]) == 0
        broker.failing = ("throttled", False)
        with pytest.raises(TemporaryError, match="throttled"):
            dead_letters.remove([sent])
        broker.failing = None


def test_closing_ignores_an_unreachable_broker(broker: ObservedBroker, clock: FakeClock) -> None:
    send_dead_letters(broker, 1)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        ids(dead_letters)
        broker.unreachable = True
    broker.unreachable = False
    clock.advance(HIDDEN_SECONDS)
    assert broker.stats(QUEUE).visible == 1


def test_a_redelivered_message_ends_the_reading(broker: ObservedBroker, clock: FakeClock) -> None:
    """A standard queue may deliver a message again whose lease was not extended in time."""
    (sent,) = send_dead_letters(broker, 1)
    (delivery,) = broker.receive(QUEUE, messages_max=1, lease_seconds=60)

    class Repeating(ReceivingReader):
        def _receive(self) -> Sequence[Delivery]:
            return [delivery]

    with Repeating(broker, QUEUE, clock=clock) as dead_letters:
        assert ids(dead_letters) == [sent]
