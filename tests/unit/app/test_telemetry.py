"""Reports of the error that ends a process, and logs of commands."""

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.app.telemetry import Telemetry, attended, open_log, open_reports, open_telemetry
from penstock.config import Settings
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, Event, LedgerAvailable, ignore
from penstock.monitoring.errors.hook import ErrorReporter

FLUSH_SECONDS = 120.0


@pytest.fixture
def reported() -> list[BaseException | None]:
    return []


@pytest.fixture
def reporter(reported: list[BaseException | None]) -> ErrorReporter:
    return ErrorReporter(lambda error, _: reported.append(error), worker="w", emit=lambda _: None)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.TextIOBase]:
    controller, terminal_end = os.openpty()
    with os.fdopen(terminal_end, "r+b", buffering=0) as raw, io.TextIOWrapper(raw) as stream:
        yield stream
    os.close(controller)


@pytest.mark.parametrize(
    ("error", "at_terminal", "is_reported"),
    [
        (ConfigurationError("no such folder"), True, False),
        (ConfigurationError("no such folder"), False, True),
        (TemporaryError("the broker is away"), True, True),
        (ValueError("a defect"), True, True),
    ],
)
def test_a_usage_error_at_a_terminal_is_not_reported(
    reported: list[BaseException | None],
    reporter: ErrorReporter,
    error: Exception,
    at_terminal: bool,
    is_reported: bool,
) -> None:
    telemetry = Telemetry(listeners=(), reporter=reporter, attended=lambda: at_terminal)
    with pytest.raises(type(error)), telemetry.running():
        raise error
    assert reporter.flush(FLUSH_SECONDS)
    assert reported == ([error] if is_reported else [])


@pytest.mark.parametrize(
    ("read_only", "at_terminal", "is_reported"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_errors_of_a_read_only_command_at_a_terminal_are_not_reported(
    reporter: ErrorReporter, read_only: bool, at_terminal: bool, is_reported: bool
) -> None:
    telemetry = Telemetry(listeners=(ignore, reporter), reporter=reporter, attended=lambda: at_terminal)
    assert telemetry.listeners_of(read_only=read_only) == ((ignore, reporter) if is_reported else (ignore,))


def test_a_process_is_attended_if_stdin_and_stderr_are_terminals(
    terminal: io.TextIOBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert attended()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert not attended(), "as in a pipe, or below a scheduler"
    monkeypatch.setattr(sys, "stdin", None)
    assert not attended()
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys, "stderr", None)
    assert not attended()


def test_a_failed_report_does_not_hide_the_error_and_the_next_one_succeeds(
    reported: list[BaseException | None], reporter: ErrorReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry(listeners=(), reporter=reporter)
    with monkeypatch.context() as patched, pytest.raises(ValueError, match="a defect"), telemetry.running():
        fail_without_threads(patched)
    assert not reported
    telemetry.report(KeyError("the next"))
    assert reporter.flush(FLUSH_SECONDS)
    assert [type(error) for error in reported] == [KeyError]


def fail_without_threads(patched: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patched.setattr(threading.Thread, "start", refuse)
    raise ValueError("a defect")


@pytest.mark.parametrize("open_command", [open_reports, open_telemetry])
def test_a_command_with_progress_output_logs_if_the_setting_asks_for_it(
    open_command: Callable[..., Telemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    for log_format, lines in (("json", 1), ("auto", 0)):
        stream, shown = io.StringIO(), list[Event]()
        monkeypatch.setattr(sys, "stderr", stream)
        telemetry = open_command(Settings(log_format=log_format), worker="w", process="ingest", emit=shown.append)
        Bus(*telemetry.listeners).emit(LedgerAvailable(outage_seconds=1.0))
        assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["ledger.available"] * lines
        assert shown == [LedgerAvailable(outage_seconds=1.0)]


def test_a_command_with_a_log_of_its_own_writes_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, stream = Settings(log_format="json"), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry = open_reports(settings, worker="w", process="upkeep", emit=open_log(settings, worker=None))
    Bus(*telemetry.listeners).emit(LedgerAvailable(outage_seconds=1.0))
    assert len(stream.getvalue().splitlines()) == 1
