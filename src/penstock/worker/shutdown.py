"""Stop a worker: the signals that request it, and the order in which unfinished work is released."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from penstock.errors import ClaimLost, TemporaryError
from penstock.events import Bus, ReleaseFailed
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import UNCOUNTED
from penstock.messaging.threads import begin_thread
from penstock.worker.leases import LeaseBook
from penstock.worker.running_batch import RunningBatch
from penstock.worker.settler import Settler

# Shares of the release time, as ends of successive steps: waiting for heartbeat calls in progress until the first,
# freeing claims until the second, releasing messages at the broker until the third. The rest is for interrupting.
LEASE_BOOK_SHARE = 1 / 3
_CLAIMS_SHARE = 2 / 3
BROKER_SHARE = 0.9
_PENDING_PAUSE_SECONDS = 0.05  # between two checks of batches that wait for the ledger

FREEING_THREADS = 8  # as many as a ledger has connections

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: the terminal was closed
PAUSING = (signal.SIGTSTP,)
DUMPING = (signal.SIGTTIN, signal.SIGUSR1)


class StopSignal:
    """The stop signal of one process: requests to its workers to stop, to pause, or to dump their stacks.

    The first stop request drains, the second one releases at once. Thread-safe, and safe in signal handlers.

    Signal handlers only call `request`, `pause` and `request_stacks`. A handler runs between two bytecodes of the main
    thread, wherever that thread is. So the main thread must not wait on an event watched here (`Event` holds a lock
    that is not reentrant while it begins to wait); `Worker.run` therefore runs the lifecycle in another thread.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # of the first signal that requested a stop; written by signal handlers
        self._requests = 0  # this and the next two: written by signal handlers and callers of the methods
        self._paused = False
        self._stacks_requested = 0
        self._changes = 0  # as above: the number of all requests
        self._notified = 0  # the last request passed to the events; written by the thread or handler in `_notify`
        self._notifying = False  # as above
        # Replaced as a whole, so that handlers see the old or the new tuple.
        self._watching: tuple[threading.Event, ...] = ()
        self._lock = threading.Lock()  # guards the replacing; never taken by a handler
        self._before: dict[int, Any] = {}  # written by the main thread: the replaced handlers

    @property
    def signal_name(self) -> str | None:
        """The name of the first signal that requested a stop, such as SIGTERM."""
        return None if self.signal_number is None else signal.Signals(self.signal_number).name

    @property
    def requested(self) -> bool:
        """Return True if workers should stop fetching and drain."""
        return self._requests >= 1

    @property
    def urgent(self) -> bool:
        """Return True if workers should release everything at once."""
        return self._requests >= 2

    @property
    def paused(self) -> bool:
        """Return True if workers should stop fetching and stay up."""
        return self._paused

    @property
    def stacks_requested(self) -> int:
        """The number of requests to dump the stacks."""
        return self._stacks_requested

    def request(self) -> None:
        """Request a stop once more. Safe in a signal handler, also in one that interrupts another."""
        self._requests += 1
        self._notify()

    def pause(self) -> None:
        """Request workers to stop fetching, release messages not begun, and stay up until a stop. Cannot be undone."""
        self._paused = True
        self._notify()

    def request_stacks(self) -> None:
        """Request workers to log the stacks of all threads and tasks."""
        self._stacks_requested += 1
        self._notify()

    @contextmanager
    def watched_by(self, event: threading.Event) -> Iterator[None]:
        """Set the event at each request inside the block, and at once if there was a request before."""
        with self._lock:
            self._watching = (*self._watching, event)
        if self._changes:
            event.set()
        try:
            yield
        finally:
            with self._lock:
                self._watching = tuple(watching for watching in self._watching if watching is not event)

    def install(self, *signals: signal.Signals) -> None:
        """Handle these signals. Main thread only.

        By default SIGTERM, SIGINT and SIGHUP stop, SIGTSTP pauses, SIGTTIN and SIGUSR1 dump the stacks. SIGHUP stays
        ignored if it is (nohup).
        """
        for number in signals or (*STOPPING, *PAUSING, *DUMPING):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restore the previous handlers. Main thread only."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in PAUSING:
            self.pause()
        elif number in DUMPING:
            self.request_stacks()
        else:
            self.signal_number = self.signal_number or number
            self.request()

    def _notify(self) -> None:
        self._changes += 1
        # A handler that interrupts another one inside Event.set must not set that event too: the lock is taken, and its
        # holder could never continue. The interrupted handler sees the new count and sets the events again.
        while not self._notifying and self._notified < self._changes:
            self._notifying = True
            self._notified = self._changes
            for event in self._watching:
                event.set()
            self._notifying = False


