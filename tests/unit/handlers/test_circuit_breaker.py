"""Calls and their circuit breaker: plain and async functions, batches, timeouts, probes."""

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


class BreakerHarness:
    """A handler that raises the exception set by the test, and its breaker."""

    def __init__(
        self, function: Callable[..., Any] | None = None, *, releases_uncounted: bool = True, **options: Any
    ) -> None:
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
            releases_uncounted=releases_uncounted,
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

    def settle(self, one: Delivery) -> Settlement:
        return self.run(one)[one.receipt]

    def open(self, numbers: Iterable[int] = range(FAILURES)) -> None:
        for number in numbers:
            self.settle(delivery(number))
        assert self.breaker.admits() == 0

    def wait(self) -> None:
        """Advance the clock until a probe may begin."""
        opens_at = self.breaker.opens_at()
        assert opens_at is not None
        self.clock.advance(opens_at - self.clock.monotonic())
        assert self.breaker.admits() == 1

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def test_only_failures_before_the_opening_count_as_attempts() -> None:
    harness = BreakerHarness()
    ends = [harness.settle(delivery(number)) for number in range(FAILURES)]
    assert [end.uncounted for end in ends if isinstance(end, Release)] == [False, False, True]
    assert harness.events_of(BreakerOpened) == [
        BreakerOpened(
            queue="q",
            handler="works",
            fingerprint="works|ConnectionError|handlers/test_circuit_breaker.py:works",
            failures=FAILURES,
            error="ConnectionError: refused",
        )
    ]


def test_a_failed_probe_is_released_uncounted_even_at_its_last_attempt() -> None:
    harness = BreakerHarness()
    harness.open()
    harness.wait()
    probe = harness.settle(delivery(8, attempt=5))
    assert isinstance(probe, Release)
    assert probe.uncounted
    assert probe.reason == "ConnectionError: refused"
    assert probe.delay_seconds > 1.0, "others are tried first"
    assert harness.events_of(MessageFailed)[-1].final is False


def test_a_failure_in_flight_while_the_breaker_opens_is_excused() -> None:
    late = delivery(9, attempt=5)

    def slow(message: Message) -> None:
        if message.id == "m9":
            harness.open()
        raise ConnectionError("refused")

    harness = BreakerHarness(slow)
    end = harness.settle(late)
    assert isinstance(end, Release)
    assert end.uncounted


def test_a_message_begun_before_the_opening_is_released_without_a_call() -> None:
    harness = BreakerHarness()
    begun = harness.handler.begin([delivery(9)])
    harness.open()
    assert begun.run() == {
        "r9-1": Release(uncounted=True, reason="the queue is paused: consecutive messages failed with the same error")
    }
    assert "m9" not in harness.called


def test_a_successful_probe_closes_the_breaker_and_emits_one_event() -> None:
    harness = BreakerHarness()
    harness.open()
    harness.wait()
    harness.fault = None
    assert harness.settle(delivery(9)) == Ack()
    assert harness.breaker.admits() is None
    assert harness.events_of(BreakerClosed) == [
        BreakerClosed(queue="q", handler="works", open_seconds=PAUSE_SECONDS, probes=1)
    ]


def test_a_hung_probe_does_not_keep_the_queue_paused() -> None:
    """Message 9 is still running while message 10 is tried and succeeds."""
    ends: list[Settlement] = []

    def hangs(message: Message) -> None:
        if message.id == "m9":
            assert harness.breaker.admits() == 0
            opens_at = harness.breaker.opens_at()
            assert opens_at is not None
            harness.clock.advance(opens_at - harness.clock.monotonic())
            assert harness.breaker.admits() == 1
            ends.append(harness.settle(delivery(10)))
            assert harness.breaker.admits() is None
        elif message.id != "m10":
            raise ConnectionError("refused")

    harness = BreakerHarness(hangs)
    harness.open()
    harness.wait()
    assert (harness.settle(delivery(9)), ends) == (Ack(), [Ack()])
    assert len(harness.events_of(BreakerClosed)) == 1


