"""Ticks of scheduled handlers: the same for every worker, one message each."""

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
def test_cron_ticks_before_and_after_now_are_adjacent(now: float, expression: str) -> None:
    cron = Cron(expression=expression)
    before, after = cron.at_or_before(now), cron.after(now)
    assert before <= now < after
    assert cron.after(before) == after


def test_cron_uses_utc() -> None:
    noon = datetime(2026, 3, 29, 12, 0, tzinfo=UTC).timestamp()
    assert Cron(expression="30 12 * * *").after(noon) == noon + 1800
    assert Cron(expression="0 12 * * *").at_or_before(noon) == noon


class TickerSetup:
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


def run_for(ticker: Ticker, setup: TickerSetup, *, until: int) -> None:
    """Run a ticker until `until` ticks were sent."""
    thread = threading.Thread(target=ticker.run, daemon=True)
    thread.start()
    tick = threading.Event()
    for _ in range(30_000):
        if len([event for event in setup.events if isinstance(event, ScheduledMessageSent)]) >= until:
            break
        setup.clock.advance(30.0)
        tick.wait(0.002)
    ticker.end()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_several_workers_send_each_tick_once() -> None:
    setup = TickerSetup(1_800_000_000 + 300)
    tickers = [setup.ticker() for _ in range(3)]
    threads = [threading.Thread(target=ticker.run, daemon=True) for ticker in tickers]
    for thread in threads:
        thread.start()
    tick = threading.Event()
    for _ in range(30_000):
        if len([event for event in setup.events if isinstance(event, ScheduledMessageSent)]) >= 9:
            break
        setup.clock.advance(10.0)
        tick.wait(0.01)
    for ticker in tickers:
        ticker.end()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    bodies = setup.bodies()
    assert len(bodies) == len(set(bodies))
    assert len(bodies) >= 3


def test_a_worker_that_starts_shortly_after_a_tick_sends_it() -> None:
    setup = TickerSetup(1_800_000_000 + CATCH_UP_SECONDS - 1)
    run_for(setup.ticker(), setup, until=1)
    assert setup.bodies()[0] == b'{"scheduled_at":"2027-01-15T08:00:00+00:00"}'


def test_a_tick_that_cannot_be_sent_is_tried_again() -> None:
    setup = TickerSetup(1_800_000_000 - 1)
    setup.broker.close()
    ticker = setup.ticker()
    thread = threading.Thread(target=ticker.run, daemon=True)
    thread.start()
    tick = threading.Event()
    for _ in range(30_000):
        if len([event for event in setup.events if isinstance(event, ScheduledMessageFailed)]) >= 2:
            break
        setup.clock.advance(1.0)
        tick.wait(0.002)
    ticker.end()
    thread.join(DEADLINE_SECONDS)
    assert len([event for event in setup.events if isinstance(event, ScheduledMessageFailed)]) >= 2


class SteppedTicker:
    """A ticker of every ten minutes and a clock that the test sets, stepped by hand, without a thread."""

    def __init__(self, now: float) -> None:
        self.setup = TickerSetup(now)
        self.ticker = self.setup.ticker()
        (self.due,) = [self.ticker._first(one, now) for one in self.setup.app.declarations]

    def step(self) -> None:
        self.due = self.ticker._step(self.due)

    def jump(self, seconds: float) -> None:
        """Move the clock, as happens when a machine was suspended or its clock is set."""
        self.setup.clock._start += seconds


def test_a_machine_that_was_suspended_sends_no_old_ticks() -> None:
    stepped = SteppedTicker(1_800_000_000 - 1)
    stepped.jump(5_000)
    stepped.step()
    assert stepped.setup.bodies() == []
    stepped.jump(stepped.due.at - stepped.setup.clock.now())
    stepped.step()
    assert len(stepped.setup.bodies()) == 1


def test_a_clock_set_back_delays_no_tick_beyond_one_interval() -> None:
    stepped = SteppedTicker(1_800_000_000 + 300)
    stepped.jump(-86_400)
    stepped.step()
    assert stepped.due.at - stepped.setup.clock.now() <= 600


