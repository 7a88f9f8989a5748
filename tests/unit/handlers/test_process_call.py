"""Functions in child processes, which can be killed or die without affecting anything else."""

import json
import multiprocessing
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.claims import extended

from penstock import Context, Handlers, Queue, Reject, Retry
from penstock.errors import ConfigurationError
from penstock.events import Bus, Event, MessageFailed, MessageInterrupted, MessageRetrying
from penstock.handlers.function_handler import FunctionHandler
from penstock.handlers.process_call import ChildCall, ChildDied, SentCall
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release

DEADLINE_SECONDS = 60.0
LONG = 8 << 20  # more than fits into a pipe at once
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
        case "fork and return much":
            fork_sleeper(body["pids"])
            return "x" * LONG
        case do:
            return work_with_others(do, body, ctx)
    return None


def work_with_others(do: str, body: dict[str, Any], ctx: Context) -> Any:
    match do:
        case "fork and hang":
            fork_sleeper(body["pids"])
            threading.Event().wait(DEADLINE_SECONDS)
        case "fork and die":
            fork_sleeper(body["pids"])
            os.kill(os.getpid(), signal.SIGKILL)
        case "fork and return":
            if child := os.fork():
                os.waitpid(child, 0)
                raise ValueError("in the parent")
            signal.alarm(60)
        case "end a program":
            with subprocess.Popen(["sleep", "60"]) as program:
                program.terminate()
                return program.wait(DEADLINE_SECONDS / 3)
        case "signal":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP):
                os.kill(os.getpid(), number)
        case "blip twice":
            for attempt in ctx.retrying(ConnectionError, base_seconds=0.001):
                with attempt:
                    if attempt.retry_state.attempt_number < 3:
                        raise ConnectionError("blip")
        case "unpicklable retry":
            raise Retry("later", delay_seconds=threading.Lock())  # type: ignore[arg-type] # it cannot be pickled
    return None


def fork_sleeper(pids: str) -> None:
    """Fork a process that keeps this process's open files open, and write its id to a file."""
    pid = os.fork()
    if pid == 0:
        time.sleep(DEADLINE_SECONDS)
        os._exit(0)
    Path(pids).write_text(str(pid), encoding="utf-8")


def run_endless_call(pids: str) -> None:
    """Run a call that never ends in a child, and write the child's id to a file. The target of a process."""
    call = ProcessHarness().begin("bomb")
    threading.Thread(target=call.run, daemon=True).start()
    draft = Path(f"{pids}.draft")
    draft.write_text(str(child_of(call)._process.pid), encoding="utf-8")
    draft.rename(pids)
    threading.Event().wait(DEADLINE_SECONDS)


@pytest.fixture
def harness() -> Any:
    made = ProcessHarness()
    yield made
    made.handler.close()


class ProcessHarness:
    """A handler whose function runs in child processes, and the events that it emitted."""

    def __init__(self) -> None:
        app = Handlers()
        app.handler(Queue[Any]("q", dict), isolation="process", timeout=5, max_attempts=3)(work)
        self.events: list[Event] = []
        self.handler = FunctionHandler(
            app.declarations[0], bus=Bus(self.events.append), clock=SystemClock(), random=lambda: 0.5
        )

    def begin(self, do: str, attempt: int = 1, **more: str) -> ChildCall:
        message = Message(id="m1", body=json.dumps({"do": do, **more}).encode(), enqueued_at=0.0)
        call = self.handler.begin([Delivery(message=message, queue="q", receipt="r", attempt=attempt, received_at=0.0)])
        assert isinstance(call, ChildCall)
        return call


def test_a_child_runs_the_function_and_is_reused(harness: ProcessHarness) -> None:
    assert harness.begin("pid").run() == {"r": Ack()}
    (child,) = harness.handler._children._idle  # type: ignore[union-attr]
    assert harness.begin("pid").run() == {"r": Ack()}
    assert harness.handler._children._idle == [child]  # type: ignore[union-attr]
    assert child._process.pid != os.getpid()


@pytest.mark.parametrize(
    ("do", "settlement"),
    [
        ("reject", DeadLetter(reason="no good")),
        ("retry", Release(delay_seconds=7.0, reason="Retry: later")),
        ("unpicklable retry", Release(delay_seconds=0.5, reason="Retry: later")),
        ("signal", Ack()),
        ("end a program", Ack()),
    ],
)
def test_exceptions_in_a_child_settle_as_in_the_same_process(
    harness: ProcessHarness, do: str, settlement: object
) -> None:
    assert harness.begin(do).run() == {"r": settlement}


