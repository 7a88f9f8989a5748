"""Functions in processes of their own: they can be killed, they can die, and nothing else is touched."""

import os
import re
import signal
import threading
import time
from typing import Any

import pytest

from penstock import Context, Handlers, Queue, Reject, Retry
from penstock.errors import ConfigurationError
from penstock.events import Bus, Event, MessageFailed, MessageGivenBack
from penstock.handlers.child_call import ChildCall
from penstock.handlers.function_handler import FunctionHandler
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release

DEADLINE_SECONDS = 30.0
BOMB = re.compile(r"(a+)+$")


def work(body: dict[str, Any], ctx: Context) -> Any:
    match body["do"]:
        case "pid":
            return os.getpid()
        case "reject":
            raise Reject("no good")
        case "retry":
            raise Retry("later", delay_seconds=7.0)
        case "fail":
            raise ValueError(f"attempt {ctx.attempt}")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "bomb":
            return bool(BOMB.match("a" * 60 + "b"))
    return None


@pytest.fixture
def desk() -> Any:
    made = Desk()
    yield made
    made.handler.close()


class Desk:
    def __init__(self) -> None:
        app = Handlers()
        app.handler(Queue[Any]("q", dict), isolation="process", timeout=5, max_attempts=3)(work)
        self.events: list[Event] = []
        self.handler = FunctionHandler(
            app.declarations[0], bus=Bus(self.events.append), clock=SystemClock(), random=lambda: 0.5
        )

    def begin(self, do: str, attempt: int = 1) -> ChildCall:
        message = Message(id="m1", body=f'{{"do": "{do}"}}'.encode(), enqueued_at=0.0)
        call = self.handler.begin([Delivery(message=message, queue="q", receipt="r", attempt=attempt, received_at=0.0)])
        assert isinstance(call, ChildCall)
        return call


def test_a_child_runs_the_function_and_is_used_again(desk: Desk) -> None:
    assert desk.begin("pid").run() == {"r": Ack()}
    (child,) = desk.handler._children._idle  # type: ignore[union-attr]
    assert desk.begin("pid").run() == {"r": Ack()}
    assert desk.handler._children._idle == [child]  # type: ignore[union-attr]
    assert child._process.pid != os.getpid()


@pytest.mark.parametrize(
    ("do", "settlement"),
    [
        ("reject", DeadLetter(reason="no good")),
        ("retry", Release(delay_seconds=7.0, reason="Retry: later")),
    ],
)
def test_what_the_function_raises_means_the_same_as_here(desk: Desk, do: str, settlement: object) -> None:
    assert desk.begin(do).run() == {"r": settlement}


def test_the_dead_letter_names_the_childs_exception_and_traceback(desk: Desk) -> None:
    settlement = desk.begin("fail", attempt=3).run()["r"]
    assert isinstance(settlement, DeadLetter)
    assert settlement.exception == "ValueError: attempt 3"
    assert "in work" in (settlement.traceback or "")


def test_a_child_that_dies_costs_its_message_an_attempt_and_nothing_else(desk: Desk) -> None:
    settlement = desk.begin("die").run()["r"]
    assert isinstance(settlement, Release)
    assert "killed by signal 9" in (settlement.reason or "")
    assert desk.begin("pid").run() == {"r": Ack()}


def test_row_63_a_regex_bomb_is_killed_at_its_timeout_and_counted(desk: Desk) -> None:
    call = desk.begin("bomb")
    thread = threading.Thread(target=call.run)
    thread.start()
    child = child_of(call)
    assert call.extend()
    settlement = call.time_out()["r"]
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert not child.alive
    assert isinstance(settlement, Release)
    assert not settlement.refund
    assert [event.error_type for event in desk.events if isinstance(event, MessageFailed)] == ["TimedOut"]


def test_a_halted_child_loses_its_lease(desk: Desk) -> None:
    call = desk.begin("bomb")
    thread = threading.Thread(target=call.run)
    thread.start()
    child = child_of(call)
    pid = child._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not call.extend())
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_a_call_given_back_is_killed_and_is_no_failure(desk: Desk) -> None:
    call = desk.begin("bomb")
    thread = threading.Thread(target=call.run)
    thread.start()
    child_of(call)
    call.give_back()
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    kinds = [type(event) for event in desk.events]
    assert MessageGivenBack in kinds
    assert MessageFailed not in kinds


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    app = Handlers()
    app.handler("q", isolation="process")(lambda message: None)
    with pytest.raises(ConfigurationError, match="top of a module"):
        FunctionHandler(app.declarations[0], bus=Bus(), clock=SystemClock(), random=lambda: 0.5)


def child_of(call: ChildCall) -> Any:
    """The child, once the call is in it."""
    wait_for(lambda: call._child is not None and call._child.busy)
    return call._child


def wait_for(condition: Any) -> None:
    ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < ends_at
        tick.wait(0.005)
