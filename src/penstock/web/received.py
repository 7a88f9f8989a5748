"""Messages that a person received to look at them, kept for a while so that pages can show them without a new receive.

Only queues that cannot be browsed need it. The messages themselves were released at once.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from penstock.messaging.queued import QueuedMessage
from penstock.operations.queued_messages import ReceivedPeek

KEPT_MAX = 20  # receives
KEPT_BYTES_MAX = 64 * 1024 * 1024  # of bodies
KEPT_SECONDS = 600.0


class ReceivedMessages:
    """The results of the last receives, by a key that cannot be guessed. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, ReceivedPeek]] = OrderedDict()  # guarded by the lock

    def keep(self, peeked: ReceivedPeek) -> str:
        """Keep the messages and return their key. The oldest make room."""
        key = secrets.token_urlsafe(16)
        with self._lock:
            self._drop_old()
            self._kept[key] = (self._monotonic(), peeked)
            while len(self._kept) > 1 and (len(self._kept) > KEPT_MAX or self._size() > KEPT_BYTES_MAX):
                self._kept.popitem(last=False)
        return key

    def page(self, key: str, queue: str) -> ReceivedPeek | None:
        """Return the messages of a queue that were kept under this key; None if they are not kept any more."""
        with self._lock:
            self._drop_old()
            _, peeked = self._kept.get(key, (0.0, None))
        return peeked if peeked is not None and peeked.queue == queue else None

    def message(self, key: str, queue: str, id: str) -> QueuedMessage | None:
        """Return one of them by its id."""
        peeked = self.page(key, queue)
        return None if peeked is None else next((one for one in peeked.messages if one.message.id == id), None)

    def _drop_old(self) -> None:
        oldest = self._monotonic() - KEPT_SECONDS
        while self._kept and next(iter(self._kept.values()))[0] < oldest:
            self._kept.popitem(last=False)

    def _size(self) -> int:
        return sum(len(one.message.body) for _, peeked in self._kept.values() for one in peeked.messages)
