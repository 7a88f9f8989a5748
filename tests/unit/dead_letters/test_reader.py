"""Letters that are looked at, and letters that have to be received for that."""

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


class Broker(MemoryBroker):
    """In memory, with a few more words of what is asked of it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.extended = threading.Semaphore(0)
        self.failing: tuple[str, bool] | None = None  # why, and whether the lease is lost
        self.away = False

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Without the wait: nobody moves the clock meanwhile."""
        assert wait_seconds < DEADLINE_SECONDS
        return super().receive(queue, messages_max=messages_max, lease_seconds=lease_seconds)

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        lost = super().extend(deliveries, lease_seconds=lease_seconds)
        self.extended.release()
        return lost

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        if self.away:
            raise TemporaryError("away")
        if self.failing is None:
            return super().settle(settlements)
        reason, lost = self.failing
        return [SettleFailure(delivery=delivery, reason=reason, lost=lost) for delivery, _ in settlements]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return Broker(clock)


def bury(broker: Broker, count: int) -> list[str]:
    return list(broker.send(QUEUE, [Outgoing(body=b"%d" % number) for number in range(count)]))


def ids(dead_letters: DeadLetterReader) -> list[str]:
    return [dead_letter.id for page in dead_letters.pages() for dead_letter in page]


def test_which_way_depends_on_the_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(dead_letters_in(broker, QUEUE), BrowsingReader)
    blind = {name: getattr(broker.capabilities, name) for name in BrokerCapabilities.__slots__} | {"browsable": False}
    monkeypatch.setattr(Broker, "capabilities", BrokerCapabilities(**blind))
    assert isinstance(dead_letters_in(broker, QUEUE), ReceivingReader)


def test_looked_at_page_by_page_and_nothing_changes(broker: Broker) -> None:
    sent = bury(broker, 2 * PAGE + 1)
    with BrowsingReader(broker, QUEUE) as dead_letters:
        assert [len(page) for page in dead_letters.pages()] == [PAGE, PAGE, 1]
        assert ids(dead_letters) == sent
        assert dead_letters.remove(sent[:3]) == 3
        assert dead_letters.remove([]) == dead_letters.remove(sent[:3]) == 0
    assert broker.stats(QUEUE).visible == len(sent) - 3


def test_those_that_were_received_are_given_back_or_removed(broker: Broker, clock: FakeClock) -> None:
    sent = bury(broker, 3)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        assert ids(dead_letters) == sent
        assert broker.stats(QUEUE).visible == 0
        assert dead_letters.remove([sent[1], "none of them"]) == 1
    assert [message.id for message in broker.browse(QUEUE, messages_max=9)] == [sent[0], sent[2]]
    assert broker.stats(QUEUE).visible == 2


def test_they_are_held_as_long_as_it_takes(broker: Broker, clock: FakeClock) -> None:
    bury(broker, 2)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        ids(dead_letters)
        for _ in range(6):  # twice the time that they are held for
            clock.advance(HIDDEN_SECONDS / 3)
            assert broker.extended.acquire(timeout=DEADLINE_SECONDS)
        assert broker.stats(QUEUE).in_flight == 2
    assert broker.stats(QUEUE).visible == 2


def test_one_that_could_not_be_deleted_is_told(broker: Broker, clock: FakeClock) -> None:
    (sent,) = bury(broker, 1)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        assert ids(dead_letters) == [sent]
        broker.failing = ("it came too late", True)
        assert dead_letters.remove([sent]) == 0
        broker.failing = ("throttled", False)
        with pytest.raises(TemporaryError, match="throttled"):
            dead_letters.remove([sent])
        broker.failing = None


def test_a_broker_that_is_away_at_the_end_is_no_failure(broker: Broker, clock: FakeClock) -> None:
    bury(broker, 1)
    with ReceivingReader(broker, QUEUE, clock=clock) as dead_letters:
        ids(dead_letters)
        broker.away = True
    broker.away = False
    clock.advance(HIDDEN_SECONDS)
    assert broker.stats(QUEUE).visible == 1


def test_what_comes_again_and_again_ends_the_look(broker: Broker, clock: FakeClock) -> None:
    """As a standard queue may do with a letter whose time was not kept."""
    (sent,) = bury(broker, 1)
    (delivery,) = broker.receive(QUEUE, messages_max=1, lease_seconds=60)

    class Repeating(ReceivingReader):
        def _receive(self) -> Sequence[Delivery]:
            return [delivery]

    with Repeating(broker, QUEUE, clock=clock) as dead_letters:
        assert ids(dead_letters) == [sent]
