"""Which deliveries this broker ended itself.

SQS acks the same receipt handle twice, and extends one that was released: it has no fence. What this worker did itself
it knows, so that a heartbeat that comes late takes no released message back.
"""

import threading
from collections import OrderedDict

from penstock.messaging.delivery import Delivery

REMEMBERED_MAX = 20_000


class Settled:
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
