"""Estimate the age of the oldest visible message from receives, for brokers that do not report it.

A first delivery shows how long the head of the queue had waited. If the broker keeps roughly to the order, the
messages behind it were sent later. So the oldest visible message is about as old, plus the time since that receive.
A receive that waits and returns nothing shows that the queue is empty.

Failed messages that wait for another attempt do not count: their next delivery is not the first. The estimate never
causes a receive of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

WINDOW_SECONDS = (
    30.0  # first deliveries within it form one sample of the head, since brokers do not keep the exact order
)
FRESH_SECONDS = 60.0  # how long an empty receive is taken as proof that the queue is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeEstimate:
    """Observations of one queue. Times are epoch seconds at which the observation was made."""

    window_at: float | None = None  # time of the first receive of the current window
    head_seconds: float | None = None  # longest wait of a message received in that window
    before_seconds: float | None = None  # the same for the previous window, if it directly preceded this one
    received_at: float | None = None  # time of the latest first delivery
    empty_at: float | None = None  # when a receive timed out, or no message was visible

    def received(self, enqueued_at: float, *, now: float) -> "AgeEstimate":
        """Record the first delivery of a message that was sent at ``enqueued_at`` (the broker's time)."""
        waited_seconds = now - enqueued_at
        age = None if self.window_at is None or self._emptied else now - self.window_at
        if age is not None and 0 <= age < WINDOW_SECONDS:
            head_seconds = waited_seconds if self.head_seconds is None else max(self.head_seconds, waited_seconds)
            return replace(self, head_seconds=head_seconds, received_at=now)
        was_just_before = age is not None and 0 <= age < 2 * WINDOW_SECONDS
        return replace(
            self,
            window_at=now,
            head_seconds=waited_seconds,
            before_seconds=self.head_seconds if was_just_before else None,
            received_at=now,
        )

    def empty(self, *, now: float) -> "AgeEstimate":
        """Record that the queue was empty."""
        return replace(self, empty_at=now)

    def visible_age_seconds(self, now: float, *, visible: int | None = None) -> float | None:
        """Return the age of the oldest visible message; 0 if there is none, None if unknown.

        ``visible`` is the number of visible messages, if they were just counted.
        """
        if visible == 0:
            return 0.0
        if self.received_at is None and visible is not None:
            return None  # other workers receive from this queue, so an old empty receive proves nothing
        if visible is None and self._is_empty(now):
            return 0.0
        if self.received_at is None:
            return None
        ages = [now - self.received_at + self._waited_seconds]
        if self.empty_at is not None:  # every waiting message was sent since then
            ages.append(now - self.empty_at)
        return max(0.0, min(ages))

    @classmethod
    def merged(cls, estimates: Iterable[Self]) -> "AgeEstimate":
        """Combine observations: the latest receives of any of them, and the latest empty receive."""
        known = list(estimates)
        receiving = [estimate for estimate in known if estimate.received_at is not None]
        empty = [estimate.empty_at for estimate in known if estimate.empty_at is not None]
        if not receiving:
            return AgeEstimate(empty_at=max(empty, default=None))
        latest_at = max(estimate.received_at or 0.0 for estimate in receiving)
        recent = [estimate for estimate in receiving if latest_at - (estimate.received_at or 0.0) < WINDOW_SECONDS]
        return AgeEstimate(
            window_at=max(estimate.window_at or 0.0 for estimate in recent),
            head_seconds=max(estimate._waited_seconds for estimate in recent),
            received_at=latest_at,
            empty_at=max(empty, default=None),
        )

    @property
    def _waited_seconds(self) -> float:
        """Return the longest wait seen in this window and the previous one."""
        return max(self.head_seconds or 0.0, self.before_seconds or 0.0)

    @property
    def _emptied(self) -> bool:
        """Return True if the queue was empty after the latest message."""
        return self.empty_at is not None and (self.received_at is None or self.received_at <= self.empty_at)

    def _is_empty(self, now: float) -> bool:
        """Return True if the queue was recently empty and no message was received since."""
        return self._emptied and self.empty_at is not None and now - self.empty_at <= FRESH_SECONDS
