"""`penstock status --watch`: the status refreshed, on a screen, in lines and as JSON."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from rich.console import Console
from tests.cli.conftest import Call
from tests.cli.scene import Scene
from tests.services.forked_process import ForkedPopen

from penstock.app.scope import ScopeRequest, find_scope
from penstock.cli.status_screen import lines, screen
from penstock.cli.status_watch import KeyReader
from penstock.errors import TemporaryError
from penstock.ledger.pipelines import Reconciliation
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.operations.status.model import PipelineStatus
from penstock.operations.status.status import StatusReader
from penstock.operations.status.watch import StatusFrame, StatusWatch

SRC = Path(__file__).parents[2] / "src"
USAGE = 2
DEADLINE_SECONDS = 180.0

StartWatch = Callable[..., subprocess.Popen[str]]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "status", "--watch", *arguments]


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": "160", "LINES": "40", "TERM": "xterm"}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt: a shell ignores it for background processes, and their children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start_watch(environment: dict[str, str]) -> Iterator[StartWatch]:
    """Return a function that starts the command in the current folder, with its output in a pipe."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        child = ForkedPopen(command(*arguments), env=environment, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def documents(stream: IO[str] | None, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return the printed documents up to the first that fits; the caller bounds the time."""
    assert stream is not None
    found: list[dict[str, Any]] = []
    for line in stream:
        found.append(json.loads(line))
        if until(found[-1]):
            return found
    raise AssertionError(f"the process ended before: {found[-1:]}")


@pytest.fixture
def bounded() -> Iterator[Callable[[subprocess.Popen[str]], None]]:
    """Return a function that kills a process after the deadline, so that its reader ends too."""
    timers: list[threading.Timer] = []

    def bound(child: subprocess.Popen[str]) -> None:
        timers.append(threading.Timer(DEADLINE_SECONDS, child.kill))
        timers[-1].start()

    yield bound
    for timer in timers:
        timer.cancel()


# Once


def test_one_poll_shows_the_status_and_a_row_per_queue_and_pipeline(penstock: Call, app_scene: Scene) -> None:
    app_scene.process("x")
    app_scene.send("a", "b")
    app_scene.dead_letter(b"?", "no JSON")
    app_scene.fail("d", AttemptFailure.DEAD, "bad")
    result = penstock("status", "--watch", "--once")
    assert (result.exit_code, result.err) == (0, "")
    head, queues, row, pipelines, pipeline = result.out.splitlines()
    assert head.endswith(
        "no consumer: 2 messages wait in clicks-files, and no worker runs; failed objects: 1; dead letters: 1"
    )
    assert queues.split()[:3] == ["queue", "state", "oldest"]
    assert row.split()[0] == "clicks-files"
    assert row.split()[-5:] == ["2", "0", "0", "0", "1"], "visible, in flight, delayed, workers, dlq"
    assert pipelines.split()[0] == "pipeline"
    assert pipeline.split() == ["clicks", "1", "1", "1", "?"], "processed, dead, batches, unpublished"


def test_one_poll_as_json_is_the_status_with_rates_per_queue(penstock: Call, app_scene: Scene) -> None:
    app_scene.send("a")
    status = penstock("status", "--json").document
    document = penstock("status", "--watch", "--once", "--json").document
    (queue,) = document["queues"]
    flow = {name: queue.pop(name) for name in ("in_per_second", "out_per_second", "net_per_second")}
    assert set(flow.values()) == {None}, "one poll has no rates"
    assert queue.pop("drained_in_seconds") is None
    assert {"at", "error", *status} == set(document)
    assert document["summary"] == status["summary"]
    assert queue.keys() == status["queues"][0].keys()


