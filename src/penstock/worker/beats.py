"""The calls of a heartbeat, each in a thread of its own, so that none waits for another."""

import threading
from collections.abc import Callable, Hashable

from penstock.messaging.clock import Clock
from penstock.messaging.threads import begin_thread_or_do

TRIES = 5  # of one beat
TRY_AGAIN_SECONDS = 1.0


class Beats:
    """At most one thread for each key: a queue, or a keeper of claims. Daemons: one that hangs is left behind."""

    def __init__(self, clock: Clock, *, changed: Callable[[], None]) -> None:
        """``changed``: called after each begin and each end."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._begun_at: dict[Hashable, float] = {}  # under the lock (monotonic); of the threads at work

    def begin(self, key: Hashable, work: Callable[[], None]) -> bool:
        """Do the work in a thread of its own; False if the last work of this key is not done yet."""
        with self._lock:
            if key in self._begun_at:
                return False
            self._begun_at[key] = self._clock.monotonic()
        self._changed()
        begin_thread_or_do(self._run, key, work, name="penstock-heartbeat-call")
        return True

    @property
    def oldest_begun_at(self) -> float | None:
        """When the work that takes longest began (monotonic); None if there is none."""
        with self._lock:
            return min(self._begun_at.values(), default=None)

    @property
    def idle(self) -> bool:
        """Whether all work is done."""
        return not self._begun_at

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                del self._begun_at[key]
            self._changed()
