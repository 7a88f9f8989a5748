"""What a call is told from outside while it runs: that the worker stops, that the work is no longer ours."""

import threading
from collections.abc import Callable

from penstock.errors import Interrupted
from penstock.pipeline.engine import RunCancelled, RunGivenBack


class Control:
    """Of one execution. Told by other threads, asked by the one that runs."""

    def __init__(self, *, gives_back: bool) -> None:
        self._gives_back = gives_back
        self._lock = threading.Lock()
        self._stopping = False  # set once, by the worker
        self._over = False  # set once, by whoever interrupts
        self._on_over: Callable[[], object] | None = None  # under the lock

    @property
    def stopping(self) -> bool:
        """The worker has begun to stop."""
        return self._stopping

    @property
    def ends(self) -> bool:
        """Whether the next checkpoint ends the work."""
        return self._over or (self._gives_back and self._stopping)

    def check(self) -> None:
        """Raise `Interrupted` when the work is no longer ours, or is to be given back now."""
        if self.ends:
            raise Interrupted

    def ending(self) -> RunCancelled | RunGivenBack:
        """What the end of the work means to the protocol."""
        if self._over:
            return RunCancelled("the work is no longer ours")
        return RunGivenBack("given back at a checkpoint, since the worker stops")

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
            self._on_over = on_end
        if self.ends:
            self._tell()

    def _tell(self) -> None:
        with self._lock:  # held while calling: what is forgotten is not called any more
            if self._on_over is not None:
                self._on_over()
