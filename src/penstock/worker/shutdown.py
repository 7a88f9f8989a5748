"""Stopping: the signal that asks for it, and the order in which unfinished work is given back."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from penstock.events import Bus, GiveBackFailed
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Execution
from penstock.messaging.settlement import Release
from penstock.worker.heartbeat import Book
from penstock.worker.settler import Settler

UNSTARTED = Release(delay_seconds=0.0, refund=True)  # nobody worked on it, so it costs no attempt
GIVEN_BACK = Release(delay_seconds=0.0, refund=True)  # a shutdown broke it off, which is no failure of the message

# The book gets this part of the time for releasing to await a heartbeat in flight; the rest is the broker's.
_BOOK_SHARE = 1 / 3


class StopSignal:
    """Asks workers to stop: once to drain, twice to give back at once. Signal handlers do nothing but `request`.

    A handler runs between two bytecodes of the main thread, in the middle of whatever that thread does. So the main
    thread must not wait on an event watched here (`Event` holds a lock that is not reentrant while it begins to wait);
    `Worker.run` therefore waits in a thread of its own.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None  # of the first signal; written by signal handlers
        self._requests = 0  # written by signal handlers and callers of request
        self._told = 0  # written by whoever is telling
        self._telling = False  # as above
        self._watching: tuple[threading.Event, ...] = ()  # replaced as a whole, so handlers see one state or the other
        self._lock = threading.Lock()  # guards replacing; never taken by a handler
        self._before: dict[int, Any] = {}  # written by the main thread: the handlers we replaced

    @property
    def requested(self) -> bool:
        """Whether to stop fetching and drain."""
        return self._requests >= 1

    @property
    def urgent(self) -> bool:
        """Whether to give back at once."""
        return self._requests >= 2

    def request(self) -> None:
        """Ask once more. Safe in a signal handler, also in one that interrupts another."""
        self._requests += 1
        # A handler that interrupts another one inside Event.set must not set that event too: its lock is taken, and
        # its holder could never go on. The interrupted one sees the new count and tells again.
        while not self._telling and self._told < self._requests:
            self._telling = True
            self._told = self._requests
            for event in self._watching:
                event.set()
            self._telling = False

    @contextmanager
    def watched_by(self, event: threading.Event) -> Iterator[None]:
        """Set the event at every request, and now if there was one already."""
        with self._lock:
            self._watching = (*self._watching, event)
        if self.requested:
            event.set()
        try:
            yield
        finally:
            with self._lock:
                self._watching = tuple(watching for watching in self._watching if watching is not event)

    def install(self, *signals: signal.Signals) -> None:
        """Handle these signals (SIGTERM and SIGINT unless said otherwise). Main thread only."""
        for number in signals or (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Put the handlers back that were there before. Main thread only."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        self.request()


def give_back(
    *,
    handler: str,
    execution: Execution,
    deliveries: Sequence[Delivery],
    book: Book,
    settler: Settler,
    clock: Clock,
    bus: Bus,
    seconds: float,
) -> Sequence[Delivery]:
    """Give one batch back within about that many seconds; answers what the broker did not take.

    The order is the promise. Out of the book first, or a late heartbeat takes a released message back. Then what the
    batch holds in the ledger, so that whoever gets the messages can claim at once. Then the messages. Only then is the
    work interrupted: to lose work is worse than to run it twice. A step that raises is told and does not keep the
    next ones from being taken.
    """
    deadline = clock.monotonic() + seconds
    left: Sequence[Delivery] = deliveries

    def leave_book() -> None:
        book.unregister(deliveries, wait_seconds=seconds * _BOOK_SHARE)

    def release() -> None:
        nonlocal left
        left = settler.settle_by([(delivery, GIVEN_BACK) for delivery in deliveries], deadline=deadline)

    steps: Sequence[tuple[str, Callable[[], None]]] = (
        ("leave the heartbeat's book", leave_book),
        ("free what the batch holds", execution.give_back),
        ("release the messages", release),
        ("interrupt the work", execution.interrupt),
    )
    for name, step in steps:
        try:
            step()
        except Exception as error:
            bus.emit(GiveBackFailed(handler=handler, step=name, error=f"{type(error).__name__}: {error}"))
    return left
