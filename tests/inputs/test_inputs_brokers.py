"""The rows of INPUTS about the embedded brokers, for both of them; the rows about the file for the SQLite broker."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqlite.file import statements
from penstock.errors import ConfigurationError
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import death_of
from penstock.messaging.delivery import AttemptEnd, Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.testing import FakeClock

LEASE = 30.0
EmbeddedBroker = MemoryBroker | SqliteBroker
Opener = Callable[[str], EmbeddedBroker]  # holder -> another worker's view of the same queues


class HostClock(FakeClock):
    """A wall clock that can be set or differ from another worker's; monotonic time is unaffected."""

    def __init__(self, source: FakeClock, ahead_seconds: float = 0.0) -> None:
        super().__init__()
        self.source = source
        self.ahead_seconds = ahead_seconds

    def now(self) -> float:
        return self.source.now() + self.ahead_seconds

    def monotonic(self) -> float:
        return self.source.monotonic()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Opener]:
    brokers: list[EmbeddedBroker] = []
    queues = [QueueSettings(name="q", receives_max=6)]
    shared = MemoryBroker(clock=clock, queues=queues)

    def open_view(holder: str) -> EmbeddedBroker:
        sqlite = request.param == "sqlite"
        path = tmp_path / "queue.db"
        view = SqliteBroker(path, holder=holder, clock=clock, queues=queues) if sqlite else shared.with_holder(holder)
        brokers.append(view)
        return view

    yield open_view
    for broker in brokers:
        broker.close()


def receive(broker: EmbeddedBroker, *, queue: str = "q", lease: float = LEASE) -> list[Delivery]:
    return list(broker.receive(queue, messages_max=10, lease_seconds=lease))


def store_unchecked(path: Path, body: bytes) -> None:
    """Store a body over the limit, as a writer with another limit could."""
    connection = sqlite3.connect(path)
    connection.execute("UPDATE messages SET body = ? WHERE body = x'00'", (body,))
    connection.commit()
    connection.close()


def test_row_25_a_body_over_the_limit_is_refused_at_send_and_nothing_of_that_send_is_kept(opened: Opener) -> None:
    broker = opened("w1")
    most = broker.capabilities.body_bytes_max
    too_large = re.escape(f"a body of {most + 1} bytes: give it at most {most}")
    with pytest.raises(ConfigurationError, match=too_large) as caught:
        broker.send("q", [Outgoing(body=b"good"), Outgoing(body=b"x" * (most + 1))])
    assert "reference" in str(caught.value)  # the message names the remedy
    assert receive(broker) == []
    broker.send("q", [Outgoing(body=b"x" * most)])
    assert [len(delivery.message.body) for delivery in receive(broker)] == [most]


