"""Who waits for messages in this process, and how they hear of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Arrivals:
    """Wakes every waiting receiver; each has an event of its own, so none can swallow another's call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: set[threading.Event] = set()  # written under the lock by receivers

    @contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """An event that every `tell` sets while the block lasts."""
        event = threading.Event()
        with self._lock:
            self._events.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._events.discard(event)

    def tell(self) -> None:
        """Something may have become visible."""
        with self._lock:
            for event in self._events:
                event.set()