@pytest.mark.parametrize("fault", [Reject("no such order"), ValueError("a bug"), Retry("soon", delay_seconds=5)])
def test_a_probe_with_another_failure_closes_the_breaker(fault: Exception) -> None:
    harness = BreakerHarness()
    harness.open()
    harness.wait()
    harness.fault = fault
    end = harness.settle(delivery(9, attempt=5))
    assert isinstance(end, DeadLetter)
    assert harness.breaker.admits() is None


@pytest.mark.parametrize("fault", [Reject("no such order"), Retry("soon", delay_seconds=5)])
def test_a_rejection_or_delayed_retry_never_opens_the_breaker(fault: Exception) -> None:
    harness = BreakerHarness()
    harness.fault = fault
    for number in range(100):
        harness.settle(delivery(number))
    assert harness.breaker.admits() is None


def test_a_retry_without_a_delay_counts() -> None:
    harness = BreakerHarness()
    harness.fault = Retry("the bank is unavailable")
    harness.open()


def test_an_undecodable_message_leaves_the_probe_to_another() -> None:
    from penstock import Queue

    app = Handlers()
    app.handler(Queue("q", int))(lambda body: None)
    harness = BreakerHarness()
    handler = FunctionHandler(
        app.declarations[0], bus=Bus(), clock=harness.clock, random=lambda: 0.5, breaker=harness.breaker
    )
    harness.open()
    harness.wait()
    (end,) = handler.begin([delivery(9)]).run().values()  # type: ignore[union-attr]
    assert isinstance(end, DeadLetter)
    assert harness.breaker.admits() == 1


@pytest.mark.parametrize("how", ["release", "interrupt"])
@pytest.mark.parametrize("batch", [None, 5])
def test_an_abandoned_probe_allows_another(how: str, batch: int | None) -> None:
    harness = BreakerHarness(lambda given: None, batch=batch)
    for number in range(FAILURES):
        harness.breaker.record_failure(_deliveries_of(number), fingerprint="x", error="x")
    harness.wait()
    probe = harness.handler.begin([delivery(9)])
    assert harness.breaker.admits() == 0
    getattr(probe, how)()
    assert harness.breaker.admits() == 1


def test_timeouts_open_the_breaker() -> None:
    harness = BreakerHarness(timeout=1.0)
    for number in range(FAILURES):
        call = harness.handler.begin([delivery(number)])
        assert isinstance(call.open(), tuple)  # type: ignore[attr-defined]
        (end,) = call.time_out().values()
    assert isinstance(end, Release)
    assert end.uncounted
    assert harness.events_of(BreakerOpened)[0].error.startswith("TimedOut")


def test_failures_of_async_functions_open_the_breaker() -> None:
    async def fails(message: Message) -> None:
        raise ConnectionError("refused")

    harness = BreakerHarness(fails)
    harness.open()


def test_a_failed_batch_counts_as_one_failure() -> None:
    def fails(items: list[Any]) -> None:
        raise ConnectionError("refused")

    harness = BreakerHarness(fails, batch=50)
    for start in (0, 100):
        harness.run(*[delivery(start + number) for number in range(50)])
        assert harness.breaker.admits() is None
    ends = harness.run(*[delivery(200 + number, attempt=5) for number in range(50)])
    assert harness.breaker.admits() == 0
    assert all(isinstance(end, Release) and end.uncounted for end in ends.values())


def test_one_poison_message_in_changing_batches_never_opens_the_breaker() -> None:
    """The other messages of the batch change; the poison message is in each of them."""

    def fails(items: list[Any]) -> None:
        raise ConnectionError("refused")

    harness = BreakerHarness(fails, batch=50)
    for start in range(1, 500, 49):
        harness.run(delivery(0), *[delivery(start + number) for number in range(49)])
    assert harness.breaker.admits() is None


