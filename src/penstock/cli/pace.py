"""How often a long job says how far it is."""

import time
from collections.abc import Callable

LINE_EVERY_SECONDS = 5.0


class Pace:
    """Tells when a line is due. For one thread at a time."""

    def __init__(self, *, at_once: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``at_once``: the first line is."""
        self._monotonic = monotonic
        self._said_at = float("-inf") if at_once else monotonic()

    def is_due(self) -> bool:
        """Whether it is time for a line; the next one is due so long after that."""
        now = self._monotonic()
        if now - self._said_at < LINE_EVERY_SECONDS:
            return False
        self._said_at = now
        return True
