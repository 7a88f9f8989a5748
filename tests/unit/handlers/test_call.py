"""The steps of a call as the worker drives them: claims on keys, timeouts, giving back, interrupting."""

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
    """Remembers keys as the ledger does, and says what was asked of it."""

    def __init__(self, answer: KeyBegun | KeyBusy | KeyDone | Exception | None = None) -> None:
        self.answer = answer
        self.told: list[str] = []
        self.ours = True  # whether the claim is still ours
        self.previous: PreviousAttempt | None = None
        self.finish_fault: Exception | None = None

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        self.told.append(f"begin {key}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or KeyBegun(claim=self, previous=self.previous)

    def forget(self) -> None:
        self.told.append("forget")

    @property
    def held(self) -> HeldClaim:
        return claim_named(lost=not self.ours)

    def finish(self, outcome: str) -> bool:
        if self.finish_fault is not None:
            raise self.finish_fault
        self.told.append(f"finish {outcome}")
        return self.ours

    def fail(self, reason: str) -> bool:
        self.told.append(f"fail {reason}")
        return self.ours

    def release(self) -> bool:
        self.told.append("give back")
        return self.ours


def delivery(attempt: int = 1, body: bytes = b"{}", previous: PreviousAttempt | None = None) -> Delivery:
    message = Message(id="m1", body=body, enqueued_at=0.0)
    return Delivery(message=message, queue="q", receipt="r1", attempt=attempt, received_at=0.0, previous=previous)


class Desk:
    """A handler of one function, and what it told."""

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

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def test_an_idempotent_call_is_recorded_before_it_is_acked() -> None:
    keys = Keys()
    desk = Desk(lambda message: {"n": 1}, keys=keys)
    assert desk.handler.begin([delivery()]).run() == {"r1": Ack()}
    assert keys.told == ["begin {}", 'finish {"n":1}']
    assert len(desk.told(MessageFinished)) == 1


def test_a_duplicate_of_finished_work_is_acked_and_not_called() -> None:
    desk = Desk(lambda message: pytest.fail("called"), keys=Keys(KeyDone(outcome="1")))
    assert desk.handler.begin([delivery()]).run() == {"r1": Ack()}
    assert [event.reason for event in desk.told(MessageSkipped)] == ["already_done"]


def test_a_duplicate_of_running_work_waits_for_its_lease_uncharged() -> None:
    desk = Desk(lambda message: pytest.fail("called"), keys=Keys(KeyBusy(seconds=30.0)))
    (settlement,) = desk.handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)
    assert settlement.uncounted
    assert settlement.delay_seconds >= 30.0
    assert [event.reason for event in desk.told(MessageSkipped)] == ["in_progress"]


def test_a_failed_call_frees_its_key_first() -> None:
    keys = Keys()

    def fails(message: Message) -> None:
        raise ValueError("bad day")

    (settlement,) = Desk(fails, keys=keys).handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)
    assert keys.told == ["begin {}", "fail ValueError: bad day"]


@pytest.mark.parametrize("fault", ["begin", "finish"])
def test_a_ledger_that_is_away_costs_the_message_nothing(fault: str) -> None:
    keys = Keys(TemporaryError("the database is away") if fault == "begin" else None)
    keys.finish_fault = TemporaryError("unknown") if fault == "finish" else None
    desk = Desk(lambda message: None, keys=keys, max_attempts=1)
    (settlement,) = desk.handler.begin([delivery(attempt=1)]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)
    assert settlement.uncounted


def test_a_ledger_that_takes_no_claims_is_told_once_and_when_it_is_back() -> None:
    keys = Keys(TemporaryError("the database is away"))
    desk = Desk(lambda message: None, keys=keys)
    for _ in range(3):
        (settlement,) = desk.handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
        assert isinstance(settlement, Release)
        assert (settlement.uncounted, settlement.reason) == (True, "the database is away")
        assert settlement.delay_seconds >= PAUSE_SECONDS_MIN / 2
    keys.answer = None
    assert desk.handler.begin([delivery()]).run() == {"r1": Ack()}
    assert desk.told(LedgerUnavailable) == [LedgerUnavailable(error="the database is away")]
    assert len(desk.told(LedgerAvailable)) == 1


@pytest.mark.parametrize("read", [KeyBusy(seconds=1.0), KeyDone(outcome="1")])
def test_a_key_that_was_only_read_does_not_say_that_the_ledger_takes_claims(read: KeyBusy | KeyDone) -> None:
    """Its disk is full: it answers questions and takes no claim. Every other key is another worker's."""
    keys, clock = Keys(), FakeClock()
    outage = OutageWatch(bus=Bus(), clock=clock, random=lambda: 0.5, ping=lambda: None)
    gate = outage.gate("q")
    desk = Desk(lambda message: None, keys=keys, outage=outage)
    began = clock.monotonic()
    tries = 0
    while clock.monotonic() - began < 600.0:
        if gate.admits() != 0:
            keys.answer = read if tries % 2 else TemporaryError("the disk is full")
            desk.handler.begin([delivery()]).run()
            tries += 1
        else:
            clock.advance(max(outage._rest_seconds(), 0.1))
            outage.check(lambda: None)
    assert tries < 50, "each costs a receive"
    keys.answer = None
    desk.handler.begin([delivery()]).run()
    assert gate.admits() is None


def test_work_whose_claim_was_lost_is_never_acked() -> None:
    keys = Keys()
    keys.ours = False
    (settlement,) = Desk(lambda message: None, keys=keys).handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, Release)


