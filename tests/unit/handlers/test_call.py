"""The steps of a call as the worker drives them: claims on keys, timeouts, releases, interruptions."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.claims import claim_named

from penstock import Context, Handlers, Queue
from penstock.errors import Interrupted, TemporaryError
from penstock.events import (
    Bus,
    Event,
    LedgerAvailable,
    LedgerUnavailable,
    MessageFailed,
    MessageFinished,
    MessageInterrupted,
    MessageSkipped,
)
from penstock.handlers.function_handler import FunctionHandler
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.handlers.outage import PAUSE_SECONDS_MIN, OutageWatch
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.handler import HeldClaim
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0


class Keys:
    """Idempotency keys in memory, in place of the ledger. Records the calls that it gets."""

    def __init__(self, answer: KeyBegun | KeyBusy | KeyDone | Exception | None = None) -> None:
        self.answer = answer
        self.calls: list[str] = []
        self.holds_claim = True
        self.previous: PreviousAttempt | None = None
        self.finish_fault: Exception | None = None

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        self.calls.append(f"begin {key}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or KeyBegun(claim=self, previous=self.previous)

    def forget(self) -> None:
        self.calls.append("forget")

    @property
    def held(self) -> HeldClaim:
        return claim_named(lost=not self.holds_claim)

    def finish(self, outcome: str) -> bool:
        if self.finish_fault is not None:
            raise self.finish_fault
        self.calls.append(f"finish {outcome}")
        return self.holds_claim

    def fail(self, reason: str) -> bool:
        self.calls.append(f"fail {reason}")
        return self.holds_claim

    def release(self) -> bool:
        self.calls.append("release")
        return self.holds_claim


def delivery(attempt: int = 1, body: bytes = b"{}", previous: PreviousAttempt | None = None) -> Delivery:
    message = Message(id="m1", body=body, enqueued_at=0.0)
    return Delivery(message=message, queue="q", receipt="r1", attempt=attempt, received_at=0.0, previous=previous)


class HandlerHarness:
    """A handler of one function, and the events that it emitted."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        keys: Keys | None = None,
        outage: OutageWatch | None = None,
        **options: Any,
    ) -> None:
        app = Handlers()
        if keys is not None:
            options.setdefault("idempotency", lambda message: message.body.decode() or "key")
        app.handler("q", **options)(function)
        self.events: list[Event] = []
        self.handler = FunctionHandler(
            app.declarations[0],
            bus=Bus(self.events.append),
            clock=SystemClock(),
            random=lambda: 0.5,
            keys=keys,
            outage=outage,
        )

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def test_an_idempotent_call_is_recorded_before_it_is_acked() -> None:
    keys = Keys()
    harness = HandlerHarness(lambda message: {"n": 1}, keys=keys)
    assert harness.handler.begin([delivery()]).run() == {"r1": Ack()}
    assert keys.calls == ["begin {}", 'finish {"n":1}']
    assert len(harness.events_of(MessageFinished)) == 1


def test_a_duplicate_of_finished_work_is_acked_without_a_call() -> None:
    harness = HandlerHarness(lambda message: pytest.fail("called"), keys=Keys(KeyDone(outcome="1")))
    assert harness.handler.begin([delivery()]).run() == {"r1": Ack()}
    assert [event.reason for event in harness.events_of(MessageSkipped)] == ["already_done"]


def test_a_duplicate_of_running_work_is_released_uncounted_until_the_lease_ends() -> None:
    harness = HandlerHarness(lambda message: pytest.fail("called"), keys=Keys(KeyBusy(seconds=30.0)))
    (settlement,) = harness.handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)
    assert settlement.uncounted
    assert settlement.delay_seconds >= 30.0
    assert [event.reason for event in harness.events_of(MessageSkipped)] == ["in_progress"]


def test_a_failed_call_frees_its_key() -> None:
    keys = Keys()

    def fails(message: Message) -> None:
        raise ValueError("bad day")

    (settlement,) = HandlerHarness(fails, keys=keys).handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)
    assert keys.calls == ["begin {}", "fail ValueError: bad day"]


@pytest.mark.parametrize("fault", ["begin", "finish"])
def test_an_unavailable_ledger_costs_the_message_no_attempt(fault: str) -> None:
    keys = Keys(TemporaryError("the database is unavailable") if fault == "begin" else None)
    keys.finish_fault = TemporaryError("unknown") if fault == "finish" else None
    harness = HandlerHarness(lambda message: None, keys=keys, max_attempts=1)
    (settlement,) = harness.handler.begin([delivery(attempt=1)]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)
    assert settlement.uncounted


