"""Extending leases, up to the twelve hours from its receive that SQS holds a message at most.

A lease that cannot grow any more is neither an error nor lost: nothing is asked of SQS, and the work goes on. When the
twelve hours are over SQS hands the message to somebody else; the ledger's claim then makes that worker wait.

Which deliveries this broker ended itself.

SQS acks the same receipt handle twice, and extends one that was released: it has no fence. What this worker did itself
it knows, so that a heartbeat that comes late takes no released message back.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from penstock.brokers.sqs import client
from penstock.brokers.sqs.calls import BatchCalls, FailedEntry
from penstock.brokers.sqs.envelope import held_seconds
from penstock.brokers.sqs.limits import LEASE_SECONDS_MAX, whole_seconds
from penstock.brokers.sqs.queues import SqsQueues
from penstock.errors import TemporaryError
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

REMEMBERED_MAX = 20_000


class SettledDeliveries:
    """The last ones. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receipts: OrderedDict[int, None] = OrderedDict()  # under the lock; hashes, as handles are long

    def add(self, delivery: Delivery) -> None:
        """It is ended."""
        with self._lock:
            self._receipts[hash(delivery.receipt)] = None
            if len(self._receipts) > REMEMBERED_MAX:
                self._receipts.popitem(last=False)

    def __contains__(self, delivery: Delivery) -> bool:
        return hash(delivery.receipt) in self._receipts


MARGIN_SECONDS = 2.0  # before the ceiling: SQS counts from when it answered, we from when we heard
CHANGE = "change_message_visibility_batch"


class SqsLeases:
    """Any thread may call it."""

    def __init__(
        self, queues: SqsQueues, batches: BatchCalls, settled: SettledDeliveries, *, extending: BatchCalls, clock: Clock
    ) -> None:
        """``extending`` makes the calls that extend leases, in threads that no other call and no other queue uses."""
        self._queues = queues
        self._batches = batches
        self._extending = extending
        self._settled = settled
        self._clock = clock

    def extend(self, deliveries: Sequence[Delivery], lease_seconds: float) -> Sequence[Delivery]:
        """Answers those that are lost. Raises `TemporaryError` where some could not be asked for."""
        lost = [delivery for delivery in deliveries if delivery in self._settled]
        by_queue: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            if delivery not in self._settled and self.left_seconds(delivery) >= 1:
                by_queue.setdefault(delivery.queue, []).append(delivery)
        refused: list[FailedEntry] = []
        for queue, held in by_queue.items():
            for place, failed in self._changed(self._extending, queue, [(each, lease_seconds) for each in held]):
                if client.is_gone_handle(failed.code, failed.message):
                    lost.append(held[place])
                elif not client.is_ceiling(failed.code, failed.message):
                    refused.append(failed)
        if refused:
            raise TemporaryError(f"{len(refused)} of {len(deliveries)} leases could not be extended: {refused[0]}")
        return lost

    def change(self, queue: str, visibility: Sequence[tuple[Delivery, float]]) -> Sequence[tuple[int, FailedEntry]]:
        """Let deliveries of one queue be hidden for so many seconds from now; answers which failed."""
        return self._changed(self._batches, queue, visibility)

    def left_seconds(self, delivery: Delivery) -> float:
        """For how long from now SQS would hold it."""
        return LEASE_SECONDS_MAX - MARGIN_SECONDS - held_seconds(delivery, self._clock)

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