def test_row_25_a_body_over_the_limit_in_the_queue_is_dead_lettered_and_the_others_are_received(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = SqliteBroker(path, holder="w1", clock=FakeClock())
    most = broker.capabilities.body_bytes_max
    broker.send("q", [Outgoing(body=b"\x00", group="a", attributes={"k": b"\x01"}), Outgoing(body=b"good", group="a")])
    store_unchecked(path, b"x" * (most + 1))
    (good,) = receive(broker)
    assert good.message.body == b"good"
    for _ in range(2):  # dead letters are delivered and released like any other message
        (dead,) = receive(broker, queue="q-dlq")
        assert not broker.settle([(dead, Release())])
    assert len(dead.message.body) == most + 1
    assert (dead.message.group, dead.message.attributes["k"]) == ("a", b"\x01")
    death = death_of(dead.message.attributes)
    assert death is not None
    assert str(most + 1) in death.reason
    assert (death.attempts, death.queue) == (0, "q")
    broker.close()


def test_row_25_a_queue_with_only_such_bodies_ends_the_receive(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = SqliteBroker(path, holder="w1", clock=FakeClock())
    broker.send("q", [Outgoing(body=b"\x00", group=str(n)) for n in range(25)])
    store_unchecked(path, b"x" * (broker.capabilities.body_bytes_max + 1))
    assert receive(broker) == []
    assert broker.stats("q-dlq").visible == 25
    broker.close()


def test_row_76_a_message_received_while_draining_is_released_and_its_attempt_not_counted(opened: Opener) -> None:
    draining, other = opened("w1"), opened("w2")
    arrived: list[Delivery] = []

    def poll() -> None:
        arrived.extend(draining.receive("q", messages_max=10, lease_seconds=LEASE, wait_seconds=20))

    clock = draining._store.clock if isinstance(draining, MemoryBroker) else draining._clock
    assert isinstance(clock, FakeClock)
    thread = threading.Thread(target=poll)
    thread.start()
    other.send("q", [Outgoing(body=b"late")])
    while thread.is_alive():  # the poll of the other process ends only when time passes
        clock.advance(0.05)
        thread.join(0.01)
    assert [delivery.message.body for delivery in arrived] == [b"late"]
    assert not draining.settle([(delivery, Release(uncounted=True, reason="the worker stops")) for delivery in arrived])
    draining.close()
    (again,) = receive(other)
    assert again.attempt == 1
    assert again.previous is not None
    assert (again.previous.worker, again.previous.end) == ("w1", AttemptEnd.RELEASED)
    assert again.previous.reason == "the worker stops"


def test_row_77_with_everything_in_flight_there_is_an_oldest_age_and_no_visible_age(
    opened: Opener, clock: FakeClock
) -> None:
    broker = opened("w1")
    broker.send("q", [Outgoing(body=b"a"), Outgoing(body=b"b")])
    clock.advance(5)
    assert len(receive(broker)) == 2
    clock.advance(10)
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (0, 2)
    assert stats.oldest_visible_message_age_seconds is None  # no message waits; shown as 0
    assert stats.oldest_message_age_seconds == 15


@pytest.mark.parametrize("by_release", [True, False], ids=["released", "expired"])
def test_row_78_the_age_resets_after_the_3rd_failed_receive_and_the_6th_dead_letters_the_message(
    opened: Opener, clock: FakeClock, by_release: bool
) -> None:
    broker = opened("w1")
    broker.send("q", [Outgoing(body=b"poison")])
    ages = []
    for _ in range(6):
        (delivery,) = receive(broker)
        clock.advance(LEASE - 1 if by_release else LEASE)
        if by_release:
            assert not broker.settle([(delivery, Release(delay_seconds=1))])
            clock.advance(1)
        ages.append(broker.stats("q").oldest_message_age_seconds)
    since = 1.0 if by_release else 0.0  # counted from the release, even while its delay runs
    assert ages == [LEASE, 2 * LEASE, since, since + LEASE, since + 2 * LEASE, 0]
    assert broker.stats("q-dlq").visible == 1


def test_row_78_without_a_limit_the_6th_failed_receive_resets_the_age_again(tmp_path: Path, clock: FakeClock) -> None:
    for broker in (MemoryBroker(clock=clock), SqliteBroker(tmp_path / "queue.db", holder="w1", clock=clock)):
        broker.send("q", [Outgoing(body=b"poison")])
        ages = []
        for _ in range(9):
            assert len(receive(broker)) == 1
            clock.advance(LEASE)
            ages.append(broker.stats("q").oldest_message_age_seconds)
        assert ages == [LEASE, 2 * LEASE, 0] * 3
        broker.close()


def test_row_84_a_stale_ack_token_deletes_nothing(opened: Opener, clock: FakeClock) -> None:
    slow, other = opened("slow"), opened("other")
    slow.send("q", [Outgoing(body=b"a")])
    (stale,) = receive(slow)
    clock.advance(LEASE)
    settlements: list[Settlement] = [Ack(), DeadLetter(reason="late"), Release()]
    for settlement in settlements:  # the lease has ended, although no other worker has the message yet
        (failure,) = slow.settle([(stale, settlement)])
        assert failure.lost
    (fresh,) = receive(other)
    for settlement in settlements:  # the same while another worker has the message
        (failure,) = slow.settle([(stale, settlement)])
        assert failure.lost
    assert not other.extend([fresh], lease_seconds=LEASE)
    stats, dead = other.stats("q"), other.stats("q-dlq")
    assert (stats.in_flight, stats.visible, dead.visible) == (1, 0, 0)
    assert not other.settle([(fresh, Ack())])


@pytest.mark.parametrize("ahead_seconds", [-5.0, -0.5, 0.5, 5.0])
def test_row_85_clocks_some_seconds_apart_steal_no_lease_that_is_extended(
    tmp_path: Path, clock: FakeClock, ahead_seconds: float
) -> None:
    """A host has one clock. If the clocks of two workers differ all the same, the margin of heartbeats covers it."""
    holder = SqliteBroker(tmp_path / "queue.db", holder="w1", clock=clock)
    other = SqliteBroker(tmp_path / "queue.db", holder="w2", clock=HostClock(clock, ahead_seconds))
    holder.send("q", [Outgoing(body=b"mine")])
    (mine,) = receive(holder)
    for _ in range(20):  # a heartbeat after each third of the lease
        clock.advance(LEASE / 3)
        other.send("q", [Outgoing(body=b"other")])
        theirs = receive(other)
        assert [delivery.message.body for delivery in theirs] == [b"other"]
        assert not other.settle([(delivery, Ack()) for delivery in theirs])
        assert not holder.extend([mine], lease_seconds=LEASE)
    assert not holder.settle([(mine, Ack())])
    holder.close()
    other.close()


def test_row_85_clocks_further_apart_than_a_lease_let_one_of_two_settle(tmp_path: Path, clock: FakeClock) -> None:
    holder = SqliteBroker(tmp_path / "queue.db", holder="w1", clock=clock)
    thief = SqliteBroker(tmp_path / "queue.db", holder="w2", clock=HostClock(clock, 2 * LEASE))
    holder.send("q", [Outgoing(body=b"a")])
    (first,) = receive(holder)
    (second,) = receive(thief)  # no fence can prevent that
    (failure,) = holder.settle([(first, Ack())])
    assert failure.lost
    assert not thief.settle([(second, Ack())])
    holder.close()
    thief.close()


@pytest.mark.parametrize("back_seconds", [0.5, 10.0, 20.0, 86_400.0])
def test_row_85_a_clock_set_back_neither_ends_a_lease_nor_lets_it_last_past_its_own_length(
    tmp_path: Path, clock: FakeClock, back_seconds: float
) -> None:
    host = HostClock(clock)
    dead, other = (SqliteBroker(tmp_path / "queue.db", holder=name, clock=host) for name in ("dead", "other"))
    dead.send("q", [Outgoing(body=b"given"), Outgoing(body=b"extended")])
    deliveries = receive(dead)
    clock.advance(LEASE / 2)
    extended = next(delivery for delivery in deliveries if delivery.message.body == b"extended")
    dead.extend([extended], lease_seconds=LEASE)
    host.ahead_seconds -= back_seconds
    assert receive(other) == []  # no lease ended
    clock.advance(LEASE + 1)
    assert {delivery.message.body for delivery in receive(other)} == {b"given", b"extended"}
    dead.close()
    other.close()


def test_row_85_clocks_that_differ_keep_no_lease_of_a_dead_worker_alive(tmp_path: Path, clock: FakeClock) -> None:
    """To the worker behind, each lease of the other looks like a clock set back; it is cut once and not renewed."""
    behind = SqliteBroker(tmp_path / "queue.db", holder="behind", clock=clock)
    ahead = SqliteBroker(tmp_path / "queue.db", holder="ahead", clock=HostClock(clock, 5.0))
    ahead.send("q", [Outgoing(body=b"held by the dead")])
    assert len(receive(ahead)) == 1
    seconds, taken = 0, False
    while not taken:
        assert seconds <= LEASE + 5
        ahead.send("q", [Outgoing(body=b"healthy")])
        deliveries = receive(ahead)
        taken = b"held by the dead" in [delivery.message.body for delivery in deliveries]
        assert not ahead.settle([(delivery, Ack()) for delivery in deliveries])
        assert receive(behind) == []
        clock.advance(1)
        seconds += 1
    assert seconds >= LEASE - 5
    behind.close()
    ahead.close()


def test_row_85_a_clock_set_back_many_times_does_not_wear_a_lease_down(tmp_path: Path, clock: FakeClock) -> None:
    host = HostClock(clock)
    holder, other = (SqliteBroker(tmp_path / "queue.db", holder=name, clock=host) for name in ("holder", "other"))
    holder.send("q", [Outgoing(body=b"a")])
    (mine,) = receive(holder)
    for _ in range(10):
        host.ahead_seconds -= 3_600
        assert receive(other) == []
        clock.advance(1)
    assert not holder.settle([(mine, Ack())])
    holder.close()
    other.close()


def test_row_85_the_time_comes_from_one_source(tmp_path: Path) -> None:
    """All times come from the given clock, never from SQLite or the file system."""
    asks_sqlite = re.compile(r"\b(julianday|unixepoch|datetime|strftime|date|time|current_\w+)\b", re.IGNORECASE)
    assert [name for name, statement in statements().items() if asks_sqlite.search(statement)] == []
    clock = FakeClock(start=1_000.0)
    broker = SqliteBroker(tmp_path / "queue.db", holder="w1", clock=clock)
    broker.send("q", [Outgoing(body=b"a", delay_seconds=10)])
    assert receive(broker) == []
    clock.advance(10)
    (delivery,) = receive(broker)
    assert (delivery.message.enqueued_at, delivery.received_at) == (1_000.0, 1_010.0)
    assert not broker.settle([(delivery, Ack())])
    broker.close()


@pytest.mark.parametrize("attributes", ["no json", "[1]", '{"a": 1}', b"\xff"], ids=repr)
def test_unreadable_attributes_dead_letter_only_their_message(
    tmp_path: Path, clock: FakeClock, attributes: str | bytes
) -> None:
    path = tmp_path / "queue.db"
    with closing(SqliteBroker(path, holder="w1", clock=clock)) as broker:
        broker.send("q", [Outgoing(body=body) for body in (b"first", b"bad", b"last")])
        connection = sqlite3.connect(path)
        connection.execute(
            "UPDATE messages SET attributes = ?, body = CAST(body AS TEXT) WHERE body = ?", (attributes, b"bad")
        )
        connection.commit()
        connection.close()
        assert len(broker.browse("q", messages_max=9)) == 3
        assert [each.message.body for each in receive(broker)] == [b"first", b"last"]
        (dead_letter,) = receive(broker, queue="q-dlq")
        death = death_of(dead_letter.message.attributes)
        assert dead_letter.message.body == b"bad"
        assert death is not None
        assert death.poison
        assert not broker.settle([(dead_letter, DeadLetter(reason="for people", set_aside=True))])
        assert broker.stats("q-dead").visible == 1
