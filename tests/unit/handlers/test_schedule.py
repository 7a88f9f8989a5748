"""Ticks: the same for every worker, one message each."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Handlers
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import ConfigurationError, UnknownOutcome
from penstock.events import Bus, Event, ScheduledMessageFailed, ScheduledMessageSent
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.handlers.once import LedgerKeys
from penstock.handlers.schedule import Cron, Every
from penstock.handlers.ticker import CATCH_UP_SECONDS, CLAIM_SECONDS, REMEMBERED_SECONDS, Ticker
from penstock.ledger import Ledger
from penstock.ledger.records import WorkOwner
from penstock.messaging.broker import BrokerCapabilities
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0
EPOCH = st.floats(min_value=1_500_000_000, max_value=2_500_000_000)


@given(now=EPOCH, seconds=st.floats(min_value=1, max_value=86_400))
def test_every_ticks_at_multiples(now: float, seconds: float) -> None:
    every = Every(seconds=seconds)
    assert every.at_or_before(now) <= now < every.after(now) + 1e-3
    assert every.after(now) - every.at_or_before(now) == pytest.approx(seconds, rel=1e-6)


@given(now=EPOCH, expression=st.sampled_from(["*/5 * * * *", "0 3 * * *", "15 10 * * 1", "0 0 1 * *"]))
def test_cron_ticks_lie_around_now_and_none_lies_between(now: float, expression: str) -> None:
    cron = Cron(expression=expression)
    before, after = cron.at_or_before(now), cron.after(now)
    assert before <= now < after
    assert cron.after(before) == after


def test_cron_is_in_utc() -> None:
    noon = datetime(2026, 3, 29, 12, 0, tzinfo=UTC).timestamp()
    assert Cron(expression="30 12 * * *").after(noon) == noon + 1800
    assert Cron(expression="0 12 * * *").at_or_before(noon) == noon


class Bench:
    """Tickers of several workers over one queue."""

    def __init__(self, start: float) -> None:
        self.clock = FakeClock(start)
        self.broker = MemoryBroker(clock=self.clock)
        self.app = Handlers()
        self.app.handler("ticks", name="check", every=600)(lambda message: None)
        self.events: list[Event] = []

    def ticker(self) -> Ticker:
        return Ticker(
            self.app.declarations,
            broker=self.broker,
            clock=self.clock,
            bus=Bus(self.events.append),
            random=lambda: 0.0,
        )

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.broker.browse("ticks", messages_max=100)]


def run_for(ticker: Ticker, bench: Bench, *, until: int) -> None:
    """Let a ticker live until so many ticks were told."""
    thread = threading.Thread(target=ticker.run, daemon=True)
    thread.start()
    tick = threading.Event()
    for _ in range(30_000):
        if len([event for event in bench.events if isinstance(event, ScheduledMessageSent)]) >= until:
            break
        bench.clock.advance(30.0)
        tick.wait(0.002)
    ticker.end()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_several_workers_send_each_tick_once() -> None:
    bench = Bench(1_800_000_000 + 300)
    tickers = [bench.ticker() for _ in range(3)]
    threads = [threading.Thread(target=ticker.run, daemon=True) for ticker in tickers]
    for thread in threads:
        thread.start()
    tick = threading.Event()
    for _ in range(30_000):
        if len([event for event in bench.events if isinstance(event, ScheduledMessageSent)]) >= 9:
            break
        bench.clock.advance(10.0)
        tick.wait(0.01)
    for ticker in tickers:
        ticker.end()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    bodies = bench.bodies()
    assert len(bodies) == len(set(bodies))
    assert len(bodies) >= 3


def test_a_worker_that_starts_shortly_after_a_tick_sends_it_too() -> None:
    late = Bench(1_800_000_000 + CATCH_UP_SECONDS - 1)
    run_for(late.ticker(), late, until=1)
    assert late.bodies()[0] == b'{"scheduled_at":"2027-01-15T08:00:00+00:00"}'


def test_a_tick_that_cannot_be_sent_is_tried_again() -> None:
    bench = Bench(1_800_000_000 - 1)
    bench.broker.close()
    ticker = bench.ticker()
    thread = threading.Thread(target=ticker.run, daemon=True)
    thread.start()
    tick = threading.Event()
    for _ in range(30_000):
        if len([event for event in bench.events if isinstance(event, ScheduledMessageFailed)]) >= 2:
            break
        bench.clock.advance(1.0)
        tick.wait(0.002)
    ticker.end()
    thread.join(DEADLINE_SECONDS)
    assert len([event for event in bench.events if isinstance(event, ScheduledMessageFailed)]) >= 2


class Minutes:
    """A ticker of every ten minutes and a clock that the test sets; stepped by hand, without a thread."""

    def __init__(self, now: float) -> None:
        self.bench = Bench(now)
        self.ticker = self.bench.ticker()
        (self.due,) = [self.ticker._first(one, now) for one in self.bench.app.declarations]

    def step(self) -> None:
        self.due = self.ticker._step(self.due)

    def sleep(self, seconds: float) -> None:
        """The clock jumps, as it does when a machine was suspended or somebody sets it."""
        self.bench.clock._start += seconds


def test_a_machine_that_slept_does_not_send_what_others_sent_long_ago() -> None:
    minutes = Minutes(1_800_000_000 - 1)
    minutes.sleep(5_000)
    minutes.step()
    assert minutes.bench.bodies() == []
    minutes.sleep(minutes.due.at - minutes.bench.clock.now())
    minutes.step()
    assert len(minutes.bench.bodies()) == 1


def test_a_clock_that_is_set_back_silences_no_schedule() -> None:
    minutes = Minutes(1_800_000_000 + 300)
    minutes.sleep(-86_400)
    minutes.step()
    assert minutes.due.at - minutes.bench.clock.now() <= 600


class Forgetful(MemoryBroker):
    """Drops no duplicates, as SQS."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, deduplicates=False)

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        return super().send(queue, [replace(message, deduplication_id=None) for message in messages])


