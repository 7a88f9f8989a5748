"""A clock that tests set to the past, so that what they seed has an age without any waiting."""

import threading
import time

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


class PastClock:
    """A `Clock` that is `ago_seconds` behind the machine's. Set it forward only: leases notice a clock set back."""

    def __init__(self) -> None:
        self.ago_seconds = 0.0

    def now(self) -> float:
        return time.time() - self.ago_seconds

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)
