"""`penstock monitor` as a process: it measures, serves the metrics, and reports problems.

Two monitors do no harm, except to dashboards that sum their values. Measuring runs in its own thread, so that a stop
never waits for an unresponsive broker.
"""

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.telemetry import guarded, open_telemetry
from penstock.events import Bus, MonitorStarted, tell_nobody
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.health import Answer, Health
from penstock.operations.monitor.look import MonitorSample, OverdueNotices, gauges
from penstock.operations.monitor.monitor import Monitor, watches_of
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.monitoring.metrics.meters import Meters

BLIND_SECONDS = 120.0  # after this time in one measurement, the previous values are outdated
STUCK_SECONDS = 300.0  # a longer measurement will not end: all its calls have shorter limits
JITTER_SHARE = 0.1  # so that two monitors do not stay synchronised
FAILED = "monitor_looks_failed_total"
_JOIN_SECONDS = 0.1
_LEAVE_SECONDS = 0.3  # for a measurement in progress at a stop


class MonitorLoop:
    """The loop: measure, publish, rest. Started once; its progress is its health."""

    def __init__(self, *, every_seconds: float, stop: StopSignal, clock: Clock, random: Random) -> None:
        self._every_seconds = every_seconds
        self._stop = stop
        self._clock = clock
        self._random = random
        self._looks = 0  # this and the next two: written by the measuring thread
        self._began_at: float | None = None  # monotonic start of the current measurement
        self._latest: MonitorSample | None = None

    @property
    def health(self) -> Health:
        """The probes: live while measurements end, whatever they find; ready after the first."""
        return Health(live=self._live, ready=self._ready, started=self._ready)

    @property
    def unseen(self) -> MonitorSample | None:
        """A sample without values while a measurement does not end; None otherwise."""
        latest = self._latest
        if latest is None or self._under_way_seconds <= BLIND_SECONDS:
            return None
        return MonitorSample(at=latest.at, up=dict.fromkeys(latest.up, False))

    def run(self, look: Callable[[], MonitorSample], publish: Callable[[MonitorSample], None]) -> None:
        """Measure until a stop."""
        asked = threading.Event()
        with self._stop.watched_by(asked):
            while not self._stop.requested:
                asked.clear()
                self._began_at = self._clock.monotonic()
                found = look()
                self._began_at = None
                self._latest = found
                publish(found)
                self._looks += 1
                if not self._stop.requested:
                    self._clock.wait(asked, self._rest_seconds())

    def _rest_seconds(self) -> float:
        return self._every_seconds * (1 - JITTER_SHARE + 2 * JITTER_SHARE * self._random())

    @property
    def _under_way_seconds(self) -> float:
        began_at = self._began_at
        return 0.0 if began_at is None else self._clock.monotonic() - began_at

    def _live(self) -> Answer:
        if self._under_way_seconds > STUCK_SECONDS:
            return False, f"a look has gone on for more than {STUCK_SECONDS:.0f} s"
        return True, "the monitor looks"

    def _ready(self) -> Answer:
        return self._looks > 0, "the monitor has looked" if self._looks else "the first look is under way"


def run_monitor(app: "App", *, stop: StopSignal) -> bool:
    """Measure until asked to stop; return False if a measurement is still hanging at the end.

    Raises `ConfigurationError` as `watches_of` does, and if the address cannot be bound.
    """
    clock, settings = SystemClock(), app.settings
    looking = MonitorLoop(every_seconds=settings.monitor_seconds, stop=stop, clock=clock, random=random.random)
    heard = open_telemetry(
        settings.model_copy(update={"metrics_address": settings.monitor_address}),
        worker=app.worker,
        process="monitor",
        on_error=app.on_error,
        health=looking.health,
    )
    bus = Bus(*guarded(app.listeners, tell=Bus(*heard.listeners).emit), *heard.listeners)
    with heard.told():
        watches = watches_of(app, clock=clock)
        monitor = Monitor(watches, clock=clock, tell=bus.emit)
        notices = OverdueNotices(after_seconds=settings.overdue_after_seconds, clock=clock, tell=bus.emit)

        if heard.meters is not None:
            heard.meters.before_reading(partial(forget_old, looking, heard.meters))

        def publish(look: MonitorSample) -> None:
            if heard.meters is not None:
                to_meters(look, heard.meters)
            notices.hear(look.pipelines)

        bus.emit(
            MonitorStarted(
                address=heard.metrics_address or "",
                sources=watches.sources,
                queues=watches.queue_names,
                pipelines=watches.pipeline_names,
            )
        )
        ended = _awaited(lambda: looking.run(monitor.look, publish), stop, clock)
    if ended:
        app.close()
    return ended


def look_once(app: "App") -> MonitorSample:
    """Return one measurement without emitting events. Raises `ConfigurationError` as `watches_of` does."""
    clock = SystemClock()
    try:
        return Monitor(watches_of(app, clock=clock), clock=clock, tell=tell_nobody).look()
    finally:
        app.close()


def to_meters(look: MonitorSample, meters: "Meters") -> None:
    """Set every gauge of the monitor to this sample, and count the sources that failed."""
    for name, samples in gauges(look).items():
        meters.replace(name, samples)
    for source, up in look.up.items():
        meters.count(FAILED, (source,), 0.0 if up else 1.0)


def forget_old(looking: MonitorLoop, meters: "Meters") -> None:
    """Remove the previous values while the current measurement hangs, so that they do not seem current."""
    unseen = looking.unseen
    if unseen is not None:
        for name, samples in gauges(unseen).items():
            meters.replace(name, samples)


def _awaited(work: Callable[[], None], stop: StopSignal, clock: Clock) -> bool:
    """Run ``work`` in a thread and wait for it, because signal handlers run in the main thread.

    Raises the error of ``work``. Return False if it is still running shortly after a stop.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="penstock-monitor", daemon=True)
    thread.start()
    leave_at: float | None = None
    while thread.is_alive() and (leave_at is None or clock.monotonic() < leave_at):
        thread.join(_JOIN_SECONDS)
        if stop.requested and leave_at is None:
            leave_at = clock.monotonic() + _LEAVE_SECONDS
    if failures:
        raise failures[0]
    return not thread.is_alive()
