"""Races between a running call and a thread that ends it: one of them decides, and nothing is done twice."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.claims import claim_named, extended

from penstock import Handlers, Item, Queue, Retry
from penstock.errors import TemporaryError, UsageError
from penstock.events import Bus, Event, MessageFailed, MessageFinished, MessageInterrupted, MessageStarted
from penstock.handlers.function_handler import FunctionHandler
from penstock.handlers.keys import KeyBegun
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import HeldClaim
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release

DEADLINE_SECONDS = 60.0


class Claim:
    """A claim that behaves as the test sets it up and records the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.state = "open"
        self.at_finish: Callable[[], object] = lambda: None  # called while the record is being written
        self.unavailable = False

    @property
    def held(self) -> HeldClaim:
        return claim_named(lost=self.state != "open")

    def finish(self, outcome: str) -> bool:
        self.calls.append(f"finish {outcome}")
        return self._ends("done", self.at_finish)

    def fail(self, reason: str) -> bool:
        self.calls.append("fail")
        return self._ends("free", self.at_finish)

    def release(self) -> bool:
        self.calls.append("release")
        return self._ends("free", lambda: None)

    def _ends(self, state: str, meanwhile: Callable[[], object]) -> bool:
        if self.unavailable:
            raise TemporaryError("the database is unavailable")
        if self.state != "open":
            return False
        self.state = state
        meanwhile()
        return True


class Keys:
    """Grant one claim, once the test opens the gate."""

    def __init__(self) -> None:
        self.claim = Claim()
        self.claim_requested, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def begin(self, key: str) -> KeyBegun:
        self.claim_requested.set()
        assert self.gate.wait(DEADLINE_SECONDS)
        return KeyBegun(claim=self.claim, previous=None)

    def forget(self) -> None:
        pass


class HandlerHarness:
    """A handler of one function, and the events that it emitted."""

    def __init__(self, function: Callable[..., Any], *, keys: Keys | None = None, **options: Any) -> None:
        app = Handlers()
        if keys is not None:
            options["idempotency"] = lambda message: "key"
        app.handler("q", **{"timeout": 5, **options})(function)
        self.events: list[Event] = []
        self.handler = FunctionHandler(
            app.declarations[0], bus=Bus(self.events.append), clock=SystemClock(), random=lambda: 0.5, keys=keys
        )

    def begin(self, count: int = 1) -> Any:
        return self.handler.begin([delivery(number) for number in range(count)])

    def event_names(self, *kinds: type[Event]) -> list[str]:
        return [type(event).__name__ for event in self.events if isinstance(event, kinds)]


END_EVENTS = (MessageFinished, MessageFailed, MessageInterrupted)


def delivery(number: int = 0) -> Delivery:
    message = Message(id=f"m{number}", body=b"{}", enqueued_at=0.0)
    return Delivery(message=message, queue="q", receipt=f"r{number}", attempt=1, received_at=0.0)


def in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def join(thread: threading.Thread) -> None:
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("end", ["release", "time_out"])
def test_a_claim_granted_after_the_end_is_released_without_a_call(end: str) -> None:
    keys, called = Keys(), list[object]()
    keys.gate.clear()
    call = HandlerHarness(called.append, keys=keys).begin()
    thread = in_thread(call.run)
    assert keys.claim_requested.wait(DEADLINE_SECONDS)
    getattr(call, end)()
    call.interrupt()
    keys.gate.set()
    join(thread)
    assert called == []
    assert keys.claim.calls == ["release"]


@pytest.mark.parametrize("end", ["release", "time_out"])
@pytest.mark.parametrize("batch", [None, 5])
def test_an_async_call_ended_before_the_loop_runs_it_is_not_made(end: str, batch: int | None) -> None:
    called: list[object] = []

    async def works(given: object) -> None:
        called.append(given)

    harness = HandlerHarness(works, batch=batch)
    call = harness.begin()
    getattr(call, end)()
    call.interrupt()
    asyncio.run(call.run())
    assert called == []
    assert harness.event_names(MessageStarted) == []


@pytest.mark.parametrize("end", ["release", "time_out"])
@pytest.mark.parametrize("fails", [True, False])
def test_the_result_of_a_function_whose_call_was_ended_emits_no_event(end: str, fails: bool) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def works(message: Message) -> None:
        inside.set()
        assert go_on.wait(DEADLINE_SECONDS)
        if fails:
            raise ValueError("late")

    harness = HandlerHarness(works)
    call = harness.begin()
    thread = in_thread(call.run)
    assert inside.wait(DEADLINE_SECONDS)
    getattr(call, end)()
    call.interrupt()
    go_on.set()
    join(thread)
    assert harness.event_names(*END_EVENTS) == (["MessageInterrupted"] if end == "release" else ["MessageFailed"])


def test_late_work_is_recorded_if_its_claim_could_not_be_freed() -> None:
    keys = Keys()
    keys.claim.unavailable = True

    def works(message: Message) -> None:
        call.time_out()
        keys.claim.unavailable = False

    harness = HandlerHarness(works, keys=keys)
    call = harness.begin()
    call.run()
    assert keys.claim.calls == ["fail", "finish null"]
    assert keys.claim.state == "done"


@pytest.mark.parametrize("batch", [None, 5])
def test_a_timeout_after_the_end_returns_the_settlements_of_the_run(batch: int | None) -> None:
    harness = HandlerHarness(lambda given: None, batch=batch)
    call = harness.begin()
    assert call.run() == {"r0": Ack()}
    assert call.time_out() == {"r0": Ack()}
    assert harness.event_names(*END_EVENTS) == ["MessageFinished"]


