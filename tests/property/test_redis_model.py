"""The Redis broker against a model of a queue: after any steps of two workers, each message is where the model has it.

After every step all queues are inspected, which ends expired leases immediately. The keys in Redis are inspected too:
the counters of the scripts must agree with the data.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from tests.examples import examples
from tests.services.frozen_clock import ServerClock
from tests.services.plugin import Servers
from tests.services.redis_server import VERSIONS, RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.messaging.broker import QueueSettings, QueueStats
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedState
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

pytestmark = pytest.mark.generated

RECEIVES_MAX = 3
QUEUES = (
    QueueSettings(name="q", receives_max=RECEIVES_MAX, dead_letter_queue="q-dlq"),
    QueueSettings(name="q-dlq", dead_letter_queue="q"),  # a cycle of dead-letter queues: harsher than in reality
    QueueSettings(name="plain", dead_letter_queue="q"),
)
DEAD_LETTER_QUEUES = {"q": "q-dlq", "q-dlq": "q", "plain": "q"}
NAMES = st.sampled_from(list(DEAD_LETTER_QUEUES))
HOLDERS = st.sampled_from([0, 1])
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 10.0, 60.0])
MESSAGES = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b", "ä"]), st.sampled_from([0.0, 0.0, 0.0, 5.0, 100.0])), max_size=8
)
SETTLEMENTS: st.SearchStrategy[Settlement] = st.one_of(
    st.just(Ack()),
    st.builds(Release, delay_seconds=SECONDS, uncounted=st.booleans()),
    st.just(DeadLetter(reason="x")),
)


@dataclass(kw_only=True)
class Known:
    """The state of one message. ``due_at``: the time when it becomes visible. ``receipt``: set while it is leased."""

    body: bytes
    order: int
    group: str | None
    due_at: float
    attempts: int = 0  # ended deliveries that count
    fresh: bool = True  # never delayed or delivered
    receipt: str | None = None
    holder: int = 0
    lease_ends_at: float = 0.0


@dataclass
class Model:
    """The location of every message. Each event is applied to it; it raises for an impossible one."""

    queues: dict[str, dict[bytes, Known]] = field(default_factory=lambda: {name: {} for name in DEAD_LETTER_QUEUES})
    orders: int = 0

    def add(self, queue: str, body: bytes, group: str | None, *, due_at: float, now: float) -> None:
        self.orders += 1
        self.queues[queue][body] = Known(body=body, order=self.orders, group=group, due_at=due_at, fresh=due_at <= now)

    def held(self, delivery: Delivery) -> Known | None:
        known = self.queues[delivery.queue].get(delivery.message.body)
        return known if known is not None and known.receipt == delivery.receipt else None

    def visible(self, queue: str, now: float) -> list[Known]:
        return [known for known in self.queues[queue].values() if known.receipt is None and known.due_at <= now]

    def exhausted(self, queue: str, known: Known) -> bool:
        return queue == "q" and known.attempts >= RECEIVES_MAX

    def settle(self, delivery: Delivery, settlement: Settlement, now: float) -> bool:
        """Settle a delivery; return False if it is no longer held."""
        known = self.held(delivery)
        if known is None:
            return False
        if isinstance(settlement, Ack):
            del self.queues[delivery.queue][known.body]
        elif isinstance(settlement, DeadLetter):
            self.dead_letter(delivery.queue, known, now)
        else:
            self.release(known, counts=not settlement.uncounted, due_at=now + settlement.delay_seconds)
        return True

    def release(self, known: Known, *, counts: bool, due_at: float) -> None:
        known.receipt, known.due_at = None, due_at
        known.attempts += counts

    def dead_letter(self, queue: str, known: Known, now: float) -> None:
        del self.queues[queue][known.body]
        self.add(DEAD_LETTER_QUEUES[queue], known.body, known.group, due_at=now, now=now)

    def end_leases(self, now: float, *, over: Callable[[Known], bool]) -> int:
        """End leases as if they expired, dead-letter messages delivered too often, and return the number of leases."""
        ended = [
            (queue, known)
            for queue, messages in self.queues.items()
            for known in messages.values()
            if known.receipt is not None and over(known)
        ]
        for queue, known in sorted(ended, key=lambda one: one[1].order):
            self.release(known, counts=True, due_at=now)
            if self.exhausted(queue, known):
                self.dead_letter(queue, known, now)
        return len(ended)


class Machine(RuleBasedStateMachine):
    deliveries: Bundle[Delivery] = Bundle("deliveries")
    server: RedisServer
    servers: Servers

    def __init__(self) -> None:
        super().__init__()
        self.clock = ServerClock(self.servers.clock_file)
        self.brokers = [
            RedisStreamsBroker(self.server.url, holder=f"w{n}", queues=QUEUES, sweep_seconds=0.0, clock=self.clock)
            for n in range(2)
        ]
        self.model = Model()
        self.paused: set[str] = set()
        self.sent = 0

    def teardown(self) -> None:
        for broker in self.brokers:
            broker.close()
        self.server.clean()

    # --- steps

    @rule(queue=NAMES, messages=MESSAGES, holder=HOLDERS)
    def send(self, queue: str, messages: list[tuple[str | None, float]], holder: int) -> None:
        now = self.clock.now()
        outgoing = []
        for group, delay in messages:
            self.sent += 1
            body = str(self.sent).encode()
            outgoing.append(Outgoing(body=body, group=group, delay_seconds=delay))
            self.model.add(queue, body, group, due_at=now + delay, now=now)
        assert len(self.brokers[holder].send(queue, outgoing)) == len(messages)

    @rule(target=deliveries, queue=NAMES, count=st.integers(0, 12), lease=SECONDS, holder=HOLDERS)
    def receive(self, queue: str, count: int, lease: float, holder: int) -> Any:
        now = self.clock.now()
        before = self.model.visible(queue, now)
        dying = [known for known in before if self.model.exhausted(queue, known)]
        received = self.brokers[holder].receive(queue, messages_max=count, lease_seconds=lease)
        for delivery in received:
            known = self.model.queues[queue][delivery.message.body]
            assert known in before, "the message was not visible"
            assert known not in dying, "the message was delivered too often"
            assert delivery.attempt == known.attempts + 1
            assert delivery.message.group == known.group
            known.receipt, known.holder, known.lease_ends_at = delivery.receipt, holder, now + lease
        self._check_count(queue, received, visible=len(before), dying=len(dying), count=count)
        self._check_order(before, received)
        for delivery in received:
            self.model.queues[queue][delivery.message.body].fresh = False
        for known in dying:  # it is dead-lettered only if its turn came
            if known.body in self._bodies(DEAD_LETTER_QUEUES[queue]):
                self.model.dead_letter(queue, known, now)
        return multiple(*received)

    def _check_count(self, queue: str, received: Sequence[Delivery], *, visible: int, dying: int, count: int) -> None:
        if queue in self.paused:
            assert not received
        elif dying:
            assert len(received) <= count
        else:
            assert len(received) == min(count, visible)

    def _check_order(self, before: Sequence[Known], received: Sequence[Delivery]) -> None:
        """Check that the oldest of each group come first among messages that were never delivered."""
        bodies = {delivery.message.body for delivery in received}
        for known in before:
            if known.fresh and known.body not in bodies:
                later = [
                    other
                    for other in before
                    if other.body in bodies and other.fresh and other.group == known.group and other.order > known.order
                ]
                assert not later, "a younger message overtook an older one of its group"

    @rule(held=st.lists(deliveries, max_size=6, unique_by=id), lease=SECONDS, holder=HOLDERS)
    def extend(self, held: list[Delivery], lease: float, holder: int) -> None:
        lost = self.brokers[holder].extend(held, lease_seconds=lease)
        unheld = [delivery for delivery in held if self.model.held(delivery) is None]
        assert {delivery.receipt for delivery in lost} == {delivery.receipt for delivery in unheld}
        for delivery in held:
            if known := self.model.held(delivery):
                known.holder, known.lease_ends_at = holder, self.clock.now() + lease

    @rule(settlements=st.lists(st.tuples(deliveries, SETTLEMENTS), max_size=6), holder=HOLDERS)
    def settle(self, settlements: list[tuple[Delivery, Settlement]], holder: int) -> None:
        failures = self.brokers[holder].settle(settlements)
        expected: Counter[str] = Counter()
        settled: set[str] = set()
        for delivery, settlement in settlements:
            if delivery.receipt in settled or not self.model.settle(delivery, settlement, self.clock.now()):
                expected[delivery.receipt] += 1
            settled.add(delivery.receipt)
        assert Counter(failure.delivery.receipt for failure in failures) == expected
        assert all(failure.lost for failure in failures)

    @rule(seconds=st.sampled_from([0.5, 1.0, 9.0, 10.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(holder=HOLDERS, dead=HOLDERS)
    def release_holder(self, holder: int, dead: int) -> None:
        released = self.brokers[holder].release_holder(f"w{dead}")
        assert released == self.model.end_leases(self.clock.now(), over=lambda known: known.holder == dead)

    @rule(queue=NAMES, paused=st.sampled_from([True, False, False, False]))
    def pause(self, queue: str, paused: bool) -> None:
        if paused:
            self.brokers[0].pause(queue)
            self.paused.add(queue)
        else:
            self.brokers[0].resume(queue)
            self.paused.discard(queue)

    @rule(queue=NAMES)
    def purge(self, queue: str) -> None:
        assert self.brokers[0].purge(queue) == len(self.model.queues[queue])
        self.model.queues[queue].clear()

    @rule()
    def forget_the_scripts(self) -> None:
        self.server.cli("SCRIPT FLUSH")

    # --- invariants

    @invariant()
    def every_message_is_where_it_should_be(self) -> None:
        now = self.clock.now()
        self.model.end_leases(now, over=lambda known: known.lease_ends_at <= now)
        for queue in ("plain", "q-dlq", "q"):  # a query ends leases, and dead letters go to the queues after it
            self.brokers[0].stats(queue)
        for queue, known in self.model.queues.items():
            stats = self.brokers[1].stats(queue)
            visible = self.model.visible(queue, now)
            held = [each for each in known.values() if each.receipt is not None]
            counts = (len(visible), len(held), len(known) - len(visible) - len(held))
            assert (stats.visible, stats.in_flight, stats.delayed) == counts, queue
            assert self._bodies(queue) == set(known), queue
            for state, count in zip(QueuedState, counts_by_state(stats), strict=True):
                assert len(self._peeked(queue, state)) == count, (queue, state)

    @invariant()
    def the_keys_agree_with_the_data(self) -> None:
        client: Any = self.server.client
        for queue in DEAD_LETTER_QUEUES:
            base = self.brokers[0]._keys.base(queue)
            ring = client.lrange(f"{base}:ring", 0, -1)
            ready = {key.decode(): client.llen(key) for key in client.scan_iter(f"{base}:ready*")}
            assert sorted(f"{base}:ready{tag.decode()}" for tag in ring) == sorted(ready)
            assert int(client.hget(f"{base}:queue", "ready") or 0) * 3 == sum(ready.values())
            groups = client.xinfo_groups(f"{base}:stream") if client.exists(f"{base}:stream") else []
            pending = sum(group["pending"] for group in groups)
            assert client.xlen(f"{base}:stream") == pending, "the stream holds exactly the delivered messages"

    def _peeked(self, queue: str, state: QueuedState) -> set[bytes]:
        """Return the bodies in a state, page by page, after a look at each by its id: each is found once."""
        found: list[QueuedMessage] = []
        after: str | None = None
        while True:
            page = self.brokers[0].peek(queue, state, messages_max=3, after=after)
            found += page.messages
            if (after := page.next) is None:
                break
        for each in found:
            for near in (each.near, None):
                again = self.brokers[0].find(queue, each.message.id, near=near)
                assert again == each, (queue, state)
        assert len({each.message.id for each in found}) == len(found)
        return {each.message.body for each in found}

    def _bodies(self, queue: str) -> set[bytes]:
        return {message.body for message in self.brokers[0].browse(queue, messages_max=1_000_000)}


def counts_by_state(stats: QueueStats) -> tuple[int, int, int]:
    return stats.visible, stats.in_flight, stats.delayed


@pytest.fixture(
    params=[VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.slow)], ids=lambda version: f"redis-{version}"
)
def machine(request: pytest.FixtureRequest, frozen_servers: Servers) -> Iterator[type[Machine]]:
    class Bound(Machine):
        server = frozen_servers.redis(request.param)
        servers = frozen_servers

    yield Bound
    Bound.server.clean()


@pytest.mark.timeout(900)  # shrinking a failure takes its time
def test_every_message_is_where_the_model_has_it_after_any_steps(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(25), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
