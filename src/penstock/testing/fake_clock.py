"""A clock for tests that moves only when the test advances it."""

import threading
import time


class FakeClock:
    """A `Clock` that moves only when `advance` is called.

    Without ``auto_advance``, a wait blocks its thread until the event is set or another thread has advanced the
    clock far enough.

    Args:
        start: The initial time in epoch seconds.
        auto_advance: Return from each wait at once and advance the clock by its duration. For simulations in one
            thread.
        patience_seconds: Real time after which a blocked wait raises AssertionError, so that a test never hangs.
    """

    def __init__(
        self, start: float = 1_700_000_000.0, *, auto_advance: bool = False, patience_seconds: float = 30.0
    ) -> None:
        self._lock = threading.Lock()
        self._start = start
        self._elapsed = 0.0  # written under the lock by the thread that advances
        self.auto_advance = auto_advance  # written by the test's thread
        self._patience_seconds = patience_seconds

    def now(self) -> float:
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        with self._lock:
            return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move the clock forward; waits that end by then return.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s")
        with self._lock:
            self._elapsed += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if event.is_set() or seconds <= 0:
            return event.is_set()
        if self.auto_advance:
            self.advance(seconds)
            return event.is_set()
        return self._block(event, self.monotonic() + seconds)

    def _block(self, event: threading.Event, until: float) -> bool:
        give_up = time.monotonic() + self._patience_seconds
        # Neither setting an event nor advancing the clock can interrupt this wait, so check both every 2 ms.
        while not event.wait(0.002) and self.monotonic() < until:
            if time.monotonic() > give_up:
                raise AssertionError(f"the clock was not advanced to {until} within {self._patience_seconds} s")
        return event.is_set()
