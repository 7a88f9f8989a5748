"""Facts about a queue that the sampler does not read, remembered for a moment for all viewers of its page."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from penstock.app.history.history import SPARKLINE_SECONDS, HistoryReader
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.app.system_health import dead_letter_queues
from penstock.errors import PenstockError
from penstock.messaging.clock import Clock
from penstock.operations.inspection import ScopeView
from penstock.operations.queue_groups import GroupSample, sample_groups

KEPT_SECONDS = 15.0
QUEUES_MAX = 100  # remembered
RECENT_SECONDS = 600.0  # a value this much younger than an hour does not stand for the one an hour ago


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDetails:
    """Further facts about one queue. ``error``: why the broker did not report them."""

    dlq: str | None = None
    final_dlq: str | None = None  # None: the DLQ is its own
    groups: GroupSample | None = None
    dead_letters_before: float | None = None  # an hour ago
    error: str | None = None


class QueueDetailReader:
    """Read the details of queues, each at most every `KEPT_SECONDS`. Thread-safe."""

    def __init__(self, history: HistoryReader, *, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._lock = threading.Lock()
        # With monotonic times; guarded by the lock.
        self._known: OrderedDict[str, tuple[float, QueueDetails]] = OrderedDict()

    def read(self, seen: ScopeView, queue: str) -> QueueDetails:
        """Return the details, new or remembered."""
        now = self._clock.monotonic()
        with self._lock:
            at, known = self._known.get(queue, (0.0, None))
        if known is not None and now - at < KEPT_SECONDS:
            return known
        found = self._read(seen, queue)
        with self._lock:
            self._known[queue] = now, found
            self._known.move_to_end(queue)
            while len(self._known) > QUEUES_MAX:
                self._known.popitem(last=False)
        return found

    def _read(self, seen: ScopeView, queue: str) -> QueueDetails:
        before = self._dead_letters_before(queue)
        try:
            dlq, final = dead_letter_queues(seen.broker, queue)
            groups = sample_groups(seen.broker, queue)
        except PenstockError as error:
            return QueueDetails(dead_letters_before=before, error=str(error))
        return QueueDetails(
            dlq=dlq, final_dlq=None if final == dlq else final, groups=groups, dead_letters_before=before
        )

    def _dead_letters_before(self, queue: str) -> float | None:
        now = self._clock.now()
        chart = self._history.chart(SeriesKind.QUEUE, queue, HistoryRange.DAY, at=now)
        counts = zip(chart.times, chart.values.get("dead_letters", ()), strict=False)
        known = [(at, count) for at, count in counts if count is not None and at >= now - SPARKLINE_SECONDS]
        return known[0][1] if known and known[0][0] <= now - SPARKLINE_SECONDS + RECENT_SECONDS else None
