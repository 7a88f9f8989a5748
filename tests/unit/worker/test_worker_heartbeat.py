"""The book of leases, and the heartbeat that keeps leases and claims."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ClaimLost, TemporaryError
from penstock.events import Bus, Event, HeartbeatFailed, LeaseLost, LeasesExpiring, LeasesExtended
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Extension, HeldClaim
from penstock.worker.leases import TRIES, ClaimHolder, Heartbeat, LeaseBook
from penstock.worker.liveness import LifeSign
from penstock.worker.settings import WorkerSettings

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeBroker, FakeClock, SkippingClock

Make = Callable[..., Delivery]
Eventually = Callable[..., None]
LEASE_SECONDS = 30.0


class Extender:
    """Extends what it is asked to, unless the test says otherwise."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], float]] = []
        self.answers: list[Extension | Exception] = []
        self.gate: threading.Event | None = None
        self.asked = threading.Event()

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        assert response_seconds < LEASE_SECONDS / 3, "several answers of that length fit between two heartbeats"
        self.calls.append((list(ids), lease_seconds))
        self.asked.set()
        if self.gate is not None:
            assert self.gate.wait(DEADLINE_SECONDS)
        answer = self.answers.pop(0) if self.answers else Extension()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Batch:
    queue = "q"

    def __init__(self, extender: Extender, id: str = "claim") -> None:
        self.held: HeldClaim | None = HeldClaim(extender=extender, id=id)
        self.ended_by_itself = False
        self.suspended = False
        self.lost = False

    def claim(self) -> HeldClaim | None:
        if self.suspended:
            raise ClaimLost("suspended")
        return self.held

    def loses(self, claim: HeldClaim) -> bool:
        assert claim == self.held
        return not self.ended_by_itself

    def lose(self) -> None:
        self.lost = True


class Beating:
    def __init__(self, broker: "FakeBroker", clock: "FakeClock", eventually: Eventually) -> None:
        self.events: list[Event] = []
        self.claims: list[ClaimHolder] = []
        self.extender = Extender()
        self.lease_book = LeaseBook(clock=clock, lease_seconds=LEASE_SECONDS)
        self.broker = broker
        self.sign = LifeSign("penstock-heartbeat", clock)
        self.eventually = eventually
        self._clock = clock
        self.heartbeat = self.made(settle_max=2)

    def made(self, *, settle_max: int, draw: float = 0.0) -> Heartbeat:
        return Heartbeat(
            broker=self.broker,
            lease_book=self.lease_book,
            claims=lambda: self.claims,
            settings=WorkerSettings(lease_seconds=LEASE_SECONDS, settle_max=settle_max),
            clock=self._clock,
            bus=Bus(self.events.append),
            random=lambda: draw,
            sign=self.sign,
        )

    def receive(self, count: int, queue: str = "q") -> list[Delivery]:
        self.broker.put(*range(count), queue=queue)
        deliveries = list(self.broker.receive(queue, messages_max=count, lease_seconds=LEASE_SECONDS))
        self.lease_book.register(deliveries)
        return deliveries

    def beat(self) -> None:
        """One beat, to its end."""
        self.heartbeat.beat()
        self.eventually(lambda: self.heartbeat.idle, "every call has been answered")

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def beating(broker: "FakeBroker", skipping_clock: "SkippingClock", eventually: Eventually) -> Beating:
    return Beating(broker, skipping_clock, eventually)


@pytest.fixture
def standing(broker: "FakeBroker", clock: "FakeClock", eventually: Eventually) -> Beating:
    """On a clock that stands still."""
    return Beating(broker, clock, eventually)


def test_leases_are_extended_in_groups(beating: Beating, broker: "FakeBroker") -> None:
    beating.receive(5)
    beating.beat()
    assert broker.extensions == [["m0", "m1"], ["m2", "m3"], ["m4"]]


def test_a_ledger_that_does_not_answer_delays_no_lease(standing: Beating, broker: "FakeBroker") -> None:
    """Beat after beat, while the first call of the claims is still waiting."""
    standing.claims = [Batch(standing.extender)]
    standing.receive(1)
    standing.extender.gate = threading.Event()
    for beats in range(1, 4):
        standing.heartbeat.beat()
        standing.eventually(lambda beats=beats: len(standing.told(LeasesExtended)) == beats)
    assert len(standing.extender.calls) == 1
    standing.extender.gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)


