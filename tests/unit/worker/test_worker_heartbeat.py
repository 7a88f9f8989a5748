"""The lease book, and the heartbeat that extends leases and claims."""

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
    """Extends every claim, unless the test sets other results."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], float]] = []
        self.answers: list[Extension | Exception] = []
        self.gate: threading.Event | None = None
        self.extending = threading.Event()

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        assert response_seconds < LEASE_SECONDS / 3, "several answers of that length fit between two heartbeats"
        self.calls.append((list(ids), lease_seconds))
        self.extending.set()
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
        self.ended_before = False
        self.suspended = False
        self.lost = False

    def claim(self) -> HeldClaim | None:
        if self.suspended:
            raise ClaimLost("suspended")
        return self.held

    def loses(self, claim: HeldClaim) -> bool:
        assert claim == self.held
        return not self.ended_before

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
        self.heartbeat = self.make_heartbeat(settle_max=2)

    def make_heartbeat(self, *, settle_max: int, draw: float = 0.0) -> Heartbeat:
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
        """Run one beat and wait for its end."""
        self.heartbeat.beat()
        self.eventually(lambda: self.heartbeat.idle, "every call has returned")

    def emitted(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def beating(broker: "FakeBroker", skipping_clock: "SkippingClock", eventually: Eventually) -> Beating:
    return Beating(broker, skipping_clock, eventually)


@pytest.fixture
def frozen(broker: "FakeBroker", clock: "FakeClock", eventually: Eventually) -> Beating:
    """Return a heartbeat on a clock that stands still."""
    return Beating(broker, clock, eventually)


def test_leases_are_extended_in_groups(beating: Beating, broker: "FakeBroker") -> None:
    beating.receive(5)
    beating.beat()
    assert broker.extensions == [["m0", "m1"], ["m2", "m3"], ["m4"]]


def test_an_unresponsive_ledger_delays_no_message_lease(frozen: Beating, broker: "FakeBroker") -> None:
    """Three beats succeed while the first call for the claims is still waiting."""
    frozen.claims = [Batch(frozen.extender)]
    frozen.receive(1)
    frozen.extender.gate = threading.Event()
    for beats in range(1, 4):
        frozen.heartbeat.beat()
        frozen.eventually(lambda beats=beats: len(frozen.emitted(LeasesExtended)) == beats)
    assert len(frozen.extender.calls) == 1
    frozen.extender.gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)


def test_a_queue_whose_call_hangs_delays_no_other_queue(frozen: Beating, broker: "FakeBroker") -> None:
    hanging = threading.Event()
    broker.hanging = {"q": hanging}
    frozen.receive(1)
    frozen.receive(1, queue="other")
    for beats in range(1, 4):
        frozen.heartbeat.beat()
        frozen.eventually(lambda beats=beats: len(frozen.emitted(LeasesExtended)) == beats)
    assert {event.queue for event in frozen.events if isinstance(event, LeasesExtended)} == {"other"}
    hanging.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)


def test_claims_are_extended_as_a_set(beating: Beating) -> None:
    batches = [Batch(beating.extender, f"c{number}") for number in range(3)]
    beating.claims = [*batches]
    beating.beat()
    assert [ids for ids, _ in beating.extender.calls] == [["c0", "c1"], ["c2"]]


def test_a_claim_ends_before_the_lease_of_its_message_however_late_it_is_extended(
    frozen: Beating, clock: "FakeClock"
) -> None:
    """Therefore the claim of a dead worker is free when its message is redelivered."""
    frozen.claims = [Batch(frozen.extender, f"c{number}") for number in range(3)]
    frozen.extender.gate = threading.Event()
    began_at = clock.time
    frozen.heartbeat.beat()
    frozen.eventually(frozen.extender.extending.is_set)
    clock.time += 5.0  # the duration of the first call
    frozen.extender.gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)
    (_, first_seconds), (_, second_seconds) = frozen.extender.calls
    assert began_at + first_seconds == clock.time + second_seconds == began_at + LEASE_SECONDS - 1.0


def test_a_failed_beat_is_retried_after_a_second(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    beating.receive(1)
    broker.extend_faults = [TemporaryError("down"), TemporaryError("down")]
    beating.beat()
    assert len(broker.extensions) == 3
    assert skipping_clock.waits == [1.0, 1.0]
    assert [type(event) for event in beating.events] == [HeartbeatFailed, HeartbeatFailed, LeasesExtended]


def test_a_beat_is_abandoned_after_five_tries(beating: Beating, broker: "FakeBroker") -> None:
    beating.receive(1)
    broker.extend_faults = [TemporaryError("down")] * 9
    beating.beat()
    assert len(broker.extensions) == TRIES == 5


def test_a_failed_extension_of_claims_is_retried_and_loses_none(beating: Beating) -> None:
    batch = Batch(beating.extender)
    beating.claims = [batch]
    beating.extender.answers = [TemporaryError("down"), TemporaryError("down")]
    beating.beat()
    assert len(beating.extender.calls) == 3
    assert [event.last for event in beating.events if isinstance(event, HeartbeatFailed)] == [False, False]
    assert not batch.lost


def test_a_beat_starts_no_call_after_its_end(beating: Beating, skipping_clock: "SkippingClock") -> None:
    """A ledger that is slow to fail gets no second try in a beat whose time is over."""

    class Slow(Extender):
        def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
            skipping_clock.time += 6.0
            return super().extend(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    extender = Slow()
    extender.answers = [TemporaryError("down")] * 9
    beating.claims = [Batch(extender)]
    beating.beat()
    assert len(extender.calls) == 2
    assert [event.last for event in beating.events if isinstance(event, HeartbeatFailed)] == [False, True]


def test_claims_that_a_beat_had_no_time_for_come_first_in_the_next(
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
    extended = [id for ids, _ in extender.calls for id in ids]
    assert [extended[:3], extended[3:5]] == [["c0", "c1", "c2"], ["c3", "c4"]]
    assert [extended[5:7], extended[7]] == [["c0", "c1"], "c2"], "then the claims that were extended first"


def test_an_extender_that_is_slow_per_claim_gets_smaller_groups_until_it_responds_in_time(
    beating: Beating, skipping_clock: "SkippingClock"
) -> None:
    beating.heartbeat = beating.make_heartbeat(settle_max=500)

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
    skipping_clock.time += LEASE_SECONDS / 2  # time for more than one beat, in which the extender becomes quick again
    extender.extend = Extender.extend.__get__(extender)  # type: ignore[method-assign] # quick from now on
    for _ in range(2):
        beating.beat()
    assert max(len(ids) for ids, _ in extender.calls) == 500


@pytest.mark.parametrize("failures", [0, 9], ids=["always-slow", "slow-after-failures"])
def test_an_extender_that_is_slow_per_call_keeps_all_claims(
    beating: Beating, skipping_clock: "SkippingClock", failures: int
) -> None:
    beating.heartbeat = beating.make_heartbeat(settle_max=500)

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
    assert len(extender.calls) <= 2 * 4, "it stays at few calls"


def test_a_beat_that_is_due_during_another_follows_it(frozen: Beating, broker: "FakeBroker") -> None:
    frozen.receive(1)
    broker.extend_gate = threading.Event()
    for _ in range(3):
        frozen.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    broker.extend_gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)
    assert broker.extensions == [["m0"], ["m0"]]


def test_no_beat_follows_after_the_end(frozen: Beating, broker: "FakeBroker") -> None:
    frozen.receive(1)
    broker.extend_gate = threading.Event()
    for _ in range(2):
        frozen.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    frozen.heartbeat.end()
    broker.extend_gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)
    assert broker.extensions == [["m0"]]


def test_a_claim_locked_by_another_transaction_is_extended_again_shortly_after(beating: Beating) -> None:
    locked, free = Batch(beating.extender, "locked"), Batch(beating.extender, "free")
    beating.claims = [locked, free]
    beating.extender.answers = [Extension(locked=frozenset({"locked"}))]
    beating.beat()
    assert [ids for ids, _ in beating.extender.calls] == [["locked", "free"], ["locked"]]
    assert [locked.lost, free.lost] == [False, False]


def test_a_lost_claim_is_reported_to_its_batch_only(beating: Beating) -> None:
    lost, held = Batch(beating.extender, "lost"), Batch(beating.extender, "held")
    beating.claims = [lost, held]
    beating.extender.answers = [Extension(lost=frozenset({"lost"}))]
    beating.beat()
    assert (lost.lost, held.lost) == (True, False)


def test_a_claim_that_its_batch_ended_meanwhile_is_not_lost(beating: Beating) -> None:
    batch = Batch(beating.extender)
    batch.ended_before = True
    beating.claims = [batch]
    beating.extender.answers = [Extension(lost=frozenset({"claim"}))]
    beating.beat()
    assert not batch.lost


def test_a_batch_whose_claim_is_suspended_is_lost_even_if_the_ledger_hangs(frozen: Beating) -> None:
    running, suspended = Batch(frozen.extender, "running"), Batch(frozen.extender, "suspended")
    frozen.extender.gate = threading.Event()
    frozen.claims = [running, suspended]
    frozen.heartbeat.beat()
    frozen.eventually(frozen.extender.extending.is_set)
    suspended.suspended = True
    frozen.heartbeat.beat()
    assert suspended.lost
    frozen.extender.gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)


def test_leases_that_are_not_extended_are_reported_before_they_expire(frozen: Beating, clock: "FakeClock") -> None:
    hanging = threading.Event()
    frozen.broker.hanging = {"q": hanging}
    frozen.extender.gate = threading.Event()
    frozen.claims = [Batch(frozen.extender)]
    frozen.receive(2)
    frozen.heartbeat.watch()
    frozen.heartbeat.beat()
    frozen.eventually(frozen.extender.extending.is_set)
    clock.time += 14.0
    frozen.heartbeat.watch()
    assert frozen.emitted(LeasesExpiring) == []
    clock.time += 2.0
    frozen.heartbeat.watch()
    assert frozen.emitted(LeasesExpiring) == [
        LeasesExpiring(queue="q", kind="message leases", count=2, seconds_left=14.0),
        LeasesExpiring(queue="q", kind="claims", count=1, seconds_left=14.0),
    ]
    hanging.set()
    frozen.extender.gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)
    frozen.events.clear()
    frozen.heartbeat.watch()
    assert frozen.emitted(LeasesExpiring) == [LeasesExpiring(queue="q", kind="claims", count=1, seconds_left=13.0)], (
        "the claim's extension counts from the begin of its call"
    )


def test_a_lost_lease_leaves_the_book_and_is_reported(beating: Beating, broker: "FakeBroker") -> None:
    first, second = beating.receive(2)
    broker.steal("m0")
    beating.beat()
    assert beating.events == [
        LeaseLost(queue="q", message_id="m0", attempt=1),
        LeasesExtended(queue="q", message_ids=("m1",)),
    ]
    assert not beating.lease_book.holds(first)
    assert beating.lease_book.holds(second)


def test_a_lease_ends_one_lease_period_after_its_last_extension(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    (only,) = beating.receive(1)
    skipping_clock.time += 20
    beating.beat()
    ends_at = beating.lease_book.unregister([only], wait_seconds=0)
    assert ends_at == {only.receipt: skipping_clock.time + LEASE_SECONDS}


def test_a_beat_without_leases_makes_no_call(beating: Beating, broker: "FakeBroker") -> None:
    beating.beat()
    assert broker.extensions == []


def test_the_pause_between_beats_is_at_most_a_third_of_the_lease(
    beating: Beating, skipping_clock: "SkippingClock"
) -> None:
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

    beating.heartbeat = beating.make_heartbeat(settle_max=2, draw=1.0)
    beating.claims = [Last(beating.extender)]
    beating.heartbeat.run()
    assert skipping_clock.waits[:1] == [pytest.approx(LEASE_SECONDS / 6)]


def test_unregistering_a_delivery_waits_for_its_call_in_flight(frozen: Beating, broker: "FakeBroker") -> None:
    (only,) = frozen.receive(1)
    broker.extend_gate = threading.Event()
    frozen.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    out = threading.Event()

    def take_out() -> None:
        frozen.lease_book.unregister([only], wait_seconds=60)
        broker.journal.append("out")
        out.set()

    threading.Thread(target=take_out, daemon=True).start()
    frozen.eventually(lambda: not frozen.lease_book.holds(only))
    assert not out.is_set()
    broker.extend_gate.set()
    assert out.wait(DEADLINE_SECONDS)
    assert broker.journal == ["extend", "out"]


def test_unregistering_a_delivery_does_not_wait_for_calls_of_others(
    frozen: Beating, broker: "FakeBroker", delivery: Make
) -> None:
    frozen.receive(1)
    broker.extend_gate = threading.Event()
    frozen.heartbeat.beat()
    assert broker.extending.wait(DEADLINE_SECONDS)
    frozen.lease_book.unregister([delivery(99)], wait_seconds=60)  # would wait forever: the clock stands still
    broker.extend_gate.set()
    frozen.eventually(lambda: frozen.heartbeat.idle)


def test_the_end_of_an_extension_call_is_reported(skipping_clock: "SkippingClock", delivery: Make) -> None:
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