def test_a_result_that_is_no_json_is_a_failure_that_says_so() -> None:
    desk = Desk(lambda message: object(), keys=Keys(), max_attempts=1)
    (settlement,) = desk.handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, DeadLetter)
    assert "serializ" in settlement.reason


def test_a_key_that_is_no_text_is_a_failure_that_says_so() -> None:
    app = Handlers()
    app.handler("q", idempotency=lambda message: 7, max_attempts=1)(lambda message: None)  # type: ignore[arg-type,return-value]
    handler = FunctionHandler(app.declarations[0], bus=Bus(), clock=SystemClock(), random=lambda: 0.5, keys=Keys())
    (settlement,) = handler.begin([delivery()]).run().values()  # type: ignore[union-attr]
    assert isinstance(settlement, DeadLetter)
    assert "idempotency key" in settlement.reason


def test_old_completions_are_forgotten_now_and_then() -> None:
    app, keys, clock = Handlers(), Keys(), FakeClock()
    app.handler("q", idempotency=str)(lambda message: None)
    handler = FunctionHandler(app.declarations[0], bus=Bus(), clock=clock, random=lambda: 0.5, keys=keys)
    for _ in range(12):
        handler.forget()
        clock.advance(100)
    assert keys.told == ["forget"] * 2


def test_the_ledgers_memory_of_the_attempt_before_goes_before_the_brokers() -> None:
    seen = []
    broker_says = PreviousAttempt(started_at=1, ended_at=2, worker="a", end=AttemptEnd.EXPIRED)
    ledger_says = PreviousAttempt(started_at=3, ended_at=4, worker="b", end=AttemptEnd.FAILED, reason="boom")
    keys = Keys()
    keys.previous = ledger_says

    def look(message: Message, ctx: Context) -> None:
        seen.append(ctx.previous_attempt)

    Desk(look, keys=keys).handler.begin([delivery(previous=broker_says)]).run()
    Desk(look).handler.begin([delivery(previous=broker_says)]).run()
    assert seen == [ledger_says, broker_says]


def test_work_that_kills_its_worker_each_time_is_given_up_without_another_call() -> None:
    died = PreviousAttempt(started_at=1, ended_at=2, worker="web-1", end=AttemptEnd.EXPIRED)
    keys = Keys()
    desk = Desk(lambda message: pytest.fail("called"), keys=keys, max_attempts=3)
    (settlement,) = desk.handler.begin([delivery(attempt=4, previous=died)]).run().values()  # type: ignore[union-attr]
    assert settlement == DeadLetter(
        reason="3 attempts were begun and none came to an end; the last one ended as expired, on web-1"
    )
    assert keys.told[1].startswith("fail Exhausted")
    assert [event.final for event in desk.told(MessageFailed)] == [True]
    done = Desk(lambda message: pytest.fail("called"), keys=Keys(KeyDone(outcome="1")), max_attempts=3)
    assert done.handler.begin([delivery(attempt=4, previous=died)]).run() == {"r1": Ack()}


def test_a_timeout_is_an_attempt_and_tells_where_the_work_hangs() -> None:
    gate, inside = threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        inside.set()
        gate.wait(DEADLINE_SECONDS)

    keys = Keys()
    desk = Desk(hang, timeout=5, keys=keys, max_attempts=1)
    call = desk.handler.begin([delivery()])
    thread = threading.Thread(target=call.run)
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    (settlement,) = call.time_out().values()
    gate.set()
    thread.join(DEADLINE_SECONDS)
    assert isinstance(settlement, DeadLetter)
    assert "timeout of 5 s" in settlement.reason
    assert "in hang" in (settlement.traceback or "")
    assert keys.told[1].startswith("fail TimedOut")
    assert next(event.error_type for event in desk.told(MessageFailed)) == "TimedOut"


@pytest.mark.parametrize("on_stop", ["finish", "release"])
def test_a_checkpoint_gives_back_at_a_stop_only_where_that_is_wanted(on_stop: str) -> None:
    told_to_stop, inside = threading.Event(), threading.Event()

    def works(message: Message, ctx: Context) -> None:
        inside.set()
        assert told_to_stop.wait(DEADLINE_SECONDS)
        assert ctx.stopping
        ctx.checkpoint()

    desk = Desk(works, on_stop=on_stop)
    call = desk.handler.begin([delivery()])
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call.run()))
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    call.drain()
    told_to_stop.set()
    thread.join(DEADLINE_SECONDS)
    expected = Ack() if on_stop == "finish" else Release(uncounted=True)
    assert answers == [{"r1": expected}]
    assert len(desk.told(MessageInterrupted)) == (on_stop == "release")
    assert desk.told(MessageFailed) == []


def test_an_interrupted_call_sees_it_at_its_checkpoint_and_is_no_failure() -> None:
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
    desk = Desk(works, keys=keys)
    call = desk.handler.begin([delivery()])
    thread = threading.Thread(target=call.run)
    thread.start()
    assert inside.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    go_on.set()
    thread.join(DEADLINE_SECONDS)
    assert seen == ["interrupted"]
    assert keys.told[:2] == ["begin {}", "give back"]
    assert desk.told(MessageFailed) == []
    assert len(desk.told(MessageInterrupted)) == 1


def test_an_async_call_is_cancelled_from_another_thread() -> None:
    inside, seen = threading.Event(), []

    async def works(message: Message) -> None:
        inside.set()
        try:
            await asyncio.sleep(DEADLINE_SECONDS)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    desk = Desk(works)
    call = desk.handler.begin([delivery()])

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
    assert desk.told(MessageFailed) == []


def test_a_batch_settles_each_of_its_messages_by_its_own_answer() -> None:
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
