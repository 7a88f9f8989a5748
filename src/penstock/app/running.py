"""A worker as a process: over an app, with its log on stderr and the app's error hook beside it.

Forced shutdowns that nobody scraped: noted in the state folder as they happen, counted by the next worker there.

A forced end is the last thing that a worker counts, and it is gone before Prometheus asks again. So it leaves a note,
and the worker that next begins to serve with this state folder counts it, once. Where the folder goes with the worker,
as with a pod or a task that is deleted, nobody does: the log has the line, and orphaned leases are counted elsewhere.

Only where metrics are scraped and not sent: what is sent has the count already, as the last thing that a process sends.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.app.app import App
from penstock.app.backends import is_sqs
from penstock.app.health import gauged, worker_health
from penstock.app.registry import SeenAges
from penstock.app.replayer import ReplayedQueue
from penstock.app.serving import serve
from penstock.app.telemetry import Process, open_telemetry
from penstock.config import Settings
from penstock.events import Bus, ChoosyListener, Event, Listener, WorkerFailed, WorkerStarted, WorkerStopped
from penstock.messaging.clock import SystemClock
from penstock.messaging.failure import end_of
from penstock.monitoring.metrics.meters import Meters
from penstock.worker.lifecycle import WorkerOutcome
from penstock.worker.liveness import Liveness
from penstock.worker.shutdown import StopSignal

FOLDER = "forced"  # in a state folder: an empty file for each worker, by its id
FORCED = "forced"
SHUTDOWNS = "shutdowns_total"


class ForcedShutdowns(ChoosyListener):
    """Of one worker: a listener for its bus. What it leaves and takes are files of ``state``."""

    def __init__(self, state: Path, *, worker: str, meters: Meters) -> None:
        self._folder = state / FOLDER
        self._worker = worker
        self._meters = meters

    def hears(self, kind: type[Event]) -> bool:
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
        """Not before the worker serves: one that cannot start is scraped by nobody either."""
        for note in self._folder.glob("*"):
            with suppress(OSError):  # another worker of this folder was quicker, and counts it
                note.unlink()
                self._meters.count(SHUTDOWNS, (FORCED,))

    def _note(self) -> None:
        with suppress(OSError):  # a full disk must not keep a worker from ending; the log has the line
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / self._worker).touch()


def forced_shutdowns(settings: Settings, *, worker: str, meters: Meters | None) -> tuple[ForcedShutdowns, ...]:
    """One, or none where metrics are not counted or are sent, too."""
    if meters is None or settings.metrics_export:
        return ()
    return (ForcedShutdowns(Path(settings.state), worker=worker, meters=meters),)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRole:
    """What a worker is to do, and until when. ``tiers``: replay these, and nothing else."""

    tiers: Sequence[ReplayedQueue] | None = None
    until: Callable[[], bool] | None = None
    listeners: Sequence[Listener] = ()


def run_worker(
    app: App,
    *,
    stop: StopSignal,
    queues: Mapping[str, int] | None = None,
    process: Process = "worker",
    prepare: Callable[[], WorkerRole] = WorkerRole,
) -> WorkerOutcome:
    """Serve until asked to stop. Raises what stopped the worker, after log and error hook have heard of it.

    ``prepare`` says what part of a worker's work it does, once the log is open; all of it by default.
    """
    failures = _Failures()
    pulse = Liveness(SystemClock())
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


def must_leave(conclusion: WorkerOutcome) -> bool:
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
