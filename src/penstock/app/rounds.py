"""The base class of background jobs: repeated work in a thread of its own, with rests, that never delays shutdown.

For jobs that every process runs for itself. Jobs for which the workers elect one process are in `app/jobs/elected.py`.

No result may depend on the completion of a round: if the process ends during a round, another one repeats it later.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from penstock.events import JobFailed, Listener
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.threads import WorkThread
from penstock.worker.shutdown import StopSignal

END_SECONDS = 1.0


class PeriodicJob(ABC):
    """A background job that repeats a round of work until `end`, or until the worker is asked to stop.

    Can be started once. Rounds run in its own thread; the owner calls the other methods.
    """

    def __init__(
        self, name: str, *, clock: Clock, random: Random, emit: Listener, stop: StopSignal | None = None
    ) -> None:
        """Create a job.

        ``name`` names the thread and, in events, the failed work. With ``stop`` None, only `end` ends the job.
        """
        self._name = name
        self._clock = clock
        self._random = random
        self._emit = emit
        self._stop = stop
        self._ended = threading.Event()
        self._reported: dict[str, str] = {}  # last reported failure by subject; used by the thread of the rounds
        self._thread = WorkThread(self._run, name=f"penstock-{name}")

    def start(self) -> None:
        """Start the thread, which begins with a round."""
        self._thread.start()

    def end(self) -> None:
        """Start no further round. Wait up to a second for the current one, then leave it behind."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    @contextmanager
    def beside(self) -> Iterator[Self]:
        """Run the job inside the block."""
        self.start()
        try:
            yield self
        finally:
            self.end()

    @abstractmethod
    def _round(self) -> float:
        """Do one round; return the approximate rest in seconds."""

    def _is_over(self) -> bool:
        return self._ended.is_set() or (self._stop is not None and (self._stop.requested or self._stop.paused))

    def _record_failure(self, error: Exception, *, subject: str = "") -> None:
        """Emit an event for a failure, once while it stays the same. The next round retries."""
        text = f"{subject}: {type(error).__name__}: {error}" if subject else f"{type(error).__name__}: {error}"
        if self._reported.get(subject) != text:
            self._reported[subject] = text
            self._emit(JobFailed(job=self._name, error=text))

    def _record_success(self, *, subject: str = "") -> None:
        self._reported.pop(subject, None)

    def _run(self) -> None:
        while not self._is_over():
            rest_seconds = self._round()
            self._clock.wait(self._ended, rest_seconds * (0.5 + self._random()))