def test_objects_that_a_reconcile_found_count_as_missing_until_their_notifications_are_processed(
    app_scene: Scene,
) -> None:
    pipeline = PipelineStatus(
        pipeline="clicks",
        objects={ObjectState.PROCESSED: 3},
        objects_replaced=0,
        objects_overdue=0,
        oldest_unprocessed_age_seconds=None,
        batches_committed=1,
        batches_unpublished=0,
        reconciled=Reconciliation(
            pipeline="clicks", source="landing", as_of=0.0, listed=3, missing=2, sent=2, seconds=1.0, finished_at=1.0
        ),
        table=None,
        table_version=None,
        disagreement=None,
    )
    status = replace(StatusReader(find_scope(ScopeRequest(), here=Path.cwd())).read(), queues=(), pipelines=[pipeline])
    row = lines(StatusFrame(at=0.0, status=status)).splitlines()[-1]
    assert row.split() == ["clicks", "3", "1", "0"], "processed, batches, unpublished"
    missing = replace(status, pipelines=[replace(pipeline, objects_missing=2)])
    row = lines(StatusFrame(at=0.0, status=missing)).splitlines()[-1]
    assert row.split() == ["clicks", "3", "2", "1", "0"]


@pytest.mark.parametrize("every", ["0.1s", "never"])
def test_an_invalid_interval_is_refused(penstock: Call, app_scene: Scene, every: str) -> None:
    result = penstock("status", "--watch", "--every", every, "--once")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "--every" in result.err


# Repeatedly


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_json_lines_are_printed_until_a_signal(
    app_scene: Scene, start_watch: StartWatch, bounded: Callable[..., None], number: signal.Signals
) -> None:
    app_scene.send("a")
    child = start_watch("--json", "--every", "0.5")
    bounded(child)
    (first,) = documents(child.stdout, lambda _: True)
    assert first["queues"][0]["visible"] == 1
    app_scene.send("b", "c")
    last = documents(child.stdout, lambda document: document["queues"][0]["visible"] == 3)[-1]
    flow = last["queues"][0]
    assert flow["net_per_second"] > 0
    assert (flow["out_per_second"], flow["in_per_second"]) == (0.0, flow["net_per_second"])
    assert flow["drained_in_seconds"] is None
    child.send_signal(number)
    assert child.wait(DEADLINE_SECONDS) == 0


def test_blocks_of_lines_are_printed_without_a_terminal(
    app_scene: Scene, start_watch: StartWatch, bounded: Callable[..., None]
) -> None:
    child = start_watch("--every", "0.5")
    bounded(child)
    assert child.stdout is not None
    summaries = 0
    for line in child.stdout:
        assert "\x1b" not in line
        summaries += line.endswith("  all well\n")
        if summaries == 2:
            break
    assert summaries == 2
    child.send_signal(signal.SIGINT)
    assert child.wait(DEADLINE_SECONDS) == 0


# On a terminal


