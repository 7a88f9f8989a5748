"""Ticks: the same for every worker, one message each."""

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Handlers
from penstock.brokers.memory import MemoryBroker
from penstock.events import Bus, Event, TickFailed, TickSent
from penstock.handlers.schedule import Cron, Every
from penstock.handlers.ticker import CATCH_UP_SECONDS, Ticker
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
        if len([event for event in bench.events if isinstance(event, TickSent)]) >= until:
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
        if len([event for event in bench.events if isinstance(event, TickSent)]) >= 9:
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
        if len([event for event in bench.events if isinstance(event, TickFailed)]) >= 2:
            break
        bench.clock.advance(1.0)
        tick.wait(0.002)
    ticker.end()
    thread.join(DEADLINE_SECONDS)
    assert len([event for event in bench.events if isinstance(event, TickFailed)]) >= 2


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


def test_a_fault_of_any_kind_leaves_the_ticker_alive() -> None:
    minutes = Minutes(1_800_000_000)
    minutes.ticker._broker = None  # type: ignore[assignment] # what raises is no error of ours
    minutes.bench.clock.auto_advance = True
    minutes.step()
    (failed,) = minutes.bench.events
    assert isinstance(failed, TickFailed)
    assert failed.error.startswith("AttributeError")
