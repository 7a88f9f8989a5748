"""How long to wait before another try: exponential backoff with full jitter.

The wait is uniform between 0 and the bound, and the bound is capped *before* the draw; capping after it would pile
most waits up at the cap.
"""

from collections.abc import Callable
from dataclasses import dataclass

Uniform = Callable[[float, float], float]  # random.uniform, or a test's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """uniform(0, min(cap, base x 2^(attempt - 1))) seconds."""

    base_seconds: float
    cap_seconds: float

    def delay_seconds(self, attempt: int, uniform: Uniform) -> float:
        """The wait after the given 1-based attempt failed."""
        doublings = min(max(attempt, 1) - 1, 62)  # beyond that a float stays above any cap anyway
        return uniform(0.0, min(self.cap_seconds, self.base_seconds * 2.0**doublings))
