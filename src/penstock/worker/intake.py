"""Deliveries that are held and not begun: the batch being collected, and the closed ones that wait for a place."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from penstock.messaging.broker import Broker
from penstock.messaging.delivery import Delivery
from penstock.messaging.steps import Probe, Step
from penstock.worker.batcher import NOTHING, Batch, collect, due
from penstock.worker.heartbeat import Book
from penstock.worker.settings import WorkerSettings


class Intake:
    """Receives and collects, never beyond the free slots of the batch that is open.

    Nothing more is received while a closed batch waits. What it holds is thus bounded by one batch and by what a single
    receive can close (``fetch_max`` deliveries, each of which may be heavy enough to be a batch alone).
    """

    def __init__(
        self,
        *,
        broker: Broker,
        queue: str,
        book: Book,
        weigh: Callable[[Delivery], int],
        settings: WorkerSettings,
        probe: Probe,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._book = book
        self._weigh = weigh
        self._settings = settings
        self._probe = probe
        self._lock = threading.Lock()
        self._collecting = NOTHING  # under the lock; written by the I/O thread, and by whoever takes everything
        self._closed: deque[Batch] = deque()  # as above
        self._last_was_empty = False  # written by the I/O thread

    @property
    def free_slots(self) -> int:
        """How many more messages may be received."""
        with self._lock:
            return 0 if self._closed else self._settings.batch_messages_max - len(self._collecting.deliveries)

    @property
    def empty(self) -> bool:
        """Whether nothing is held here."""
        with self._lock:
            return not self._closed and not self._collecting.deliveries

    def receive(self, *, now: Callable[[], float], wait_seconds: float) -> int:
        """Receive for the free slots, of which there must be some; answers how many deliveries came.

        They are in the heartbeat's book, and collected, when this returns.
        """
        messages_max = min(self._settings.fetch_max, self.free_slots, self._broker.capabilities.receive_max)
        arrived = self._broker.receive(
            self._queue,
            messages_max=messages_max,
            lease_seconds=self._settings.lease_seconds,
            wait_seconds=wait_seconds,
        )
        self._last_was_empty = not arrived
        if arrived:
            self._book.register(arrived)
            self._add(arrived, now())
            self._probe(Step.RECEIVED)
        return len(arrived)

    def next_batch(self, now: float) -> Batch | None:
        """A batch to begin now, if one is closed or due, without the deliveries whose lease was lost meanwhile."""
        while (batch := self._take(now)) is not None:
            held = tuple(delivery for delivery in batch.deliveries if self._book.holds(delivery))
            if held:
                return Batch(deliveries=held, bytes=batch.bytes, closed_by=batch.closed_by)
        return None

    def take_all(self) -> Sequence[Delivery]:
        """Everything held here, to be released unstarted. Any thread may call it; each delivery is answered once."""
        with self._lock:
            batches, self._closed = self._closed, deque()
            collecting, self._collecting = self._collecting, NOTHING
        return [delivery for batch in batches for delivery in batch.deliveries] + list(collecting.deliveries)

    def _add(self, arrived: Sequence[Delivery], now: float) -> None:
        weighed = [(delivery, self._weigh(delivery)) for delivery in arrived]
        with self._lock:
            self._collecting, closed = collect(self._collecting, weighed, limits=self._settings.limits, now=now)
            self._closed.extend(closed)

    def _take(self, now: float) -> Batch | None:
        with self._lock:
            if self._closed:
                return self._closed.popleft()
            batch = due(self._collecting, limits=self._settings.limits, now=now, receive_was_empty=self._last_was_empty)
            if batch is not None:
                self._collecting = NOTHING
            return batch
