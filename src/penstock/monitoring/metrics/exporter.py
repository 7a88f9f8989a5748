"""Send metrics periodically and at the end of the process.

Each destination has an exporter with a thread of its own, so that a hanging one does not keep the last counts from the
others.
"""

import threading
from typing import Protocol

from penstock.events import Listener, MetricsExportFailed
from penstock.messaging.clock import Clock
from penstock.monitoring.errors.outlets import Throttle
from penstock.monitoring.export_log import QUIET_SECONDS
from penstock.monitoring.metrics.meters import NOTHING_READ, Meters, Reading, changes

THREAD = "penstock-metrics"


class MetricsDestination(Protocol):
    """A destination of metrics. Only the exporter's thread calls it."""

    @property
    def name(self) -> str:
        """Return the name to report failures under."""
        ...

    def export(self, fresh: Reading) -> None:
        """Send the changes since the last call.

        May block and may raise. A failure is reported, and the next call gets only the changes after this one.
        """
        ...


class Exporter:
    """The exporter of a process's meters to one destination, periodically and on request, in its own thread.

    Failures and delays of the destination do not affect the work.
    """

    def __init__(
        self, meters: Meters, destination: MetricsDestination, *, every_seconds: float, clock: Clock, emit: Listener
    ) -> None:
        self._meters = meters
        self._destination = destination
        self._every_seconds = every_seconds
        self._clock = clock
        self._emit = emit
        self._last = NOTHING_READ  # this and _words: used only by the exporter's thread
        self._reports = Throttle(QUIET_SECONDS, clock)  # for a destination that keeps failing
        self._wake = threading.Event()
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None  # this and the next three fields are guarded by _state
        self._begun = 0  # flushes begun
        self._done = 0  # flushes completed
        self._ended = False

    def start(self) -> None:
        """Start exporting periodically."""
        with self._state:
            if self._thread is None:
                # A daemon: a destination that hangs must not keep the process alive. The last counts are flushed before
                # the end.
                self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                self._thread.start()

    def begin_flush(self) -> None:
        """Start sending the current counts, without waiting."""
        with self._state:
            self._begun += 1
        self.start()
        self._wake.set()

    def await_flush(self, seconds: float) -> bool:
        """Wait until all begun flushes are done. Return False if that takes longer than ``seconds``."""
        with self._state:
            return self._state.wait_for(lambda: self._done >= self._begun, seconds)

    def end(self) -> None:
        """Stop exporting. Does not wait."""
        with self._state:
            self._ended = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._clock.wait(self._wake, self._every_seconds)
            self._wake.clear()
            with self._state:
                begun, ended = self._begun, self._ended and self._begun == self._done
            if ended:
                return
            self._round()
            with self._state:
                self._done = begun
                self._state.notify_all()

    def _round(self) -> None:
        now = self._meters.read()
        fresh = changes(self._last, now, self._meters.catalogue)
        self._last = now
        try:
            self._destination.export(fresh)
        except Exception as error:
            if self._reports.begin_if_due():
                self._emit(
                    MetricsExportFailed(exporter=self._destination.name, error=f"{type(error).__name__}: {error}")
                )
        else:
            self._reports.begin_anew()
