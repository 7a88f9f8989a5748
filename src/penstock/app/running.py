"""A worker as a process: over an app, with its log on stderr and the app's error hook beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.app.app import App
from penstock.app.replaying import FirstTier
from penstock.app.serving import serve
from penstock.config import Settings
from penstock.events import ChoosyListener, Event, Listener, WorkerFailed
from penstock.messaging.failure import end_of
from penstock.monitoring.errors import ErrorReporter
from penstock.monitoring.logs import LogListener, configure_logs
from penstock.monitoring.plans import LogSettings
from penstock.worker.shift import Conclusion
from penstock.worker.shutdown import StopSignal

REPORTS_SECONDS = 1.0  # of the stop timeout's margin: for what the error hook has not heard of yet


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
    prepare: Callable[[], Part] = Part,
) -> Conclusion:
    """Serve until asked to stop. Raises what stopped the worker, after log and error hook have heard of it.

    ``prepare`` says what part of a worker's work it does, once the log is open; all of it by default.
    """
    log = open_log(app.settings, worker=app.worker)
    reporter = None if app.on_error is None else ErrorReporter(app.on_error, worker=app.worker, tell=log)
    failures = _Failures()
    listeners: tuple[Listener, ...] = (log, failures) if reporter is None else (log, failures, reporter)
    try:
        part = prepare()
        conclusion = serve(
            app,
            stop=stop,
            queues=queues,
            until=part.until,
            listeners=(*listeners, *part.listeners),
            tiers=part.tiers,
        )
    except Exception as error:
        if not failures.told:  # it came to no worker: of a ledger, a lifespan, a queue without a handler
            failure = end_of(error)
            log(WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback))
        if reporter is not None:
            reporter.report(error)
        raise
    finally:
        if reporter is not None:
            reporter.flush(REPORTS_SECONDS)
    if not must_leave(conclusion):
        app.close()
    return conclusion


def must_leave(conclusion: Conclusion) -> bool:
    """Whether something goes on that nobody can end: then the process is left without waiting for it."""
    return bool(conclusion.threads_left) or conclusion.outcome == "forced"


def open_log(settings: Settings, *, worker: str | None) -> LogListener:
    """The log as the settings say, on stderr. Raises `ConfigurationError` for events and levels there are none of."""
    return configure_logs(
        LogSettings(
            format=settings.log_format,
            level=settings.log_level,
            levels=settings.log_levels,
            sampling=settings.log_sampling,
            service=settings.service,
            version=settings.service_version,
            worker=worker,
            environment=settings.environment,
        )
    )


class _Failures(ChoosyListener):
    """Whether the worker itself said what ended it."""

    def __init__(self) -> None:
        self.told = False  # written by the worker's thread, read when it has ended

    def hears(self, kind: type[Event]) -> bool:
        return kind is WorkerFailed

    def __call__(self, _: Event) -> None:
        self.told = True
