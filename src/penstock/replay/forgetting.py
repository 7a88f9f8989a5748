"""Replays that are so old that their letters are gone are forgotten, now and then."""

from collections.abc import Callable, Iterable

from penstock.messaging.clock import Clock
from penstock.messaging.waits import Random

FORGET_SECONDS = 600.0  # between two looks
FORGET_MAX = 1_000  # rows a look; it goes on at once while there are as many
_LOOKS_MAX = 20  # one after the other
UNKNOWN_RETENTION_SECONDS = 366 * 86_400.0  # of a queue that keeps for ever, or does not say
_SLACK_SECONDS = 86_400.0  # clocks differ, and a letter may be in hand when its retention ends


def keep_seconds(retentions: Iterable[float | None]) -> float:
    """How long a replay has to be on record where first tiers keep letters for so long."""
    known = (UNKNOWN_RETENTION_SECONDS if each is None else each for each in retentions)
    return max(known, default=UNKNOWN_RETENTION_SECONDS) + _SLACK_SECONDS


class Forgetting:
    """One for all first tiers of a replayer. ``forget(limit)`` deletes the oldest and answers how many."""

    def __init__(self, forget: Callable[[int], int], *, clock: Clock, random: Random) -> None:
        self._forget = forget
        self._clock = clock
        self._due_at = clock.monotonic() + FORGET_SECONDS * random()  # monotonic; written by any job

    def care(self) -> None:
        """Forget, if it is time. Raises `TemporaryError` where the log is away."""
        if self._clock.monotonic() < self._due_at:
            return
        for _ in range(_LOOKS_MAX):
            if self._forget(FORGET_MAX) < FORGET_MAX:
                break
        self._due_at = self._clock.monotonic() + FORGET_SECONDS
