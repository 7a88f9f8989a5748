"""Lease extension, and the deliveries that this broker has settled.

SQS holds a message for at most twelve hours from its receive. At that limit a lease is neither an error nor lost: SQS
is not asked, and processing goes on. Afterwards SQS delivers the message to another worker, which the ledger's claim
then makes wait.

SQS has no fence: it accepts a second ack of a receipt handle, and extends a released message. `SettledDeliveries`
therefore keeps a late heartbeat from taking back a message that this worker has released.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from penstock.brokers.sqs import client
from penstock.brokers.sqs.calls import BatchCalls, FailedEntry
from penstock.brokers.sqs.envelope import seconds_since_receive
from penstock.brokers.sqs.limits import LEASE_SECONDS_MAX, whole_seconds
from penstock.brokers.sqs.queues import SqsQueues
from penstock.errors import TemporaryError
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.wording import counted

REMEMBERED_MAX = 20_000


class SettledDeliveries:
    """The deliveries settled last, at most `REMEMBERED_MAX`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Written under the lock; hashes, since receipt handles are long
        self._receipts: OrderedDict[int, None] = OrderedDict()

    def add(self, delivery: Delivery) -> None:
        """Record a delivery as settled."""
        with self._lock:
            self._receipts[hash(delivery.receipt)] = None
            if len(self._receipts) > REMEMBERED_MAX:
                self._receipts.popitem(last=False)

    def __contains__(self, delivery: Delivery) -> bool:
        return hash(delivery.receipt) in self._receipts


MARGIN_SECONDS = 2.0  # before the limit: SQS counts from sending its response, we from receiving it
CHANGE = "change_message_visibility_batch"


class SqsLeases:
    """Extend leases and change visibility timeouts. Thread-safe."""

    def __init__(
        self, queues: SqsQueues, batches: BatchCalls, settled: SettledDeliveries, *, extending: BatchCalls, clock: Clock
    ) -> None:
        """``extending`` makes the calls that extend leases, in threads that no other kind of call and no other queue
        uses.
        """
        self._queues = queues
        self._batches = batches
        self._extending = extending
        self._settled = settled
        self._clock = clock

    def extend(self, deliveries: Sequence[Delivery], lease_seconds: float) -> Sequence[Delivery]:
        """Extend the leases that are below the limit; return the lost deliveries.

        Raises `TemporaryError` if SQS refused some for another reason.
        """
        lost = [delivery for delivery in deliveries if delivery in self._settled]
        by_queue: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            if delivery not in self._settled and self.left_seconds(delivery) >= 1:
                by_queue.setdefault(delivery.queue, []).append(delivery)
        refused: list[FailedEntry] = []
        for queue, leased in by_queue.items():
            for position, failed in self._changed(
                self._extending, queue, [(delivery, lease_seconds) for delivery in leased]
            ):
                if client.is_expired_handle(failed.code, failed.message):
                    lost.append(leased[position])
                elif not client.is_ceiling(failed.code, failed.message):
                    refused.append(failed)
        if refused:
            leases = counted(len(deliveries), "lease")
            raise TemporaryError(f"{len(refused)} of {leases} could not be extended: {refused[0]}")
        return lost

    def change(self, queue: str, visibility: Sequence[tuple[Delivery, float]]) -> Sequence[tuple[int, FailedEntry]]:
        """Hide deliveries of one queue for these seconds from now; return those that failed, by position."""
        return self._changed(self._batches, queue, visibility)

    def left_seconds(self, delivery: Delivery) -> float:
        """Return how many seconds from now SQS can still hold the delivery."""
        return LEASE_SECONDS_MAX - MARGIN_SECONDS - seconds_since_receive(delivery, self._clock)

    def _changed(
        self, batches: BatchCalls, queue: str, visibility: Sequence[tuple[Delivery, float]]
    ) -> Sequence[tuple[int, FailedEntry]]:
        entries = [
            {
                "ReceiptHandle": delivery.receipt,
                "VisibilityTimeout": min(whole_seconds(seconds), max(int(self.left_seconds(delivery)), 0)),
            }
            for delivery, seconds in visibility
        ]
        return list(batches.run(self._queues.find(queue), CHANGE, entries).items())
