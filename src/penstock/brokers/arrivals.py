"""Who waits for messages in this process, and how they hear of them."""

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager


class Arrivals:
    """Wakes waiting receivers, each by an event of its own, so that none can swallow another's call; and tells ears."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: set[threading.Event] = set()  # written under the lock by receivers
        self._ears: tuple[Ear, ...] = ()  # replaced under the lock by those who listen

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

    def listen(self, queues: Sequence[str], tell: Callable[[], None]) -> "Ear":
        """An ear at these queues; it is told in the thread that calls `tell` here."""
        ear = Ear(queues, tell, leave=self._forget)
        with self._lock:
            self._ears = (*self._ears, ear)
        return ear

    def tell(self, queue: str | None = None) -> None:
        """Something may have become visible, in this queue or in any."""
        with self._lock:
            for event in self._events:
                event.set()
            ears = self._ears
        for ear in ears:
            ear.hear(queue)

    def _forget(self, gone: "Ear") -> None:
        with self._lock:
            self._ears = tuple(ear for ear in self._ears if ear is not gone)


class Ear:
    """`penstock.messaging.broker.Listening` within one process."""

    def __init__(self, queues: Sequence[str], tell: Callable[[], None], *, leave: "Callable[[Ear], None]") -> None:
        self._queues = frozenset(queues)
        self._tell = tell
        self._leave = leave
        self._lock = threading.Lock()
        self._wanted: Set[str] = frozenset()  # under the lock
        self._closed = False  # as above; never unset

    def want(self, queues: Set[str]) -> None:
        with self._lock:
            self._wanted = frozenset() if self._closed else self._queues & queues

    def hear(self, queue: str | None) -> None:
        """Tell, if that is wanted; called without any lock held, for nobody knows what is done there."""
        with self._lock:
            if not self._wanted or (queue is not None and queue not in self._wanted):
                return
            self._wanted = frozenset()
        self._tell()

    def close(self) -> None:
        with self._lock:
            self._wanted, self._closed = frozenset(), True
        self._leave(self)