def test_a_timeout_while_the_end_is_being_recorded_costs_no_attempt() -> None:
    keys = Keys()
    answers: list[Any] = []
    harness = HandlerHarness(lambda message: None, keys=keys)
    call = harness.begin()
    keys.claim.at_finish = lambda: answers.append(call.time_out())
    assert call.run() == {"r0": Ack()}
    (settlement,) = answers[0].values()
    assert isinstance(settlement, Release)
    assert settlement.uncounted
    assert harness.event_names(*END_EVENTS) == ["MessageFinished"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_heartbeat_during_the_end_of_a_claim_does_not_report_it_lost(fails: bool) -> None:
    keys, held = Keys(), list[bool]()

    def works(message: Message) -> None:
        if fails:
            raise ValueError("no")

    call = HandlerHarness(works, keys=keys).begin()
    keys.claim.at_finish = lambda: held.append(extended(call))
    call.run()
    assert held == [True]


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(float("nan"), 0.5), ("soon", 0.5), ([], 0.5), (-3, 0.0), ("5 s", 5.0), (timedelta(seconds=7), 7.0), (2, 2.0)],
)
def test_a_retry_with_an_invalid_delay_waits_as_the_policy_says(delay: Any, seconds: float) -> None:
    def works(message: Message) -> None:
        raise Retry("later", delay_seconds=delay)

    (settlement,) = HandlerHarness(works).begin().run().values()
    assert settlement == Release(delay_seconds=seconds, reason="Retry: later")


def test_a_retry_subclass_without_a_delay_is_a_retry() -> None:
    class Later(Retry):
        def __init__(self) -> None:
            pass

    def works(message: Message) -> None:
        raise Later

    (settlement,) = HandlerHarness(works).begin().run().values()
    assert isinstance(settlement, Release)


def test_a_returned_coroutine_or_generator_is_never_acked() -> None:
    async def really(message: Message) -> None:
        pytest.fail("the coroutine was awaited")

    async def forgot_to_await(message: Message) -> Any:
        return really(message)

    (settlement,) = HandlerHarness(lambda message: really(message), max_attempts=1).begin().run().values()
    assert isinstance(settlement, DeadLetter)
    assert "returned a coroutine" in settlement.reason
    (settlement,) = asyncio.run(HandlerHarness(forgot_to_await, max_attempts=1).begin().run()).values()
    assert isinstance(settlement, DeadLetter)
    (settlement,) = HandlerHarness(lambda message: (n for n in [1]), max_attempts=1).begin().run().values()
    assert isinstance(settlement, DeadLetter)


def test_a_generator_function_is_refused_as_a_handler() -> None:
    def works(message: Message) -> Any:
        yield message

    with pytest.raises(UsageError, match="is a generator function"):
        HandlerHarness(works)


def test_a_batch_that_times_out_during_decoding_settles_each_message() -> None:
    app, events, called = Handlers(), list[Event](), list[object]()
    app.handler(Queue("q", int), batch=3, timeout=5)(called.append)
    handler = FunctionHandler(
        app.declarations[0],
        bus=Bus(events.append, lambda event: answers.append(call.time_out()) if starts(event) else None),
        clock=SystemClock(),
        random=lambda: 0.5,
    )
    answers: list[Any] = []

    def starts(event: Event) -> bool:
        return isinstance(event, MessageStarted) and event.message_id == "m1"

    bodies = [b"1", b"2", b"3"]
    call: Any = handler.begin(
        [
            Delivery(
                message=Message(id=f"m{n}", body=body, enqueued_at=0.0),
                queue="q",
                receipt=f"r{n}",
                attempt=1,
                received_at=0.0,
            )
            for n, body in enumerate(bodies)
        ]
    )
    call.run()
    assert {receipt: type(settlement) for receipt, settlement in answers[0].items()} == {
        "r0": Release,
        "r1": Release,
        "r2": Release,
    }
    assert called == []


def test_a_released_batch_emits_one_event_for_each_message() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def works(items: list[Item[Message]]) -> None:
        inside.set()
        assert go_on.wait(DEADLINE_SECONDS)

    harness = HandlerHarness(works, batch=3)
    call = harness.begin(3)
    thread = in_thread(call.run)
    assert inside.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    go_on.set()
    join(thread)
    assert harness.event_names(*END_EVENTS) == ["MessageInterrupted"] * 3


def test_a_stop_does_not_free_a_key_whose_completion_is_being_recorded() -> None:
    """With the key freed, the work of a function that already returned would be done twice."""
    keys, recording, go_on = Keys(), threading.Event(), threading.Event()

    def record_slowly() -> None:
        recording.set()
        assert go_on.wait(DEADLINE_SECONDS)

    keys.claim.at_finish = record_slowly
    call = HandlerHarness(lambda message: None, keys=keys).begin()
    thread = in_thread(call.run)
    assert recording.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    go_on.set()
    join(thread)
    assert keys.claim.calls == ["finish null"]
    assert keys.claim.state == "done"


def test_a_cancelled_async_call_still_records_that_its_function_returned() -> None:
    keys, recording, go_on = Keys(), threading.Event(), threading.Event()

    def record_slowly() -> None:
        recording.set()
        assert go_on.wait(DEADLINE_SECONDS)

    keys.claim.at_finish = record_slowly

    async def takes(message: Message) -> None:
        pass

    async def scenario() -> None:
        call = HandlerHarness(takes, keys=keys).begin()
        running = asyncio.ensure_future(call.run())
        assert await asyncio.to_thread(recording.wait, DEADLINE_SECONDS)
        call.release()
        call.interrupt()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    go_on.set()
    assert keys.claim.calls == ["finish null"]
