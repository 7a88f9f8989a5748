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
from penstock.events import Bus, GiveBackFailed
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Release
from penstock.messaging.threads import begin_thread
from penstock.worker.leases import LeaseBook
from penstock.worker.running_batch import RunningBatch
from penstock.worker.settler import Settler

UNSTARTED = Release(delay_seconds=0.0, refund=True)  # not begun, so no attempt is counted
GIVEN_BACK = Release(delay_seconds=0.0, refund=True)  # ended by a shutdown, which is no failure of the message

# Shares of the release time, as ends of successive steps: waiting for heartbeat calls in progress until the first,
# freeing claims until the second, releasing messages at the broker until the third. The rest is for interrupting.
BOOK_SHARE = 1 / 3
_CLAIMS_SHARE = 2 / 3
BROKER_SHARE = 0.9
_PENDING_PAUSE_SECONDS = 0.05  # between two checks of batches that wait for the ledger

FREEING_THREADS = 8  # as many as the connections to a ledger

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: the terminal was closed
PAUSING = (signal.SIGTSTP,)
DUMPING = (signal.SIGTTIN, signal.SIGUSR1)


class StopSignal:
    """Requests to workers: to stop (once to drain, twice to release at once), to pause, or to dump their stacks.

    Signal handlers only call `request`, `pause` and `ask_for_stacks`. A handler runs between two bytecodes of the main
    thread, wherever that thread is. So the main thread must not wait on an event watched here (`Event` holds a lock
    that is not reentrant while it begins to wait); `Worker.run` therefore runs the lifecycle in another thread.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # of the first signal that requested a stop; written by signal handlers
        self._requests = 0  # this and the next two: written by signal handlers and callers of the methods
        self._paused = False
        self._stacks_asked = 0
        self._news = 0  # as above: the number of all requests
        self._told = 0  # the last request passed to the events; written by the thread or handler in `_tell`
        self._telling = False  # as above
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
    def stacks_asked(self) -> int:
        """The number of requests to dump the stacks."""
        return self._stacks_asked

    def request(self) -> None:
        """Request a stop once more. Safe in a signal handler, also in one that interrupts another."""
        self._requests += 1
        self._tell()

    def pause(self) -> None:
        """Request workers to stop fetching, release unbegun messages, and stay up until a stop. Cannot be undone."""
        self._paused = True
        self._tell()

    def ask_for_stacks(self) -> None:
        """Request workers to log the stacks of all threads and tasks."""
        self._stacks_asked += 1
        self._tell()

    @contextmanager
    def watched_by(self, event: threading.Event) -> Iterator[None]:
        """Set the event at each request, and now if there was a request before."""
        with self._lock:
            self._watching = (*self._watching, event)
        if self._news:
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
            self.ask_for_stacks()
        else:
            self.signal_number = self.signal_number or number
            self.request()

    def _tell(self) -> None:
        self._news += 1
        # A handler that interrupts another one inside Event.set must not set that event too: the lock is taken, and its
        # holder could never continue. The interrupted handler sees the new count and sets the events again.
        while not self._telling and self._told < self._news:
            self._telling = True
            self._told = self._news
            for event in self._watching:
                event.set()
            self._telling = False


def give_back(
    *,
    flights: Sequence[RunningBatch],
    book: LeaseBook,
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
    everybody = ", ".join(dict.fromkeys(flight.handler for flight in flights))
    left: list[Delivery] = []

    def tried(what: str, step: Callable[[], object], handler: str = everybody) -> None:
        try:
            step()
        except Exception as error:
            bus.emit(GiveBackFailed(handler=handler, step=what, error=f"{type(error).__name__}: {error}"))

    def unfreed(flight: RunningBatch, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        bus.emit(GiveBackFailed(handler=flight.handler, step="free what the batch holds", error=told))

    def release(released: Sequence[RunningBatch]) -> None:
        deliveries = _deliveries(released)
        left.extend(deliveries)
        refused = settler.settle_by(
            [(delivery, GIVEN_BACK) for delivery in deliveries], deadline=began_at + seconds * BROKER_SHARE
        )
        settled = {delivery.receipt for delivery in deliveries} - {delivery.receipt for delivery in refused}
        left[:] = [delivery for delivery in left if delivery.receipt not in settled]

    tried(
        "leave the heartbeat's book", lambda: book.unregister(_deliveries(flights), wait_seconds=seconds * BOOK_SHARE)
    )
    claimless = [flight for flight in flights if not _holds_claim(flight)]
    holding = [flight for flight in flights if flight not in set(claimless)]
    freeings = [_ClaimRelease(claimless, unfreed, threads=1), _ClaimRelease(holding, unfreed, threads=FREEING_THREADS)]
    for freeing in freeings:
        freeing.start()
    for freeing in freeings:
        clock.wait(freeing.over, max(ends_claims_at - clock.monotonic(), 0.0))
        for flight in freeing.give_up():
            unfreed(flight, TimeoutError("the time for it was over; the claim ends with its lease"))
        if freeing.flights:
            tried("release the messages", partial(release, freeing.flights))
    for flight in flights:
        tried("interrupt the work", flight.execution.interrupt, flight.handler)
    return left


def release_pending(
    *, flights: Sequence[RunningBatch], book: LeaseBook, settler: Settler, clock: Clock, seconds: float
) -> Sequence[Delivery]:
    """Release the messages of batches that ended and wait for the ledger; return those the broker did not accept.

    Batches that get the ledger's answer within the share for claims settle themselves.
    """
    began_at = clock.monotonic()
    never = threading.Event()
    while (left := [flight for flight in flights if not flight.settled]) and (
        left_seconds := began_at + seconds * _CLAIMS_SHARE - clock.monotonic()
    ) > 0:
        clock.wait(never, min(_PENDING_PAUSE_SECONDS, left_seconds))
    deliveries = _deliveries([flight for flight in left if flight.settles()])
    book.unregister(deliveries, wait_seconds=0.0)
    return settler.settle_by(
        [(delivery, GIVEN_BACK) for delivery in deliveries], deadline=began_at + seconds * BROKER_SHARE
    )


class _ClaimRelease:
    """The threads that free the claims of batches, since a ledger may not answer within the time of a stop."""

    def __init__(
        self, flights: Sequence[RunningBatch], failed: Callable[[RunningBatch, Exception], None], *, threads: int
    ) -> None:
        self.flights = flights
        self.over = threading.Event()
        self._failed = failed
        self._threads = min(threads, len(flights))
        self._lock = threading.Lock()
        self._waiting = deque(flights)  # under the lock, as are the next two
        self._open = dict.fromkeys(flights)
        self._given_up = False
        if not flights:
            self.over.set()

    def start(self) -> None:
        """Start the threads; if none can be started, run in the calling thread."""
        for number in range(self._threads):
            try:
                begin_thread(self._run, name="penstock-give-back-claims")
            except TemporaryError:
                if not number:
                    self._run()
                return

    def give_up(self) -> Sequence[RunningBatch]:
        """Begin no more; return the batches that were not freed."""
        with self._lock:
            self._given_up = True
            self._waiting.clear()
            return list(self._open)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                flight = self._waiting.popleft()
            self._free(flight)
            with self._lock:
                self._open.pop(flight, None)
                if not self._open:
                    self.over.set()

    def _free(self, flight: RunningBatch) -> None:
        try:
            flight.execution.give_back()
        except Exception as error:
            with self._lock:
                reported = self._given_up
            if not reported:
                self._failed(flight, error)


def _deliveries(flights: Iterable[RunningBatch]) -> list[Delivery]:
    return [delivery for flight in flights for delivery in flight.deliveries]


def _holds_claim(flight: RunningBatch) -> bool:
    try:
        return flight.execution.claim() is not None
    except ClaimLost:
        return False
