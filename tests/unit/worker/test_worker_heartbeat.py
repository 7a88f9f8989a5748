"""The book of leases, and the loop that keeps them."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.errors import TemporaryError
from penstock.events import Bus, Event, HeartbeatFailed, LeaseLost, LeasesExtended
from penstock.messaging.delivery import Delivery
from penstock.worker.heartbeat import TRIES, Book, Claimed, Heartbeat
from penstock.worker.pulse import Sign
from penstock.worker.settings import WorkerSettings

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import FakeBroker, FakeClock, SkippingClock

Make = Callable[..., Delivery]
LEASE_SECONDS = 30.0


class Claim:
    queue = "q"

    def __init__(self, broker: "FakeBroker", *answers: bool | Exception) -> None:
        self.broker = broker
        self.answers = list(answers) or [True]
        self.lost = False

    def extend(self) -> bool:
        self.broker.journal.append("claim")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lose(self) -> None:
        self.lost = True


class Beating:
    def __init__(self, broker: "FakeBroker", clock: "FakeClock") -> None:
        self.events: list[Event] = []
        self.claims: list[Claimed] = []
        self.book = Book(clock=clock, lease_seconds=LEASE_SECONDS)
        self.broker = broker
        self.sign = Sign("penstock-heartbeat", clock)
        self.heartbeat = Heartbeat(
            broker=broker,
            book=self.book,
            claims=lambda: self.claims,
            settings=WorkerSettings(lease_seconds=LEASE_SECONDS, settle_max=2),
            clock=clock,
            bus=Bus(self.events.append),
            random=lambda: 0.0,
            sign=self.sign,
        )

    def receive(self, count: int) -> list[Delivery]:
        self.broker.put(*range(count))
        deliveries = list(self.broker.receive("q", messages_max=count, lease_seconds=LEASE_SECONDS))
        self.book.register(deliveries)
        return deliveries


@pytest.fixture
def beating(broker: "FakeBroker", skipping_clock: "SkippingClock") -> Beating:
    return Beating(broker, skipping_clock)


def test_claims_are_extended_before_the_leases(beating: Beating, broker: "FakeBroker") -> None:
    beating.claims = [Claim(broker)]
    beating.receive(3)
    beating.heartbeat.beat()
    assert broker.journal == ["claim", "extend", "extend"]


def test_leases_are_extended_in_groups(beating: Beating, broker: "FakeBroker") -> None:
    beating.receive(5)
    beating.heartbeat.beat()
    assert broker.extensions == [["m0", "m1"], ["m2", "m3"], ["m4"]]


def test_a_beat_that_fails_is_tried_again_a_second_later(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    beating.receive(1)
    broker.extend_faults = [TemporaryError("away"), TemporaryError("away")]
    beating.heartbeat.beat()
    assert len(broker.extensions) == 3
    assert skipping_clock.waits == [1.0, 1.0]
    assert [type(event) for event in beating.events] == [HeartbeatFailed, HeartbeatFailed, LeasesExtended]


def test_it_gives_up_a_beat_after_five_tries(beating: Beating, broker: "FakeBroker") -> None:
    beating.receive(1)
    broker.extend_faults = [TemporaryError("away")] * 9
    beating.heartbeat.beat()
    assert len(broker.extensions) == TRIES == 5


def test_a_claim_that_cannot_be_reached_does_not_hold_up_the_leases(beating: Beating, broker: "FakeBroker") -> None:
    claim = Claim(broker, TemporaryError("away"), True)
    beating.claims = [claim]
    beating.receive(1)
    beating.heartbeat.beat()
    assert broker.journal == ["claim", "extend", "claim"]
    assert not claim.lost


def test_a_ledger_that_is_slow_to_fail_does_not_hold_up_the_leases_for_every_claim(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    """Each claim takes its timeout to fail, and the lease of every queue waits behind them."""
    away = TemporaryError("away")

    class SlowClaim(Claim):
        def extend(self) -> bool:
            skipping_clock.time += 5.0
            return super().extend()

    claims = [SlowClaim(broker, away, away, True) for _ in range(20)]
    beating.claims = list(claims)
    beating.receive(1)
    beating.heartbeat.beat()
    assert broker.journal[:2] == ["claim", "extend"]
    assert not any(claim.lost for claim in claims)
    assert len({id(claim) for claim in claims if len(claim.answers) < 3}) == TRIES  # each round tries another one


def test_a_lost_claim_is_told_to_its_batch(beating: Beating, broker: "FakeBroker") -> None:
    claim = Claim(broker, False)
    beating.claims = [claim]
    beating.heartbeat.beat()
    assert claim.lost


def test_a_lost_lease_leaves_the_book_and_is_told(beating: Beating, broker: "FakeBroker") -> None:
    first, second = beating.receive(2)
    broker.steal("m0")
    beating.heartbeat.beat()
    assert beating.events == [
        LeaseLost(queue="q", message_id="m0", attempt=1),
        LeasesExtended(queue="q", message_ids=("m1",)),
    ]
    assert not beating.book.holds(first)
    assert beating.book.holds(second)


def test_a_lease_ends_that_long_after_its_last_extension(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    (only,) = beating.receive(1)
    skipping_clock.time += 20
    beating.heartbeat.beat()
    ends_at = beating.book.unregister([only], wait_seconds=0)
    assert ends_at == {only.receipt: skipping_clock.time + LEASE_SECONDS}


def test_nothing_held_means_no_call(beating: Beating, broker: "FakeBroker") -> None:
    beating.heartbeat.beat()
    assert broker.extensions == []


def test_the_pause_is_never_longer_than_a_third_of_the_lease(
    beating: Beating, broker: "FakeBroker", skipping_clock: "SkippingClock"
) -> None:
    claim = Claim(broker)
    beating.claims = [claim]
    claim.lose = beating.heartbeat.end  # type: ignore[method-assign] # ends the loop after its first beat
    claim.answers = [False]
    beating.heartbeat.run()
    assert skipping_clock.waits[0] == pytest.approx(8.0)
    assert all(wait <= LEASE_SECONDS / 3 for wait in skipping_clock.waits)


def test_taking_a_delivery_out_awaits_the_call_in_flight_for_it(
    broker: "FakeBroker", clock: "FakeClock", eventually: Callable[..., None]
) -> None:
    beating = Beating(broker, clock)
    (only,) = beating.receive(1)
    broker.extend_gate = threading.Event()
    beat = threading.Thread(target=beating.heartbeat.beat, daemon=True)
    beat.start()
    assert broker.extending.wait(DEADLINE_SECONDS)
    out = threading.Event()

    def take_out() -> None:
        beating.book.unregister([only], wait_seconds=60)
        broker.journal.append("out")
        out.set()

    threading.Thread(target=take_out, daemon=True).start()
    eventually(lambda: not beating.book.holds(only))
    assert not out.is_set()
    broker.extend_gate.set()
    assert out.wait(DEADLINE_SECONDS)
    assert broker.journal == ["extend", "out"]


def test_it_does_not_await_a_call_for_others(
    broker: "FakeBroker", clock: "FakeClock", delivery: Make, eventually: Callable[..., None]
) -> None:
    beating = Beating(broker, clock)
    beating.receive(1)
    broker.extend_gate = threading.Event()
    beat = threading.Thread(target=beating.heartbeat.beat, daemon=True)
    beat.start()
    assert broker.extending.wait(DEADLINE_SECONDS)
    beating.book.unregister([delivery(99)], wait_seconds=60)  # would wait for ever: the clock stands still
    broker.extend_gate.set()
    beat.join(DEADLINE_SECONDS)
    assert not beat.is_alive()