def test_partly_failed_batches_never_open_the_breaker() -> None:
    def half(items: list[Any]) -> list[Exception | None]:
        return [ConnectionError("refused") if number % 2 else None for number, _ in enumerate(items)]

    harness = BreakerHarness(half, batch=50)
    for start in range(0, 1_000, 50):
        harness.run(*[delivery(start + number) for number in range(50)])
    assert harness.breaker.admits() is None


def test_a_message_that_was_already_tried_is_passed_over_as_a_probe() -> None:
    harness = BreakerHarness()
    harness.open()
    harness.wait()
    end = harness.settle(delivery(0, attempt=2))
    assert isinstance(end, Release)
    assert end.uncounted
    assert harness.called.count("m0") == 1
    assert harness.breaker.admits() == 1, "another probe is admitted at once"
    harness.settle(delivery(0, attempt=3))
    assert harness.called.count("m0") == 2, "no other message was found"


@pytest.mark.parametrize("releases_uncounted", [True, False])
def test_messages_that_always_fail_are_delayed_behind_the_others(releases_uncounted: bool) -> None:
    harness = BreakerHarness(releases_uncounted=releases_uncounted, max_attempts=50)
    harness.open()
    delays: list[float] = []
    for attempt in range(2, 10):
        harness.wait()
        end = harness.settle(delivery(0, attempt=attempt))
        if harness.breaker.admits() == 1:  # passed over, and no other message is there
            end = harness.settle(delivery(0, attempt=attempt))
        assert isinstance(end, Release)
        delays.append(end.delay_seconds)
    assert delays[-1] > 60 > delays[0], "otherwise it would always be the probe"


def test_without_uncounted_releases_attempts_during_an_outage_dead_letter_nothing() -> None:
    harness = BreakerHarness(releases_uncounted=False)
    harness.open()
    harness.wait()
    assert isinstance(harness.settle(delivery(0, attempt=5)), Release), "its last attempt"
    harness.wait()
    probe = delivery(0, attempt=6)
    assert isinstance(harness.settle(probe), Release), "one attempt more than allowed"
    assert harness.called.count("m0") == 3
    harness.wait()
    harness.fault = None
    assert harness.settle(delivery(9)) == Ack()
    assert harness.settle(delivery(0, attempt=7)) == Ack(), "called, though its attempts are used up"
    harness.clock.advance(10)
    young = delivery(10, attempt=6, enqueued_at=harness.clock.now())
    assert isinstance(harness.settle(young), DeadLetter), "sent after the outage: it used up the attempts itself"


def test_with_uncounted_releases_used_up_attempts_dead_letter_the_message() -> None:
    harness = BreakerHarness()
    harness.open()
    harness.wait()
    assert isinstance(harness.settle(delivery(9, attempt=6)), DeadLetter)
    assert len(harness.events_of(MessageStarted)) == FAILURES
    assert harness.breaker.admits() == 1, "that was not a probe"


def test_without_a_breaker_failures_are_dead_lettered() -> None:
    app = Handlers()

    def fails(message: Message) -> None:
        raise ConnectionError("refused")

    app.handler("q", max_attempts=1)(fails)
    handler = FunctionHandler(app.declarations[0], bus=Bus(), clock=FakeClock(0.0), random=lambda: 0.5)
    ends = [handler.begin([delivery(number)]).run() for number in range(100)]
    assert all(isinstance(end, DeadLetter) for answer in ends for end in answer.values())  # type: ignore[union-attr]


def test_a_negative_number_of_failures_is_refused() -> None:
    with pytest.raises(UsageError, match="breaker_failures=-1"):
        Handlers().handler("q", breaker_failures=-1)(lambda message: None)


def _deliveries_of(number: int) -> Any:
    from penstock.handlers.breaker import ExecutionDeliveries

    return ExecutionDeliveries((delivery(number),))
