"""How long to wait before the next try. Pure: the random number comes from the caller."""

from collections.abc import Callable

Random = Callable[[], float]  # uniform over [0, 1)

_DOUBLINGS_MAX = 60  # beyond it a float gains nothing, and an attempt count of a hostile sender must not overflow


def backoff_seconds(*, attempt: int, base_seconds: float, cap_seconds: float, random: Random) -> float:
    """Exponential backoff with full jitter after the attempt of this number (1-based): uniform over [0, ceiling).

    The cap is applied before the jitter. Capping afterwards piles most of the waits up at the cap, and so brings back
    the herd that jitter is there to spread.
    """
    doublings = min(max(attempt, 1) - 1, _DOUBLINGS_MAX)
    return min(cap_seconds, base_seconds * 2.0**doublings) * random()


def idle_seconds(previous_seconds: float, *, floor_seconds: float, ceiling_seconds: float, random: Random) -> float:
    """The next wait of an idle poller: decorrelated jitter between floor and ceiling.

    Uniform over [floor, 3 x the wait before), the upper end held at the ceiling before the draw, as above.
    """
    upper = min(ceiling_seconds, max(previous_seconds, floor_seconds) * 3.0)
    return floor_seconds + (max(upper, floor_seconds) - floor_seconds) * random()
