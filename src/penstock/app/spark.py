"""Hold the Spark session of a process: shared by all its pipelines, opened on first use, ended by `close`.

A session that was passed in, to a call or to `App`, wins. Otherwise the setting ``spark.session`` decides: our own,
started here or opened at a Spark Connect server; the current one of spark-submit, a notebook or a job; or one that a
function of the user's returns. Sessions that are not ours are neither changed nor stopped: pipelines run in a sibling.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from penstock.app.housekeeping import SCRATCH_FOLDER
from penstock.app.user_modules import function_named
from penstock.config import Settings, dotted
from penstock.errors import ConfigurationError, PenstockError, TemporaryError, UsageError, UserError
from penstock.events import Bus, SettingWithoutEffect, SparkAwaited, SparkStarted
from penstock.messaging.addresses import masked
from penstock.messaging.clock import Clock
from penstock.pipeline.extra import require_connect, require_spark
from penstock.pipeline.spark.java import find_java
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.pipeline.spark.classic import SessionSettings
    from penstock.pipeline.spark.java import Java
    from penstock.pipeline.spark.runtime import GivenSpark, Session

AUTO, OWN, CURRENT = "auto", "own", "current"
CONNECT_SCHEME = "sc://"
SPARK_LOG_FILE = "spark.log"
SESSION_END_SECONDS = 2.0  # part of the stop timeout: for Spark to end on its own

# Variables of the environment. With each of them, the process has a session or PySpark can make one.
UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"  # a JVM started this process
ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"  # the session is the cluster's, and is never stopped
REMOTE = "SPARK_REMOTE"  # the address of a Spark Connect server
_WITH_SESSION = (UNDER_SPARK_SUBMIT, ON_DATABRICKS, REMOTE)

NOT_OURS = "the Spark session in use was not started by Penstock"
_OF_OWN_SESSIONS = ("spark_master", "spark_driver_memory", "spark_conf")  # settings without effect on other sessions

# The holders that run a classic session of their own; a process can have only one. Without a lock: if two start at
# once, PySpark refuses the second.
_with_own: "WeakSet[Spark]" = WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A session to work in."""

    session: "Session"
    end: Callable[[bool], None]  # stops using it, and stops it if it is ours; called with True to do so at once