def test_a_queue_whose_call_hangs_delays_no_other_queue(standing: Beating, broker: "FakeBroker") -> None:
    hanging = threading.Event()
    broker.hanging = {"q": hanging}
    standing.receive(1)
    standing.receive(1, queue="other")
    for beats in range(1, 4):
        standing.heartbeat.beat()
        standing.eventually(lambda beats=beats: len(standing.told(LeasesExtended)) == beats)
    assert {event.queue for event in standing.events if isinstance(event, LeasesExtended)} == {"other"}
    hanging.set()
    standing.eventually(lambda: standing.heartbeat.idle)


def test_claims_are_extended_as_a_set(beating: Beating) -> None:
    batches = [Batch(beating.extender, f"c{number}") for number in range(3)]
    beating.claims = [*batches]
    beating.beat()
    assert [ids for ids, _ in beating.extender.calls] == [["c0", "c1"], ["c2"]]


def test_a_claim_ends_before_the_lease_of_its_message_however_late_it_is_extended(
    standing: Beating, clock: "FakeClock"
) -> None:
    """So the claim of a worker that died is free when its message comes back."""
    standing.claims = [Batch(standing.extender, f"c{number}") for number in range(3)]
    standing.extender.gate = threading.Event()
    began_at = clock.time
    standing.heartbeat.beat()
    standing.eventually(standing.extender.asked.is_set)
    clock.time += 5.0  # for the answer of the first call
    standing.extender.gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)
    (_, first_seconds), (_, second_seconds) = standing.extender.calls
    assert began_at + first_seconds == clock.time + second_seconds == began_at + LEASE_SECONDS - 1.0


