"""Broker in this process's memory: the reference for the behaviour of the embedded brokers, and for tests.

It behaves like the SQLite broker, except that nothing is durable and that setting the host's clock back prolongs
leases. Several workers of one process share the queues: each gets its own view from `with_holder`, so that every lease
has a holder.
"""

from collections.abc import Callable, Sequence

from penstock.brokers import shared
from penstock.brokers.capabilities import EMBEDDED, MEMORY
from penstock.brokers.memory.store import MemoryStore
from penstock.brokers.shared import one_by_one
from penstock.errors import TemporaryError
from penstock.messaging.broker import (
    BrokerCapabilities,
    Listening,
    QueueSettings,
    QueueStats,
    ReceiveRequest,
    SettleFailure,
    TurnResult,
)
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Ack, Release, Settlement

_PAUSE_SECONDS_MIN = 0.001  # a due time just ahead must not make a waiting receiver spin


class MemoryBroker:
    """A `penstock.messaging.broker.Broker` in memory. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        queues: Sequence[QueueSettings] = (),
        holder: str = "memory",
        deduplication_window_seconds: float = shared.DEDUPLICATION_WINDOW_SECONDS,
    ) -> None:
        for settings in queues:
            shared.check_settings(settings)
        self._store = MemoryStore(clock or SystemClock(), queues, deduplication_window_seconds)
        self._holder = holder
        self._closed = False  # written by the thread that calls close

    def with_holder(self, holder: str) -> "MemoryBroker":
        """Return a view of the same queues for another worker of this process."""
        view = MemoryBroker(holder=holder)
        view._store = self._store
        return view

    @property
    def capabilities(self) -> BrokerCapabilities:
        return MEMORY

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send all messages or none. For a duplicate within the deduplication window, return the id of the earlier
        message.
        """
        shared.check_outgoing(queue, messages)
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            ids = [self._store.put(self._store.ensure_queue(queue), message, now) for message in messages]
        self._store.arrivals.notify(queue)
        return ids

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        shared.check_seconds("lease_seconds", lease_seconds, EMBEDDED.lease_seconds_max)
        shared.check_wait(wait_seconds)
        self._check_open()
        clock = self._store.clock
        deadline = clock.monotonic() + wait_seconds
        with self._store.arrivals.watch() as arrived:
            while True:
                arrived.clear()  # before the poll, so that a message arriving after it sets the event again
                with self._store.lock:
                    deliveries = self._store.take(queue, messages_max, lease_seconds, self._holder)
                    memory_queue = self._store.queues.get(queue)
                    is_active = memory_queue is not None and not memory_queue.paused
                    next_change_at = memory_queue.next_change_at() if memory_queue and is_active else None
                left = deadline - clock.monotonic()
                if deliveries or left <= 0 or messages_max < 1 or self._closed:
                    return deliveries
                pause = left if next_change_at is None else min(left, next_change_at - clock.now())
                clock.wait(arrived, max(pause, _PAUSE_SECONDS_MIN))

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        shared.check_seconds("lease_seconds", lease_seconds, EMBEDDED.lease_seconds_max)
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            # Found before any is extended: a lease of 0 s ends at once, and a delivery may be given twice.
            found = [(delivery, self._store.find_leased(delivery, now)) for delivery in deliveries]
            for _, leased in found:
                if leased is not None:
                    leased[0].make_wait(leased[1], now + lease_seconds)
        return [delivery for delivery, leased in found if leased is None]

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        self._check_open()
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                shared.check_release(settlement)
        failures = []
        with self._store.lock:
            now = self._store.clock.now()
            for delivery, settlement in settlements:
                leased = self._store.find_leased(delivery, now)
                if leased is None:
                    failures.append(SettleFailure(delivery=delivery, reason=shared.LOST, lost=True))
                else:
                    self._store.apply(*leased, delivery, settlement, holder=self._holder, now=now)
        if any(not isinstance(settlement, Ack) for _, settlement in settlements):
            self._store.arrivals.notify()
        return failures

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        return one_by_one(self, settlements, requests, lease_seconds=lease_seconds, wait_seconds=wait_seconds)

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> Listening:
        return self._store.arrivals.listen(queues, on_arrival)

    def next_change_at(self, queue: str) -> float | None:
        """Return when the earliest lease or delay ends, in epoch seconds; None if there is none.

        For tests and simulations that advance the clock.
        """
        with self._store.lock:
            memory_queue = self._store.queues.get(queue)
            return None if memory_queue is None else memory_queue.next_change_at()

    def stats(self, queue: str) -> QueueStats:
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            memory_queue = self._store.find_updated(queue, now)
            return shared.EMPTY_STATS if memory_queue is None else memory_queue.stats(now)

    def is_empty(self, queue: str) -> bool:
        self._check_open()
        with self._store.lock:
            memory_queue = self._store.find_updated(queue, self._store.clock.now())
            return memory_queue is None or not memory_queue.entries

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Return messages in any state, ordered by id. ``after_id`` may name a message that has left the queue."""
        self._check_open()
        after = 0 if after_id is None else shared.seq_of(self._store.id, after_id)
        with self._store.lock:
            memory_queue = self._store.find_updated(queue, self._store.clock.now())
            if memory_queue is None or after is None:
                return ()
            seqs = sorted(seq for seq in memory_queue.entries if seq > after)[: max(messages_max, 0)]
            return [self._store.message(memory_queue.entries[seq]) for seq in seqs]

    def peek(self, queue: str, state: QueuedState, *, messages_max: int, after: str | None = None) -> QueuedPage:
        """Return a page: waiting messages by group and id, others by the end of their lease or delay."""
        self._check_open()
        key = shared.parse_page_key(after, str if state is QueuedState.WAITING else float, int)
        with self._store.lock:
            memory_queue = self._store.find_updated(queue, self._store.clock.now())
            return QueuedPage() if memory_queue is None else self._store.page(memory_queue, state, messages_max, key)

    def find(self, queue: str, id: str, *, near: str | None = None) -> QueuedMessage | None:  # noqa: ARG002 - it has all
        self._check_open()
        seq = shared.seq_of(self._store.id, id)
        with self._store.lock:
            memory_queue = self._store.find_updated(queue, self._store.clock.now())
            entry = memory_queue.entries.get(seq) if memory_queue is not None and seq is not None else None
            return None if entry is None else self._store.queued(entry)

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead. Its messages are visible at once; the attempts count."""
        self._check_open()
        with self._store.lock:
            count = self._store.release_holder(holder, self._store.clock.now())
        self._store.arrivals.notify()
        return count

    def queue_names(self) -> Sequence[str]:
        with self._store.lock:
            return sorted(self._store.queues)

    def dead_letter_queue(self, queue: str) -> str:
        shared.check_queue(queue)
        with self._store.lock:
            return self._store.dead_letter_queue(queue)

    def retention_seconds(self, queue: str) -> float | None:
        with self._store.lock:
            return self._store.settings(queue).retention_seconds

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        self._check_open()
        seqs = {shared.seq_of(self._store.id, id) for id in ids}
        with self._store.lock:
            memory_queue = self._store.queues.get(queue)
            return 0 if memory_queue is None else memory_queue.discard({seq for seq in seqs if seq is not None})

    def purge(self, queue: str) -> int:
        self._check_open()
        with self._store.lock:
            return self._store.queues[queue].clear() if queue in self._store.queues else 0

    def pause(self, queue: str) -> None:
        shared.check_queue(queue)
        self._check_open()
        with self._store.lock:
            self._store.ensure_queue(queue).paused = True

    def resume(self, queue: str) -> None:
        self._check_open()
        with self._store.lock:
            if queue in self._store.queues:
                self._store.queues[queue].paused = False
        self._store.arrivals.notify(queue)

    def now(self) -> float:
        return self._store.clock.now()

    def paused(self, queue: str) -> bool:
        with self._store.lock:
            return queue in self._store.queues and self._store.queues[queue].paused

    def dropped(self, queue: str) -> int:
        """Return how many expired dead letters this queue has deleted."""
        with self._store.lock:
            return self._store.queues[queue].dropped if queue in self._store.queues else 0

    def close(self) -> None:
        self._closed = True
        self._store.arrivals.notify()

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("this view of the memory broker was closed: take another with held_by()")
