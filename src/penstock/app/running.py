"""A worker as a process: over an app, with its log on stderr and the app's error hook beside it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from penstock.app.app import App
from penstock.app.forced import forced_shutdowns
from penstock.app.health import gauged, worker_health
from penstock.app.replaying import FirstTier
from penstock.app.seen_ages import SeenAges
from penstock.app.serving import serve
from penstock.app.sqs_address import is_sqs
from penstock.app.telemetry import Process, open_telemetry
from penstock.events import Bus, ChoosyListener, Event, Listener, WorkerFailed
from penstock.messaging.clock import SystemClock
from penstock.messaging.failure import end_of
from penstock.worker.pulse import Pulse
from penstock.worker.shift import Conclusion
from penstock.worker.shutdown import StopSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a worker is to do, and until when. ``tiers``: replay these, and nothing else."""

    tiers: Sequence[FirstTier] | None = None
    until: Callable[[], bool] | None = None
    listeners: Sequence[Listener] = ()


def run_worker(
    app: App,
    *,
    stop: StopSignal,
    queues: Mapping[str, int] | None = None,
    process: Process = "worker",
    prepare: Callable[[], Part] = Part,
) -> Conclusion:
    """Serve until asked to stop. Raises what stopped the worker, after log and error hook have heard of it.

    ``prepare`` says what part of a worker's work it does, once the log is open; all of it by default.
    """
    failures = _Failures()
    pulse = Pulse(SystemClock())
    heard = open_telemetry(
        app.settings,
        worker=app.worker,
        process=process,
        on_error=app.on_error,
        health=worker_health(pulse, stop),
        queues={service.name: service.queue_name for service in app.services},
    )
    seen = SeenAges(SystemClock()) if is_sqs(app.settings.broker) else None
    ages = nullcontext() if seen is None else seen.exported(heard.meters)
    forced = forced_shutdowns(app.settings, worker=app.worker, meters=heard.meters)
    with heard.told(), gauged(pulse, heard.meters, worker=app.worker), ages:
        try:
            part = prepare()
            conclusion = serve(
                app,
                stop=stop,
                queues=queues,
                until=part.until,
                listeners=(*heard.listeners, *forced, failures, *(() if seen is None else (seen,)), *part.listeners),
                tiers=part.tiers,
                pulse=pulse,
                metrics_address=lambda: heard.metrics_address,
            )
        except Exception as error:
            if not failures.told:  # it came to no worker: of a ledger, a lifespan, a queue without a handler
                failure = end_of(error)
                ended = WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback)
                Bus(*heard.listeners).emit(ended)
            raise
    if not must_leave(conclusion):
        app.close()
    return conclusion


def must_leave(conclusion: Conclusion) -> bool:
    """Whether something goes on that nobody can end: then the process is left without waiting for it."""
    return bool(conclusion.threads_left) or conclusion.outcome == "forced"


class _Failures(ChoosyListener):
    """Whether the worker itself said what ended it."""

    def __init__(self) -> None:
        self.told = False  # written by the worker's thread, read when it has ended

    def hears(self, kind: type[Event]) -> bool:
        return kind is WorkerFailed

    def __call__(self, _: Event) -> None:
        self.told = True
