"""What every user's function may be handed, whatever it is called with: resources, and the ways to behave well.

The time that a user's code takes in one execution, which its timeout bounds.

What a call is told from outside while it runs: that the worker stops, that the work is no longer ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.errors import Interrupted
from penstock.messaging.clock import Clock

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState, Retrying


class ExecutionControl:
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


Exceptions = type[BaseException] | tuple[type[BaseException], ...]
TellRetry = Callable[[int, float, BaseException], None]  # tries so far, seconds until the next, what was raised

NO_RESOURCES: Mapping[str, Any] = MappingProxyType({})


def tell_nobody(tries: int, delay_seconds: float, raised: BaseException) -> None:
    """For contexts made by hand, in tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """One call of a function."""

    handler: str
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)  # what the app's lifespans gave
    control: ExecutionControl = field(default_factory=ExecutionControl, repr=False)
    tell_retry: TellRetry = field(default=tell_nobody, repr=False)

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: work goes on until the drain deadline."""
        return self.control.stopping

    def checkpoint(self) -> None:
        """A place where the work may end early. Call it now and then in long work.

        Raises `Interrupted` when the work was given back, ran out of its time or lost its claim; with
        ``on_stop="give_back"`` also as soon as the worker stops. Let it pass: nothing more is asked of the function.
        """
        self.control.check()

    def retrying(
        self, on: Exceptions = Exception, *, attempts: int = 3, base_seconds: float = 0.1, cap_seconds: float = 5.0
    ) -> Retrying:
        """For a fault that passes by itself: ``for attempt in ctx.retrying(ConnectionError): with attempt: ...``.

        Waits grow with full jitter, every retry is logged, no attempt of the work itself is spent, and what the last
        try raised is raised. Where a checkpoint would end the work, the waiting ends too, with `Interrupted`.
        """
        from tenacity import Retrying

        return Retrying(sleep=self._sleep, **self._options(on, attempts, base_seconds, cap_seconds))

    def retrying_async(
        self, on: Exceptions = Exception, *, attempts: int = 3, base_seconds: float = 0.1, cap_seconds: float = 5.0
    ) -> AsyncRetrying:
        """As `retrying`, for async functions: ``async for attempt in ...: with attempt: ...``."""
        from tenacity import AsyncRetrying

        return AsyncRetrying(**self._options(on, attempts, base_seconds, cap_seconds))

    def _options(self, on: Exceptions, attempts: int, base_seconds: float, cap_seconds: float) -> dict[str, Any]:
        from tenacity import retry_if_exception_type, stop_after_attempt, wait_random_exponential

        return {
            "retry": retry_if_exception_type(on),
            "stop": stop_after_attempt(attempts),
            "wait": wait_random_exponential(multiplier=base_seconds, max=cap_seconds),
            "before_sleep": self._told,
            "reraise": True,
        }

    def _told(self, state: RetryCallState) -> None:
        raised = state.outcome.exception() if state.outcome is not None else None
        if raised is not None:
            self.tell_retry(state.attempt_number, state.upcoming_sleep, raised)

    def _sleep(self, seconds: float) -> None:
        self.control.sleep(seconds)
        self.checkpoint()


RECHECK_SECONDS = 1.0  # while no user code is at work and its time is used up


class CallTime:
    """Counts while the user's code is at work, and not while the execution waits for the ledger.

    Written by the thread that runs the execution, as a whole; any thread may read it.
    """

    __slots__ = ("_clock", "_state")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state: tuple[float, float | None] = (0.0, None)  # seconds counted before; since when it counts now

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count until the block ends."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count from now on."""
        self._state = (self._state[0], self._clock.monotonic())

    def end(self) -> None:
        """Count no more."""
        before, since = self._state
        if since is not None:
            self._state = (before + self._clock.monotonic() - since, None)

    def left_seconds(self, timeout_seconds: float) -> float:
        """Return for how long the timeout cannot be over; 0 or less when it is over.

        Code that has returned is never past its timeout.
        """
        before, since = self._state
        if since is None:
            return max(timeout_seconds - before, RECHECK_SECONDS)
        return timeout_seconds - before - (self._clock.monotonic() - since)
