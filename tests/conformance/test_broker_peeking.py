"""Looking at messages without receiving them: pages by state, and one message by its id."""

from collections.abc import Sequence
from functools import partial

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness

from penstock.brokers import shared
from penstock.errors import ConfigurationError
from penstock.messaging.broker import Broker
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Ack, DeadLetter, Release

WAITING, IN_FLIGHT, DELAYED = QueuedState.WAITING, QueuedState.IN_FLIGHT, QueuedState.DELAYED


@pytest.fixture
def broker(harness: BrokerHarness) -> Broker:
    found = harness.broker()
    if not found.capabilities.browsable:
        pytest.skip("not applicable: this broker cannot be browsed")
    return found


def outgoing(*bodies: str, group: str | None = None, delay_seconds: float = 0.0) -> list[Outgoing]:
    return [Outgoing(body=body.encode(), group=group, delay_seconds=delay_seconds) for body in bodies]


def receive(broker: Broker, count: int = 100) -> Sequence[Delivery]:
    return broker.receive("q", messages_max=count, lease_seconds=LEASE)


def bodies(page: QueuedPage) -> list[str]:
    return [each.message.body.decode() for each in page.messages]


def pages(broker: Broker, state: QueuedState, size: int, queue: str = "q") -> list[list[QueuedMessage]]:
    found, page = [], broker.peek(queue, state, messages_max=size)
    while True:
        found.append(list(page.messages))
        if page.next is None:
            return found
        page = broker.peek(queue, state, messages_max=size, after=page.next)


def all_bodies(broker: Broker, state: QueuedState, size: int) -> list[str]:
    return [each.message.body.decode() for page in pages(broker, state, size) for each in page]


def test_each_state_has_its_messages_and_peeking_leases_nothing(harness: BrokerHarness, broker: Broker) -> None:
    ids = broker.send("q", outgoing("a", "b", "c"))
    (later,) = broker.send("q", outgoing("later", delay_seconds=60))
    (delivery,) = receive(broker, 1)
    harness.advance(1)
    waiting, leased, delayed = (broker.peek("q", state, messages_max=9) for state in (WAITING, IN_FLIGHT, DELAYED))
    assert (bodies(waiting), bodies(leased), bodies(delayed)) == (["b", "c"], ["a"], ["later"])
    assert [each.next for each in (waiting, leased, delayed)] == [None, None, None]
    assert [each.message.id for each in waiting.messages] == ids[1:]
    assert [(each.deliveries, each.attempts, each.visible_at, each.worker) for each in waiting.messages] == [
        (0, 0, None, None)
    ] * 2
    (held,) = leased.messages
    assert (held.message.id, held.state, held.deliveries, held.attempts, held.worker) == (ids[0], IN_FLIGHT, 1, 1, "w1")
    assert held.leased_at == pytest.approx(delivery.received_at, abs=0.002)
    assert held.visible_at == pytest.approx(delivery.received_at + LEASE, abs=0.002)
    (due,) = delayed.messages
    assert (due.message.id, due.state, due.deliveries) == (later, DELAYED, 0)
    assert due.visible_at == pytest.approx(due.message.enqueued_at + 60, abs=0.002)
    assert broker.stats("q").visible == 2
    assert broker.settle([(delivery, Ack())]) == []


