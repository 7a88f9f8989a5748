"""The Spark session of a process: created once for all pipelines; a user's own is neither changed nor stopped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.serving import serve
from penstock.app.spark import Spark
from penstock.config import Settings
from penstock.errors import ConfigurationError, RestartNeeded, TemporaryError, UsageError
from penstock.events import Bus, Event, Listener, SettingWithoutEffect
from penstock.pipeline.spark import classic, connect, java, probe, session
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


class Runtime:
    """A Spark on this host. Its sibling sessions are named after it."""

    is_local = True

    def __init__(self, session: str) -> None:
        self._session = session

    def check(self) -> None:
        if self._session == "stopped":
            raise RestartNeeded("The Spark session was stopped.")

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
        monkeypatch.setattr(session, "leave_sibling", lambda sibling, *_: self.record(f"left {sibling}"))
        monkeypatch.setattr(
            session, "end_session", lambda spark, at_once, seconds: self.record(f"ended {spark} {at_once}")
        )
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


def spark(
    folder: Path,
    *,
    given: Any = None,
    stop: StopSignal | None = None,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Any:
    return Spark(
        Settings.model_construct(**settings),
        scratch=folder / "scratch",
        log=folder / "spark.log",
        clock=FakeClock(),
        bus=Bus(*listeners),
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
    assert calls.calls == ["left sibling of theirs"]


def test_a_given_value_that_is_no_session_is_refused(tmp_path: Path, calls: Calls) -> None:
    with pytest.raises(UsageError, match=r"The value of spark= must be a SparkSession, .*; this is int\."):
        spark(tmp_path, given=7).session()


def test_a_given_session_that_was_stopped_is_refused(tmp_path: Path, calls: Calls) -> None:
    with pytest.raises(RestartNeeded, match="The Spark session was stopped"):
        spark(tmp_path, given="stopped").session()


def test_the_error_of_a_function_that_should_return_a_session_is_the_reason(tmp_path: Path, calls: Calls) -> None:
    def broken() -> str:
        raise ValueError("no cluster here.")

    with pytest.raises(ConfigurationError, match=r"could not make a Spark session: ValueError: no cluster here\.$"):
        spark(tmp_path, given=broken).session()


def test_a_start_that_fails_during_a_stop_is_part_of_the_stop(tmp_path: Path, calls: Calls) -> None:
    stop = StopSignal()

    def ended_by_the_signal() -> str:
        stop.request()
        raise ConfigurationError("Spark did not start: Spark's JVM ended.")

    with pytest.raises(TemporaryError, match=r"asked to stop while Spark was starting: Spark did not start"):
        spark(tmp_path, given=ended_by_the_signal, stop=stop).session()


def test_a_function_that_exits_in_place_of_returning_a_session_does_not_end_the_process(
    tmp_path: Path, calls: Calls
) -> None:
    """The exit code 3 of a user's function would say that some objects failed."""

    def exiting() -> str:
        raise SystemExit(3)

    with pytest.raises(ConfigurationError, match=r"could not make a Spark session: SystemExit: 3\.$"):
        spark(tmp_path, given=exiting).session()


def test_the_error_of_a_function_that_should_return_a_session_is_shown_without_its_token(
    tmp_path: Path, calls: Calls
) -> None:
    def refused() -> str:
        raise ValueError("cannot reach sc://host:15002/;use_ssl=true;token=secret")

    with pytest.raises(ConfigurationError, match="cannot reach sc://host:15002") as shown:
        spark(tmp_path, given=refused).session()
    assert "secret" not in str(shown.value)


def test_settings_of_sessions_that_penstock_starts_are_reported_if_another_is_used(
    tmp_path: Path, calls: Calls
) -> None:
    events: list[Event] = []
    sessions = spark(
        tmp_path, given="theirs", listeners=[events.append], spark_master="local[3]", spark_session="own", app_name="a"
    )
    sessions.session()
    settings = [event.setting for event in events if isinstance(event, SettingWithoutEffect)]
    assert settings == ["spark.session", "spark.master"]


def test_the_session_of_the_process_is_used_and_not_stopped(tmp_path: Path, calls: Calls) -> None:
    calls.current = "notebook's"
    sessions = spark(tmp_path)
    assert sessions.session() == "sibling of notebook's"
    sessions.close()
    assert calls.calls == ["left sibling of notebook's"]


def test_the_session_of_a_databricks_cluster_is_not_stopped(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    sessions = spark(tmp_path)
    assert sessions.session() == "sibling of made"
    sessions.close()
    assert calls.calls == ["made", "left sibling of made"]


def test_under_spark_submit_the_session_is_made_by_pyspark_and_ended_by_us(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    sessions = spark(tmp_path)
    assert sessions.session() == "sibling of made"
    sessions.close()
    assert calls.calls == ["made", "left sibling of made", "ended made False"]


def test_a_session_of_our_own_is_impossible_under_spark_submit(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigurationError, match=r"runs in that of spark-submit\. Remove the setting"):
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


def test_a_connect_server_in_the_environment_and_another_master_are_one_too_many(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002/;use_ssl=true;token=secret")
    sentence = (
        r"SPARK_REMOTE names a Spark Connect server \(sc://host:15002/;use_ssl=true;token=\*\*\*\), and spark\.master "
        r"another Spark \(local\[2\]\)"
    )
    with pytest.raises(ConfigurationError, match=sentence):
        spark(tmp_path, spark_master="local[2]").session()
    assert spark(tmp_path).session() == "sibling of made"  # PySpark connects to it


def test_a_master_that_was_set_means_a_session_of_our_own(tmp_path: Path, calls: Calls) -> None:
    calls.current = "notebook's"
    assert spark(tmp_path, spark_master="local[2]").session() == "started"


def test_two_apps_of_a_process_cannot_both_start_spark_and_the_second_says_so(tmp_path: Path, calls: Calls) -> None:
    first = spark(tmp_path)
    first.session()
    calls.current = "the first one's"
    for setting in ("auto", "own"):
        with pytest.raises(ConfigurationError, match=r"start a session and give it to both, as App\(spark=\.\.\.\)"):
            spark(tmp_path, spark_session=setting).session()
    first.close()
    calls.current = None
    third = spark(tmp_path)
    assert third.session() == "started"
    third.close()


def test_two_apps_of_a_process_can_share_a_given_session(tmp_path: Path, calls: Calls) -> None:
    first, second = spark(tmp_path, given="theirs"), spark(tmp_path, given="theirs")
    assert (first.session(), second.session()) == ("sibling of theirs", "sibling of theirs")
    first.close()
    assert second.session() == "sibling of theirs"
    assert calls.calls == ["left sibling of theirs"]


class Given(Exception):
    """Raised in place of opening a session."""


@pytest.mark.parametrize(
    ("call", "app", "expected"), [(None, None, None), (None, "app's", "app's"), ("call's", "app's", "call's")]
)
def test_the_argument_of_a_call_wins_over_the_session_of_the_app(
    call: Any, app: Any, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def app_spark(*_: object, given: object, **__: object) -> None:
        raise Given(given)

    monkeypatch.setattr("penstock.app.serving.app_spark", app_spark)
    settings = Settings.model_construct(data_dir=str(tmp_path / "state"))
    made = App(broker=f"sqlite:///{tmp_path}/queue.db", spark=app, settings=settings)
    made.handler("orders")(print)
    with pytest.raises(Given) as given:
        serve(made, stop=StopSignal(), spark=call)
    assert given.value.args == (expected,)


def test_an_app_from_the_settings_can_be_given_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    theirs: Any = "theirs"
    assert App.from_config(spark=theirs).spark is theirs
