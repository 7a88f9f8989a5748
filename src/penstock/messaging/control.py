"""What a call is told from outside while it runs: that the worker stops, that the work is no longer ours."""

import threading
from collections.abc import Callable

from penstock.errors import Interrupted


class Control:
    """Of one execution. Told by other threads, asked by the one that runs."""

    __slots__ = ("_gives_back", "_lock", "_on_end", "_over", "_sleeper", "_stopping")

    def __init__(self, *, gives_back: bool = False) -> None:
        """``gives_back``: a stop ends the work, where else it goes on until the drain deadline."""
        self._gives_back = gives_back
        self._lock = threading.Lock()
        self._stopping = False  # set once, by the worker
        self._over = False  # set once, by whoever interrupts
        self._on_end: Callable[[], object] | None = None  # under the lock, as is the next
        self._sleeper: threading.Event | None = None  # made at the first sleep: most calls have none

    @property
    def stopping(self) -> bool:
        """The worker has begun to stop."""
        return self._stopping

    @property
    def over(self) -> bool:
        """The work is no longer ours."""
        return self._over

    @property
    def ends(self) -> bool:
        """Whether the next checkpoint ends the work."""
        return self._over or (self._gives_back and self._stopping)

    def check(self) -> None:
        """Raise `Interrupted` when the work is no longer ours, or is to be given back now."""
        if self.ends:
            raise Interrupted

    def stop(self) -> None:
        """Tell that the worker stops."""
        self._stopping = True
        if self._gives_back:
            self._tell()

    def end(self) -> None:
        """Tell that the work is no longer ours."""
        self._over = True
        self._tell()

    def watch(self, on_end: Callable[[], object] | None) -> None:
        """Call this once the work ends, now if it has; None forgets it."""
        with self._lock:
            self._on_end = on_end
        if self.ends:
            self._tell()

    def sleep(self, seconds: float) -> None:
        """Wait, no longer than until the work ends."""
        with self._lock:
            sleeper = self._sleeper = self._sleeper or threading.Event()
        if not self.ends:  # looked at after the sleeper was made, so that no end slips between
            sleeper.wait(seconds)

    def _tell(self) -> None:
        with self._lock:  # held while calling: what is forgotten is not called any more
            if self._sleeper is not None:
                self._sleeper.set()
            if self._on_end is not None:
                self._on_end()
