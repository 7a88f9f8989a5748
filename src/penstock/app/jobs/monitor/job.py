"""The monitor as a job of workers: the elected worker measures and exports the monitor's gauges, the others none.

The election needs the ledger. While the ledger is unavailable, no worker measures, and the gauges are absent.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.jobs.elected import LEASE_SECONDS_MAX, ElectedJob, JobTask, TaskRun, elected_job
from penstock.app.jobs.monitor.history import MonitorHistory
from penstock.app.jobs.monitor.monitor import Monitor, monitor_targets
from penstock.app.jobs.monitor.process import MonitorLoop, forget_old, to_meters
from penstock.app.jobs.monitor.sample import MonitorSample, OverdueNotices, gauges
from penstock.app.service import ServiceContext
from penstock.events import MonitorStarted
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.monitoring.metrics.meters import Meters

NAME = "monitor"
CLAIMED_AS = "penstock monitor"
CHECKS_A_LEASE = 3  # a check waits for at most half a lease, so a dead worker is replaced within one and a half


def monitor_job(
    app: "App", context: ServiceContext, meters: "Meters", *, metrics_address: Callable[[], str | None]
) -> ElectedJob:
    """Return the job that measures everything an app uses, for as long as this worker is elected."""
    loops: list[MonitorLoop] = []  # the latest; appended to by the task's thread

    def run(task_run: TaskRun) -> None:
        loop = MonitorLoop(
            every_seconds=context.settings.metrics_monitor_every,
            stop=task_run.stop,
            clock=context.clock,
            random=context.random,
        )
        loops[:] = [loop]
        measure(app, context, meters, loop=loop, stop=task_run.stop, address=metrics_address())

    def is_stuck(_: float) -> bool:
        return any(not loop.health.live()[0] for loop in loops)

    return elected_job(
        NAME,
        [JobTask(name=app.name, run=run, is_stuck=is_stuck, key=claimed_key(app))],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=None,
        check_seconds=min(context.settings.worker_lease, LEASE_SECONDS_MAX) / CHECKS_A_LEASE,
    )


def claimed_key(app: "App") -> str:
    """Return the key of the claim, which tells apart apps that share a ledger.

    The name of an app that was given none is a guess, and another app may have the same: then their queues differ.
    """
    queues = () if app.is_named else sorted(service.queue_name for service in app.services)
    return json.dumps([app.name, app.address, *queues])


def measure(
    app: "App",
    context: ServiceContext,
    meters: "Meters",
    *,
    loop: MonitorLoop,
    stop: StopSignal,
    address: str | None,
) -> None:
    """Measure and set the gauges until a stop, then remove them.

    Raises `ConfigurationError` as `monitor_targets` does.
    """
    settings, emit = context.settings, context.bus.emit
    # A measurement that hangs at the stop must not leave gauges: another worker exports them by then.
    unregister = meters.before_reading(partial(_forget, loop, meters, stop))
    try:
        targets = monitor_targets(app, clock=context.clock)
        monitor = Monitor(targets, clock=context.clock, emit=emit)
        notices = OverdueNotices(after_seconds=settings.objects_overdue_after, clock=context.clock, emit=emit)
        history = MonitorHistory(settings, clock=context.clock, emit=emit)

        def publish(sample: MonitorSample) -> None:
            if not stop.requested:
                to_meters(sample, meters)
                notices.update(sample.pipelines)
                history.write(sample)

        emit(
            MonitorStarted(
                address=address or "",
                sources=targets.sources,
                queues=targets.queue_names,
                pipelines=targets.pipeline_names,
            )
        )
        loop.run(monitor.measure, publish)
    finally:
        unregister()
        remove_gauges(meters)


def remove_gauges(meters: "Meters") -> None:
    """Remove every series of the monitor's gauges."""
    for name in gauges(MonitorSample(at=0.0)):
        meters.replace(name, {})


def _forget(loop: MonitorLoop, meters: "Meters", stop: StopSignal) -> None:
    if stop.requested:
        remove_gauges(meters)
    else:
        forget_old(loop, meters)
