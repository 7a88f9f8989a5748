"""The Spark session of a process: created once for all pipelines; a user's own is neither changed nor stopped."""

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
    """Replace Spark's functions, and record their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        found = java.Java(home=Path("/java"), version=17, source="PATH", notes=())
        monkeypatch.setattr("penstock.app.spark.require_spark", lambda: None)
        monkeypatch.setattr("penstock.app.spark.find_java", lambda _: found)
        monkeypatch.setattr(cluster_checks, "check_python", lambda _: None)
        monkeypatch.setattr(session, "start_session", lambda _: self.record("started"))
        monkeypatch.setattr(session, "session_beside", lambda given: self.record(f"beside {given}"))
        monkeypatch.setattr(
            session, "end_session", lambda _, at_once, seconds: self.record(f"ended {at_once} {seconds:g}")
        )

    def record(self, call: str) -> str:
        self.calls.append(call)
        return call


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


def test_all_pipelines_of_a_process_share_one_session_that_is_stopped_once(tmp_path: Path, calls: Calls) -> None:
    (tmp_path / "scratch").mkdir()
    sessions = spark(tmp_path)
    assert sessions.session() is sessions.session()
    sessions.close()
    sessions.close()
    assert calls.calls == ["started", "ended False 2"]
    assert not (tmp_path / "scratch").exists()


def test_no_session_is_started_without_a_request(tmp_path: Path, calls: Calls) -> None:
    spark(tmp_path).close()
    assert calls.calls == []


def test_a_stopping_process_stops_the_session_at_once(tmp_path: Path, calls: Calls) -> None:
    stop = StopSignal()
    sessions = spark(tmp_path, stop=stop)
    sessions.session()
    stop.request()
    sessions.close()
    assert calls.calls == ["started", "ended True 2"]


def test_pipelines_work_beside_a_given_session_and_never_stop_it(tmp_path: Path, calls: Calls) -> None:
    sessions = spark(tmp_path, given="theirs")
    assert sessions.session() is sessions.session()
    sessions.close()
    assert calls.calls == ["beside theirs"]
