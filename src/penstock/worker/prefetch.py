"""Hold the deliveries of one consumer until they begin: the open batch, and closed batches that wait for a slot."""

import threading
from collections import deque
from collections.abc import Sequence

from penstock.events import Bus, MessagesReceived, MessageTakenOver
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.delivery import AttemptEnd, Delivery
from penstock.messaging.steps import Probe, Step
from penstock.worker.batcher import NOTHING, collect, due
from penstock.worker.consumer import Consumer
from penstock.worker.leases import LeaseBook
from penstock.worker.settings import WorkerSettings


class PrefetchBuffer:
    """The deliveries of one consumer before their execution. It never requests more than the free slots can take.

    A consumer with threads of its own collects its next batch ahead, so that it follows a long run at once. A consumer
    that shares the worker's slots receives only for slots that are free now, so nothing waits leased and unbegun.
    Nothing more is received while a closed batch waits. The buffer is thus bounded by one batch per slot, plus the
    batches that a single receive can close (up to one per delivery, if each is large enough).
    """

    def __init__(
        self,
        *,
        consumer: Consumer,
        receive_max: int,
        lease_book: LeaseBook,
        settings: WorkerSettings,
        bus: Bus,
        probe: Probe,
    ) -> None:
        self._consumer = consumer
        self._limits = consumer.limits
        self._fetch_max = min(consumer.receive_max(settings), receive_max)
        self._lease_book = lease_book
        self._bus = bus
        self._probe = probe
        self._lock = threading.Lock()
        self._collecting = NOTHING  # under the lock; written by the I/O thread, and by `take_all` in any thread
        self._closed: deque[Sequence[Delivery]] = deque()  # as above
        self._last_was_empty = False  # written by the I/O thread

    @property
    def empty(self) -> bool:
        """Return True if nothing is held here."""
        with self._lock:
            return not self._closed and not self._collecting.deliveries

    @property
    def count(self) -> int:
        """The number of messages held here."""
        with self._lock:
            return sum(map(len, self._closed)) + len(self._collecting.deliveries)

    def capacity(self, free: int) -> int:
        """Return how many more messages may be received while ``free`` batches may begin."""
        batches = free if self._consumer.shares_slots else 1
        with self._lock:
            return 0 if self._closed else self._limits.messages_max * batches - len(self._collecting.deliveries)

    def request(self, capacity: int) -> ReceiveRequest:
        """Return the receive request for a consumer with this much room, at least 1."""
        return ReceiveRequest(queue=self._consumer.queue, messages_max=min(self._fetch_max, capacity))

    def add(self, arrived: Sequence[Delivery], now: float, *, drained: bool = False) -> None:
        """Take the result of a receive, possibly empty: register the leases, then add the deliveries to batches.

        ``drained``: no other message is waiting, as after an empty receive.
        """
        self._last_was_empty = drained or not arrived
        if not arrived:
            return
        self._lease_book.register(arrived)
        self._add(arrived, now)
        self._probe(Step.RECEIVED)
        for delivery in filter(_is_orphaned, arrived):
            self._bus.emit(_taken_over(delivery))
        if self._bus.wants(MessagesReceived):
            ids = tuple(delivery.message.id for delivery in arrived)
            first = [delivery.message.enqueued_at for delivery in arrived if delivery.attempt == 1]
            self._bus.emit(
                MessagesReceived(
                    queue=self._consumer.queue,
                    message_ids=ids,
                    redelivered=len(arrived) - len(first),
                    expired=sum(_is_orphaned(delivery) for delivery in arrived),
                    first_enqueued_at=min(first, default=None),
                )
            )

    def next_batches(self, count: int, now: float, *, only_full: bool = False) -> Sequence[Sequence[Delivery]]:
        """Return up to ``count`` batches to begin now, without deliveries with a lease lost meanwhile.

        ``only_full`` leaves a batch open that more deliveries may still join.
        """
        batches: Sequence[Sequence[Delivery]] = ()
        while not batches and (taken := self._take(count, now, only_full=only_full)):
            batches = self._lease_book.still_leased(taken)
        return batches

    def take_all(self) -> Sequence[Delivery]:
        """Remove and return everything held, to be released unbegun. Thread-safe; each delivery is returned once."""
        with self._lock:
            batches, self._closed = self._closed, deque()
            collecting, self._collecting = self._collecting, NOTHING
        return [delivery for batch in batches for delivery in batch] + list(collecting.deliveries)

    def _add(self, arrived: Sequence[Delivery], now: float) -> None:
        if self._limits.messages_max == 1:  # each delivery is a batch, regardless of its size
            with self._lock:
                self._closed.extend([(delivery,) for delivery in arrived])
            return
        weighed = [(delivery, self._consumer.handler.weigh(delivery)) for delivery in arrived]
        with self._lock:
            self._collecting, closed = collect(self._collecting, weighed, limits=self._limits, now=now)
            self._closed.extend(batch.deliveries for batch in closed)

    def _take(self, count: int, now: float, *, only_full: bool) -> Sequence[Sequence[Delivery]]:
        taken: list[Sequence[Delivery]] = []
        with self._lock:
            while self._closed and len(taken) < count:
                taken.append(self._closed.popleft())
            if len(taken) < count and not only_full:
                batch = due(self._collecting, limits=self._limits, now=now, receive_was_empty=self._last_was_empty)
                if batch is not None:
                    self._collecting = NOTHING
                    taken.append(batch.deliveries)
        return taken


def _is_orphaned(delivery: Delivery) -> bool:
    return delivery.previous is not None and delivery.previous.end is AttemptEnd.EXPIRED


def _taken_over(delivery: Delivery) -> MessageTakenOver:
    assert delivery.previous is not None, "only a redelivered message is orphaned"
    return MessageTakenOver(
        queue=delivery.queue,
        message_id=delivery.message.id,
        attempt=delivery.attempt,
        from_worker=delivery.previous.worker,
        from_attempt=delivery.attempt - 1,
        reason=delivery.previous.reason,
    )
