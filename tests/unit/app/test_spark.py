"""The Spark session of a process: created once for all pipelines; a user's own is neither changed nor stopped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.app.spark import Spark
from penstock.config import Settings
from penstock.errors import ConfigurationError, UsageError
from penstock.events import Bus
from penstock.pipeline.spark import classic, connect, java, probe, session
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


class Runtime:
    """A Spark on this host. Its sibling sessions are named after it."""

    is_local = True

    def __init__(self, session: str) -> None:
        self._session = session

    def sibling(self) -> str:
        return f"sibling of {self._session}"


class Calls:
    """Replace Spark's functions, and record their calls. Sessions are strings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.current: str | None = None  # the session of this process
        found = java.Java(home=Path("/java"), version=17, source="PATH", notes=())
        monkeypatch.setattr("penstock.app.spark.require_spark", lambda: None)
        monkeypatch.setattr("penstock.app.spark.find_java", lambda _: found)
        monkeypatch.setattr("penstock.app.spark._has_session", lambda: self.current is not None)
        monkeypatch.setattr(probe, "check_workers", lambda _: None)
        monkeypatch.setattr(session, "runtime_of", Runtime)
        monkeypatch.setattr(session, "is_session", lambda value: isinstance(value, str))
        monkeypatch.setattr(session, "current_session", self._current)
        monkeypatch.setattr(session, "release", lambda spark, _: self.record(f"released {spark}"))
        monkeypatch.setattr(session, "end", lambda spark, at_once, seconds: self.record(f"ended {spark} {at_once}"))
        monkeypatch.setattr(classic, "start_session", lambda _: self.record("started"))
        monkeypatch.setattr(
            classic, "end_session", lambda _, at_once, seconds: self.record(f"ended {at_once} {seconds:g}")
        )
        monkeypatch.setattr(connect, "open_session", self._opened)
        monkeypatch.setattr(connect, "end_session", lambda spark, seconds: self.record("ended remote"))

    def record(self, call: str) -> str:
        self.calls.append(call)
        return call

    def _current(self) -> str:
        return self.record("made") if self.current is None else self.current

    def _opened(self, address: str, conf: Mapping[str, str]) -> "RemoteSession":
        self.record(f"opened {address} {dict(conf)}")
        return RemoteSession()


class RemoteSession:
    version = "4.0"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def spark(folder: Path, *, given: Any = None, stop: StopSignal | None = None, **settings: Any) -> Any:
    return Spark(
        Settings.model_construct(**settings),
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


@pytest.mark.parametrize("given", ["theirs", lambda: "theirs"], ids=["a session", "a function"])
def test_pipelines_work_beside_a_given_session_and_never_stop_it(given: Any, tmp_path: Path, calls: Calls) -> None:
    sessions = spark(tmp_path, given=given)
    assert sessions.session() == "sibling of theirs"
    assert sessions.session() is sessions.session()
    sessions.close()
    assert calls.calls == ["released sibling of theirs"]


def test_a_given_value_that_is_no_session_is_refused(tmp_path: Path, calls: Calls) -> None:
    with pytest.raises(UsageError, match=r"App\(spark=\.\.\.\) must be a SparkSession, .*; this is int\."):
        spark(tmp_path, given=7).session()


def test_the_session_of_the_process_is_used_and_not_stopped(tmp_path: Path, calls: Calls) -> None:
    calls.current = "notebook's"
    sessions = spark(tmp_path)
    assert sessions.session() == "sibling of notebook's"
    sessions.close()
    assert calls.calls == ["released sibling of notebook's"]


def test_under_spark_submit_the_session_is_made_by_pyspark_and_ended_by_us(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    sessions = spark(tmp_path)
    assert sessions.session() == "sibling of made"
    sessions.close()
    assert calls.calls == ["made", "released sibling of made", "ended made False"]


def test_a_session_of_our_own_is_impossible_under_spark_submit(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigurationError, match=r"was started by one \(spark-submit\)\. Leave the setting out"):
        spark(tmp_path, spark_session="own").session()


def test_a_named_function_returns_the_session(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster_of_ours.py").write_text("def session():\n    return 'theirs'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert spark(tmp_path, spark_session="cluster_of_ours:session").session() == "sibling of theirs"
    with pytest.raises(UsageError, match="has no function missing"):
        spark(tmp_path, spark_session="cluster_of_ours:missing").session()
    with pytest.raises(UsageError, match="'cluster' is not of the form module:function"):
        spark(tmp_path, spark_session="cluster").session()


def test_a_connect_address_opens_a_session_at_the_server_and_ends_it(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "runtime_of", lambda _: Runtime("remote"))
    sessions = spark(tmp_path, spark_master="sc://host:15002", spark_conf={"a": "b"})
    assert isinstance(sessions.session(), RemoteSession)
    sessions.close()
    assert calls.calls == ["opened sc://host:15002 {'a': 'b'}", "ended remote"]


def test_a_master_that_was_set_means_a_session_of_our_own(tmp_path: Path, calls: Calls) -> None:
    calls.current = "notebook's"
    assert spark(tmp_path, spark_master="local[2]").session() == "started"