def test_a_beat_that_fails_is_tried_again_a_second_later(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    beating.receive(1)
    broker.extend_faults = [TemporaryError("away"), TemporaryError("away")]
    beating.beat()
    assert len(broker.extensions) == 3
    assert skipping_clock.waits == [1.0, 1.0]
    assert [type(event) for event in beating.events] == [HeartbeatFailed, HeartbeatFailed, LeasesExtended]


def test_it_gives_up_a_beat_after_five_tries(beating: Beating, broker: "FakeBroker") -> None:
    beating.receive(1)
    broker.extend_faults = [TemporaryError("away")] * 9
    beating.beat()
    assert len(broker.extensions) == TRIES == 5


def test_claims_that_fail_are_tried_again_and_none_is_lost(beating: Beating) -> None:
    batch = Batch(beating.extender)
    beating.claims = [batch]
    beating.extender.answers = [TemporaryError("away"), TemporaryError("away")]
    beating.beat()
    assert len(beating.extender.calls) == 3
    assert [event.last for event in beating.events if isinstance(event, HeartbeatFailed)] == [False, False]
    assert not batch.lost


def test_the_calls_of_a_beat_end_with_it(beating: Beating, skipping_clock: "SkippingClock") -> None:
    """A ledger that takes long to fail gets no second try in a beat that is over."""

    class Slow(Extender):
        def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
            skipping_clock.time += 6.0
            return super().extend(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    extender = Slow()
    extender.answers = [TemporaryError("away")] * 9
    beating.claims = [Batch(extender)]
    beating.beat()
    assert len(extender.calls) == 2
    assert [event.last for event in beating.events if isinstance(event, HeartbeatFailed)] == [False, True]


def test_claims_that_a_beat_had_no_time_for_are_the_first_of_the_next(
    beating: Beating, skipping_clock: "SkippingClock"
) -> None:
    class Slow(Extender):
        def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
            skipping_clock.time += 5.5
            return super().extend(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    extender = Slow()
    beating.claims = [Batch(extender, f"c{number}") for number in range(5)]
    beating.heartbeat.watch()
    skipping_clock.time += LEASE_SECONDS / 6
    for _ in range(3):
        beating.beat()
    asked = [id for ids, _ in extender.calls for id in ids]
    assert [asked[:3], asked[3:5]] == [["c0", "c1", "c2"], ["c3", "c4"]]
    assert [asked[5:7], asked[7]] == [["c0", "c1"], "c2"], "and then those that were extended first"


def test_an_extender_that_is_slow_for_each_claim_is_asked_for_fewer_until_it_answers_in_time(
    beating: Beating, skipping_clock: "SkippingClock"
) -> None:
    beating.heartbeat = beating.made(settle_max=500)

    class SlowRows(Extender):
        def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
            skipping_clock.time += min(0.01 * len(ids), response_seconds)
            if 0.01 * len(ids) > response_seconds:
                raise TemporaryError("a statement takes too long")
            return super().extend(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    extender = SlowRows()
    beating.claims = [Batch(extender, f"c{number}") for number in range(1_000)]
    beating.heartbeat.watch()
    for _ in range(3):
        beating.beat()
    assert {id for ids, _ in extender.calls for id in ids} == {f"c{number}" for number in range(1_000)}
    skipping_clock.time += LEASE_SECONDS / 2  # time for more than one beat, in which it gets quick again
    extender.extend = Extender.extend.__get__(extender)  # type: ignore[method-assign] # it is quick now
    for _ in range(2):
        beating.beat()
    assert max(len(ids) for ids, _ in extender.calls) == 500


@pytest.mark.parametrize("failures", [0, 9], ids=["from the beginning", "after it did not answer for a while"])
def test_an_extender_that_takes_as_long_for_few_claims_as_for_many_keeps_all(
    beating: Beating, skipping_clock: "SkippingClock", failures: int
) -> None:
    beating.heartbeat = beating.made(settle_max=500)

    class Far(Extender):
        def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
            skipping_clock.time += response_seconds if self.answers else 0.6 * response_seconds
            return super().extend(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    extender = Far()
    extender.answers = [TemporaryError("no answer")] * failures
    beating.claims = [Batch(extender, f"c{number}") for number in range(200)]
    beating.heartbeat.watch()
    for _ in range(6):
        beating.beat()
    del extender.calls[:]
    for _ in range(2):
        beating.beat()
    assert {id for ids, _ in extender.calls for id in ids} == {f"c{number}" for number in range(200)}
    assert len(extender.calls) <= 2 * 4, "and so it goes on"


def test_a_beat_that_is_due_while_the_last_is_at_work_follows_it(standing: Beating, broker: "FakeBroker") -> None:
    standing.receive(1)
    broker.extend_gate = threading.Event()
    for _ in range(3):
        standing.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    broker.extend_gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)
    assert broker.extensions == [["m0"], ["m0"]]


def test_after_the_end_no_beat_follows(standing: Beating, broker: "FakeBroker") -> None:
    standing.receive(1)
    broker.extend_gate = threading.Event()
    for _ in range(2):
        standing.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    standing.heartbeat.end()
    broker.extend_gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)
    assert broker.extensions == [["m0"]]


def test_a_claim_that_another_transaction_has_locked_is_extended_a_moment_later(beating: Beating) -> None:
    locked, free = Batch(beating.extender, "locked"), Batch(beating.extender, "free")
    beating.claims = [locked, free]
    beating.extender.answers = [Extension(locked=frozenset({"locked"}))]
    beating.beat()
    assert [ids for ids, _ in beating.extender.calls] == [["locked", "free"], ["locked"]]
    assert [locked.lost, free.lost] == [False, False]


def test_a_lost_claim_is_told_to_its_batch_alone(beating: Beating) -> None:
    lost, held = Batch(beating.extender, "lost"), Batch(beating.extender, "held")
    beating.claims = [lost, held]
    beating.extender.answers = [Extension(lost=frozenset({"lost"}))]
    beating.beat()
    assert (lost.lost, held.lost) == (True, False)


def test_a_claim_that_its_batch_ended_meanwhile_is_no_loss(beating: Beating) -> None:
    batch = Batch(beating.extender)
    batch.ended_by_itself = True
    beating.claims = [batch]
    beating.extender.answers = [Extension(lost=frozenset({"claim"}))]
    beating.beat()
    assert not batch.lost


def test_work_that_cannot_go_on_is_lost_whatever_the_ledger_does(standing: Beating) -> None:
    running, suspended = Batch(standing.extender, "running"), Batch(standing.extender, "suspended")
    standing.extender.gate = threading.Event()
    standing.claims = [running, suspended]
    standing.heartbeat.beat()
    standing.eventually(standing.extender.asked.is_set)
    suspended.suspended = True
    standing.heartbeat.beat()
    assert suspended.lost
    standing.extender.gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)


def test_what_is_not_extended_is_reported_before_it_is_lost(standing: Beating, clock: "FakeClock") -> None:
    hanging = threading.Event()
    standing.broker.hanging = {"q": hanging}
    standing.extender.gate = threading.Event()
    standing.claims = [Batch(standing.extender)]
    standing.receive(2)
    standing.heartbeat.watch()
    standing.heartbeat.beat()
    standing.eventually(standing.extender.asked.is_set)
    clock.time += 14.0
    standing.heartbeat.watch()
    assert standing.told(LeasesExpiring) == []
    clock.time += 2.0
    standing.heartbeat.watch()
    assert standing.told(LeasesExpiring) == [
        LeasesExpiring(queue="q", kind="message leases", count=2, seconds_left=14.0),
        LeasesExpiring(queue="q", kind="claims", count=1, seconds_left=14.0),
    ]
    hanging.set()
    standing.extender.gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)
    standing.events.clear()
    standing.heartbeat.watch()
    assert standing.told(LeasesExpiring) == [LeasesExpiring(queue="q", kind="claims", count=1, seconds_left=13.0)], (
        "the claim was extended for as long as it was asked to, when its call began"
    )


def test_a_lost_lease_leaves_the_book_and_is_told(beating: Beating, broker: "FakeBroker") -> None:
    first, second = beating.receive(2)
    broker.steal("m0")
    beating.beat()
    assert beating.events == [
        LeaseLost(queue="q", message_id="m0", attempt=1),
        LeasesExtended(queue="q", message_ids=("m1",)),
    ]
    assert not beating.lease_book.holds(first)
    assert beating.lease_book.holds(second)


def test_a_lease_ends_that_long_after_its_last_extension(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    (only,) = beating.receive(1)
    skipping_clock.time += 20
    beating.beat()
    ends_at = beating.lease_book.unregister([only], wait_seconds=0)
    assert ends_at == {only.receipt: skipping_clock.time + LEASE_SECONDS}


def test_nothing_held_means_no_call(beating: Beating, broker: "FakeBroker") -> None:
    beating.beat()
    assert broker.extensions == []


def test_the_pause_is_never_longer_than_a_third_of_the_lease(beating: Beating, skipping_clock: "SkippingClock") -> None:
    class Last(Batch):
        def claim(self) -> HeldClaim | None:
            beating.heartbeat.end()
            return None

    beating.claims = [Last(beating.extender)]
    beating.heartbeat.run()
    assert skipping_clock.waits[:1] == [pytest.approx(4.0)]
    assert all(wait <= LEASE_SECONDS / 6 for wait in skipping_clock.waits)


def test_the_longest_pause_is_a_third_of_the_lease(beating: Beating, skipping_clock: "SkippingClock") -> None:
    class Last(Batch):
        def claim(self) -> HeldClaim | None:
            beating.heartbeat.end()
            return None

    beating.heartbeat = beating.made(settle_max=2, draw=1.0)
    beating.claims = [Last(beating.extender)]
    beating.heartbeat.run()
    assert skipping_clock.waits[:1] == [pytest.approx(LEASE_SECONDS / 6)]


def test_taking_a_delivery_out_awaits_the_call_in_flight_for_it(standing: Beating, broker: "FakeBroker") -> None:
    (only,) = standing.receive(1)
    broker.extend_gate = threading.Event()
    standing.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    out = threading.Event()

    def take_out() -> None:
        standing.lease_book.unregister([only], wait_seconds=60)
        broker.journal.append("out")
        out.set()

    threading.Thread(target=take_out, daemon=True).start()
    standing.eventually(lambda: not standing.lease_book.holds(only))
    assert not out.is_set()
    broker.extend_gate.set()
    assert out.wait(DEADLINE_SECONDS)
    assert broker.journal == ["extend", "out"]


def test_it_does_not_await_a_call_for_others(standing: Beating, broker: "FakeBroker", delivery: Make) -> None:
    standing.receive(1)
    broker.extend_gate = threading.Event()
    standing.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    standing.lease_book.unregister([delivery(99)], wait_seconds=60)  # would wait for ever: the clock stands still
    broker.extend_gate.set()
    standing.eventually(lambda: standing.heartbeat.idle)


def test_who_waits_for_a_call_hears_of_its_end(skipping_clock: "SkippingClock", delivery: Make) -> None:
    seen: list[bool] = []
    lease_book = LeaseBook(
        clock=skipping_clock,
        lease_seconds=LEASE_SECONDS,
        call_ended=lambda: seen.append(lease_book.is_extended_now(only)),
    )
    only = delivery(1)
    lease_book.register([only])
    with lease_book.calling("q", [only]):
        assert lease_book.is_extended_now(only)
        assert not lease_book.is_extended_now(delivery(2))
    assert seen == [False]


def test_a_delivery_that_left_the_book_is_not_extended(skipping_clock: "SkippingClock", delivery: Make) -> None:
    lease_book = LeaseBook(clock=skipping_clock, lease_seconds=LEASE_SECONDS)
    settled, held = delivery(1), delivery(2)
    lease_book.register([settled, held])
    lease_book.unregister([settled], wait_seconds=0.0)
    with lease_book.calling("q", [settled, held]) as extended:
        assert extended == [held]
        assert not lease_book.is_extended_now(settled)