class Terminal:
    """The command on its own terminal, and the output it received."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._controller, terminal_end = pty.openpty()
        self.before = termios.tcgetattr(terminal_end)
        self._terminal_end = terminal_end
        self.child = ForkedPopen(
            command(*arguments),
            env=environment,
            stdin=terminal_end,
            stdout=terminal_end,
            stderr=terminal_end,
            start_new_session=True,
        )
        self.seen = b""

    def expect(self, text: str) -> None:
        ends_at = time.monotonic() + DEADLINE_SECONDS
        while text.encode() not in self.seen:
            left = ends_at - time.monotonic()
            assert left > 0, f"never saw {text!r} in {self.seen[-2_000:]!r}"
            if select.select([self._controller], [], [], min(left, 0.5))[0]:
                self.seen += os.read(self._controller, 65_536)

    def press(self, key: bytes) -> None:
        os.write(self._controller, key)

    def settings(self) -> Any:
        return termios.tcgetattr(self._terminal_end)

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._controller)
        os.close(self._terminal_end)


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*arguments: str) -> Terminal:
        opened.append(Terminal(environment, *arguments))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def interrupted(terminal: Terminal) -> None:
    terminal.child.send_signal(signal.SIGINT)


def terminated(terminal: Terminal) -> None:
    terminal.child.send_signal(signal.SIGTERM)


def quit_by_key(terminal: Terminal) -> None:
    terminal.press(b"q")


@pytest.mark.parametrize("leave", [quit_by_key, interrupted, terminated])
def test_the_live_view_refreshes_until_it_is_quit_and_restores_the_terminal(
    app_scene: Scene, terminal: Callable[..., Terminal], leave: Callable[[Terminal], None]
) -> None:
    app_scene.send("a")
    shown = terminal("--every", "0.5")
    shown.expect("1 message waits in clicks-files, and no worker runs")
    shown.expect("clicks-files")
    app_scene.send("b")
    shown.expect("2 messages wait in clicks-files, and no worker runs")
    leave(shown)
    shown.expect("\x1b[?1049l")  # the alternate screen is left
    assert shown.child.wait(DEADLINE_SECONDS) == 0
    assert shown.settings() == shown.before


def test_a_terminal_without_cursor_control_gets_lines(
    app_scene: Scene, terminal: Callable[..., Terminal], environment: dict[str, str]
) -> None:
    environment["TERM"] = "dumb"
    app_scene.send("a")
    shown = terminal("--every", "0.5")
    shown.expect("1 message waits in clicks-files, and no worker runs")
    app_scene.send("b")
    shown.expect("2 messages wait in clicks-files, and no worker runs")
    interrupted(shown)
    assert shown.child.wait(DEADLINE_SECONDS) == 0


def test_other_keys_do_nothing(app_scene: Scene, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("--every", "0.5")
    shown.expect("all well")
    shown.press(b"x\n")
    app_scene.send("a")
    shown.expect("1 message waits in clicks-files, and no worker runs")
    assert shown.child.poll() is None


def test_the_key_reader_waits_without_a_terminal_and_after_it_closed() -> None:
    controller, terminal_end = pty.openpty()
    os.write(controller, b"x")
    pressed = KeyReader(terminal_end)
    os.close(controller)
    assert not pressed.quits_within(0.05)
    assert not pressed.quits_within(0.05)
    os.close(terminal_end)
    began_at = time.monotonic()
    assert not KeyReader(None).quits_within(0.05)
    assert time.monotonic() - began_at >= 0.05


# Unavailable servers


def test_an_unavailable_server_is_reported_and_polled_again(app_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StatusWatch(find_scope(ScopeRequest(), here=Path.cwd()))
    assert watch.read().summary == "all well"
    read = StatusReader.read

    def fail(_: StatusReader) -> None:
        raise TemporaryError("the broker at redis://h: Connection refused")

    monkeypatch.setattr(StatusReader, "read", fail)
    frame = watch.read()
    assert frame.summary == "unavailable: the broker at redis://h: Connection refused"
    assert frame.status is None
    assert lines(frame).splitlines()[0].endswith(frame.summary)
    monkeypatch.setattr(StatusReader, "read", read)
    assert watch.read().summary == "all well"


def test_the_screen_keeps_the_last_status_while_a_server_is_unavailable(app_scene: Scene) -> None:
    app_scene.send("a")
    seen = StatusWatch(find_scope(ScopeRequest(), here=Path.cwd())).read()
    fail = StatusFrame(at=seen.at + 7, status=None, error="Connection refused")
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(screen(fail, seen, name="here", every_seconds=2.0, width=150))
    text = console.export_text()
    assert "unavailable: Connection refused" in text
    assert "as it was 7 s ago:" in text
    assert "clicks-files" in text
    console.print(screen(fail, None, name="here", every_seconds=2.0, width=150))
    assert "as it was" not in console.export_text()


def test_a_narrow_terminal_omits_the_least_important_columns(app_scene: Scene) -> None:
    app_scene.send("a")
    frame = StatusWatch(find_scope(ScopeRequest(), here=Path.cwd())).read()

    def heads(width: int) -> list[str]:
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(screen(frame, None, name="here", every_seconds=2.0, width=width))
        (head,) = [line for line in console.export_text().splitlines() if line.startswith("queue ")]
        return re.split(r"\s{2,}", head.strip())

    assert heads(150) == ["queue", "oldest visible", "oldest", "visible", "in flight", "delayed", "workers"]
    assert heads(60) == ["queue", "oldest visible", "visible", "in flight", "workers"]
    assert heads(45) == ["queue", "oldest visible", "visible", "workers"]


def test_a_long_name_does_not_wrap_the_head_line(app_scene: Scene) -> None:
    frame = StatusWatch(find_scope(ScopeRequest(), here=Path.cwd())).read()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(screen(frame, None, name="sqlite:///" + "x" * 80, every_seconds=2.0, width=80))
    head, below, *_ = console.export_text().splitlines()
    assert "every 2 s, q ends" in head
    assert below == "all well"