def test_a_child_that_cannot_be_started_costs_no_attempt(harness: ProcessHarness) -> None:
    harness.begin("pid").run()
    harness.handler.close()  # its child ends; multiprocessing's helper process stays
    call = harness.begin("pid", attempt=3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no pipe can be made
    try:
        answer = call.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (settlement,) = answer.values()
    assert isinstance(settlement, Release)
    assert settlement.uncounted
    assert settlement.delay_seconds > 0
    assert settlement.reason is not None
    assert settlement.reason.startswith("no process can be started for the handler: ")
    assert isinstance(harness.events[-1], MessageInterrupted)
    assert harness.begin("pid", attempt=3).run() == {"r": Ack()}


def test_retries_in_the_child_are_emitted_in_the_parent(harness: ProcessHarness) -> None:
    assert harness.begin("blip twice").run() == {"r": Ack()}
    retries = [event for event in harness.events if isinstance(event, MessageRetrying)]
    assert [(event.tries, event.error_type, event.error) for event in retries] == [
        (1, "ConnectionError", "blip"),
        (2, "ConnectionError", "blip"),
    ]


def test_the_dead_letter_has_the_childs_exception_and_traceback(harness: ProcessHarness) -> None:
    settlement = harness.begin("fail", attempt=3).run()["r"]
    assert isinstance(settlement, DeadLetter)
    assert settlement.exception == "ValueError: attempt 3"
    assert "in work" in (settlement.traceback or "")


def test_a_dead_child_costs_its_message_one_attempt_and_nothing_else(harness: ProcessHarness) -> None:
    settlement = harness.begin("die").run()["r"]
    assert isinstance(settlement, Release)
    assert "killed by signal 9" in (settlement.reason or "")
    assert harness.begin("pid").run() == {"r": Ack()}


def test_row_63_a_regex_bomb_is_killed_at_its_timeout_and_counted(harness: ProcessHarness) -> None:
    call = harness.begin("bomb")
    thread = threading.Thread(target=call.run)
    thread.start()
    child = child_of(call)
    assert extended(call)
    settlement = call.time_out()["r"]
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert not child.alive
    assert isinstance(settlement, Release)
    assert not settlement.uncounted
    assert [event.error_type for event in harness.events if isinstance(event, MessageFailed)] == ["TimedOut"]


def test_a_suspended_child_loses_its_lease(harness: ProcessHarness) -> None:
    call = harness.begin("bomb")
    thread = threading.Thread(target=call.run)
    thread.start()
    child = child_of(call)
    pid = child._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not extended(call))
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_a_released_call_is_killed_without_a_failure(harness: ProcessHarness) -> None:
    call = harness.begin("bomb")
    thread = threading.Thread(target=call.run)
    thread.start()
    child_of(call)
    call.release()
    call.interrupt()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    kinds = [type(event) for event in harness.events]
    assert MessageInterrupted in kinds
    assert MessageFailed not in kinds


def test_interrupting_ends_processes_that_the_function_forked(harness: ProcessHarness, tmp_path: Path) -> None:
    call = harness.begin("fork and hang", pids=str(tmp_path / "pid"))
    thread = threading.Thread(target=call.run)
    thread.start()
    forked = read_pid(tmp_path / "pid")
    call.release()
    call.interrupt()
    thread.join(DEADLINE_SECONDS / 3)
    assert not thread.is_alive()
    wait_for(lambda: has_ended(forked))


def test_a_dead_child_is_noticed_although_a_process_it_forked_holds_its_pipe(
    harness: ProcessHarness, tmp_path: Path
) -> None:
    settlement = harness.begin("fork and die", pids=str(tmp_path / "pid")).run()["r"]
    assert isinstance(settlement, Release)
    os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
    assert "killed by signal 9" in (settlement.reason or "")


def test_a_child_that_dies_while_sending_its_result_is_noticed_although_a_process_it_forked_holds_its_pipe(
    harness: ProcessHarness, tmp_path: Path
) -> None:
    child = harness.handler._children.take()  # type: ignore[union-attr]
    child._pipe.send(sent_call("fork and return much", pids=str(tmp_path / "pid")))
    forked = read_pid(tmp_path / "pid")
    assert select.select([child._pipe._connection], [], [], DEADLINE_SECONDS)[0], "it has begun to send its result"
    os.kill(child._process.pid or 0, signal.SIGKILL)
    with pytest.raises(EOFError):
        child._pipe.receive()
    assert not has_ended(forked)
    os.kill(forked, signal.SIGKILL)


