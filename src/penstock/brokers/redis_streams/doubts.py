"""Messages handed over to us in an answer that never came: they go back at once, not when their lease ends."""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from penstock.brokers.redis_streams.keys import Keys
from penstock.brokers.redis_streams.records import entry_of
from penstock.brokers.redis_streams.server import Server, script
from penstock.brokers.redis_streams.settling import Group
from penstock.messaging.delivery import Delivery

PUT_BACK_MAX = 1_000  # in one script
NEVER_ARRIVED = "its delivery never arrived"


class Doubts:
    """Knows what this broker holds, and after a broken call puts back the rest of what the server thinks it holds.

    Any thread may call it. What another thread is taking at that moment must not be mistaken for lost, so it waits for
    a moment in which nobody takes.
    """

    def __init__(self, server: Server, keys: Keys, *, worker: str) -> None:
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
            group = Group(queue=queue)
            for id in unknown[at : at + PUT_BACK_MAX]:
                group.release(id.decode(), delay_seconds=0.0, refund=True, reason=NEVER_ARRIVED)
            self._server.ask(*group.command(self._keys, self._worker))
