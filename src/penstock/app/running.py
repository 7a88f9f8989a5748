"""Run a worker as a process: an app with its log on stderr and its error hook.

Also counts forced shutdowns for Prometheus. A forced shutdown is the last thing that a worker counts, and the worker
has ended before the next scrape. So it leaves a note in the data directory, and the next worker that serves with this
data directory counts it, once. If the directory is deleted with the worker, as with a pod or a task, the count is lost;
the log still has the line, and orphaned leases are counted separately. Exported metrics need no note: the last export
of the process includes the count.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.app.app import App
from penstock.app.brokers import capabilities_of
from penstock.app.health import gauged, worker_health
from penstock.app.registry import SeenAges
from penstock.app.replayer import ReplayedQueue
from penstock.app.serving import serve
from penstock.app.telemetry import Process, Telemetry, open_telemetry
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.events import (
    Bus,
    DashboardStarted,
    Event,
    Listener,
    SelectiveListener,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from penstock.messaging.clock import SystemClock
from penstock.messaging.failure import end_of
from penstock.monitoring.logs.listener import LogListener
from penstock.monitoring.metrics.meters import Meters
from penstock.worker.lifecycle import WorkerOutcome
from penstock.worker.liveness import Liveness
from penstock.worker.shutdown import StopSignal

FOLDER = "forced"  # in a data directory: one empty file per worker id
FORCED = "forced"
SHUTDOWNS = "shutdowns_total"


class ForcedShutdowns(SelectiveListener):
    """A listener of one worker that leaves a note of its forced shutdown, and counts the notes of earlier workers."""

    def __init__(self, state: Path, *, worker: str, meters: Meters) -> None:
        self._folder = state / FOLDER
        self._worker = worker
        self._meters = meters

    def wants(self, kind: type[Event]) -> bool:
        return kind in (WorkerStarted, WorkerStopped)

    def __call__(self, event: Event) -> None:
        match event:
            case WorkerStarted():
                self._count_earlier()
            case WorkerStopped(outcome="forced"):
                self._note()
            case _:
                pass

    def _count_earlier(self) -> None:
        """Count earlier workers' notes.

        Called when the worker serves: one that fails to start is not scraped either.
        """
        for note in self._folder.glob("*"):
            with suppress(OSError):  # another worker of this data directory has counted it
                note.unlink()
                self._meters.count(SHUTDOWNS, (FORCED,))

    def _note(self) -> None:
        with suppress(OSError):  # a full disk must not keep a worker from ending; the log has the line
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / self._worker).touch()


def forced_shutdowns(settings: Settings, *, worker: str, meters: Meters | None) -> tuple[ForcedShutdowns, ...]:
    """Return the listener; empty without metrics, or if metrics are exported."""
    if meters is None or settings.metrics_export:
        return ()
    return (ForcedShutdowns(Path(settings.data_dir), worker=worker, meters=meters),)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRole:
    """A worker's work and its end condition. With ``dlqs``, it only replays these."""

    dlqs: Sequence[ReplayedQueue] | None = None
    until: Callable[[], bool] | None = None
    listeners: Sequence[Listener] = ()
    dashboard: str | None = None  # the URL of the dashboard that the process serves beside it


def run_worker(
    app: App,
    *,
    stop: StopSignal,
    queues: Mapping[str, int] | None = None,
    process: Process = "worker",
    prepare: Callable[[], WorkerRole] = WorkerRole,
) -> WorkerOutcome:
    """Serve until asked to stop, and return the outcome.

    ``prepare`` is called once the log is open and returns the worker's role; by default the worker does all work.
    Raises the error that stopped the worker, after the log and the error hook received it. A log for people leaves an
    error at the start to the caller, who prints it; one in JSON has it, and then the error ``is_logged``.
    """
    failures = _Failures()
    liveness = Liveness(SystemClock())
    telemetry = open_telemetry(
        app.settings,
        worker=app.worker,
        process=process,
        on_error=app.on_error,
        health=worker_health(liveness, stop),
        queues={service.name: service.queue_name for service in app.services},
    )
    seen = None if capabilities_of(app.settings).exact_stats else SeenAges(SystemClock())
    ages = nullcontext() if seen is None else seen.exported(telemetry.meters)
    forced = forced_shutdowns(app.settings, worker=app.worker, meters=telemetry.meters)
    with telemetry.running(), gauged(liveness, telemetry.meters, worker=app.worker), ages:
        try:
            role = prepare()
            if role.dashboard is not None:
                Bus(*telemetry.listeners).emit(DashboardStarted(address=role.dashboard))
            conclusion = serve(
                app,
                stop=stop,
                queues=queues,
                until=role.until,
                listeners=(
                    *telemetry.listeners,
                    *forced,
                    failures,
                    *(() if seen is None else (seen,)),
                    *role.listeners,
                ),
                dlqs=role.dlqs,
                liveness=liveness,
                metrics_address=lambda: telemetry.metrics_address,
                meters=telemetry.meters,
            )
        except Exception as error:
            if not failures.reported:  # failed before there was a worker: ledger, lifespan, queue
                _report(error, telemetry)
            if isinstance(error, PenstockError):
                error.is_logged = any(_is_json_log(listener) for listener in telemetry.listeners)
            raise
    if not conclusion.has_hanging_threads:
        app.close()
    return conclusion


def _report(error: Exception, telemetry: Telemetry) -> None:
    """Emit the error with which a worker failed to start. A log for people omits it if the command prints it."""
    failure = end_of(error)
    is_printed = isinstance(error, PenstockError)
    listeners = [
        listener
        for listener in telemetry.listeners
        if not (is_printed and isinstance(listener, LogListener) and listener.is_for_people)
    ]
    Bus(*listeners).emit(WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback))


def _is_json_log(listener: Listener) -> bool:
    return isinstance(listener, LogListener) and not listener.is_for_people and listener.wants(WorkerFailed)


class _Failures(SelectiveListener):
    """Record whether the worker itself reported the error that ended it."""

    def __init__(self) -> None:
        self.reported = False  # written by the worker's thread, read after it has ended

    def wants(self, kind: type[Event]) -> bool:
        return kind is WorkerFailed

    def __call__(self, _: Event) -> None:
        self.reported = True
