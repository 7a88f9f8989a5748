"""The SQLite broker against the memory broker: after any operations on both, they return the same.

Two workers share each of them, under one fake clock. Ids and receipts differ, so messages are named by their bodies.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from tests.examples import examples

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedState
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.testing import FakeClock

pytestmark = pytest.mark.generated

QUEUES = (
    QueueSettings(name="q", receives_max=3, retention_seconds=500),
    QueueSettings(name="q-dlq", retention_seconds=300, dead_letter_queue="q"),  # a cycle: harsher than in reality
    QueueSettings(name="plain"),
)
NAMES = st.sampled_from(["q", "q-dlq", "plain", "plain-dlq", "made by sending"])
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 10.0, 60.0, 299.0])
MESSAGES: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        group=st.sampled_from([None, "", "a", "b", "ä"]),
        delay_seconds=st.sampled_from([0.0, 0.0, 0.0, 5.0, 100.0]),
        deduplication_id=st.sampled_from([None, None, None, "one", "two"]),
        attributes=st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.binary(max_size=3), max_size=2),
    ),
    max_size=8,
)
SETTLEMENTS: st.SearchStrategy[Settlement] = st.one_of(
    st.just(Ack()),
    st.builds(Release, delay_seconds=SECONDS, uncounted=st.booleans(), reason=st.none() | st.text(max_size=3)),
    st.builds(DeadLetter, reason=st.text(max_size=3)),
)
HOLDERS = st.sampled_from([0, 1])
NO_MESSAGE = Message(id="", body=b"", enqueued_at=0.0)
STATS = {QueuedState.WAITING: "visible", QueuedState.IN_FLIGHT: "in_flight", QueuedState.DELAYED: "delayed"}
Pair = tuple[Delivery, Delivery]  # the same delivery of the memory broker and of the SQLite broker


class Brokers(RuleBasedStateMachine):
    deliveries: Bundle[Pair] = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "queue.db"
        memory = MemoryBroker(clock=self.clock, queues=QUEUES)
        self.memory = [memory.with_holder("w0"), memory.with_holder("w1")]
        self.sqlite = [SqliteBroker(path, holder=f"w{n}", clock=self.clock, queues=QUEUES) for n in range(2)]
        self.sent = 0

    def teardown(self) -> None:
        for broker in self.sqlite:
            broker.close()
        self.folder.cleanup()

    @rule(queue=NAMES, messages=MESSAGES, holder=HOLDERS)
    def send(self, queue: str, messages: list[dict[str, Any]], holder: int) -> None:
        outgoing = [Outgoing(body=str(self.sent + n).encode(), **fields) for n, fields in enumerate(messages)]
        self.sent += len(messages)
        ours = self.memory[holder].send(queue, outgoing)
        theirs = self.sqlite[holder].send(queue, outgoing)
        assert numbers(ours) == numbers(theirs)

    @rule(target=deliveries, queue=NAMES, count=st.integers(0, 12), lease=SECONDS, holder=HOLDERS)
    def receive(self, queue: str, count: int, lease: float, holder: int) -> Any:
        ours = self.memory[holder].receive(queue, messages_max=count, lease_seconds=lease)
        theirs = self.sqlite[holder].receive(queue, messages_max=count, lease_seconds=lease)
        assert list(map(delivery_facts, ours)) == list(map(delivery_facts, theirs))
        assert len(ours) <= count
        return multiple(*zip(ours, theirs, strict=True))

    @rule(pairs=st.lists(deliveries, max_size=6), lease=SECONDS, holder=HOLDERS)
    def extend(self, pairs: list[Pair], lease: float, holder: int) -> None:
        ours = self.memory[holder].extend([pair[0] for pair in pairs], lease_seconds=lease)
        theirs = self.sqlite[holder].extend([pair[1] for pair in pairs], lease_seconds=lease)
        assert list(map(delivery_facts, ours)) == list(map(delivery_facts, theirs))

    @rule(pairs=st.lists(st.tuples(deliveries, SETTLEMENTS), max_size=6), holder=HOLDERS)
    def settle(self, pairs: list[tuple[Pair, Settlement]], holder: int) -> None:
        self._settle(pairs, holder)

    @rule(pair=consumes(deliveries), settlement=SETTLEMENTS, holder=HOLDERS)
    def settle_one(self, pair: Pair, settlement: Settlement, holder: int) -> None:
        self._settle([(pair, settlement)], holder)

    def _settle(self, pairs: list[tuple[Pair, Settlement]], holder: int) -> None:
        ours = self.memory[holder].settle([(pair[0], settlement) for pair, settlement in pairs])
        theirs = self.sqlite[holder].settle([(pair[1], settlement) for pair, settlement in pairs])
        assert [delivery_facts(failure.delivery) for failure in ours] == [delivery_facts(f.delivery) for f in theirs]
        assert all(failure.lost for failure in [*ours, *theirs])

    @rule(seconds=st.sampled_from([0.5, 1.0, 9.0, 10.0, 100.0, 299.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(holder=HOLDERS, dead=HOLDERS)
    def release_holder(self, holder: int, dead: int) -> None:
        ours = self.memory[holder].release_holder(f"w{dead}")
        assert ours == self.sqlite[holder].release_holder(f"w{dead}")

    @rule(queue=NAMES, paused=st.sampled_from([True, False, False, False]))
    def pause(self, queue: str, paused: bool) -> None:
        for broker in (self.memory[0], self.sqlite[0]):
            broker.pause(queue) if paused else broker.resume(queue)

    @rule(queue=NAMES)
    def purge(self, queue: str) -> None:
        assert self.memory[0].purge(queue) == self.sqlite[0].purge(queue)

    @rule(queue=NAMES, count=st.integers(0, 5), after=st.integers(0, 30) | st.none())
    def browse(self, queue: str, count: int, after: int | None) -> None:
        pages = []
        for broker in (self.memory[0], self.sqlite[0]):
            store = broker._store.id if isinstance(broker, MemoryBroker) else broker._store_id
            after_id = None if after is None else f"{store}-{after:012d}"
            pages.append([held(message) for message in broker.browse(queue, messages_max=count, after_id=after_id)])
        assert pages[0] == pages[1]

    @rule(queue=NAMES, state=st.sampled_from(list(QueuedState)), count=st.integers(1, 3))
    def peek(self, queue: str, state: QueuedState, count: int) -> None:
        ours, theirs = (peeked(broker, queue, state, count) for broker in (self.memory[0], self.sqlite[0]))
        assert ours == theirs
        assert len(ours) == getattr(self.memory[0].stats(queue), STATS[state])

    @rule(queue=NAMES)
    def compare_stats(self, queue: str) -> None:
        assert self.memory[0].stats(queue) == self.sqlite[1].stats(queue)
        assert self.memory[1].dropped(queue) == self.sqlite[0].dropped(queue)
        assert self.memory[1].paused(queue) == self.sqlite[1].paused(queue)

    @invariant()
    def know_the_same_queues(self) -> None:
        assert list(self.memory[0].queue_names()) == list(self.sqlite[0].queue_names())

    @invariant()
    def ring_holds_exactly_the_groups_with_ready_messages(self) -> None:
        with self.sqlite[0]._file.reading() as connection:
            ring = set(connection.execute("SELECT queue_id, grp FROM ring"))
            ready = set(connection.execute("SELECT DISTINCT queue_id, grp FROM messages WHERE state = 0"))
        assert ring == ready


def number(id: str) -> int:
    return int(id.rsplit("-", 1)[1])


def numbers(ids: Sequence[str]) -> list[int]:
    return [number(id) for id in ids]


def held(message: Message) -> tuple[Any, ...]:
    """Return a message without the fields that may differ between two stores."""
    attributes = {name: value for name, value in message.attributes.items() if name != "penstock-death"}
    death = death_of(message.attributes)
    death_facts = death and (death.reason, death.attempts, death.first_failed_at, death.last_failed_at, death.worker)
    death_place = death and (death.queue, number(death.message_id), death.enqueued_at)
    fixed = (number(message.id), message.body, message.group, message.enqueued_at)
    return (*fixed, attributes, death_facts, death_place)


def peeked(broker: MemoryBroker | SqliteBroker, queue: str, state: QueuedState, count: int) -> list[tuple[Any, ...]]:
    """Return all messages in a state, page by page, after a look at each by its id."""
    found: list[QueuedMessage] = []
    after: str | None = None
    while True:
        page = broker.peek(queue, state, messages_max=count, after=after)
        found += page.messages
        if (after := page.next) is None:
            break
    assert [broker.find(queue, each.message.id) for each in found] == found
    return [(held(each.message), replace(each, message=NO_MESSAGE, near="")) for each in found]


def delivery_facts(delivery: Delivery) -> tuple[Any, ...]:
    receipt = delivery.receipt.split("-")[1:]
    delivered = (delivery.queue, receipt, delivery.attempt, delivery.received_at, delivery.previous)
    return (held(delivery.message), *delivered)


TestBrokers = Brokers.TestCase
TestBrokers.settings = settings(max_examples=examples(75), stateful_step_count=60, deadline=None)