class Fleet:
    """Tickers of several workers over a broker that drops no duplicates, and one ledger; stepped by hand."""

    def __init__(self, now: float, *, workers: int = 3) -> None:
        self.bench = Bench(now)
        self.bench.clock.auto_advance = True
        self.bench.broker = Forgetful(clock=self.bench.clock)
        self.ledger = Ledger.open("sqlite://", now=self.bench.clock.now)
        self.tickers = [self.ticker(f"w-{number}") for number in range(workers)]
        self.dues = [ticker._first(self.bench.app.declarations[0], now) for ticker in self.tickers]

    def ticker(self, worker: str) -> Ticker:
        return Ticker(
            self.bench.app.declarations,
            broker=self.bench.broker,
            clock=self.bench.clock,
            bus=Bus(self.bench.events.append),
            random=lambda: 0.0,
            keys=lambda declaration: self.keys(worker),
        )

    def keys(self, worker: str) -> LedgerKeys:
        return LedgerKeys(
            ledger=self.ledger,
            handler="check",
            worker=worker,
            lease_seconds=CLAIM_SECONDS,
            retention_seconds=REMEMBERED_SECONDS,
            owner=WorkOwner(app="app", queue="ticks", purpose="tick"),
        )

    def step(self) -> None:
        self.dues = [ticker._step(due) for ticker, due in zip(self.tickers, self.dues, strict=True)]


def test_where_the_broker_drops_no_duplicates_the_ledger_lets_one_worker_send_each_tick() -> None:
    fleet = Fleet(1_800_000_000)
    for _ in range(3):
        fleet.step()
        fleet.bench.clock.advance(600.0)
    bodies = fleet.bench.bodies()
    assert len(bodies) == len(set(bodies)) == 3
    assert len([event for event in fleet.bench.events if isinstance(event, ScheduledMessageSent)]) == 3


def test_a_tick_whose_worker_died_before_it_was_sent_is_sent_by_another() -> None:
    fleet = Fleet(1_800_000_000)
    assert isinstance(fleet.keys("dead").begin("1800000000"), KeyBegun)
    fleet.step()
    assert fleet.bench.bodies() == [], "another worker may be sending it right now"
    fleet.bench.clock.advance(CLAIM_SECONDS + 1)
    fleet.step()
    assert len(fleet.bench.bodies()) == 1


