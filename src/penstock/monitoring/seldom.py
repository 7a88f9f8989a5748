"""How often people are told of what goes wrong again and again."""

from penstock.messaging.clock import Clock


class Seldom:
    """The first time it is due, and then once in so many seconds. Whoever uses it from several threads locks it."""

    def __init__(self, every_seconds: float, clock: Clock) -> None:
        self._every_seconds = every_seconds
        self._clock = clock
        self._told_at: float | None = None  # monotonic

    def is_due(self) -> bool:
        """Whether to tell of it now; who is answered yes does."""
        now = self._clock.monotonic()
        if self._told_at is not None and now - self._told_at < self._every_seconds:
            return False
        self._told_at = now
        return True

    def begin_anew(self) -> None:
        """It went well meanwhile, or somebody else listens: the next time is a first one."""
        self._told_at = None
