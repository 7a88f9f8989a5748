"""What ends a process: whom it is told to."""

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

FLUSH_SECONDS = 10.0


@pytest.fixture
def told() -> list[BaseException | None]:
    return []


@pytest.fixture
def reporter(told: list[BaseException | None]) -> ErrorReporter:
    return ErrorReporter(lambda error, _: told.append(error), worker="w", emit=lambda _: None)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.TextIOBase]:
    mine, theirs = os.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as raw, io.TextIOWrapper(raw) as stream:
        yield stream
    os.close(mine)


@pytest.mark.parametrize(
    ("error", "at_terminal", "is_told"),
    [
        (ConfigurationError("no such folder"), True, False),
        (ConfigurationError("no such folder"), False, True),
        (TemporaryError("the broker is away"), True, True),
        (ValueError("a defect"), True, True),
    ],
)
def test_a_mistake_made_at_a_terminal_is_told_to_nobody_else(
    told: list[BaseException | None], reporter: ErrorReporter, error: Exception, at_terminal: bool, is_told: bool
) -> None:
    telemetry = Telemetry(listeners=(), reporter=reporter, attended=lambda: at_terminal)
    with pytest.raises(type(error)), telemetry.running():
        raise error
    assert reporter.flush(FLUSH_SECONDS)
    assert told == ([error] if is_told else [])


@pytest.mark.parametrize(
    ("look", "at_terminal", "is_told"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_of_a_look_taken_at_a_terminal_nobody_else_is_told(
    reporter: ErrorReporter, look: bool, at_terminal: bool, is_told: bool
) -> None:
    telemetry = Telemetry(listeners=(ignore, reporter), reporter=reporter, attended=lambda: at_terminal)
    assert telemetry.listeners_of(read_only=look) == ((ignore, reporter) if is_told else (ignore,))


def test_a_process_is_attended_where_it_reads_from_a_terminal_and_speaks_to_one(
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


def test_what_cannot_be_reported_hides_nothing_and_the_next_is_reported(
    told: list[BaseException | None], reporter: ErrorReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry(listeners=(), reporter=reporter)
    with monkeypatch.context() as crowded, pytest.raises(ValueError, match="a defect"), telemetry.running():
        fail_without_threads(crowded)
    assert not told
    telemetry.report(KeyError("the next"))
    assert reporter.flush(FLUSH_SECONDS)
    assert [type(error) for error in told] == [KeyError]


def fail_without_threads(crowded: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    crowded.setattr(threading.Thread, "start", refuse)
    raise ValueError("a defect")


@pytest.mark.parametrize("opened", [open_reports, open_telemetry])
def test_a_command_that_shows_its_progress_writes_the_log_where_the_setting_asks_for_it(
    opened: Callable[..., Telemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    for chosen, lines in (("json", 1), ("auto", 0)):
        stream, shown = io.StringIO(), list[Event]()
        monkeypatch.setattr(sys, "stderr", stream)
        telemetry = opened(Settings(log_format=chosen), worker="w", process="ingest", emit=shown.append)
        Bus(*telemetry.listeners).emit(LedgerAvailable(outage_seconds=1.0))
        assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["ledger.available"] * lines
        assert shown == [LedgerAvailable(outage_seconds=1.0)]


def test_a_command_that_logs_anyway_writes_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, stream = Settings(log_format="json"), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry = open_reports(settings, worker="w", process="upkeep", emit=open_log(settings, worker=None))
    Bus(*telemetry.listeners).emit(LedgerAvailable(outage_seconds=1.0))
    assert len(stream.getvalue().splitlines()) == 1
