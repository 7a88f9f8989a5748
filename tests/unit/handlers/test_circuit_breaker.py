"""What calls tell their breaker and what it makes of their failures: plain and async, batches, timeouts, probes."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from penstock import Handlers, Reject, Retry
from penstock.errors import UsageError
from penstock.events import BreakerClosed, BreakerOpened, Bus, Event, MessageFailed, MessageStarted
from penstock.handlers.breaker import BreakerPolicy, CircuitBreaker
from penstock.handlers.function_handler import FunctionHandler
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.testing import FakeClock

FAILURES = 3
PAUSE_SECONDS = 0.5  # the first, with the random number of these tests


def delivery(number: int, attempt: int = 1, *, enqueued_at: float = 0.0) -> Delivery:
    message = Message(id=f"m{number}", body=b"{}", enqueued_at=enqueued_at)
    return Delivery(message=message, queue="q", receipt=f"r{number}-{attempt}", attempt=attempt, received_at=0.0)


class Desk:
    """A handler that fails as the test says, and its breaker."""

    def __init__(self, function: Callable[..., Any] | None = None, *, refunds: bool = True, **options: Any) -> None:
        app = Handlers()
        app.handler("q", **{"max_attempts": 5, **options})(function or self.works)
        self.fault: BaseException | None = ConnectionError("refused")
        self.called: list[str] = []
        self.events: list[Event] = []
        self.clock = FakeClock(1_000.0)
        bus = Bus(self.events.append)
        self.breaker = CircuitBreaker(
            BreakerPolicy(failures=FAILURES),
            queue="q",
            handler="works",
            bus=bus,
            clock=self.clock,
            random=lambda: 0.5,
            releases_uncounted=refunds,
        )
        self.handler = FunctionHandler(
            app.declarations[0], bus=bus, clock=self.clock, random=lambda: 0.5, breaker=self.breaker
        )

    def works(self, message: Message) -> None:
        self.called.append(message.id)
        if self.fault is not None:
            raise self.fault

    def run(self, *deliveries: Delivery) -> Mapping[str, Settlement]:
        answer = self.handler.begin(deliveries).run()
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer  # type: ignore[return-value]

    def end_of(self, one: Delivery) -> Settlement:
        return self.run(one)[one.receipt]

    def open(self, numbers: Iterable[int] = range(FAILURES)) -> None:
        for number in numbers:
            self.end_of(delivery(number))
        assert self.breaker.admits() == 0

    def wait(self) -> None:
        """Until a probe may begin."""
        opens_at = self.breaker.opens_at()
        assert opens_at is not None
        self.clock.advance(opens_at - self.clock.monotonic())
        assert self.breaker.admits() == 1

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def test_those_before_it_opens_lose_an_attempt_and_those_after_none() -> None:
    desk = Desk()
    ends = [desk.end_of(delivery(number)) for number in range(FAILURES)]
    assert [end.uncounted for end in ends if isinstance(end, Release)] == [False, False, True]
    assert desk.told(BreakerOpened) == [
        BreakerOpened(
            queue="q",
            handler="works",
            fingerprint="works|ConnectionError|handlers/test_circuit_breaker.py:works",
            failures=FAILURES,
            error="ConnectionError: refused",
        )
    ]


def test_nobody_dies_of_what_opened_it_whatever_attempt_it_was() -> None:
    desk = Desk()
    desk.open()
    desk.wait()
    probe = desk.end_of(delivery(8, attempt=5))
    assert isinstance(probe, Release)
    assert probe.uncounted
    assert probe.reason == "ConnectionError: refused"
    assert probe.delay_seconds > 1.0, "others are tried first"
    assert desk.told(MessageFailed)[-1].final is False


def test_what_fails_in_flight_while_it_is_open_is_excused() -> None:
    late = delivery(9, attempt=5)

    def slow(message: Message) -> None:
        if message.id == "m9":
            desk.open()
        raise ConnectionError("refused")

    desk = Desk(slow)
    end = desk.end_of(late)
    assert isinstance(end, Release)
    assert end.uncounted


def test_what_began_and_was_not_called_when_it_opened_goes_back_uncalled() -> None:
    desk = Desk()
    begun = desk.handler.begin([delivery(9)])
    desk.open()
    assert begun.run() == {
        "r9-1": Release(
            uncounted=True, reason="the queue is paused, since message after message failed in the same way"
        )
    }
    assert "m9" not in desk.called


def test_a_success_of_the_probe_closes_it_and_is_told_once() -> None:
    desk = Desk()
    desk.open()
    desk.wait()
    desk.fault = None
    assert desk.end_of(delivery(9)) == Ack()
    assert desk.breaker.admits() is None
    assert desk.told(BreakerClosed) == [BreakerClosed(queue="q", handler="works", open_seconds=PAUSE_SECONDS, probes=1)]


def test_a_probe_that_hangs_does_not_keep_the_queue_shut() -> None:
    """Message 9 has no end yet while message 10 is tried, which works."""
    ends: list[Settlement] = []

    def hangs(message: Message) -> None:
        if message.id == "m9":
            assert desk.breaker.admits() == 0
            opens_at = desk.breaker.opens_at()
            assert opens_at is not None
            desk.clock.advance(opens_at - desk.clock.monotonic())
            assert desk.breaker.admits() == 1
            ends.append(desk.end_of(delivery(10)))
            assert desk.breaker.admits() is None
        elif message.id != "m10":
            raise ConnectionError("refused")

    desk = Desk(hangs)
    desk.open()
    desk.wait()
    assert (desk.end_of(delivery(9)), ends) == (Ack(), [Ack()])
    assert len(desk.told(BreakerClosed)) == 1


@pytest.mark.parametrize("fault", [Reject("no such order"), ValueError("a bug"), Retry("soon", delay_seconds=5)])
def test_a_probe_with_a_failure_of_its_own_closes_it(fault: Exception) -> None:
    desk = Desk()
    desk.open()
    desk.wait()
    desk.fault = fault
    end = desk.end_of(delivery(9, attempt=5))
    assert isinstance(end, DeadLetter)
    assert desk.breaker.admits() is None


@pytest.mark.parametrize("fault", [Reject("no such order"), Retry("soon", delay_seconds=5)])
def test_a_word_about_the_message_alone_never_opens_it(fault: Exception) -> None:
    desk = Desk()
    desk.fault = fault
    for number in range(100):
        desk.end_of(delivery(number))
    assert desk.breaker.admits() is None


def test_a_retry_that_names_no_delay_counts() -> None:
    desk = Desk()
    desk.fault = Retry("the bank is away")
    desk.open()


def test_a_message_nobody_can_read_leaves_the_probe_to_another() -> None:
    from penstock import Queue

    app = Handlers()
    app.handler(Queue("q", int))(lambda body: None)
    desk = Desk()
    handler = FunctionHandler(
        app.declarations[0], bus=Bus(), clock=desk.clock, random=lambda: 0.5, breaker=desk.breaker
    )
    desk.open()
    desk.wait()
    (end,) = handler.begin([delivery(9)]).run().values()  # type: ignore[union-attr]
    assert isinstance(end, DeadLetter)
    assert desk.breaker.admits() == 1


@pytest.mark.parametrize("how", ["release", "interrupt"])
@pytest.mark.parametrize("batch", [None, 5])
def test_a_probe_that_is_broken_off_leaves_its_place_to_another(how: str, batch: int | None) -> None:
    desk = Desk(lambda given: None, batch=batch)
    for number in range(FAILURES):
        desk.breaker.record_failure(_party(number), fingerprint="x", error="x")
    desk.wait()
    probe = desk.handler.begin([delivery(9)])
    assert desk.breaker.admits() == 0
    getattr(probe, how)()
    assert desk.breaker.admits() == 1


def test_timeouts_open_it() -> None:
    desk = Desk(timeout=1.0)
    for number in range(FAILURES):
        call = desk.handler.begin([delivery(number)])
        assert isinstance(call.open(), tuple)  # type: ignore[attr-defined]
        (end,) = call.time_out().values()
    assert isinstance(end, Release)
    assert end.uncounted
    assert desk.told(BreakerOpened)[0].error.startswith("TimedOut")


def test_async_functions_are_covered() -> None:
    async def fails(message: Message) -> None:
        raise ConnectionError("refused")

    desk = Desk(fails)
    desk.open()


def test_a_batch_is_one_failure_whatever_it_holds() -> None:
    def fails(items: list[Any]) -> None:
        raise ConnectionError("refused")

    desk = Desk(fails, batch=50)
    for start in (0, 100):
        desk.run(*[delivery(start + number) for number in range(50)])
        assert desk.breaker.admits() is None
    ends = desk.run(*[delivery(200 + number, attempt=5) for number in range(50)])
    assert desk.breaker.admits() == 0
    assert all(isinstance(end, Release) and end.uncounted for end in ends.values())


def test_a_batch_with_one_poisonous_message_never_opens_it() -> None:
    """Whoever is with it changes; it is always there itself."""

    def fails(items: list[Any]) -> None:
        raise ConnectionError("refused")

    desk = Desk(fails, batch=50)
    for start in range(1, 500, 49):
        desk.run(delivery(0), *[delivery(start + number) for number in range(49)])
    assert desk.breaker.admits() is None


def test_a_batch_of_which_some_succeed_counts_as_one_failure_at_most() -> None:
    def half(items: list[Any]) -> list[Exception | None]:
        return [ConnectionError("refused") if number % 2 else None for number, _ in enumerate(items)]

    desk = Desk(half, batch=50)
    for start in range(0, 1_000, 50):
        desk.run(*[delivery(start + number) for number in range(50)])
    assert desk.breaker.admits() is None


def test_a_probe_that_was_tried_is_passed_over_for_another() -> None:
    desk = Desk()
    desk.open()
    desk.wait()
    end = desk.end_of(delivery(0, attempt=2))
    assert isinstance(end, Release)
    assert end.uncounted
    assert desk.called.count("m0") == 1
    assert desk.breaker.admits() == 1, "at once"
    desk.end_of(delivery(0, attempt=3))
    assert desk.called.count("m0") == 2, "there is no other, it seems"


@pytest.mark.parametrize("refunds", [True, False])
def test_messages_that_always_fail_make_way_for_those_behind_them(refunds: bool) -> None:
    desk = Desk(refunds=refunds, max_attempts=50)
    desk.open()
    away: list[float] = []
    for attempt in range(2, 10):
        desk.wait()
        end = desk.end_of(delivery(0, attempt=attempt))
        if desk.breaker.admits() == 1:  # passed over: it was tried, and there is no other
            end = desk.end_of(delivery(0, attempt=attempt))
        assert isinstance(end, Release)
        away.append(end.delay_seconds)
    assert away[-1] > 60 > away[0], "it would be the probe for ever"


def test_where_nothing_can_be_given_back_the_attempts_of_an_outage_do_not_kill() -> None:
    desk = Desk(refunds=False)
    desk.open()
    desk.wait()
    assert isinstance(desk.end_of(delivery(0, attempt=5)), Release), "its last one, so to speak"
    desk.wait()
    probe = delivery(0, attempt=6)
    assert isinstance(desk.end_of(probe), Release), "and one beyond"
    assert desk.called.count("m0") == 3
    desk.wait()
    desk.fault = None
    assert desk.end_of(delivery(9)) == Ack()
    assert desk.end_of(delivery(0, attempt=7)) == Ack(), "called, though its attempts are used up"
    desk.clock.advance(10)
    young = delivery(10, attempt=6, enqueued_at=desk.clock.now())
    assert isinstance(desk.end_of(young), DeadLetter), "sent after the outage: it used them up itself"


def test_where_attempts_are_given_back_used_up_ones_kill_as_ever() -> None:
    desk = Desk()
    desk.open()
    desk.wait()
    assert isinstance(desk.end_of(delivery(9, attempt=6)), DeadLetter)
    assert len(desk.told(MessageStarted)) == FAILURES
    assert desk.breaker.admits() == 1, "that was no probe"


def test_a_breaker_that_is_off_lets_them_die() -> None:
    app = Handlers()

    def fails(message: Message) -> None:
        raise ConnectionError("refused")

    app.handler("q", max_attempts=1)(fails)
    handler = FunctionHandler(app.declarations[0], bus=Bus(), clock=FakeClock(0.0), random=lambda: 0.5)
    ends = [handler.begin([delivery(number)]).run() for number in range(100)]
    assert all(isinstance(end, DeadLetter) for answer in ends for end in answer.values())  # type: ignore[union-attr]


def test_a_number_below_none_is_refused() -> None:
    with pytest.raises(UsageError, match="breaker_failures=-1"):
        Handlers().handler("q", breaker_failures=-1)(lambda message: None)


def _party(number: int) -> Any:
    from penstock.handlers.breaker import ExecutionDeliveries

    return ExecutionDeliveries((delivery(number),))
