"""A run and a thread that ends it from outside: one of them decides, and nothing is done twice."""

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
    """A claim that does what the test says, and remembers what was asked of it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.state = "open"
        self.at_finish: Callable[[], object] = lambda: None  # while the record is on its way
        self.away = False

    @property
    def held(self) -> HeldClaim:
        return claim_named(lost=self.state != "open")

    def finish(self, outcome: str) -> bool:
        self.told.append(f"finish {outcome}")
        return self._ends("done", self.at_finish)

    def fail(self, reason: str) -> bool:
        self.told.append("fail")
        return self._ends("free", self.at_finish)

    def release(self) -> bool:
        self.told.append("give back")
        return self._ends("free", lambda: None)

    def _ends(self, state: str, meanwhile: Callable[[], object]) -> bool:
        if self.away:
            raise TemporaryError("the database is away")
        if self.state != "open":
            return False
        self.state = state
        meanwhile()
        return True


class Keys:
    """Hands out one claim, once the test lets it."""

    def __init__(self) -> None:
        self.claim = Claim()
        self.asked, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def begin(self, key: str) -> KeyBegun:
        self.asked.set()
        assert self.gate.wait(DEADLINE_SECONDS)
        return KeyBegun(claim=self.claim, previous=None)

    def forget(self) -> None:
        pass


class Desk:
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

    def told(self, *kinds: type[Event]) -> list[str]:
        return [type(event).__name__ for event in self.events if isinstance(event, kinds)]


ENDS = (MessageFinished, MessageFailed, MessageInterrupted)


def delivery(number: int = 0) -> Delivery:
    message = Message(id=f"m{number}", body=b"{}", enqueued_at=0.0)
    return Delivery(message=message, queue="q", receipt=f"r{number}", attempt=1, received_at=0.0)


def in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("end", ["release", "time_out"])
def test_a_claim_that_comes_after_the_end_is_given_back_and_the_function_not_called(end: str) -> None:
    keys, called = Keys(), list[object]()
    keys.gate.clear()
    call = Desk(called.append, keys=keys).begin()
    thread = in_thread(call.run)
    assert keys.asked.wait(DEADLINE_SECONDS)
    getattr(call, end)()
    call.interrupt()
    keys.gate.set()
    ended(thread)
    assert called == []
    assert keys.claim.told == ["give back"]


@pytest.mark.parametrize("end", ["release", "time_out"])
@pytest.mark.parametrize("batch", [None, 5])
def test_an_async_call_that_was_ended_before_the_loop_came_to_it_is_not_made(end: str, batch: int | None) -> None:
    called: list[object] = []

    async def works(given: object) -> None:
        called.append(given)

    desk = Desk(works, batch=batch)
    call = desk.begin()
    getattr(call, end)()
    call.interrupt()
    asyncio.run(call.run())
    assert called == []
    assert desk.told(MessageStarted) == []


@pytest.mark.parametrize("end", ["release", "time_out"])
@pytest.mark.parametrize("fails", [True, False])
def test_what_a_function_comes_to_after_its_call_was_ended_is_not_told(end: str, fails: bool) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def works(message: Message) -> None:
        inside.set()
        assert go_on.wait(DEADLINE_SECONDS)
        if fails:
            raise ValueError("late")

    desk = Desk(works)
    call = desk.begin()
    thread = in_thread(call.run)
    assert inside.wait(DEADLINE_SECONDS)
    getattr(call, end)()
    call.interrupt()
    go_on.set()
    ended(thread)
    assert desk.told(*ENDS) == (["MessageInterrupted"] if end == "release" else ["MessageFailed"])


def test_late_work_is_recorded_where_its_claim_could_not_be_freed() -> None:
    keys = Keys()
    keys.claim.away = True

    def works(message: Message) -> None:
        call.time_out()
        keys.claim.away = False

    desk = Desk(works, keys=keys)
    call = desk.begin()
    call.run()
    assert keys.claim.told == ["fail", "finish null"]
    assert keys.claim.state == "done"


@pytest.mark.parametrize("batch", [None, 5])
def test_a_timeout_that_comes_after_the_end_answers_what_the_run_answered(batch: int | None) -> None:
    desk = Desk(lambda given: None, batch=batch)
    call = desk.begin()
    assert call.run() == {"r0": Ack()}
    assert call.time_out() == {"r0": Ack()}
    assert desk.told(*ENDS) == ["MessageFinished"]


def test_a_timeout_while_the_end_is_being_recorded_costs_no_attempt() -> None:
    keys = Keys()
    answers: list[Any] = []
    desk = Desk(lambda message: None, keys=keys)
    call = desk.begin()
    keys.claim.at_finish = lambda: answers.append(call.time_out())
    assert call.run() == {"r0": Ack()}
    (settlement,) = answers[0].values()
    assert isinstance(settlement, Release)
    assert settlement.uncounted
    assert desk.told(*ENDS) == ["MessageFinished"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_heartbeat_that_meets_the_end_of_a_claim_does_not_take_it_for_lost(fails: bool) -> None:
    keys, held = Keys(), list[bool]()

    def works(message: Message) -> None:
        if fails:
            raise ValueError("no")

    call = Desk(works, keys=keys).begin()
    keys.claim.at_finish = lambda: held.append(extended(call))
    call.run()
    assert held == [True]


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(float("nan"), 0.5), ("soon", 0.5), ([], 0.5), (-3, 0.0), ("5 s", 5.0), (timedelta(seconds=7), 7.0), (2, 2.0)],
)
def test_a_retry_with_a_delay_that_makes_no_sense_waits_as_the_policy_says(asked: Any, seconds: float) -> None:
    def works(message: Message) -> None:
        raise Retry("later", delay_seconds=asked)

    (settlement,) = Desk(works).begin().run().values()
    assert settlement == Release(delay_seconds=seconds, reason="Retry: later")


def test_a_retry_of_the_users_own_that_forgot_its_delay_is_a_retry() -> None:
    class Later(Retry):
        def __init__(self) -> None:
            pass

    def works(message: Message) -> None:
        raise Later

    (settlement,) = Desk(works).begin().run().values()
    assert isinstance(settlement, Release)


def test_work_that_was_only_made_and_not_done_is_never_acked() -> None:
    async def really(message: Message) -> None:
        pytest.fail("nobody awaits this")

    async def forgot_to_await(message: Message) -> Any:
        return really(message)

    (settlement,) = Desk(lambda message: really(message), max_attempts=1).begin().run().values()
    assert isinstance(settlement, DeadLetter)
    assert "returned a coroutine" in settlement.reason
    (settlement,) = asyncio.run(Desk(forgot_to_await, max_attempts=1).begin().run()).values()
    assert isinstance(settlement, DeadLetter)
    (settlement,) = Desk(lambda message: (n for n in [1]), max_attempts=1).begin().run().values()
    assert isinstance(settlement, DeadLetter)


def test_a_generator_function_is_no_handler() -> None:
    def works(message: Message) -> Any:
        yield message

    with pytest.raises(UsageError, match="has a yield in it"):
        Desk(works)


def test_a_batch_that_times_out_while_it_is_opened_settles_each_of_its_messages() -> None:
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


def test_a_batch_given_back_is_told_of_each_message_once() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def works(items: list[Item[Message]]) -> None:
        inside.set()
        assert go_on.wait(DEADLINE_SECONDS)

    desk = Desk(works, batch=3)
    call = desk.begin(3)
    thread = in_thread(call.run)
    assert inside.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    go_on.set()
    ended(thread)
    assert desk.told(*ENDS) == ["MessageInterrupted"] * 3


def test_a_stop_leaves_the_key_to_a_completion_that_is_on_its_way() -> None:
    """Freed, the key would have the work of a function that returned done twice."""
    keys, recording, go_on = Keys(), threading.Event(), threading.Event()

    def record_slowly() -> None:
        recording.set()
        assert go_on.wait(DEADLINE_SECONDS)

    keys.claim.at_finish = record_slowly
    call = Desk(lambda message: None, keys=keys).begin()
    thread = in_thread(call.run)
    assert recording.wait(DEADLINE_SECONDS)
    call.release()
    call.interrupt()
    go_on.set()
    ended(thread)
    assert keys.claim.told == ["finish null"]
    assert keys.claim.state == "done"


def test_a_cancelled_async_call_still_records_that_its_function_returned() -> None:
    keys, recording, go_on = Keys(), threading.Event(), threading.Event()

    def record_slowly() -> None:
        recording.set()
        assert go_on.wait(DEADLINE_SECONDS)

    keys.claim.at_finish = record_slowly

    async def takes(message: Message) -> None:
        pass

    async def story() -> None:
        call = Desk(takes, keys=keys).begin()
        running = asyncio.ensure_future(call.run())
        while not recording.is_set():
            await asyncio.sleep(0.001)
        call.release()
        call.interrupt()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
    go_on.set()
    assert keys.claim.told == ["finish null"]
