"""Times that a fast clock stored in the queue file, after the clock is corrected."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter, Release
from penstock.testing import FakeClock

AHEAD_SECONDS = 3_600.0


class WrongClock(FakeClock):
    """A clock whose wall time can be set ahead, like that of a misconfigured host."""

    ahead_seconds = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_seconds


@pytest.fixture
def clock() -> WrongClock:
    return WrongClock()


@pytest.fixture
def broker(tmp_path: Path, clock: WrongClock) -> Iterator[SqliteBroker]:
    broker = SqliteBroker(tmp_path / "queue.db", holder="w", clock=clock)
    yield broker
    broker.close()


def take(broker: SqliteBroker, queue: str = "q") -> list[Delivery]:
    return list(broker.receive(queue, messages_max=10, lease_seconds=10))


def test_a_retry_waits_no_longer_than_its_delay(broker: SqliteBroker, clock: WrongClock) -> None:
    broker.send("q", [Outgoing(body=b"a")])
    [delivery] = broker.receive("q", messages_max=1, lease_seconds=2 * AHEAD_SECONDS)
    clock.ahead_seconds = AHEAD_SECONDS  # while the message is being processed
    assert broker.settle([(delivery, Release(delay_seconds=30, reason="no"))]) == []
    clock.ahead_seconds = 0.0
    assert take(broker) == []
    clock.advance(31)
    assert [again.message.body for again in take(broker)] == [b"a"]


def test_a_delayed_message_waits_no_longer_than_its_delay(broker: SqliteBroker, clock: WrongClock) -> None:
    clock.ahead_seconds = AHEAD_SECONDS
    broker.send("q", [Outgoing(body=b"a", delay_seconds=30)])
    clock.ahead_seconds = 0.0
    assert take(broker) == []
    clock.advance(15)
    clock.ahead_seconds = -5.0  # set back a little during the delay that the correct clock restarted
    assert take(broker) == []
    clock.advance(31)
    assert [again.message.body for again in take(broker)] == [b"a"]


def test_a_dead_lettered_message_is_visible_at_once(broker: SqliteBroker, clock: WrongClock) -> None:
    broker.send("q", [Outgoing(body=b"a")])
    clock.ahead_seconds = AHEAD_SECONDS
    [delivery] = take(broker)
    assert broker.settle([(delivery, DeadLetter(reason="no"))]) == []
    clock.ahead_seconds = 0.0
    assert broker.stats(broker.dead_letter_queue("q")).delayed == 0
    assert len(take(broker, broker.dead_letter_queue("q"))) == 1


def test_a_delay_set_by_a_correct_clock_is_kept(broker: SqliteBroker, clock: WrongClock) -> None:
    broker.send("q", [Outgoing(body=b"a", delay_seconds=30)])
    clock.ahead_seconds = AHEAD_SECONDS
    broker.send("q", [Outgoing(body=b"b", delay_seconds=7_200)])
    clock.ahead_seconds = 0.0
    clock.advance(29)
    assert take(broker) == []
    clock.advance(2)
    assert [again.message.body for again in take(broker)] == [b"a"]
