"""The session of a run beside another one, without Spark. `tests/spark/test_overlapping_batches.py` has Spark."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.pipeline.engine import RunCancelled
from penstock.pipeline.spark import run_sessions
from penstock.pipeline.spark.run_sessions import run_session

PATIENCE_SECONDS = 120.0


class Session:
    """A session that has no siblings, unless it was given some."""

    def __init__(self, *siblings: "Session") -> None:
        self.siblings = list(siblings)
        self.left: list[Session] = []

    def sibling(self) -> "Session":
        if not self.siblings:
            raise ConfigurationError("no siblings")
        return self.siblings.pop()


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(sibling: Session, given: Session, _: float) -> None:
        given.left.append(sibling)

    monkeypatch.setattr(run_sessions, "runtime_of", lambda session: session)
    monkeypatch.setattr(run_sessions, "leave_sibling", leave)


def used(session: Any, check: Callable[[], None] = lambda: None) -> Any:
    return run_session(session, check)


def test_a_run_beside_another_one_uses_a_sibling_which_is_left_at_its_end() -> None:
    sibling = Session()
    session = Session(sibling)
    with used(session) as first:
        with used(session) as second:
            assert (first, second) == (session, sibling)
        assert session.left == [sibling]
    with used(session) as again:
        assert again is session


def test_without_siblings_a_run_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seen = Session(), []
    waits, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(run_sessions, "CHECK_SECONDS", 0.01)

    def second() -> None:
        with used(session, waits.set) as found:
            seen.append((found, ended.is_set()))

    thread = threading.Thread(target=second)
    with used(session):
        thread.start()
        assert waits.wait(PATIENCE_SECONDS)
        ended.set()
    thread.join(PATIENCE_SECONDS)
    assert seen == [(session, True)]


def test_a_run_that_waits_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled() -> None:
        raise RunCancelled("a stop")

    session = Session()
    monkeypatch.setattr(run_sessions, "CHECK_SECONDS", 0.01)
    with used(session) as first:
        with pytest.raises(RunCancelled), used(session, cancelled):
            pytest.fail("the session is in use")
        assert first is session
    with used(session) as again:
        assert again is session


def test_a_failed_run_frees_its_session() -> None:
    session = Session()
    with pytest.raises(ZeroDivisionError), used(session):
        raise ZeroDivisionError
    with used(session) as again:
        assert again is session
