"""Sending metrics somewhere every so often, and at the end. Each place they go to has an exporter with a thread of its
own: one that hangs keeps nothing from the others, of which each has the last counts to get.
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
    """A place that metrics go to. Only the exporter's thread calls it."""

    @property
    def name(self) -> str:
        """For people: what failed."""
        ...

    def export(self, fresh: Reading) -> None:
        """Send what came since the last call. May take its time, and may raise: then this is told, and the next call
        brings what came after."""
        ...


class Exporter:
    """Reads the meters every so often, and when it is asked to. Nothing that an outlet does reaches the work."""

    def __init__(
        self, meters: Meters, outlet: MetricsDestination, *, every_seconds: float, clock: Clock, tell: Listener
    ) -> None:
        self._meters = meters
        self._outlet = outlet
        self._every_seconds = every_seconds
        self._clock = clock
        self._tell = tell
        self._last = NOTHING_READ  # this and the next: the thread's alone
        self._words = Throttle(QUIET_SECONDS, clock)  # on an outlet that goes on failing
        self._wake = threading.Event()
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None  # this and the next three: under the condition
        self._asked = 0  # how many flushes were begun
        self._done = 0  # how many of them are over
        self._ended = False

    def start(self) -> None:
        """Send every so often, from now on."""
        with self._state:
            if self._thread is None:
                # A daemon: a place that hangs must not keep the process. What matters is flushed before the end.
                self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                self._thread.start()

    def begin_flush(self) -> None:
        """Send now what there is, without waiting for it."""
        with self._state:
            self._asked += 1
        self.start()
        self._wake.set()

    def await_flush(self, seconds: float) -> bool:
        """Wait, at most so long, until what was begun to be sent is; answers whether it is."""
        with self._state:
            return self._state.wait_for(lambda: self._done >= self._asked, seconds)

    def end(self) -> None:
        """Send no more. Does not wait."""
        with self._state:
            self._ended = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._clock.wait(self._wake, self._every_seconds)
            self._wake.clear()
            with self._state:
                asked, ended = self._asked, self._ended and self._asked == self._done
            if ended:
                return
            self._round()
            with self._state:
                self._done = asked
                self._state.notify_all()

    def _round(self) -> None:
        now = self._meters.read()
        fresh = changes(self._last, now, self._meters.catalogue)
        self._last = now
        try:
            self._outlet.export(fresh)
        except Exception as error:
            if self._words.is_due():
                self._tell(MetricsExportFailed(outlet=self._outlet.name, error=f"{type(error).__name__}: {error}"))
        else:
            self._words.begin_anew()
