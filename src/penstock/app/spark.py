"""Hold the Spark session of a process: shared by all its pipelines, started on first use, ended by `close`.

A session given by the user is neither stopped nor changed: pipelines run in a new session on the same Spark context.
"""

import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.housekeeping import SCRATCH_FOLDER
from penstock.config import Settings
from penstock.errors import PenstockError, TemporaryError, UserError
from penstock.events import Bus, SparkStarted
from penstock.messaging.clock import Clock
from penstock.pipeline.extra import require_spark
from penstock.pipeline.spark.java import find_java
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.pipeline.spark.java import Java
    from penstock.pipeline.spark.session import Session, SessionSettings

SPARK_LOG_FILE = "spark.log"
SESSION_END_SECONDS = 2.0  # part of the stop timeout: for Spark to end on its own


class Spark:
    """The Spark session of one process. Any thread may call `session`. PySpark is imported on first use."""

    def __init__(
        self,
        settings: Settings,
        *,
        scratch: Path,
        log: Path,
        clock: Clock,
        bus: Bus,
        stop: StopSignal,
        given: "Session | None" = None,
    ) -> None:
        self._settings = settings
        self._scratch = scratch
        self._log = log
        self._clock = clock
        self._bus = bus
        self._stop = stop
        self._given = given
        self._starting = threading.Lock()  # held while a session starts, which may take a minute
        self._lock = threading.Lock()  # never held for long
        self._java: Java | None = None  # cached; a second search does no harm
        self._beside: Session | None = None  # derived from the given session; written by the starting thread
        self._failure: PenstockError | None = None  # as above: why no session will ever start
        self._own: Session | None = None  # under the lock
        self._closed = False

    def check(self) -> None:
        """Raise `ConfigurationError` if PySpark or Java is missing. Does not start Spark."""
        require_spark()
        if self._given is None:
            self._find_java()

    def session(self) -> "Session":
        """Return the session, which the first call starts while others wait. A failed start is not tried again.

        Raises `ConfigurationError` if Spark does not start, or if its workers cannot run Penstock, and `TemporaryError`
        after `close`.
        """
        with self._starting:
            if self._failure is not None:
                raise self._failure
            made = self._beside or self._own
            if made is not None:
                return made
            try:
                return self._open_beside(self._given) if self._given is not None else self._keep(self._start())
            except UserError as error:
                self._failure = error
                raise

    def close(self) -> None:
        """End our own session within a few seconds, or at once if the process was asked to stop.

        Does not wait for a session that is still starting: the thread that starts it ends it.
        """
        with self._lock:
            self._closed = True
            own, self._own = self._own, None
        if own is not None:
            self._end(own)

    def _open_beside(self, given: "Session") -> "Session":
        from penstock.pipeline.spark import cluster_checks, session

        beside = session.session_beside(given)
        cluster_checks.check_python(beside)
        self._beside = beside
        return beside

    def _keep(self, own: "Session") -> "Session":
        with self._lock:
            is_late = self._closed
            if not is_late:
                self._own = own
        if is_late:
            self._end(own)
            raise TemporaryError("the worker ended while Spark was starting")
        return own

    def _end(self, own: "Session") -> None:
        from penstock.pipeline.spark.session import end_session

        end_session(own, at_once=self._stop.requested, seconds=SESSION_END_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _find_java(self) -> "Java":
        self._java = self._java or find_java(os.environ)
        return self._java

    def _start(self) -> "Session":
        require_spark()
        from penstock.pipeline.spark import cluster_checks, session

        began_at = self._clock.monotonic()
        java = self._find_java()
        spark = session.start_session(session_settings(self._settings, java, scratch=self._scratch, log=self._log))
        try:
            cluster_checks.check_python(spark)
        except BaseException:
            session.end_session(spark, at_once=False, seconds=SESSION_END_SECONDS)
            raise
        seconds = self._clock.monotonic() - began_at
        found = f"Java {java.version} from {java.source}"
        self._bus.emit(SparkStarted(java=found, notes=java.notes, seconds=seconds))
        return spark


def app_spark(
    settings: Settings, *, worker: str, clock: Clock, bus: Bus, stop: StopSignal, given: "Session | None" = None
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
    from penstock.pipeline.spark.session import SessionSettings

    return SessionSettings(
        master=settings.spark_master,
        java_home=java.home,
        scratch=scratch,
        log=log,
        driver_memory=settings.spark_driver_memory,
        extra_conf=settings.spark_conf,
    )
