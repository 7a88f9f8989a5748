"""What a worker's own receives say of ages: in its record, for those who look on its host; and on SQS as a gauge of the
worker itself, since the monitor may be on another host, which sees nothing of them."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.events import ChoosyListener, Event, MessagesReceived, QueueSeenEmpty
from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.messaging.clock import Clock
from penstock.messaging.estimate import Estimate

if TYPE_CHECKING:
    from penstock.monitoring.metrics.meters import Meters

SEEN = frozenset({MessagesReceived, QueueSeenEmpty})
GAUGE = "queue_oldest_visible_message_age_seconds"


class SeenAges(ChoosyListener):
    """A listener for the worker's bus. Any thread may call it, and read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, Estimate] = {}  # under the lock, by queue

    def hears(self, kind: type[Event]) -> bool:
        return kind in SEEN

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived(first_enqueued_at=float(enqueued_at)):
                with self._lock:
                    seen = self._seen.get(event.queue, Estimate())
                    self._seen[event.queue] = seen.received(enqueued_at, now=self._clock.now())
            case QueueSeenEmpty():
                with self._lock:
                    self._seen[event.queue] = self._seen.get(event.queue, Estimate()).empty(now=self._clock.now())
            case _:
                pass

    @property
    def estimates(self) -> Mapping[str, Estimate]:
        """By queue."""
        with self._lock:
            return dict(self._seen)

    @contextmanager
    def exported(self, meters: "Meters | None") -> Iterator[None]:
        """Until the block ends the gauge is looked up when the meters are read."""
        if meters is None:
            yield
            return
        forget = meters.before_reading(lambda: self.look_up(meters))
        try:
            yield
        finally:
            forget()
            meters.replace(GAUGE, {})  # who receives no more knows no more

    def look_up(self, meters: "Meters") -> None:
        """Set the gauge to what is so now; a queue of which nothing is known has no value, and letters have
        gauges of their own."""
        now = self._clock.now()
        ages = {
            (queue, "estimated"): estimate.visible_age_seconds(now)
            for queue, estimate in self.estimates.items()
            if not names_dead_letters(listed_name(queue))
        }
        meters.replace(GAUGE, {labels: age for labels, age in ages.items() if age is not None})