def test_a_tick_that_the_broker_refuses_is_free_at_once() -> None:
    fleet = Fleet(1_800_000_000, workers=1)
    working = fleet.bench.broker
    fleet.tickers[0]._broker = closed = Forgetful(clock=fleet.bench.clock)
    closed.close()
    fleet.step()
    fleet.tickers[0]._broker = working
    fleet.step()
    assert len(fleet.bench.bodies()) == 1


class Unanswered(Forgetful):
    """Takes a message, and its answer is lost."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        super().send(queue, messages)
        raise UnknownOutcome("whether it took the messages is not known")


def test_a_tick_whose_send_brought_no_answer_is_not_sent_again() -> None:
    fleet = Fleet(1_800_000_000)
    fleet.bench.broker = Unanswered(clock=fleet.bench.clock)
    for ticker in fleet.tickers:
        ticker._broker = fleet.bench.broker
    for _ in range(3):
        fleet.step()
        fleet.bench.clock.advance(CLAIM_SECONDS)
    assert len(fleet.bench.bodies()) == 1
    (failed,) = fleet.bench.events
    assert isinstance(failed, ScheduledMessageFailed)
    assert failed.error == "whether it took the messages is not known; it is not sent again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halting:
    """Keys of a worker that is halted right after a claim, until another worker has sent the tick."""

    keys: LedgerKeys
    meanwhile: Callable[[], None]

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        begun = self.keys.begin(key)
        self.meanwhile()
        return begun

    def forget(self) -> None:
        self.keys.forget()


def test_a_worker_that_lost_its_claim_before_the_send_sends_nothing() -> None:
    fleet = Fleet(1_800_000_000, workers=2)
    halted, other = fleet.tickers
    due, due_of_other = fleet.dues

    def halt() -> None:
        fleet.bench.clock.advance(CLAIM_SECONDS + 1)
        other._step(due_of_other)

    halted._step(replace(due, keys=Halting(keys=fleet.keys("halted"), meanwhile=halt)))
    assert len(fleet.bench.bodies()) == 1
    assert [type(event) for event in fleet.bench.events] == [ScheduledMessageSent, ScheduledMessageFailed]


def test_ticks_on_record_are_forgotten() -> None:
    fleet = Fleet(1_800_000_000, workers=1)
    fleet.step()
    fleet.bench.clock.advance(REMEMBERED_SECONDS + 1_000)
    fleet.tickers[0]._forget(fleet.dues)
    assert fleet.ledger.works() == []


def test_without_a_ledger_a_broker_that_drops_no_duplicates_is_refused() -> None:
    bench = Bench(0.0)
    bench.broker = Forgetful(clock=bench.clock)
    with pytest.raises(ConfigurationError, match="The handler check is scheduled, and its broker drops no duplicates"):
        bench.ticker()


def test_ticks_go_by_the_brokers_clock() -> None:
    """A worker that is six minutes ahead would send each tick before the broker remembers it for the others."""
    bench = Bench(1_800_000_000)
    ahead = FakeClock(1_800_000_000 + 360)
    ticker = Ticker(
        bench.app.declarations, broker=bench.broker, clock=ahead, bus=Bus(bench.events.append), random=lambda: 0.0
    )
    due = ticker._first(bench.app.declarations[0], ahead.now())
    ahead.advance(300.0)  # by its own clock the tick of 600 is due
    bench.clock.advance(300.0)
    due = ticker._step(due)
    assert bench.bodies() == []
    assert due.at == 1_800_000_000 + 600
    bench.clock.advance(300.0)
    ticker._step(due)
    assert len(bench.bodies()) == 1


def test_a_fault_of_any_kind_leaves_the_ticker_alive() -> None:
    minutes = Minutes(1_800_000_000)
    minutes.ticker._broker = None  # type: ignore[assignment] # what raises is no error of ours
    minutes.bench.clock.auto_advance = True
    minutes.step()
    (failed,) = minutes.bench.events
    assert isinstance(failed, ScheduledMessageFailed)
    assert failed.error.startswith("AttributeError")
