"""The time that a user's code takes in one execution, which its timeout bounds."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.messaging.clock import Clock

RECHECK_SECONDS = 1.0  # while no user code is at work and its time is used up


class CallTime:
    """Counts while the user's code is at work, and not while the execution waits for the ledger.

    Written by the thread that runs the execution, as a whole; any thread may read it.
    """

    __slots__ = ("_clock", "_state")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state: tuple[float, float | None] = (0.0, None)  # seconds counted before; since when it counts now

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count until the block ends."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count from now on."""
        self._state = (self._state[0], self._clock.monotonic())

    def end(self) -> None:
        """Count no more."""
        before, since = self._state
        if since is not None:
            self._state = (before + self._clock.monotonic() - since, None)

    def left_seconds(self, timeout_seconds: float) -> float:
        """Return for how long the timeout cannot be over; 0 or less when it is over.

        Code that has returned is never past its timeout.
        """
        before, since = self._state
        if since is None:
            return max(timeout_seconds - before, RECHECK_SECONDS)
        return timeout_seconds - before - (self._clock.monotonic() - since)
