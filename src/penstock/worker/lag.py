"""How late a process comes to what is due: code that holds the interpreter's lock, a machine without time to spare, an
event loop that something blocks.

One thread asks to be woken twice a second and sees by how much later it wakes. Where there is an event loop it leaves a
call there each time, and sees how long the loop takes to come to it. The worse of the two is the lag of that moment.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.messaging.clock import Clock

SAMPLE_SECONDS = 0.5


class Lag:
    """Samples the lag until told to end. ``loop``: the event loop as it is at the moment, if there is one."""

    def __init__(
        self,
        *,
        clock: Clock,
        observe: Callable[[float], None],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        every_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self._clock = clock
        self._observe = observe
        self._loop = loop
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._asked_at: float | None = None  # monotonic; None: nothing was asked of the loop. By the sampling thread
        self._answered_at: float | None = None  # by the loop's thread, and by the sampling one before it asks

    def run(self) -> None:
        """Sample until told to end."""
        while True:
            due_at = self._clock.monotonic() + self._every_seconds
            if self._clock.wait(self._ended, self._every_seconds):
                return
            self._observe(self.sample(due_at))

    def end(self) -> None:
        """Sample no more."""
        self._ended.set()

    def sample(self, due_at: float) -> float:
        """The lag now, of who should have woken at ``due_at``."""
        now = self._clock.monotonic()
        late_seconds = max(now - due_at, self._loop_late_seconds(now), 0.0)
        self._ask()
        return late_seconds

    def _loop_late_seconds(self, now: float) -> float:
        """What it took to answer; while it has not, how long that has been."""
        if self._asked_at is None:
            return 0.0
        return (now if self._answered_at is None else self._answered_at) - self._asked_at

    def _ask(self) -> None:
        """Leave the loop a call, unless one is waiting there."""
        loop = self._loop()
        if loop is None:
            self._asked_at = None
            return
        if self._asked_at is not None and self._answered_at is None:
            return
        self._answered_at = None
        self._asked_at = self._clock.monotonic()
        with suppress(RuntimeError):  # it was closed a moment ago
            loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._answered_at = self._clock.monotonic()
