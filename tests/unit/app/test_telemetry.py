"""What ends a process: whom it is told to."""

import io
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from penstock.app.telemetry import Telemetry, attended
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import tell_nobody
from penstock.monitoring.errors import ErrorReporter

FLUSH_SECONDS = 10.0


@pytest.fixture
def told() -> list[BaseException | None]:
    return []


@pytest.fixture
def reporter(told: list[BaseException | None]) -> ErrorReporter:
    return ErrorReporter(lambda error, _: told.append(error), worker="w", tell=lambda _: None)


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
    with pytest.raises(type(error)), telemetry.told():
        raise error
    assert reporter.flush(FLUSH_SECONDS)
    assert told == ([error] if is_told else [])


@pytest.mark.parametrize(
    ("look", "at_terminal", "is_told"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_of_a_look_taken_at_a_terminal_nobody_else_is_told(
    reporter: ErrorReporter, look: bool, at_terminal: bool, is_told: bool
) -> None:
    telemetry = Telemetry(listeners=(tell_nobody, reporter), reporter=reporter, attended=lambda: at_terminal)
    assert telemetry.listeners_of(look=look) == ((tell_nobody, reporter) if is_told else (tell_nobody,))


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
    with monkeypatch.context() as crowded, pytest.raises(ValueError, match="a defect"), telemetry.told():
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