def test_a_ledger_outage_is_reported_once_at_its_start_and_once_at_its_end() -> None:
    keys = Keys(TemporaryError("the database is unavailable"))
    harness = HandlerHarness(lambda message: None, keys=keys)
    for _ in range(3):
        (settlement,) = harness.handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
        assert isinstance(settlement, Release)
        assert (settlement.uncounted, settlement.reason) == (True, "the database is unavailable")
        assert settlement.delay_seconds >= PAUSE_SECONDS_MIN / 2
    keys.answer = None
    assert harness.handler.begin([delivery()]).run() == {"r1": Ack()}
    assert harness.events_of(LedgerUnavailable) == [LedgerUnavailable(error="the database is unavailable")]
    assert len(harness.events_of(LedgerAvailable)) == 1


@pytest.mark.parametrize("read", [KeyBusy(seconds=1.0), KeyDone(outcome="1")])
def test_reading_a_key_does_not_prove_that_the_ledger_accepts_claims(read: KeyBusy | KeyDone) -> None:
    """The ledger's disk is full: it answers reads and accepts no claim. Every second key belongs to another worker."""
    keys, clock = Keys(), FakeClock()
    outage = OutageWatch(bus=Bus(), clock=clock, random=lambda: 0.5, ping=lambda: None)
    gate = outage.gate("q")
    harness = HandlerHarness(lambda message: None, keys=keys, outage=outage)
    began = clock.monotonic()
    tries = 0
    while clock.monotonic() - began < 600.0:
        if gate.admits() != 0:
            keys.answer = read if tries % 2 else TemporaryError("the disk is full")
            harness.handler.begin([delivery()]).run()
            tries += 1
        else:
            clock.advance(max(outage._rest_seconds(), 0.1))
            outage.check(lambda: None)
    assert tries < 50, "each try costs a receive"
    keys.answer = None
    harness.handler.begin([delivery()]).run()
    assert gate.admits() is None


def test_work_with_a_lost_claim_is_never_acked() -> None:
    keys = Keys()
    keys.holds_claim = False
    (settlement,) = HandlerHarness(lambda message: None, keys=keys).handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)


def test_a_result_that_cannot_be_serialized_fails_with_that_reason() -> None:
    harness = HandlerHarness(lambda message: object(), keys=Keys(), max_attempts=1)
    (settlement,) = harness.handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, DeadLetter)
    assert "serializ" in settlement.reason


def test_a_key_that_is_not_a_string_fails_with_that_reason() -> None:
    app = Handlers()
    app.handler("q", idempotency=lambda message: 7, max_attempts=1)(lambda message: None)  # type: ignore[arg-type,return-value]
    handler = FunctionHandler(app.declarations[0], bus=Bus(), clock=SystemClock(), random=lambda: 0.5, keys=Keys())
    (settlement,) = handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, DeadLetter)
    assert "idempotency key" in settlement.reason


def test_old_completions_are_forgotten_periodically() -> None:
    app, keys, clock = Handlers(), Keys(), FakeClock()
    app.handler("q", idempotency=str)(lambda message: None)
    handler = FunctionHandler(app.declarations[0], bus=Bus(), clock=clock, random=lambda: 0.5, keys=keys)
    for _ in range(12):
        handler.forget()
        clock.advance(100)
    assert keys.calls == ["forget"] * 2


def test_the_previous_attempt_of_the_ledger_precedes_that_of_the_broker() -> None:
    seen = []
    from_broker = PreviousAttempt(started_at=1, ended_at=2, worker="a", end=AttemptEnd.EXPIRED)
    from_ledger = PreviousAttempt(started_at=3, ended_at=4, worker="b", end=AttemptEnd.FAILED, reason="boom")
    keys = Keys()
    keys.previous = from_ledger

    def record(message: Message, ctx: Context) -> None:
        seen.append(ctx.previous_attempt)

    HandlerHarness(record, keys=keys).handler.begin([delivery(previous=from_broker)]).run()
    HandlerHarness(record).handler.begin([delivery(previous=from_broker)]).run()
    assert seen == [from_ledger, from_broker]


def test_work_that_kills_its_worker_each_time_is_dead_lettered_without_another_call() -> None:
    died = PreviousAttempt(started_at=1, ended_at=2, worker="web-1", end=AttemptEnd.EXPIRED)
    keys = Keys()
    harness = HandlerHarness(lambda message: pytest.fail("called"), keys=keys, max_attempts=3)
    (settlement,) = harness.handler.begin([delivery(attempt=4, previous=died)]).run().values()  # type: ignore[union-attr]
    assert settlement == DeadLetter(reason="3 attempts began and none ended; the last one ended as expired, on web-1")
    once = HandlerHarness(lambda message: pytest.fail("called"), max_attempts=1)
    (settlement,) = once.handler.begin([delivery(attempt=2)]).run().values()  # type: ignore[union-attr]
    assert settlement == DeadLetter(reason="1 attempt began and did not end")
    assert keys.calls[1].startswith("fail Exhausted")
    assert [event.final for event in harness.events_of(MessageFailed)] == [True]
    done = HandlerHarness(lambda message: pytest.fail("called"), keys=Keys(KeyDone(outcome="1")), max_attempts=3)
    assert done.handler.begin([delivery(attempt=4, previous=died)]).run() == {"r1": Ack()}


