"""Recovery of deliveries that no worker settles.

- `LeaseSweeper`: requeue deliveries past their lease, page by page through the pending list; remove dead consumers
- `UnconfirmedDeliveries`: release at once, without waiting for the lease, deliveries whose reply never arrived
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.records import MessageState, delivery_of, entry_of, state_of
from penstock.brokers.redis.server import Server, script
from penstock.brokers.redis.settle import QueueSettlements
from penstock.events import Listener, MessagesDeleted
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

PAGE = 500  # entries per call, which takes the server less than a millisecond
CONSUMER_IDLE_SECONDS = 3_600.0  # after which a consumer without pending entries counts as dead


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustedDelivery:
    """A delivery whose lease ended and whose message has no attempts left. It stays pending until dead-lettered."""

    delivery: Delivery
    state: MessageState  # before that delivery
    started_at: float
    ended_at: float
    worker: str


class LeaseSweeper:
    """Schedule and run the sweeps of queues. Used by the I/O thread and by any thread that reads a queue's stats."""

    def __init__(
        self,
        server: Server,
        keys: QueueKeys,
        *,
        every_seconds: float | None,
        clock: Clock,
        random: Random,
        emit: Listener,
    ) -> None:
        self._server = server
        self._keys = keys
        self._every_seconds = every_seconds
        self._clock = clock
        self._random = random
        self._emit = emit
        # By queue: time of the last sweep (monotonic), and the fraction of the interval until the next. A race costs
        # one additional sweep.
        self._swept: dict[str, tuple[float, float]] = {}

    def seconds(self, lease_seconds: float) -> float:
        """Return the interval between sweeps: the configured one, else half a lease."""
        return lease_seconds / 2 if self._every_seconds is None else self._every_seconds

    def take_due(self, queues: Iterable[str], lease_seconds: float) -> list[str]:
        """Return the queues to sweep now, and mark them as swept.

        The interval is that of the caller's lease, so a read-only client with a longer one does not delay a worker's
        sweeps.
        """
        now = self._clock.monotonic()
        due = [queue for queue in queues if self._is_due(queue, lease_seconds, now)]
        for queue in due:  # jitter, so that workers do not all sweep at once
            self._swept[queue] = (now, 0.5 + self._random() / 2)
        return due

    def sweep(self, queue: str) -> list[ExhaustedDelivery]:
        """Requeue deliveries past their lease; return those without attempts left, which stay pending."""
        return [dead for _, exhausted in self._pages(queue, "") for dead in exhausted]

    def release(self, queue: str, holder: str) -> tuple[int, list[ExhaustedDelivery]]:
        """Requeue the deliveries of a worker that is proven dead. Return their number, and the exhausted ones as
        `sweep` does.
        """
        pages = list(self._pages(queue, holder))
        return sum(count for count, _ in pages), [dead for _, exhausted in pages for dead in exhausted]

    def remove_idle_consumers(self, queue: str) -> int:
        """Delete the consumers of workers that are long dead and hold nothing."""
        idle = int(CONSUMER_IDLE_SECONDS * 1000)
        return int(self._server.call(*script("tidy", [self._keys.stream(queue)], idle)))

    def _is_due(self, queue: str, lease_seconds: float, now: float) -> bool:
        last = self._swept.get(queue)
        return last is None or last[0] + self.seconds(lease_seconds) * last[1] <= now

    def _pages(self, queue: str, holder: str) -> Iterator[tuple[int, list[ExhaustedDelivery]]]:
        stream = self._keys.stream(queue)
        begin = "-"
        while begin:  # terminates with the pending list
            begin, count, vanished, exhausted = self._server.call(*script("sweep", [stream], begin, PAGE, holder))
            if vanished:
                self._emit(MessagesDeleted(queue=queue, entries=tuple(id.decode() for id in vanished)))
            yield int(count), [self._exhausted(queue, fields) for fields in exhausted]

    def _exhausted(self, queue: str, fields: Any) -> ExhaustedDelivery:
        id, ended, worker, text, group, head, body, store = fields
        state = state_of(text)
        return ExhaustedDelivery(
            delivery=delivery_of(
                queue, store.decode(), id, at=int(ended) / 1000, state=state, group=group, head=head, body=body
            ),
            state=state,
            started_at=int(id.partition(b"-")[0]) / 1000,
            ended_at=int(ended) / 1000,
            worker=worker.decode("utf-8", "replace"),
        )


RELEASE_MAX = 1_000  # per script
NEVER_ARRIVED = "its delivery never arrived"


class UnconfirmedDeliveries:
    """The deliveries this broker holds; after a failed call, it releases all others that the server lists as pending.

    Thread-safe. Deliveries that another thread is receiving at that moment are not lost, so the release is postponed
    until no call is receiving.
    """

    def __init__(self, server: Server, keys: QueueKeys, *, worker: str) -> None:
        self._server = server
        self._keys = keys
        self._worker = worker
        self._lock = threading.Lock()
        self._receiving = 0  # calls under way; written under the lock
        self._unresolved: set[tuple[str, str]] = set()  # queue and consumer of each failed call; written under the lock
        self._known: dict[str, set[str]] = {}  # by queue, the receipt handles received; any thread changes a set

    @contextmanager
    def receiving(self, queues: Sequence[str], consumer: str) -> Iterator[None]:
        """Wrap a call that receives, up to recording its deliveries with `record`. An error leaves these queues in
        doubt.
        """
        with self._lock:
            self._receiving += 1
        failed = True
        try:
            yield
            failed = False
        finally:
            with self._lock:
                self._receiving -= 1
                if failed:
                    self._unresolved.update((queue, consumer) for queue in queues)

    def record(self, deliveries: Iterable[Delivery]) -> None:
        """Record deliveries that arrived."""
        for queue, receipts in _by_queue(deliveries).items():
            self._known.setdefault(queue, set()).update(receipts)

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Forget deliveries that are settled or lost."""
        for queue, receipts in _by_queue(deliveries).items():
            self._known.get(queue, set()).difference_update(receipts)

    def resolve(self, queues: Collection[str] | None = None) -> None:
        """Release the deliveries in doubt in these queues (None: all); do nothing while a call is receiving.

        Raises the server's errors; the doubts then remain.
        """
        if not self._unresolved:
            return
        with self._lock:
            if self._receiving:
                return
            for queue, consumer in tuple(self._unresolved):
                if queues is None or queue in queues:
                    self._release_unknown(queue, consumer)
                    self._unresolved.discard((queue, consumer))

    def _release_unknown(self, queue: str, consumer: str) -> None:
        """Read the unknown entries, then release exactly those.

        A release request that arrives late must not release messages received since.
        """
        receipts = {entry_of(receipt): receipt for receipt in tuple(self._known.get(queue, ()))}
        unknown, deleted = self._server.call(*script("doubts", [self._keys.stream(queue)], consumer, *receipts))
        self._known.get(queue, set()).difference_update(receipts[id.decode()] for id in deleted)
        for at in range(0, len(unknown), RELEASE_MAX):
            group = QueueSettlements(queue=queue)
            for id in unknown[at : at + RELEASE_MAX]:
                group.release(id.decode(), delay_seconds=0.0, uncounted=True, reason=NEVER_ARRIVED)
            self._server.call(*group.command(self._keys, self._worker))


def _by_queue(deliveries: Iterable[Delivery]) -> dict[str, list[str]]:
    """Return the receipt handles by queue."""
    receipts: dict[str, list[str]] = {}
    for delivery in deliveries:
        receipts.setdefault(delivery.queue, []).append(delivery.receipt)
    return receipts
