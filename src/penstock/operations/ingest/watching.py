"""Watch an ingest's folder in a thread of its own, and enqueue notifications for files once they are stable."""

import threading
from collections.abc import Callable

from penstock.app.pending import PendingObjects
from penstock.errors import TemporaryError
from penstock.events import Bus, JobFailed
from penstock.messaging.clock import Clock
from penstock.objects.reference import ObjectRef
from penstock.objects.watcher import Watcher
from penstock.worker.shutdown import StopSignal

NAME = "watcher"
POLL_SECONDS = 0.2  # between two checks for the awaited condition
END_SECONDS = 5.0


class FolderWatch:
    """Watch a folder. The first scan only collects objects; later ones are enqueued at once."""

    def __init__(self, watcher: Watcher, pending: PendingObjects, *, stop: StopSignal, bus: Bus, clock: Clock) -> None:
        self._watcher = watcher
        self._pending = pending
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
        self._wait(lambda: bool(self._pending.size))

    def resend_lost(self) -> bool:
        """Enqueue lost notifications again and return False. Called by the idle worker. Raises the thread's error."""
        self._check()
        self._pending.advance()
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
                self._clock.wait(woken, POLL_SECONDS)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        waiting: list[ObjectRef] = []  # objects that ledger or broker could not accept yet
        try:
            for rested in self._watcher.stable(self._ended):
                waiting += rested
                if self._stop.requested:
                    return
                if waiting and self._take(waiting):
                    waiting = []
        except BaseException as failure:
            self._failure = failure

    def _take(self, objects: list[ObjectRef]) -> bool:
        try:
            if self._watcher.scans:
                self._pending.add(objects)
            else:
                self._pending.take(objects)
        except TemporaryError as fault:
            self._bus.emit(JobFailed(job=NAME, error=str(fault)))
            return False
        return True
