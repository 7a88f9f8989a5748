"""Compute the wait before the next attempt or poll. Pure functions: the caller passes the random numbers.

The defaults of retries are here, since handlers, object handlers and pipelines share them.
"""

import math
from collections.abc import Callable

Random = Callable[[], float]  # uniform over [0, 1)

RETRY_ATTEMPTS_MAX = 5  # of a message, including the first
RETRY_BASE_SECONDS = 1.0
RETRY_CAP_SECONDS = 300.0

_DOUBLINGS_MAX = 60  # a float gains nothing beyond it, and a forged attempt count must not overflow


def backoff_seconds(*, attempt: int, base_seconds: float, cap_seconds: float, random: Random) -> float:
    """Return a wait with exponential backoff and full jitter: uniform over [0, ceiling). ``attempt`` counts from 1.

    The cap is applied before the jitter. Capping afterwards would give most waits the value of the cap, and recreate
    the thundering herd that jitter prevents.
    """
    return ceiling_seconds(attempt=attempt, base_seconds=base_seconds, cap_seconds=cap_seconds) * random()


def ceiling_seconds(*, attempt: int, base_seconds: float, cap_seconds: float = math.inf) -> float:
    """Return the upper end of a wait: the base, doubled with each attempt after the first, at most the cap."""
    doublings = min(max(attempt, 1) - 1, _DOUBLINGS_MAX)
    return min(cap_seconds, base_seconds * 2.0**doublings)


def upper_half(seconds: float, random: Random) -> float:
    """Return a wait uniform over [seconds / 2, seconds): spread out, but never near 0."""
    return seconds * (1.0 + random()) / 2.0


def idle_seconds(previous_seconds: float, *, floor_seconds: float, ceiling_seconds: float, random: Random) -> float:
    """Return the next wait of an idle poller, with decorrelated jitter between floor and ceiling.

    Uniform over [floor, 3 x the previous wait). The upper end is capped at the ceiling before the draw, as in
    `backoff_seconds`.
    """
    upper = min(ceiling_seconds, max(previous_seconds, floor_seconds) * 3.0)
    return floor_seconds + (max(upper, floor_seconds) - floor_seconds) * random()
