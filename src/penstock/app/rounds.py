"""What is done beside a worker again and again: in a thread of its own, with rests, and never in the way of an end.

Nothing may depend on a round coming to its end: what it is at when the process ends, another round does again.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from penstock.events import Listener, UpkeepFailed
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal

END_SECONDS = 1.0


class PeriodicJob(ABC):
    """One round after another until it is ended, or the worker is asked to stop. Each begins once at most."""

    def __init__(
        self, name: str, *, clock: Clock, random: Random, tell: Listener, stop: StopSignal | None = None
    ) -> None:
        """``name`` is the thread's and, in events, that of what failed; ``stop`` None: only `end` ends it."""
        self._name = name
        self._clock = clock
        self._random = random
        self._tell = tell
        self._stop = stop
        self._ended = threading.Event()
        self._told: dict[str, str] = {}  # the last failure that was told, by whose it is; of whoever does a round
        self._thread = threading.Thread(target=self._run, name=f"penstock-{name}", daemon=True)

    def start(self) -> None:
        """Begin, with a first round."""
        self._thread.start()

    def end(self) -> None:
        """Begin no more; a round in the middle is waited for a moment, and left then."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    @contextmanager
    def beside(self) -> Iterator[Self]:
        """At work until the block ends."""
        self.start()
        try:
            yield self
        finally:
            self.end()

    @abstractmethod
    def _round(self) -> float:
        """One round; answers for how many seconds, about, to rest."""

    def _is_over(self) -> bool:
        return self._ended.is_set() or (self._stop is not None and (self._stop.requested or self._stop.paused))

    def _failed(self, error: Exception, *, whose: str = "") -> None:
        """Tell it, once while it stays the same: another round tries again."""
        text = f"{whose}: {type(error).__name__}: {error}" if whose else f"{type(error).__name__}: {error}"
        if self._told.get(whose) != text:
            self._told[whose] = text
            self._tell(UpkeepFailed(handler=self._name, error=text))

    def _succeeded(self, *, whose: str = "") -> None:
        self._told.pop(whose, None)

    def _run(self) -> None:
        while not self._is_over():
            rest_seconds = self._round()
            self._clock.wait(self._ended, rest_seconds * (0.5 + self._random()))
