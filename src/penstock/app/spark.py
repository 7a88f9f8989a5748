"""The Spark session of a process: one for all its pipelines, started when the first asks for it, ended by `close`.

A session that was handed in is never stopped nor changed: the work is done in one beside it.
"""

import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.housekeeping import SCRATCH_FOLDER
from penstock.config import Settings
from penstock.events import Bus, SparkStarted
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.pipeline.java import Java
    from penstock.pipeline.session import Session, SessionSettings

SPARK_LOG_FILE = "spark.log"
SESSION_END_SECONDS = 2.0  # of the stop timeout: Spark gets this long to leave by itself


class Spark:
    """Ask `session` from any thread. PySpark is imported when it is asked."""

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
        self._lock = threading.Lock()
        self._beside: Session | None = None  # beside the given one; this and the next: written under the lock
        self._own: Session | None = None

    def session(self) -> "Session":
        """The session. Raises `ConfigurationError` if Spark does not start, or if its workers cannot run Penstock."""
        with self._lock:
            if self._given is not None and self._beside is None:
                from penstock.pipeline.python_workers import check_python
                from penstock.pipeline.session import session_beside

                beside = session_beside(self._given)
                check_python(beside)
                self._beside = beside
            if self._beside is not None:
                return self._beside
            if self._own is None:
                self._own = self._start()
            return self._own

    def close(self) -> None:
        """End a session of our own, within a few seconds; at once where the process was asked to stop."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            from penstock.pipeline.session import end_session

            end_session(own, at_once=self._stop.requested, seconds=SESSION_END_SECONDS)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self) -> "Session":
        from penstock.pipeline.extra import require_spark

        require_spark()
        from penstock.pipeline.java import find_java
        from penstock.pipeline.python_workers import check_python
        from penstock.pipeline.session import end_session, start_session

        began_at = self._clock.monotonic()
        java = find_java(os.environ)
        spark = start_session(session_settings(self._settings, java, scratch=self._scratch, log=self._log))
        try:
            check_python(spark)
        except BaseException:
            end_session(spark, at_once=False, seconds=SESSION_END_SECONDS)
            raise
        seconds = self._clock.monotonic() - began_at
        found = f"Java {java.version} from {java.source}"
        self._bus.emit(SparkStarted(java=found, notes=java.notes, seconds=seconds))
        return spark


def app_spark(
    settings: Settings, *, worker: str, clock: Clock, bus: Bus, stop: StopSignal, given: "Session | None" = None
) -> Spark:
    """The session of an app's worker; its files lie in the state folder of the settings."""
    state = Path(settings.state).absolute()
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
    """How a session of our own is started."""
    from penstock.pipeline.session import SessionSettings

    return SessionSettings(
        master=settings.spark_master,
        java_home=java.home,
        scratch=scratch,
        log=log,
        driver_memory=settings.spark_driver_memory,
        extra_conf=settings.spark_conf,
    )