def session_origin(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return where the session comes from: ``own``, ``current``, or the name of a function, as ``module:function``.

    ``auto`` means the current session if the process has one or PySpark can make one. A spark.master that is set asks
    for a session of our own, except under spark-submit, which has chosen the master.
    """
    if settings.spark_session != AUTO:
        return settings.spark_session
    if "spark_master" in settings.model_fields_set and UNDER_SPARK_SUBMIT not in environ:
        return OWN
    return CURRENT if any(environ.get(name) for name in _WITH_SESSION) or _has_session() else OWN


class Spark:
    """The holder of one process's Spark session. Any thread may call `session`. PySpark is imported on first use."""

    def __init__(
        self,
        settings: Settings,
        *,
        scratch: Path,
        log: Path,
        clock: Clock,
        bus: Bus,
        stop: StopSignal,
        given: "GivenSpark | None" = None,
        checks: bool = True,
    ) -> None:
        """Without ``checks``, `session` also returns a session whose workers cannot run Penstock."""
        self._settings = settings
        self._scratch = scratch
        self._log = log
        self._clock = clock
        self._bus = bus
        self._stop = stop
        self._given = given
        self._checks = checks
        self._origin = session_origin(settings, os.environ)
        self._starting = threading.Lock()  # held while a session starts, which may take a minute
        self._lock = threading.Lock()  # never held for long
        self._java: Java | None = None  # cached, by any thread
        self._failure: PenstockError | None = None  # why no session will ever start; written by the starting thread
        self._opened: _Opened | None = None  # under the lock
        self._closed = False

    def check(self) -> None:
        """Raise `ConfigurationError` if PySpark, Java or the client of Spark Connect is missing. Starts nothing."""
        require_spark()
        if self._given is None and self._origin == OWN:
            if self._is_remote:
                require_connect()
            else:
                self._find_java()

    def session(self) -> "Session":
        """Return the session, which the first call opens while others wait. A failed start is not tried again.

        Raises `ConfigurationError` if Spark does not start, or if its workers cannot run Penstock, and `TemporaryError`
        after `close` and if the process was asked to stop meanwhile: the same signal may have ended Spark's JVM.
        """
        with self._starting:
            if self._failure is not None:
                raise self._failure
            if self._opened is not None:
                return self._opened.session
            try:
                return self._keep(self._prepare(self._open()))
            except UserError as error:
                if self._stop.requested:
                    raise TemporaryError(f"the process was asked to stop while Spark was starting: {error}") from error
                self._failure = error
                raise

    def close(self) -> None:
        """End a session of our own within a few seconds, or at once if the process was asked to stop.

        Does not wait for a session that is still starting: the thread that starts it ends it.
        """
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            self._end(opened)

    @property
    def has_failed(self) -> bool:
        """Return True if no session could be opened."""
        return self._failure is not None

    @property
    def _is_remote(self) -> bool:
        return self._settings.spark_master.startswith(CONNECT_SCHEME)

    def _keep(self, opened: _Opened) -> "Session":
        with self._lock:
            is_late = self._closed
            if not is_late:
                self._opened = opened
        if is_late:
            self._end(opened)
            raise TemporaryError("the worker ended while Spark was starting")
        return opened.session

    def _end(self, opened: _Opened) -> None:
        opened.end(self._stop.requested)
        _with_own.discard(self)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _find_java(self) -> "Java":
        self._java = self._java or find_java(os.environ)
        return self._java

    def _open(self) -> _Opened:
        require_spark()
        if self._given is not None:
            self._report_unused("spark_session")
            return self._open_sibling(self._given, "The value of spark=")
        if self._origin == CURRENT:
            return self._open_current()
        if self._origin != OWN:
            named = function_named(self._origin, purpose="spark.session =")
            return self._open_sibling(named, f"spark.session = {self._origin}")
        if UNDER_SPARK_SUBMIT in os.environ:
            raise ConfigurationError(
                "spark.session = own starts a Spark of its own, and this process runs in that of spark-submit. Remove "
                "the setting."
            )
        return self._open_remote() if self._is_remote else self._start()

    def _prepare(self, opened: _Opened) -> _Opened:
        """Ship Penstock to the executors and check that they can run it. Ends a session of our own if they cannot.

        Raises `TemporaryError` if the process is asked to stop meanwhile.
        """
        from penstock.pipeline.spark.probe import check_workers
        from penstock.pipeline.spark.session import runtime_of
        from penstock.pipeline.spark.shipping import ship
        from penstock.pipeline.spark.stopping import cancelled_at_stop

        try:
            runtime = runtime_of(opened.session)
            ship(runtime, [Path(path) for path in self._settings.spark_py_files])
            if self._checks:
                with cancelled_at_stop(runtime, lambda: self._stop.requested, self._report_wait):
                    check_workers(opened.session)
        except BaseException:
            self._end(opened)
            raise
        return opened

    def _report_wait(self) -> None:
        own = masked(self._settings.spark_master) if self._origin == OWN else self._origin
        self._bus.emit(SparkAwaited(spark=own if self._given is None else "the given session"))

    def _open_sibling(self, given: "GivenSpark", origin: str) -> _Opened:
        """Return a sibling of a session that is not ours."""
        from penstock.pipeline.spark import session

        made: Any = given if session.is_session(given) or not callable(given) else _call(given, origin)
        if not session.is_session(made):
            raise UsageError(
                f"{origin} must be a SparkSession, or a function that returns one; this is {type(made).__name__}."
            )
        self._report_unused(*_OF_OWN_SESSIONS)
        runtime = session.runtime_of(made)
        runtime.check()
        sibling = runtime.sibling()
        return _Opened(session=sibling, end=lambda _: session.leave_sibling(sibling, made, SESSION_END_SECONDS))

    def _open_current(self) -> _Opened:
        """Return a sibling of the current session. If PySpark has to make that one, it is stopped at the end."""
        from penstock.pipeline.spark import session

        _check_alone()
        is_ours = not (_has_session() or ON_DATABRICKS in os.environ)
        current = session.current_session()
        opened = self._open_sibling(current, "The current session")

        def end(at_once: bool) -> None:
            opened.end(at_once)
            session.end_session(current, at_once=at_once, seconds=SESSION_END_SECONDS)

        return _Opened(session=opened.session, end=end) if is_ours else opened

    def _report_unused(self, *fields: str) -> None:
        """Report these settings, if they were set: they have no effect on a session that is not ours."""
        for field in sorted(self._settings.model_fields_set.intersection(fields)):
            self._bus.emit(SettingWithoutEffect(setting=dotted(field), reason=NOT_OURS))

    def _open_remote(self) -> _Opened:
        from penstock.pipeline.spark import connect

        began_at, address = self._clock.monotonic(), self._settings.spark_master
        spark = connect.open_session(address, self._settings.spark_conf)
        seconds = self._clock.monotonic() - began_at
        found = f"Spark {spark.version} at {connect.place_of(address)}"
        self._bus.emit(SparkStarted(java=found, notes=(), seconds=seconds))
        return _Opened(session=spark, end=lambda _: connect.end_session(spark, seconds=SESSION_END_SECONDS))

    def _start(self) -> _Opened:
        from penstock.pipeline.spark import classic

        _check_alone()
        if remote := os.environ.get(REMOTE):  # PySpark would look for the server in the middle of a run
            raise ConfigurationError(
                f"{REMOTE} names a Spark Connect server ({masked(remote)}), and spark.master another Spark "
                f"({self._settings.spark_master}): unset one of them."
            )
        began_at = self._clock.monotonic()
        java = self._find_java()
        spark = classic.start_session(session_settings(self._settings, java, scratch=self._scratch, log=self._log))
        _with_own.add(self)
        seconds = self._clock.monotonic() - began_at
        found = f"Java {java.version} from {java.source}"
        self._bus.emit(SparkStarted(java=found, notes=java.notes, seconds=seconds))
        return _Opened(
            session=spark,
            end=lambda at_once: classic.end_session(spark, at_once=at_once, seconds=SESSION_END_SECONDS),
        )


def app_spark(
    settings: Settings, *, worker: str, clock: Clock, bus: Bus, stop: StopSignal, given: "GivenSpark | None" = None
) -> Spark:
    """Return the session holder of an app's worker. Its files are in the data directory."""
    state = Path(settings.data_dir).absolute()
    return Spark(
        settings,
        scratch=state / SCRATCH_FOLDER / worker,
        log=state / SPARK_LOG_FILE,
        clock=clock,
        bus=bus,
        stop=stop,
        given=given,
    )


def session_settings(settings: Settings, java: "Java", *, scratch: Path, log: Path) -> "SessionSettings":
    """Return the settings to start a session of our own."""
    from penstock.pipeline.spark.classic import SessionSettings

    return SessionSettings(
        master=settings.spark_master,
        java_home=java.home,
        scratch=scratch,
        log=log,
        driver_memory=settings.spark_driver_memory,
        extra_conf=settings.spark_conf,
    )


def _check_alone() -> None:
    """Raise `ConfigurationError` if a holder of this process runs a classic session of its own."""
    if _with_own:
        raise ConfigurationError(
            "Another App or run in this process has started Spark, and a process can have only one Spark: start a "
            "session and give it to both, as App(spark=...)."
        )


def _call(function: Callable[[], "Session"], origin: str) -> Any:
    """Return what a user's function returns. Raises `ConfigurationError` with its exception."""
    try:
        return function()
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        text = masked(f"{type(error).__name__}: {error}").rstrip(".")
        raise ConfigurationError(f"{origin} could not make a Spark session: {text}.") from error


def _has_session() -> bool:
    """Return True if this process has a Spark session, ours or the user's. Does not import PySpark."""
    if "pyspark" not in sys.modules:
        return False
    from penstock.pipeline.spark.session import has_session

    return has_session()
