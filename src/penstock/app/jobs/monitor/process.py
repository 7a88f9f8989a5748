"""`penstock admin monitor` as a process: it measures, serves the metrics, and reports problems.

Two monitors do no harm, except to dashboards that sum their values. Measuring runs in its own thread, so that a stop
never waits for an unresponsive broker.
"""

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.jobs.monitor.history import MonitorHistory
from penstock.app.jobs.monitor.monitor import Monitor, monitor_targets
from penstock.app.jobs.monitor.sample import MonitorSample, OverdueNotices, gauges
from penstock.app.telemetry import guarded, open_telemetry
from penstock.events import Bus, MonitorStarted, ignore
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.threads import WorkThread
from penstock.monitoring.health import Health, ProbeResult
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.monitoring.metrics.meters import Meters

BLIND_SECONDS = 120.0  # after this time in one measurement, the previous values are outdated
STUCK_SECONDS = 300.0  # a longer measurement will not end: all its calls have shorter limits
JITTER_SHARE = 0.1  # so that two monitors do not stay synchronised
CPU_REST_FACTOR = 100.0  # rest after a measurement, as a multiple of its CPU time: a long queue file gets fewer
REST_SECONDS_MAX = 300.0
FAILED = "monitor_poll_failures_total"
_JOIN_SECONDS = 0.1
_LEAVE_SECONDS = 0.3  # for a measurement in progress at a stop


class MonitorLoop:
    """The loop: measure, publish, rest. Started once; its progress is its health."""

    def __init__(
        self,
        *,
        every_seconds: float,
        stop: StopSignal,
        clock: Clock,
        random: Random,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._every_seconds = every_seconds
        self._cpu_seconds = cpu_seconds
        self._stop = stop
        self._clock = clock
        self._random = random
        self._measured = 0  # this and the next two: written by the measuring thread
        self._began_at: float | None = None  # monotonic start of the current measurement, or of its publication
        self._latest: MonitorSample | None = None

    @property
    def health(self) -> Health:
        """The probes: live while measurements end, whatever they find; ready after the first."""
        return Health(live=self._live, ready=self._ready, started=self._ready)

    @property
    def outdated(self) -> MonitorSample | None:
        """A sample without values while a measurement does not end; None otherwise."""
        latest = self._latest
        if latest is None or self._under_way_seconds <= BLIND_SECONDS:
            return None
        return MonitorSample(at=latest.at, up=dict.fromkeys(latest.up, False))

    def run(self, measure: Callable[[], MonitorSample], publish: Callable[[MonitorSample], None]) -> None:
        """Measure until a stop."""
        stop_requested = threading.Event()
        with self._stop.watched_by(stop_requested):
            while not self._stop.requested:
                stop_requested.clear()
                self._began_at = self._clock.monotonic()
                cpu_before = self._cpu_seconds()
                found = measure()
                cpu_seconds = self._cpu_seconds() - cpu_before
                self._latest = found
                self._began_at = self._clock.monotonic()  # the disk that has the history may hang as a service may
                publish(found)
                self._began_at = None
                self._measured += 1
                if not self._stop.requested:
                    self._clock.wait(stop_requested, self._rest_seconds(cpu_seconds))

    def _rest_seconds(self, cpu_seconds: float) -> float:
        every_seconds = max(self._every_seconds, min(CPU_REST_FACTOR * cpu_seconds, REST_SECONDS_MAX))
        return every_seconds * (1 - JITTER_SHARE + 2 * JITTER_SHARE * self._random())

    @property
    def _under_way_seconds(self) -> float:
        began_at = self._began_at
        return 0.0 if began_at is None else self._clock.monotonic() - began_at

    def _live(self) -> ProbeResult:
        if self._under_way_seconds > STUCK_SECONDS:
            return False, f"a measurement has taken more than {STUCK_SECONDS:.0f} s"
        return True, "the monitor measures"

    def _ready(self) -> ProbeResult:
        text = "the monitor has measured" if self._measured else "the first measurement is in progress"
        return self._measured > 0, text


def run_monitor(app: "App", *, stop: StopSignal) -> bool:
    """Measure until asked to stop; return False if a measurement is still hanging at the end.

    Raises `ConfigurationError` as `monitor_targets` does, and if the address cannot be bound.
    """
    clock, settings = SystemClock(), app.settings
    loop = MonitorLoop(every_seconds=settings.metrics_monitor_every, stop=stop, clock=clock, random=random.random)
    telemetry = open_telemetry(
        settings.model_copy(update={"metrics_address": settings.metrics_monitor_address}),
        worker=app.worker,
        process="monitor",
        on_error=app.on_error,
        health=loop.health,
    )
    bus = Bus(*guarded(app.listeners, emit=Bus(*telemetry.listeners).emit), *telemetry.listeners)
    with telemetry.running():
        targets = monitor_targets(app, clock=clock)
        monitor = Monitor(targets, clock=clock, emit=bus.emit)
        notices = OverdueNotices(after_seconds=settings.objects_overdue_after, clock=clock, emit=bus.emit)
        history = MonitorHistory(settings, clock=clock, emit=bus.emit)

        if telemetry.meters is not None:
            telemetry.meters.before_reading(partial(forget_old, loop, telemetry.meters))

        def publish(sample: MonitorSample) -> None:
            if telemetry.meters is not None:
                to_meters(sample, telemetry.meters)
            notices.update(sample.pipelines)
            history.write(sample)

        bus.emit(
            MonitorStarted(
                address=telemetry.metrics_address or "",
                sources=targets.sources,
                queues=targets.queue_names,
                pipelines=targets.pipeline_names,
            )
        )
        ended = _awaited(lambda: loop.run(monitor.measure, publish), stop, clock)
    if ended:
        app.close()
    return ended


def measure_once(app: "App") -> MonitorSample:
    """Return one measurement without emitting events. Raises `ConfigurationError` as `monitor_targets` does."""
    clock = SystemClock()
    try:
        return Monitor(monitor_targets(app, clock=clock), clock=clock, emit=ignore).measure()
    finally:
        app.close()


def to_meters(sample: MonitorSample, meters: "Meters") -> None:
    """Set every gauge of the monitor to this sample, and count the sources that failed."""
    for name, series in gauges(sample).items():
        meters.replace(name, series)
    for source, up in sample.up.items():
        meters.count(FAILED, (source,), 0.0 if up else 1.0)


def forget_old(loop: MonitorLoop, meters: "Meters") -> None:
    """Remove the previous values while the current measurement hangs, so that they do not seem current."""
    outdated = loop.outdated
    if outdated is not None:
        for name, series in gauges(outdated).items():
            meters.replace(name, series)


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

    thread = WorkThread(run, name="penstock-monitor")
    thread.start()
    leave_at: float | None = None
    while thread.is_alive() and (leave_at is None or clock.monotonic() < leave_at):
        thread.join(_JOIN_SECONDS)
        if stop.requested and leave_at is None:
            leave_at = clock.monotonic() + _LEAVE_SECONDS
    if failures:
        raise failures[0]
    return not thread.is_alive()
