"""The session of a process: asked for many times, made once, and a user's own neither changed nor ended."""

from pathlib import Path
from typing import Any

import pytest

from penstock.app.spark import Spark
from penstock.config import Settings
from penstock.events import Bus
from penstock.pipeline.spark import cluster_checks, java, session
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


class Calls:
    """What was asked of Spark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        found = java.Java(home=Path("/java"), version=17, source="PATH", notes=())
        monkeypatch.setattr("penstock.app.spark.require_spark", lambda: None)
        monkeypatch.setattr("penstock.app.spark.find_java", lambda _: found)
        monkeypatch.setattr(cluster_checks, "check_python", lambda _: None)
        monkeypatch.setattr(session, "start_session", lambda _: self.note("started"))
        monkeypatch.setattr(session, "session_beside", lambda given: self.note(f"beside {given}"))
        monkeypatch.setattr(
            session, "end_session", lambda _, at_once, seconds: self.note(f"ended {at_once} {seconds:g}")
        )

    def ended(self, _: object, *, at_once: bool, seconds: float) -> None:
        self.note(f"ended {at_once} {seconds:g}")

    def note(self, what: str) -> str:
        self.made.append(what)
        return what


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def spark(folder: Path, *, given: Any = None, stop: StopSignal | None = None) -> Spark:
    return Spark(
        Settings.model_construct(),
        scratch=folder / "scratch",
        log=folder / "spark.log",
        clock=FakeClock(),
        bus=Bus(),
        stop=stop or StopSignal(),
        given=given,
    )


def test_all_pipelines_of_a_process_share_one_session_and_it_is_ended_once(tmp_path: Path, calls: Calls) -> None:
    (tmp_path / "scratch").mkdir()
    own = spark(tmp_path)
    assert own.session() is own.session()
    own.close()
    own.close()
    assert calls.made == ["started", "ended False 2"]
    assert not (tmp_path / "scratch").exists()


def test_where_nobody_asks_none_is_started(tmp_path: Path, calls: Calls) -> None:
    spark(tmp_path).close()
    assert calls.made == []


def test_a_process_that_was_asked_to_stop_ends_it_at_once(tmp_path: Path, calls: Calls) -> None:
    stop = StopSignal()
    own = spark(tmp_path, stop=stop)
    own.session()
    stop.request()
    own.close()
    assert calls.made == ["started", "ended True 2"]


def test_a_session_that_was_handed_in_is_worked_beside_and_never_ended(tmp_path: Path, calls: Calls) -> None:
    own = spark(tmp_path, given="theirs")
    assert own.session() is own.session()
    own.close()
    assert calls.made == ["beside theirs"]