def test_a_child_that_dies_while_receiving_its_call_is_noticed_although_a_process_it_forked_holds_its_pipe(
    harness: ProcessHarness, tmp_path: Path
) -> None:
    child = harness.handler._children.take()  # type: ignore[union-attr]
    child.call(sent_call("fork and return much", pids=str(tmp_path / "pid")), on_retry=lambda *_: None)
    forked = read_pid(tmp_path / "pid")
    os.kill(child._process.pid or 0, signal.SIGSTOP)
    ended: list[ChildDied] = []

    def call() -> None:
        with pytest.raises(ChildDied) as raised:
            child.call(sent_call("pid", more="x" * LONG), on_retry=lambda *_: None)
        ended.append(raised.value)

    thread = threading.Thread(target=call)
    thread.start()
    wait_for(lambda: not select.select([], [child._pipe._connection], [], 0)[1])
    os.kill(child._process.pid or 0, signal.SIGKILL)
    thread.join(DEADLINE_SECONDS)
    assert ended
    assert not has_ended(forked)
    os.kill(forked, signal.SIGKILL)


def test_a_child_does_not_outlive_its_parent_even_while_it_holds_the_gil(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("spawn").Process(target=run_endless_call, args=(str(tmp_path / "pid"),))
    parent.start()
    child = read_pid(tmp_path / "pid")
    parent.kill()
    parent.join(DEADLINE_SECONDS)
    wait_for(lambda: has_ended(child))
    assert has_ended(child)


def test_children_that_do_not_end_are_killed(harness: ProcessHarness) -> None:
    children = harness.handler._children
    assert children is not None
    taken = [children.take() for _ in range(4)]
    for child in taken:
        os.kill(child._process.pid or 0, signal.SIGSTOP)
        children.put_back(child)
    children.close()
    assert not any(child.alive for child in taken)


def test_a_child_put_back_after_the_close_is_ended(harness: ProcessHarness) -> None:
    children = harness.handler._children
    assert children is not None
    child = children.take()
    children.close()
    children.put_back(child)
    assert child.ended_by(time.monotonic() + DEADLINE_SECONDS)


def test_a_killed_child_is_not_taken_again_while_it_is_still_ending(harness: ProcessHarness) -> None:
    children = harness.handler._children
    assert children is not None
    child = children.take()
    child.kill()
    children.put_back(child)
    again = children.take()
    assert again is not child
    children.put_back(again)


def test_a_function_defined_in_an_interactive_session_is_refused() -> None:
    code = (
        "from penstock import Handlers\n"
        "from penstock.handlers.process_call import ChildProcesses\n"
        "from penstock.messaging.schema import Queue\n"
        "def work(message): pass\n"
        "ChildProcesses(work, Queue('q'), wants_context=False)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ConfigurationError" in ended.stderr
    assert "put it into a file" in ended.stderr


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    app = Handlers()
    app.handler("q", isolation="process")(lambda message: None)
    with pytest.raises(ConfigurationError, match="top level of a module"):
        FunctionHandler(app.declarations[0], bus=Bus(), clock=SystemClock(), random=lambda: 0.5)


def sent_call(do: str, **more: str) -> SentCall:
    message = Message(id="m1", body=json.dumps({"do": do, **more}).encode(), enqueued_at=0.0)
    message = replace(message, attributes=dict(message.attributes))
    return SentCall(message=message, queue="q", handler="work", attempt=1, previous_attempt=None, key=None, carrier={})


def child_of(call: ChildCall) -> Any:
    """Wait until the call runs in a child, and return the child."""
    wait_for(lambda: call._child is not None and call._child.busy)
    return call._child


def wait_for(condition: Any) -> None:
    ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < ends_at
        tick.wait(0.005)


def read_pid(path: Path) -> int:
    """Wait for a file with a process id, and return the id."""
    wait_for(lambda: path.is_file() and path.read_text(encoding="utf-8"))
    return int(path.read_text(encoding="utf-8"))


def has_ended(pid: int) -> bool:
    """Return True if a process is dead, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
