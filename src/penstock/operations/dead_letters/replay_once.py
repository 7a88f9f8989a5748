"""Replay everything that is due now and stop, with a count per queue."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.app.pending import CALM_SECONDS
from penstock.app.replayer import ReplayedQueue
from penstock.events import DeadLetterReplayed, Event, SelectiveListener
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock

UNKNOWN = "unknown"  # the queue of messages without a recorded queue of origin


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """The number of a queue's dead letters by result."""

    sent: int = 0  # sent now, or before a crash
    waiting: int = 0  # still waiting
    set_aside: int = 0  # moved to the final DLQ
    released: int = 0  # not sent, because broker or ledger were unavailable; tried again


class ReplayCounter(SelectiveListener):
    """Count the replayer's events. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}  # under the lock, as is the next
        self._released: dict[str, str] = {}  # queue by replay id

    def wants(self, kind: type[Event]) -> bool:
        return kind is DeadLetterReplayed

    def __call__(self, event: Event) -> None:
        assert isinstance(event, DeadLetterReplayed)
        queue = event.queue or UNKNOWN
        with self._lock:
            counts = self._counts.setdefault(queue, Counter())
            if event.result == "released":
                self._released[event.replay_id] = queue
                return
            self._released.pop(event.replay_id, None)
            counts["sent" if event.result == "already_sent" else event.result] += 1

    def report(self) -> Mapping[str, ReplayCounts]:
        """Return the counts, sorted by queue."""
        with self._lock:
            left = Counter(self._released.values())
            return {
                queue: ReplayCounts(**dict(counts), released=left[queue])
                for queue, counts in sorted(self._counts.items())
            }


class NothingDue:
    """The end condition of a replayer: no DLQ has a visible message. Called by one thread, while it polls."""

    def __init__(self, broker: Broker, dlqs: Sequence[ReplayedQueue], *, clock: Clock) -> None:
        self._broker = broker
        self._dlqs = dlqs
        self._clock = clock
        self._since: float | None = None  # monotonic: every check since then found no messages

    def __call__(self) -> bool:
        if any(self._broker.stats(dlq.queue).visible for dlq in self._dlqs):
            self._since = None
            return False
        if self._broker.capabilities.exact_stats:
            return True
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= CALM_SECONDS * len(self._dlqs)
