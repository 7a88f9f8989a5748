"""The newest survey of the dead letters, taken in the background and shared by all viewers.

Reading a hundred thousand dead letters takes seconds, and loads the broker. So a survey is taken only while people
look, by one thread, with pauses, and the more rarely the longer it takes. Pages never wait for it: they show the last
one with its time. A broker that cannot be browsed is surveyed only on request, since that receives its messages.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.messaging.clock import Clock
from penstock.messaging.failure import failure_of
from penstock.messaging.threads import begin_thread
from penstock.operations.dead_letters.survey import DeadLetterSurvey, take_survey
from penstock.operations.inspection import ScopeView

FRESH_SECONDS_MIN = 15.0  # a survey is fresh at least this long
FRESH_FACTOR = 20.0  # and this many times the seconds that it took
PAUSE_FACTOR = 2.0  # after each page, as a multiple of its reading time: the thread works a third of the time
PAUSE_SECONDS_MAX = 0.5
BEGIN_SECONDS_MAX = 5.0  # until the queues are known
STOP_SECONDS = 5.0
TURN_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDeadLetters:
    """The dead letters as far as they are known now."""

    survey: DeadLetterSurvey | None  # the last complete one; before the first, what was counted so far
    is_counting: bool
    counted: int = 0  # by the survey that is being taken
    error: str | None = None  # why the last survey failed


class CountingTurn:
    """The turn of one count after the other, on a broker that can only receive: counts hide messages from each other.

    If the broker can be browsed, it is always everyone's turn. Thread-safe.
    """

    def __init__(self, *, browsable: bool) -> None:
        self._lock = None if browsable else threading.Lock()

    @contextmanager
    def awaited(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """Wait until no other count runs, or ``stopped`` returns True."""
        lock = self._lock
        has_turn = lock is None
        while lock is not None and not (has_turn := lock.acquire(timeout=TURN_POLL_SECONDS)) and not stopped():
            pass
        try:
            yield
        finally:
            if lock is not None and has_turn:
                lock.release()


class DeadLetterWatch:
    """Takes surveys when they are needed. Thread-safe."""

    def __init__(
        self, view: Callable[[], AbstractContextManager[ScopeView]], *, clock: Clock, turn: CountingTurn
    ) -> None:
        self._view = view
        self._turn = turn
        self._clock = clock
        self._changed = threading.Condition()
        self._survey: DeadLetterSurvey | None = None  # guarded by the condition, as are the next ones
        self._partial: DeadLetterSurvey | None = None
        self._error: str | None = None
        self._fresh_until = 0.0  # monotonic
        self._is_expired = False  # something was changed since the last survey began
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def known(self, *, browsable: bool, wait_seconds: float = 0.0, needs_queues: bool = False) -> KnownDeadLetters:
        """Return what is known, and take a survey if that is outdated and the broker can be browsed.

        The call that begins the first survey waits at most ``wait_seconds`` for its end: a small one is complete by
        then. With ``needs_queues``, wait until the queues are known.
        """
        begun = self._begin(if_outdated=True) if browsable else False
        with self._changed:
            if begun:
                self._changed.wait_for(lambda: self._survey is not None or self._thread is None, wait_seconds)
            if needs_queues:
                self._changed.wait_for(lambda: self._survey or self._partial or self._thread is None, BEGIN_SECONDS_MAX)
            partial = self._partial
            return KnownDeadLetters(
                survey=self._survey or partial,
                is_counting=self._thread is not None,
                counted=0 if partial is None else partial.dead_letters,
                error=self._error,
            )

    def last_survey(self) -> DeadLetterSurvey | None:
        """Return the last complete survey."""
        with self._changed:
            return self._survey

    def count(self) -> None:
        """Take a survey now, unless one is being taken."""
        self._begin(if_outdated=False)

    def expire(self) -> None:
        """Note that dead letters were changed: the next page takes a new survey."""
        with self._changed:
            self._fresh_until = 0.0
            self._is_expired = True

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        thread = self._thread
        if thread is not None:
            thread.join(STOP_SECONDS)

    def _begin(self, *, if_outdated: bool) -> bool:
        """Return True if a survey was begun."""
        with self._changed:
            outdated = self._clock.monotonic() >= self._fresh_until
            if self._thread is not None or self._stopped.is_set() or (if_outdated and not outdated):
                return False
            self._is_expired = False
            self._partial = None
            self._thread = begin_thread(self._run, name="penstock-web-dead-letters")
            return True

    def _run(self) -> None:
        survey, error = None, None
        try:
            with self._turn.awaited(self._stopped.is_set), self._view() as seen:
                survey = take_survey(
                    seen,
                    clock=self._clock,
                    stopped=self._stopped.is_set,
                    after_page=self._pause,
                    on_partial=self._keep_partial,
                )
        except PenstockError as raised:
            error = str(raised)
        except Exception as raised:  # a bug, which must not leave the pages waiting
            error = failure_of(raised).summary
        with self._changed:
            took = 0.0 if survey is None else survey.took_seconds
            fresh_seconds = max(FRESH_SECONDS_MIN, FRESH_FACTOR * took)
            self._fresh_until = 0.0 if self._is_expired else self._clock.monotonic() + fresh_seconds
            self._survey, self._error = survey or self._survey, error
            self._partial = self._thread = None
            self._changed.notify_all()

    def _pause(self, read_seconds: float) -> None:
        """Leave the broker and this process to others for a while."""
        self._clock.wait(self._stopped, min(PAUSE_FACTOR * read_seconds, PAUSE_SECONDS_MAX))

    def _keep_partial(self, partial: DeadLetterSurvey) -> None:
        with self._changed:
            self._partial = partial
            self._changed.notify_all()
