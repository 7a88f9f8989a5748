"""Watch an ingest's folder in a thread of its own, and enqueue notifications for files once they are stable."""

import threading
from collections.abc import Callable

from penstock.app.pending import PendingObjects
from penstock.errors import TemporaryError
from penstock.events import Bus, UpkeepFailed
from penstock.messaging.clock import Clock
from penstock.objects.reference import ObjectRef
from penstock.objects.watcher import Watcher
from penstock.worker.shutdown import StopSignal

NAME = "watcher"
LOOK_SECONDS = 0.2  # between two checks for the awaited condition
END_SECONDS = 5.0


class FolderWatch:
    """Watch a folder. The first scan only collects objects; later ones are enqueued at once."""

    def __init__(self, watcher: Watcher, goal: PendingObjects, *, stop: StopSignal, bus: Bus, clock: Clock) -> None:
        self._watcher = watcher
        self._goal = goal
        self._stop = stop
        self._bus = bus
        self._clock = clock
        self._ended = threading.Event()
        self._failure: BaseException | None = None  # written once, by the thread
        self._thread = threading.Thread(target=self._run, name=f"penstock-{NAME}", daemon=True)

    def start(self) -> None:
        """Start, and return after the first scan or a stop. Raises the thread's error."""
        self._thread.start()
        self._wait(lambda: self._watcher.scans > 0)

    def wait_for_objects(self) -> None:
        """Return when there is an object, or after a stop. Raises the thread's error."""
        self._wait(lambda: bool(self._goal.size))

    def tended(self) -> bool:
        """Enqueue lost notifications again and return False. Called by the idle worker. Raises the thread's error."""
        self._check()
        self._goal.reached()
        return False

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def _wait(self, there: Callable[[], bool]) -> None:
        woken = threading.Event()
        with self._stop.watched_by(woken):
            while not (there() or self._stop.requested):
                self._check()
                woken.clear()
                self._clock.wait(woken, LOOK_SECONDS)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        held: list[ObjectRef] = []  # objects that ledger or broker could not accept yet
        try:
            for rested in self._watcher.settled(self._ended):
                held += rested
                if self._stop.requested:
                    return
                if held and self._taken(held):
                    held = []
        except BaseException as failure:
            self._failure = failure

    def _taken(self, objects: list[ObjectRef]) -> bool:
        try:
            if self._watcher.scans:
                self._goal.add(objects)
            else:
                self._goal.take(objects)
        except TemporaryError as fault:
            self._bus.emit(UpkeepFailed(handler=NAME, error=str(fault)))
            return False
        return True
