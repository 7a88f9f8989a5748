"""A process that only relays outboxes, for apps whose workers run elsewhere or that have none."""

import random
import threading

from penstock.app.app import App
from penstock.app.relays import CLOSE_SECONDS, relaying, stores
from penstock.app.telemetry import guarded, open_telemetry
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.worker.shutdown import StopSignal


def run_relays(app: App, *, stop: StopSignal) -> None:
    """Relay until asked to stop, with the log on stderr; then close the app. Raises `UsageError` without a relay."""
    stores(app)
    telemetry = open_telemetry(app.settings, worker=app.worker, process="relay", on_error=app.on_error)
    bus = Bus(*guarded(app.listeners, emit=Bus(*telemetry.listeners).emit), *telemetry.listeners)
    close_seconds = app.settings.worker_stop_timeout - CLOSE_SECONDS
    with (
        telemetry.running(),
        app,
        app.incidents.passing_to(bus.emit),
        relaying(app, emit=bus.emit, clock=SystemClock(), random=random.random, close_seconds=close_seconds),
    ):
        # The main thread must not wait on an event that its own signal handlers set.
        waiting = threading.Thread(target=_until_stopped, args=(stop,), daemon=True)
        waiting.start()
        waiting.join()


def _until_stopped(stop: StopSignal) -> None:
    stop_requested = threading.Event()
    with stop.watched_by(stop_requested):
        while not stop.requested:
            stop_requested.wait()
            stop_requested.clear()
