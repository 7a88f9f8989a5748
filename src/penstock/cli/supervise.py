"""Run worker processes under a supervisor."""

import os
import random
import sys
from collections.abc import Sequence

from penstock.app.naming import worker_id
from penstock.app.telemetry import open_log, open_reports
from penstock.config import Settings
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.operations.supervisor import Supervisor, lifeline, spawner
from penstock.worker.settings import budget
from penstock.worker.shutdown import StopSignal


def supervise(arguments: Sequence[str], settings: Settings) -> int:
    """Run workers as children and return the exit code. PID 1 does so even for one worker, because it reaps orphans."""
    telemetry = open_reports(settings, worker=worker_id(), process="supervisor", emit=open_log(settings, worker=None))
    budget(stop_timeout_seconds=settings.worker_stop_timeout, drain_seconds=settings.worker_drain)
    # For signals before and after the supervisor's own handlers: they must neither change the exit code nor be lost.
    early = StopSignal()
    early.install()
    with telemetry.running(), lifeline() as descriptor:
        spawn = spawner(
            lambda number: [*arguments, "--lifeline", str(descriptor), "--number", str(number)],
            executable=sys.executable,
            environment=dict(os.environ),
        )
        return Supervisor(
            spawn,
            processes=settings.worker_processes,
            stop_timeout_seconds=settings.worker_stop_timeout,
            restarts=settings.worker_processes > 1,
            clock=SystemClock(),
            random=random.random,
            emit=Bus(*telemetry.listeners).emit,
            early=early,
        ).run()
