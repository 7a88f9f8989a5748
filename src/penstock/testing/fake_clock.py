"""For tests of what is built on Penstock: a clock that the test moves."""

import threading
import time


class FakeClock:
    """A `Clock` that stands still until somebody calls `advance`.

    With ``auto_advance=True`` a wait is over at once and moves the time by what was waited for: for simulations in one
    thread. Otherwise a wait blocks its thread until the event is set or another thread advanced far enough; if neither
    happens for ``patience_seconds`` of real time it raises AssertionError, so that a test never hangs.
    """

    def __init__(
        self, start: float = 1_700_000_000.0, *, auto_advance: bool = False, patience_seconds: float = 30.0
    ) -> None:
        self._lock = threading.Lock()
        self._start = start
        self._elapsed = 0.0  # written under the lock by whoever advances
        self.auto_advance = auto_advance  # written by the test's thread
        self._patience_seconds = patience_seconds

    def now(self) -> float:
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        with self._lock:
            return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass; whoever waited no longer than that goes on."""
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
        # Setting an event cannot tell this clock, nor can advancing set the caller's event: so look every few ms.
        while not event.wait(0.002) and self.monotonic() < until:
            if time.monotonic() > give_up:
                raise AssertionError(f"nobody advanced the clock to {until} within {self._patience_seconds} s")
        return event.is_set()
