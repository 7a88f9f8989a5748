"""The calls of a heartbeat, each in a thread of its own, so that none waits for another."""

import threading
from collections.abc import Callable, Hashable

from penstock.messaging.clock import Clock
from penstock.messaging.threads import begin_thread_or_do

TRIES = 5  # of one beat
TRY_AGAIN_SECONDS = 1.0


class Beats:
    """At most one thread for each key: a queue, or a keeper of claims. Daemons: one that hangs is left behind.

    Work that is due while the last of its key goes on follows it at once, so that calls that take longer than a beat
    are made one after the other and not in every other beat.
    """

    def __init__(self, clock: Clock, *, changed: Callable[[], None]) -> None:
        """``changed``: called after each begin and each end."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._begun_at: dict[Hashable, float] = {}  # under the lock (monotonic); of the threads at work
        self._following: dict[Hashable, Callable[[], None]] = {}  # under the lock; the newest that is due

    def begin(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work in a thread of its own, when the last work of this key is done."""
        with self._lock:
            if key in self._begun_at:
                self._following[key] = work
                return
            self._begun_at[key] = self._clock.monotonic()
        self._start(key, work)

    @property
    def oldest_begun_at(self) -> float | None:
        """When the work that takes longest began (monotonic); None if there is none."""
        with self._lock:
            return min(self._begun_at.values(), default=None)

    @property
    def idle(self) -> bool:
        """Whether all work is done."""
        return not self._begun_at

    def end(self) -> None:
        """Let nothing follow any more."""
        with self._lock:
            self._following.clear()

    def _start(self, key: Hashable, work: Callable[[], None]) -> None:
        self._changed()
        begin_thread_or_do(self._run, key, work, name="penstock-heartbeat-call")

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            following = self._over(key)
            if following is not None:
                self._start(key, following)

    def _over(self, key: Hashable) -> Callable[[], None] | None:
        with self._lock:
            following = self._following.pop(key, None)
            if following is None:
                del self._begun_at[key]
            else:
                self._begun_at[key] = self._clock.monotonic()
        if following is None:
            self._changed()
        return following
