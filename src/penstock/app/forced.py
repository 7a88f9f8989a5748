"""Forced shutdowns that nobody scraped: noted in the state folder as they happen, counted by the next worker there.

A forced end is the last thing that a worker counts, and it is gone before Prometheus asks again. So it leaves a note,
and the worker that next begins to serve with this state folder counts it, once. Where the folder goes with the worker,
as with a pod or a task that is deleted, nobody does: the log has the line, and orphaned leases are counted elsewhere.

Only where metrics are scraped and not sent: what is sent has the count already, as the last thing that a process sends.
"""

from contextlib import suppress
from pathlib import Path

from penstock.config import Settings
from penstock.events import ChoosyListener, Event, WorkerStarted, WorkerStopped
from penstock.monitoring.metrics.meters import Meters

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