def test_a_timeout_counts_as_an_attempt_and_its_traceback_shows_where_the_work_hangs() -> None:
    gate, inside = threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        inside.set()
        gate.wait(DEADLINE_SECONDS)

    keys = Keys()
    harness = HandlerHarness(hang, timeout=5, keys=keys, max_attempts=1)
    call = harness.handler.begin([delivery()])
    thread = threading.Thread(target=call.run)
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    (settlement,) = call.time_out().values()
    gate.set()
    thread.join(DEADLINE_SECONDS)
    assert isinstance(settlement, DeadLetter)
    assert "timeout of 5 s" in settlement.reason
    assert "in hang" in (settlement.traceback or "")
    assert keys.calls[1].startswith("fail TimedOut")
    assert next(event.error_type for event in harness.events_of(MessageFailed)) == "TimedOut"


@pytest.mark.parametrize("on_stop", ["finish", "release"])
def test_a_checkpoint_releases_at_a_stop_only_with_on_stop_release(on_stop: str) -> None:
    stop_requested, inside = threading.Event(), threading.Event()

    def works(message: Message, ctx: Context) -> None:
        inside.set()
        assert stop_requested.wait(DEADLINE_SECONDS)
        assert ctx.stopping
        ctx.checkpoint()

    harness = HandlerHarness(works, on_stop=on_stop)
    call = harness.handler.begin([delivery()])
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call.run()))
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    call.drain()
    stop_requested.set()
    thread.join(DEADLINE_SECONDS)
    expected = Ack() if on_stop == "finish" else Release(uncounted=True)
    assert answers == [{"r1": expected}]
    assert len(harness.events_of(MessageInterrupted)) == (on_stop == "release")
    assert harness.events_of(MessageFailed) == []


def test_a_checkpoint_raises_in_an_interrupted_call_without_a_failure() -> None:
    inside, go_on, seen = threading.Event(), threading.Event(), []

    def works(message: Message, ctx: Context) -> None:
        inside.set()
        assert go_on.wait(DEADLINE_SECONDS)
        try:
            ctx.checkpoint()
        except Interrupted:
            seen.append("interrupted")
            raise

    keys = Keys()
    harness = HandlerHarness(works, keys=keys)
    call = harness.handler.begin([delivery()])
    thread = threading.Thread(target=call.run)
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    go_on.set()
    thread.join(DEADLINE_SECONDS)
    assert seen == ["interrupted"]
    assert keys.calls[:2] == ["begin {}", "release"]
    assert harness.events_of(MessageFailed) == []
    assert len(harness.events_of(MessageInterrupted)) == 1


def test_an_async_call_can_be_cancelled_from_another_thread() -> None:
    inside, seen = threading.Event(), []

    async def works(message: Message) -> None:
        inside.set()
        try:
            await asyncio.sleep(DEADLINE_SECONDS)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    harness = HandlerHarness(works)
    call = harness.handler.begin([delivery()])

    def live() -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(call.run())  # type: ignore[arg-type]

    thread = threading.Thread(target=live)
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert seen == ["cancelled"]
    assert harness.events_of(MessageFailed) == []


def test_a_batch_settles_each_message_by_its_own_result() -> None:
    app, events = Handlers(), list[Event]()

    @app.handler(Queue("q", int), batch=10, max_attempts=5)
    def works(items: list[Any]) -> list[BaseException | None]:
        return [None if item.body % 2 else ValueError(f"{item.body} is even") for item in items]

    handler = FunctionHandler(app.declarations[0], bus=Bus(events.append), clock=SystemClock(), random=lambda: 0.5)
    deliveries = [
        Delivery(
            message=Message(id=f"m{n}", body=body, enqueued_at=0.0),
            queue="q",
            receipt=f"r{n}",
            attempt=1,
            received_at=0.0,
        )
        for n, body in enumerate([b"1", b"2", b"no number", b"3"])
    ]
    answer: Any = handler.begin(deliveries).run()
    assert {receipt: type(settlement) for receipt, settlement in answer.items()} == {
        "r0": Ack,
        "r1": Release,
        "r2": DeadLetter,
        "r3": Ack,
    }
    assert [event.message_id for event in events if isinstance(event, MessageFailed)] == ["m1"]