def test_an_extended_lease_ends_later(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    harness.advance(10)
    broker.extend([delivery], lease_seconds=LEASE)
    (held,) = broker.peek("q", IN_FLIGHT, messages_max=9).messages
    assert held.visible_at == pytest.approx(delivery.received_at + 10 + LEASE, abs=0.002)
    assert held.leased_at == pytest.approx(delivery.received_at, abs=0.002)


def test_a_released_message_shows_its_deliveries_and_attempts(harness: BrokerHarness, broker: Broker) -> None:
    (id,) = broker.send("q", outgoing("a", group="tenant"))
    for release in (Release(reason="timed out"), Release(uncounted=True), Release(delay_seconds=90, reason="again")):
        (delivery,) = receive(broker)
        harness.advance(1)
        broker.settle([(delivery, release)])
    (found,) = broker.peek("q", DELAYED, messages_max=9).messages
    assert (found.deliveries, found.attempts, found.message.group) == (3, 2, "tenant")
    assert [each.end for each in found.tries] == ["failed", "given_back", "failed"]
    assert [each.reason for each in found.tries] == ["timed out", None, "again"]
    assert found.visible_at == pytest.approx(harness_now(found) + 90, abs=0.002)
    assert broker.find("q", id, near=found.near) == found
    harness.advance(90)
    (ready,) = broker.peek("q", WAITING, messages_max=9).messages
    assert (ready.deliveries, ready.attempts, len(ready.tries), ready.visible_at) == (3, 2, 3, None)


def harness_now(found: QueuedMessage) -> float:
    return found.tries[-1].ended_at


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_pages_have_every_message_once_in_their_order(harness: BrokerHarness, broker: Broker, size: int) -> None:
    for group in (None, "b", "a"):
        broker.send("q", outgoing(*(f"{group}{number}" for number in range(5)), group=group))
    found = all_bodies(broker, WAITING, size)
    assert len(found) == 15
    for group in ("None", "a", "b"):
        first = found.index(f"{group}0")
        assert found[first : first + 5] == [f"{group}{number}" for number in range(5)]  # group by group, oldest first
    for number in range(5):
        broker.send("q", outgoing(f"late{number}", f"late{number}+", delay_seconds=100 - 10 * number))
    assert all_bodies(broker, DELAYED, size) == [
        f"late{number}{end}" for number in (4, 3, 2, 1, 0) for end in ("", "+")
    ]
    taken: list[Delivery] = []
    for _ in range(7):
        harness.advance(0.1)
        taken += receive(broker, 1)
    assert all_bodies(broker, IN_FLIGHT, size) == [each.message.body.decode() for each in taken]
    assert {len(page) for page in pages(broker, IN_FLIGHT, size)[:-1]} <= {size}


def test_a_page_begins_where_the_one_before_ended_although_messages_left_and_came(broker: Broker) -> None:
    broker.send("q", outgoing(*map(str, range(10))))
    page = broker.peek("q", WAITING, messages_max=4)
    taken = receive(broker, 6)  # also the last one of the page
    broker.send("q", outgoing("new"))
    assert bodies(broker.peek("q", WAITING, messages_max=9, after=page.next)) == ["6", "7", "8", "9", "new"]
    delayed = broker.send("q", outgoing("x", "y", "z", delay_seconds=60))
    page = broker.peek("q", DELAYED, messages_max=2)
    broker.discard("q", delayed[:2])
    assert bodies(broker.peek("q", DELAYED, messages_max=9, after=page.next)) == ["z"]
    page = broker.peek("q", IN_FLIGHT, messages_max=3)
    broker.settle([(delivery, Ack()) for delivery in taken[:4]])
    assert bodies(broker.peek("q", IN_FLIGHT, messages_max=9, after=page.next)) == ["4", "5"]


def test_messages_released_out_of_order_are_on_one_page_each(broker: Broker) -> None:
    broker.send("q", outgoing(*map(str, range(9))))
    for delivery in sorted(receive(broker, 6), key=lambda each: int(each.message.body) * 4 % 7):
        broker.settle([(delivery, Release())])
    for size in (1, 2, 4):
        assert sorted(all_bodies(broker, WAITING, size)) == [str(number) for number in range(9)]
    for page in pages(broker, WAITING, 4):
        for each in page:
            assert broker.find("q", each.message.id, near=each.near) == each
            assert broker.find("q", each.message.id) == each


def test_a_page_ends_before_its_bodies_are_too_large(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PEEK_BODIES_BYTES_MAX", 2_500)
    monkeypatch.setattr("penstock.brokers.redis.peeking.PEEK_BODIES_BYTES_MAX", 2_500)
    broker.send("q", outgoing(*(f"{number}" * 1_000 for number in range(5))))
    broker.send("q", outgoing(*(f"{number}" * 1_000 for number in range(5)), delay_seconds=60))
    for state in (WAITING, DELAYED):
        assert [len(page) for page in pages(broker, state, 100)] == [3, 2]
    receive(broker)
    assert [len(page) for page in pages(broker, IN_FLIGHT, 100)] == [3, 2]


def test_one_message_is_found_by_its_id_in_every_state(harness: BrokerHarness, broker: Broker) -> None:
    ids = broker.send("q", outgoing("a", "b", group="g") + outgoing("c", delay_seconds=60))
    find = partial(broker.find, "q")
    first, second, third = (find(id) for id in ids)
    assert first is not None
    assert second is not None
    assert third is not None
    assert [each.state for each in (first, second, third)] == [WAITING, WAITING, DELAYED]
    (delivery,) = receive(broker, 1)
    for near in (None, first.near, second.near, third.near, "nonsense"):
        held = find(ids[0], near=near)
        assert held is not None, near
        assert (held.state, held.message, held.worker) == (IN_FLIGHT, first.message, "w1")
    broker.settle([(delivery, Release(delay_seconds=5))])
    for near in (None, first.near, second.near):
        released = find(ids[0], near=near)
        assert released is not None
        assert (released.state, released.message, released.attempts) == (DELAYED, first.message, 1)
    harness.advance(5)
    back = find(ids[0])
    assert back is not None
    assert (back.state, back.worker, back.attempts) == (WAITING, None, 1)
    broker.discard("q", ids[:1])
    assert find(ids[0], near=back.near) is find("an unknown id") is broker.find("other", ids[1]) is None


def test_a_dead_letter_is_found_in_its_dlq_alone(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.settle([(delivery, DeadLetter(reason="broken"))])
    (dead,) = broker.peek("q-dlq", WAITING, messages_max=9).messages
    death = death_of(dead.message.attributes)
    assert death is not None
    assert (death.reason, death.message_id, dead.attempts) == ("broken", delivery.message.id, 0)
    assert broker.find("q-dlq", dead.message.id, near=dead.near) == dead
    assert broker.find("q", delivery.message.id) is None


@pytest.mark.parametrize("state", list(QueuedState))
def test_an_unknown_queue_and_no_room_are_empty_pages(broker: Broker, state: QueuedState) -> None:
    broker.send("q", outgoing("a"))
    for page in (broker.peek("never heard of", state, messages_max=9), broker.peek("q", state, messages_max=0)):
        assert (list(page.messages), page.next) == ([], None)
    assert broker.find("never heard of", "id") is None


@pytest.mark.parametrize(
    "after", ["", "x", "[]", "[1]", '["a",{}]', "[1e999,1]", '[1,"t",1e400,2]', "[" * 9_000, "9" * 20]
)
@pytest.mark.parametrize("state", list(QueuedState))
def test_a_forged_position_is_refused(broker: Broker, state: QueuedState, after: str) -> None:
    broker.send("q", outgoing("a"))
    with pytest.raises(ConfigurationError, match="position"):
        broker.peek("q", state, messages_max=9, after=after)


def test_a_paused_queue_can_be_looked_at(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    broker.pause("q")
    assert bodies(broker.peek("q", WAITING, messages_max=9)) == ["a"]
