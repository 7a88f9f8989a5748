"""The injected clocks: wall clock for stored times, monotonic clock for durations."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process, and its only way to wait."""

    def now(self) -> float:
        """Return epoch seconds."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary fixed point; never decreases."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the seconds have passed; return True if it is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    monotonic = staticmethod(time.monotonic)  # without a function around it: each message calls it several times

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)
