"""Broker in this process's memory: the reference for the behaviour of the embedded brokers, and for tests.

It behaves like the SQLite broker, except that nothing is durable and that setting the host's clock back prolongs
leases. Several workers of one process share the queues: each gets its own view from `held_by`, so that every lease has
a holder.
"""

from collections.abc import Callable, Sequence

from penstock.brokers import shared
from penstock.brokers.memory.store import MemoryStore
from penstock.brokers.shared import one_by_one
from penstock.errors import TemporaryError
from penstock.messaging.broker import (
    Capabilities,
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
from penstock.messaging.settlement import Ack, Release, Settlement

_PAUSE_SECONDS_MIN = 0.001  # a due time just ahead must not make a waiting receiver spin


class MemoryBroker:
    """`penstock.messaging.broker.Broker` in memory. Thread-safe."""

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

    def held_by(self, holder: str) -> "MemoryBroker":
        """Return a view of the same queues for another worker of this process."""
        view = MemoryBroker(holder=holder)
        view._store = self._store
        return view

    @property
    def capabilities(self) -> Capabilities:
        return shared.CAPABILITIES

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send all messages or none. For a duplicate within the deduplication window, return the id of the earlier
        message.
        """
        shared.check_outgoing(queue, messages)
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            ids = [self._store.put(self._store.line(queue), message, now) for message in messages]
        self._store.arrivals.tell(queue)
        return ids

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        shared.check_seconds("lease_seconds", lease_seconds, shared.CAPABILITIES.lease_seconds_max)
        shared.check_wait(wait_seconds)
        self._check_open()
        clock = self._store.clock
        deadline = clock.monotonic() + wait_seconds
        with self._store.arrivals.watch() as arrived:
            while True:
                arrived.clear()  # before the poll, so that a message arriving after it sets the event again
                with self._store.lock:
                    deliveries = self._store.take(queue, messages_max, lease_seconds, self._holder)
                    line = self._store.lines.get(queue)
                    next_change_at = None if line is None or line.paused else line.next_change_at()
                left = deadline - clock.monotonic()
                if deliveries or left <= 0 or messages_max < 1 or self._closed:
                    return deliveries
                pause = left if next_change_at is None else min(left, next_change_at - clock.now())
                clock.wait(arrived, max(pause, _PAUSE_SECONDS_MIN))

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        shared.check_seconds("lease_seconds", lease_seconds, shared.CAPABILITIES.lease_seconds_max)
        self._check_open()
        lost = []
        with self._store.lock:
            now = self._store.clock.now()
            for delivery in deliveries:
                held = self._store.held(delivery, now)
                if held is None:
                    lost.append(delivery)
                else:
                    held[0].make_wait(held[1], now + lease_seconds)
        return lost

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        self._check_open()
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                shared.check_hold(settlement)
        failures = []
        with self._store.lock:
            now = self._store.clock.now()
            for delivery, settlement in settlements:
                held = self._store.held(delivery, now)
                if held is None:
                    failures.append(SettleFailure(delivery=delivery, reason=shared.LOST, lost=True))
                else:
                    self._store.apply(*held, delivery, settlement, holder=self._holder, now=now)
        if any(not isinstance(settlement, Ack) for _, settlement in settlements):
            self._store.arrivals.tell()
        return failures

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        asks: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        return one_by_one(self, settlements, asks, lease_seconds=lease_seconds, wait_seconds=wait_seconds)

    def listen(self, queues: Sequence[str], tell: Callable[[], None]) -> Listening:
        return self._store.arrivals.listen(queues, tell)

    def next_change_at(self, queue: str) -> float | None:
        """Return when the earliest lease or delay ends, in epoch seconds; None if there is none.

        For tests and simulations that advance the clock.
        """
        with self._store.lock:
            line = self._store.lines.get(queue)
            return None if line is None else line.next_change_at()

    def stats(self, queue: str) -> QueueStats:
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            line = self._store.tended(queue, now)
            return shared.NEVER_HEARD_OF if line is None else line.stats(now)

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Return messages in any state, ordered by id. ``after_id`` may name a message that has left the queue."""
        self._check_open()
        after = 0 if after_id is None else shared.seq_of(self._store.id, after_id)
        with self._store.lock:
            line = self._store.tended(queue, self._store.clock.now())
            if line is None or after is None:
                return ()
            seqs = sorted(seq for seq in line.entries if seq > after)[: max(messages_max, 0)]
            return [self._store.message(line.entries[seq]) for seq in seqs]

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead. Its messages are visible at once; the attempts count."""
        self._check_open()
        with self._store.lock:
            count = self._store.release_holder(holder, self._store.clock.now())
        self._store.arrivals.tell()
        return count

    def queue_names(self) -> Sequence[str]:
        with self._store.lock:
            return sorted(self._store.lines)

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
            line = self._store.lines.get(queue)
            return 0 if line is None else line.discard({seq for seq in seqs if seq is not None})

    def purge(self, queue: str) -> int:
        self._check_open()
        with self._store.lock:
            return self._store.lines[queue].clear() if queue in self._store.lines else 0

    def pause(self, queue: str) -> None:
        shared.check_queue(queue)
        self._check_open()
        with self._store.lock:
            self._store.line(queue).paused = True

    def resume(self, queue: str) -> None:
        self._check_open()
        with self._store.lock:
            if queue in self._store.lines:
                self._store.lines[queue].paused = False
        self._store.arrivals.tell(queue)

    def now(self) -> float:
        return self._store.clock.now()

    def paused(self, queue: str) -> bool:
        with self._store.lock:
            return queue in self._store.lines and self._store.lines[queue].paused

    def dropped(self, queue: str) -> int:
        """Return how many expired dead letters this queue has deleted."""
        with self._store.lock:
            return self._store.lines[queue].dropped if queue in self._store.lines else 0

    def close(self) -> None:
        self._closed = True
        self._store.arrivals.tell()

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("this view of the memory broker was closed: take another with held_by()")
