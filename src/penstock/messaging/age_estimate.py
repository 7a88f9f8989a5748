"""How old the oldest visible message is, where the broker does not tell: from what receives brought.

A receive that brings a message for the first time says how long the head of the queue had waited. What is left behind
it was sent later, as far as the broker keeps to the order, so the oldest one that waits is about that old, and older
with each second that nobody receives. A receive that waits and brings nothing says that nobody waits at all.

A message that failed and waits again does not show here: it is received, but not for the first time. Nothing is ever
received for the sake of a number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

WINDOW_SECONDS = 30.0  # first receives so close together are one look at the head: brokers mix what they hold
FRESH_SECONDS = 60.0  # after which a receive that brought nothing says no more that nothing waits


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeEstimate:
    """What was seen of one queue. Times are epoch seconds, of when we looked."""

    window_at: float | None = None  # when the first of the latest receives was
    head_seconds: float | None = None  # how long a message of these had waited, at most
    before_seconds: float | None = None  # the same of the window before, if it was just before
    received_at: float | None = None  # the latest
    empty_at: float | None = None  # when a receive waited in vain, or nothing was visible

    def received(self, enqueued_at: float, *, now: float) -> "AgeEstimate":
        """A message came for the first time; it was sent at ``enqueued_at``, as the broker says."""
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
        """Nothing waited."""
        return replace(self, empty_at=now)

    def visible_age_seconds(self, now: float, *, visible: int | None = None) -> float | None:
        """Of the oldest visible message; 0 where there is none, None where nothing is known.

        ``visible``: how many there are, where somebody counted just now.
        """
        if visible == 0:
            return 0.0
        if self.received_at is None and visible is not None:
            return None  # of a queue that others receive from, an empty moment long ago says nothing
        if visible is None and self._is_empty(now):
            return 0.0
        if self.received_at is None:
            return None
        ages = [now - self.received_at + self._waited_seconds]
        if self.empty_at is not None:  # what waits came since
            ages.append(now - self.empty_at)
        return max(0.0, min(ages))

    @classmethod
    def merged(cls, estimates: Iterable[Self]) -> "AgeEstimate":
        """What several have seen: the latest receives of any, and the latest empty moment."""
        several = list(estimates)
        heard = [one for one in several if one.received_at is not None]
        empty = [one.empty_at for one in several if one.empty_at is not None]
        if not heard:
            return AgeEstimate(empty_at=max(empty, default=None))
        latest_at = max(one.received_at or 0.0 for one in heard)
        recent = [one for one in heard if latest_at - (one.received_at or 0.0) < WINDOW_SECONDS]
        return AgeEstimate(
            window_at=max(one.window_at or 0.0 for one in recent),
            head_seconds=max(one._waited_seconds for one in recent),
            received_at=latest_at,
            empty_at=max(empty, default=None),
        )

    @property
    def _waited_seconds(self) -> float:
        """How long what came lately had waited, at most."""
        return max(self.head_seconds or 0.0, self.before_seconds or 0.0)

    @property
    def _emptied(self) -> bool:
        """Whether since the latest message nothing waited."""
        return self.empty_at is not None and (self.received_at is None or self.received_at <= self.empty_at)

    def _is_empty(self, now: float) -> bool:
        """Whether nothing waited lately, and since then nothing came."""
        return self._emptied and self.empty_at is not None and now - self.empty_at <= FRESH_SECONDS