class NonDeduplicatingBroker(MemoryBroker):
    """A broker that drops no duplicates, like SQS."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, deduplicates=False)

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        return super().send(queue, [replace(message, deduplication_id=None) for message in messages])


class Fleet:
    """Tickers of several workers over a broker that drops no duplicates, and one ledger; stepped by hand."""

    def __init__(self, now: float, *, workers: int = 3) -> None:
        self.setup = TickerSetup(now)
        self.setup.clock.auto_advance = True
        self.setup.broker = NonDeduplicatingBroker(clock=self.setup.clock)
        self.ledger = Ledger.open("sqlite://", now=self.setup.clock.now)
        self.tickers = [self.ticker(f"w-{number}") for number in range(workers)]
        self.dues = [ticker._first(self.setup.app.declarations[0], now) for ticker in self.tickers]

    def ticker(self, worker: str) -> Ticker:
        return Ticker(
            self.setup.app.declarations,
            broker=self.setup.broker,
            clock=self.setup.clock,
            bus=Bus(self.setup.events.append),
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


def test_without_deduplication_in_the_broker_the_ledger_lets_one_worker_send_each_tick() -> None:
    fleet = Fleet(1_800_000_000)
    for _ in range(3):
        fleet.step()
        fleet.setup.clock.advance(600.0)
    bodies = fleet.setup.bodies()
    assert len(bodies) == len(set(bodies)) == 3
    assert len([event for event in fleet.setup.events if isinstance(event, ScheduledMessageSent)]) == 3


def test_a_tick_whose_worker_died_before_sending_it_is_sent_by_another() -> None:
    fleet = Fleet(1_800_000_000)
    assert isinstance(fleet.keys("dead").begin("1800000000"), KeyBegun)
    fleet.step()
    assert fleet.setup.bodies() == [], "another worker may be sending it right now"
    fleet.setup.clock.advance(CLAIM_SECONDS + 1)
    fleet.step()
    assert len(fleet.setup.bodies()) == 1


def test_a_tick_that_the_broker_refuses_can_be_claimed_again_at_once() -> None:
    fleet = Fleet(1_800_000_000, workers=1)
    working = fleet.setup.broker
    fleet.tickers[0]._broker = closed = NonDeduplicatingBroker(clock=fleet.setup.clock)
    closed.close()
    fleet.step()
    fleet.tickers[0]._broker = working
    fleet.step()
    assert len(fleet.setup.bodies()) == 1


class LostAnswerBroker(NonDeduplicatingBroker):
    """A broker that accepts messages and whose responses are lost."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        super().send(queue, messages)
        raise UnknownOutcome("whether it accepted the messages is not known")


def test_a_tick_whose_send_has_an_unknown_outcome_is_not_sent_again() -> None:
    fleet = Fleet(1_800_000_000)
    fleet.setup.broker = LostAnswerBroker(clock=fleet.setup.clock)
    for ticker in fleet.tickers:
        ticker._broker = fleet.setup.broker
    for _ in range(3):
        fleet.step()
        fleet.setup.clock.advance(CLAIM_SECONDS)
    assert len(fleet.setup.bodies()) == 1
    (failed,) = fleet.setup.events
    assert isinstance(failed, ScheduledMessageFailed)
    assert failed.error == "whether it accepted the messages is not known; it is not sent again"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltedKeys:
    """Keys of a worker that is halted right after a claim, until another worker has sent the tick."""

    keys: LedgerKeys
    meanwhile: Callable[[], None]

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        begun = self.keys.begin(key)
        self.meanwhile()
        return begun

    def forget(self) -> None:
        self.keys.forget()


def test_a_worker_that_loses_its_claim_before_the_send_sends_nothing() -> None:
    fleet = Fleet(1_800_000_000, workers=2)
    halted, other = fleet.tickers
    due, due_of_other = fleet.dues

    def halt() -> None:
        fleet.setup.clock.advance(CLAIM_SECONDS + 1)
        other._step(due_of_other)

    halted._step(replace(due, keys=HaltedKeys(keys=fleet.keys("halted"), meanwhile=halt)))
    assert len(fleet.setup.bodies()) == 1
    assert [type(event) for event in fleet.setup.events] == [ScheduledMessageSent, ScheduledMessageFailed]


def test_recorded_ticks_are_forgotten() -> None:
    fleet = Fleet(1_800_000_000, workers=1)
    fleet.step()
    fleet.setup.clock.advance(REMEMBERED_SECONDS + 1_000)
    fleet.tickers[0]._forget(fleet.dues)
    assert fleet.ledger.works() == []


def test_without_a_ledger_a_broker_that_drops_no_duplicates_is_refused() -> None:
    setup = TickerSetup(0.0)
    setup.broker = NonDeduplicatingBroker(clock=setup.clock)
    with pytest.raises(ConfigurationError, match="The handler check is scheduled, and its broker drops no duplicates"):
        setup.ticker()


def test_ticks_follow_the_brokers_clock() -> None:
    """Sent six minutes early, a tick would be outside the deduplication window when the others send it."""
    setup = TickerSetup(1_800_000_000)
    ahead = FakeClock(1_800_000_000 + 360)
    ticker = Ticker(
        setup.app.declarations, broker=setup.broker, clock=ahead, bus=Bus(setup.events.append), random=lambda: 0.0
    )
    due = ticker._first(setup.app.declarations[0], ahead.now())
    ahead.advance(300.0)  # by its own clock the tick of 600 is due
    setup.clock.advance(300.0)
    due = ticker._step(due)
    assert setup.bodies() == []
    assert due.at == 1_800_000_000 + 600
    setup.clock.advance(300.0)
    ticker._step(due)
    assert len(setup.bodies()) == 1


def test_an_unexpected_exception_does_not_end_the_ticker() -> None:
    stepped = SteppedTicker(1_800_000_000)
    stepped.ticker._broker = None  # type: ignore[assignment] # raises an AttributeError
    stepped.setup.clock.auto_advance = True
    stepped.step()
    (failed,) = stepped.setup.events
    assert isinstance(failed, ScheduledMessageFailed)
    assert failed.error.startswith("AttributeError")
