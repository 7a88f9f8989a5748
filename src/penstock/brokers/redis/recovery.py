"""Putting back what dead workers held, page by page through the pending list, and tidying up after them.

Messages handed over to us in an answer that never came: they go back at once, not when their lease ends.
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
from penstock.events import Listener, MessagesVanished
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

PAGE = 500  # entries one call looks at: less than a millisecond of the server
CONSUMER_IDLE_SECONDS = 3_600.0  # after which a worker that holds nothing is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustedDelivery:
    """A message whose last hand-over's lease is over; still pending, for whoever buries it."""

    delivery: Delivery
    state: MessageState  # before that hand-over
    started_at: float
    ended_at: float
    worker: str


class LeaseSweeper:
    """When each queue is swept next, and how. The I/O thread's, and anybody's who looks at a queue."""

    def __init__(
        self,
        server: Server,
        keys: QueueKeys,
        *,
        every_seconds: float | None,
        clock: Clock,
        random: Random,
        tell: Listener,
    ) -> None:
        self._server = server
        self._keys = keys
        self._every_seconds = every_seconds
        self._clock = clock
        self._random = random
        self._tell = tell
        # By queue: when it was swept (monotonic), and the share of its time until the next; a race costs a sweep.
        self._swept: dict[str, tuple[float, float]] = {}

    def seconds(self, lease_seconds: float) -> float:
        """Between two sweeps: half a lease unless told otherwise."""
        return lease_seconds / 2 if self._every_seconds is None else self._every_seconds

    def due(self, queues: Iterable[str], lease_seconds: float) -> list[str]:
        """Those to be swept now; they count as swept. Who only looks, with a longer lease, makes no worker wait."""
        now = self._clock.monotonic()
        due = [queue for queue in queues if self._is_due(queue, lease_seconds, now)]
        for queue in due:  # jitter, and not all workers at the same moment
            self._swept[queue] = (now, 0.5 + self._random() / 2)
        return due

    def sweep(self, queue: str) -> list[ExhaustedDelivery]:
        """Put back what is held past its lease; answers what nobody should get again, which stays as it is."""
        return [dead for _, exhausted in self._pages(queue, "") for dead in exhausted]

    def release(self, queue: str, holder: str) -> tuple[int, list[ExhaustedDelivery]]:
        """Put back what a worker that is proven dead holds; answers how many, and the rest as `sweep` does."""
        pages = list(self._pages(queue, holder))
        return sum(count for count, _ in pages), [dead for _, exhausted in pages for dead in exhausted]

    def tidy(self, queue: str) -> int:
        """Forget the consumers of workers that are long dead and hold nothing."""
        idle = int(CONSUMER_IDLE_SECONDS * 1000)
        return int(self._server.ask(*script("tidy", [self._keys.stream(queue)], idle)))

    def _is_due(self, queue: str, lease_seconds: float, now: float) -> bool:
        last = self._swept.get(queue)
        return last is None or last[0] + self.seconds(lease_seconds) * last[1] <= now

    def _pages(self, queue: str, holder: str) -> Iterator[tuple[int, list[ExhaustedDelivery]]]:
        stream = self._keys.stream(queue)
        begin = "-"
        while begin:  # ends: the pending list does
            begin, count, vanished, exhausted = self._server.ask(*script("sweep", [stream], begin, PAGE, holder))
            if vanished:
                self._tell(MessagesVanished(queue=queue, entries=tuple(id.decode() for id in vanished)))
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


PUT_BACK_MAX = 1_000  # in one script
NEVER_ARRIVED = "its delivery never arrived"


class UnconfirmedDeliveries:
    """Knows what this broker holds, and after a broken call puts back the rest of what the server thinks it holds.

    Any thread may call it. What another thread is taking at that moment must not be mistaken for lost, so it waits for
    a moment in which nobody takes.
    """

    def __init__(self, server: Server, keys: QueueKeys, *, worker: str) -> None:
        self._server = server
        self._keys = keys
        self._worker = worker
        self._lock = threading.Lock()
        self._taking = 0  # under the lock: calls under way
        self._in_doubt: set[tuple[str, str]] = set()  # under the lock: queues, each with the consumer that took
        self._held: dict[str, set[str]] = {}  # by queue, the receipts handed out; any thread's, set by set

    @contextmanager
    def taking(self, queues: Sequence[str], consumer: str) -> Iterator[None]:
        """Around a call that takes, and around making known what it brought. What raises leaves doubts."""
        with self._lock:
            self._taking += 1
        failed = True
        try:
            yield
            failed = False
        finally:
            with self._lock:
                self._taking -= 1
                if failed:
                    self._in_doubt.update((queue, consumer) for queue in queues)

    def holds(self, deliveries: Iterable[Delivery]) -> None:
        """These arrived."""
        for delivery in deliveries:
            self._held.setdefault(delivery.queue, set()).add(delivery.receipt)

    def let_go(self, deliveries: Iterable[Delivery]) -> None:
        """These are settled, or lost."""
        for delivery in deliveries:
            self._held.get(delivery.queue, set()).discard(delivery.receipt)

    def resolve(self, queues: Collection[str] | None = None) -> None:
        """Put back what is in doubt, if anything is, in these queues or in all.

        Raises what the server raises; the doubts then stay.
        """
        if not self._in_doubt:
            return
        with self._lock:
            if self._taking:
                return
            for queue, consumer in tuple(self._in_doubt):
                if queues is None or queue in queues:
                    self._put_back_unknown(queue, consumer)
                    self._in_doubt.discard((queue, consumer))

    def _put_back_unknown(self, queue: str, consumer: str) -> None:
        """Looks first and names what goes back: a request that comes late must not take what we got since."""
        receipts = {entry_of(receipt): receipt for receipt in tuple(self._held.get(queue, ()))}
        unknown, gone = self._server.ask(*script("doubts", [self._keys.stream(queue)], consumer, *receipts))
        self._held.get(queue, set()).difference_update(receipts[id.decode()] for id in gone)
        for at in range(0, len(unknown), PUT_BACK_MAX):
            group = QueueSettlements(queue=queue)
            for id in unknown[at : at + PUT_BACK_MAX]:
                group.release(id.decode(), delay_seconds=0.0, refund=True, reason=NEVER_ARRIVED)
            self._server.ask(*group.command(self._keys, self._worker))