def release_running(
    *,
    batches: Sequence[RunningBatch],
    lease_book: LeaseBook,
    settler: Settler,
    clock: Clock,
    bus: Bus,
    seconds: float,
) -> Sequence[Delivery]:
    """Release batches together within about ``seconds``; return the deliveries that the broker did not accept.

    The order is a guarantee. First the deliveries leave the lease book; otherwise a late heartbeat leases a released
    message again. Then the claims in the ledger are freed, so that the next worker to get the messages can claim at
    once. Then the messages are released. Only then is the work interrupted: losing work is worse than running it twice.
    A step that raises is reported, and the next steps still run.

    A batch without a claim does not wait for the claims of others. A claim that the ledger does not free in its share
    of the time ends with its lease; its messages are released nevertheless.
    """
    began_at = clock.monotonic()
    ends_claims_at = began_at + seconds * _CLAIMS_SHARE
    handlers = ", ".join(dict.fromkeys(batch.handler for batch in batches))
    unaccepted: list[Delivery] = []

    def attempt(step_name: str, step: Callable[[], object], handler: str = handlers) -> None:
        try:
            step()
        except Exception as error:
            bus.emit(ReleaseFailed(handler=handler, step=step_name, error=f"{type(error).__name__}: {error}"))

    def report_unfreed(batch: RunningBatch, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        bus.emit(ReleaseFailed(handler=batch.handler, step="free the claim", error=reason))

    def release(released: Sequence[RunningBatch]) -> None:
        deliveries = _deliveries(released)
        unaccepted.extend(deliveries)
        refused = settler.settle_by(
            [(delivery, UNCOUNTED) for delivery in deliveries], deadline=began_at + seconds * BROKER_SHARE
        )
        settled = {delivery.receipt for delivery in deliveries} - {delivery.receipt for delivery in refused}
        unaccepted[:] = [delivery for delivery in unaccepted if delivery.receipt not in settled]

    attempt(
        "remove the messages from the heartbeat",
        lambda: lease_book.unregister(_deliveries(batches), wait_seconds=seconds * LEASE_BOOK_SHARE),
    )
    claimless = [batch for batch in batches if not _holds_claim(batch)]
    holding = [batch for batch in batches if batch not in set(claimless)]
    claim_releases = [
        _ClaimRelease(claimless, report_unfreed, threads=1),
        _ClaimRelease(holding, report_unfreed, threads=FREEING_THREADS),
    ]
    for claim_release in claim_releases:
        claim_release.start()
    for claim_release in claim_releases:
        clock.wait(claim_release.ended, max(ends_claims_at - clock.monotonic(), 0.0))
        for batch in claim_release.abandon():
            report_unfreed(batch, TimeoutError("it took too long; the claim ends with its lease"))
        if claim_release.batches:
            attempt("release the messages", partial(release, claim_release.batches))
    for batch in batches:
        attempt("interrupt the work", batch.execution.interrupt, batch.handler)
    return unaccepted


def release_pending(
    *, batches: Sequence[RunningBatch], lease_book: LeaseBook, settler: Settler, clock: Clock, seconds: float
) -> Sequence[Delivery]:
    """Release the messages of batches that ended and wait for the ledger; return those the broker did not accept.

    Batches that the ledger answers within the share for claims settle themselves.
    """
    began_at = clock.monotonic()
    never = threading.Event()
    while (pending := [batch for batch in batches if not batch.settled]) and (
        left_seconds := began_at + seconds * _CLAIMS_SHARE - clock.monotonic()
    ) > 0:
        clock.wait(never, min(_PENDING_PAUSE_SECONDS, left_seconds))
    deliveries = _deliveries([batch for batch in pending if batch.begin_settling()])
    lease_book.unregister(deliveries, wait_seconds=0.0)
    return settler.settle_by(
        [(delivery, UNCOUNTED) for delivery in deliveries], deadline=began_at + seconds * BROKER_SHARE
    )


class _ClaimRelease:
    """Free the claims of some batches in threads, since the ledger may not respond within the time of a stop.

    Created by `release_running`; the thread of the stop calls the public methods.
    """

    def __init__(
        self, batches: Sequence[RunningBatch], failed: Callable[[RunningBatch, Exception], None], *, threads: int
    ) -> None:
        self.batches = batches
        self.ended = threading.Event()
        self._failed = failed
        self._threads = min(threads, len(batches))
        self._lock = threading.Lock()
        self._waiting = deque(batches)  # under the lock, as are the next two
        self._open = dict.fromkeys(batches)
        self._abandoned = False
        if not batches:
            self.ended.set()

    def start(self) -> None:
        """Start the threads; if none can be started, run in the calling thread."""
        for number in range(self._threads):
            try:
                begin_thread(self._run, name="penstock-release-claims")
            except TemporaryError:
                if not number:
                    self._run()
                return

    def abandon(self) -> Sequence[RunningBatch]:
        """Free no further claims, and return the batches that still have theirs."""
        with self._lock:
            self._abandoned = True
            self._waiting.clear()
            return list(self._open)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                batch = self._waiting.popleft()
            self._free(batch)
            with self._lock:
                self._open.pop(batch, None)
                if not self._open:
                    self.ended.set()

    def _free(self, batch: RunningBatch) -> None:
        try:
            batch.execution.release()
        except Exception as error:
            with self._lock:
                reported = self._abandoned
            if not reported:
                self._failed(batch, error)


def _deliveries(batches: Iterable[RunningBatch]) -> list[Delivery]:
    return [delivery for batch in batches for delivery in batch.deliveries]


def _holds_claim(batch: RunningBatch) -> bool:
    try:
        return batch.execution.claim() is not None
    except ClaimLost:
        return False
