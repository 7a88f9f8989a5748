"""Control, context and time of one call of a user's function.

`ExecutionControl` carries the worker's stop and the loss of the work to the running call. `CallContext` is the base
of the contexts that users' functions receive. `CallTime` measures the user's code, for its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from penstock.errors import Interrupted
from penstock.messaging.clock import Clock

if TYPE_CHECKING:
    from tenacity import RetryCallState


class ExecutionControl:
    """The stop signals of one execution. Other threads set them; the thread that runs the execution reads them."""

    __slots__ = ("_ends_at_stop", "_lock", "_on_end", "_over", "_sleeper", "_stopping")

    def __init__(self, *, ends_at_stop: bool = False) -> None:
        """``ends_at_stop``: a stop of the worker ends the work; otherwise it continues until the drain deadline."""
        self._ends_at_stop = ends_at_stop
        self._lock = threading.Lock()
        self._stopping = False  # set once, by the worker
        self._over = False  # set once, by the thread that interrupts
        self._on_end: Callable[[], object] | None = None  # written under the lock, like the next field
        self._sleeper: threading.Event | None = None  # created by the first sleep; most calls need none

    @property
    def stopping(self) -> bool:
        """Return True if the worker has begun to stop."""
        return self._stopping

    @property
    def over(self) -> bool:
        """Return True if the work was interrupted: its result no longer counts."""
        return self._over

    @property
    def ends(self) -> bool:
        """Return True if the next checkpoint ends the work."""
        return self._over or (self._ends_at_stop and self._stopping)

    def check(self) -> None:
        """Raise `Interrupted` if the work was interrupted, or is to be released now."""
        if self.ends:
            raise Interrupted

    def stop(self) -> None:
        """Report that the worker is stopping."""
        self._stopping = True
        if self._ends_at_stop:
            self._notify()

    def end(self) -> None:
        """Report that the work is interrupted."""
        self._over = True
        self._notify()

    def watch(self, on_end: Callable[[], object] | None) -> None:
        """Register a callback for the end of the work; call it at once if the work has ended. None removes it."""
        with self._lock:
            self._on_end = on_end
        if self.ends:
            self._notify()

    def sleep(self, seconds: float) -> None:
        """Wait, but return early if the work ends."""
        with self._lock:
            sleeper = self._sleeper = self._sleeper or threading.Event()
        if not self.ends:  # checked after creating the event, so that an end in between is not missed
            sleeper.wait(seconds)

    def _notify(self) -> None:
        with self._lock:  # held during the calls, so that a removed callback is never called
            if self._sleeper is not None:
                self._sleeper.set()
            if self._on_end is not None:
                self._on_end()


Exceptions = type[BaseException] | tuple[type[BaseException], ...]
RetryListener = Callable[[int, float, BaseException], None]  # tries so far, seconds until the next one, the exception

NO_RESOURCES: Mapping[str, Any] = MappingProxyType({})


def ignore_retry(tries: int, delay_seconds: float, raised: BaseException) -> None:
    """Ignore retries. The default for contexts made by hand, in tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The context of one call of a user's function.

    Created for the call, and used by the thread or task that runs it.
    """

    handler: str
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)  # from the app's lifespans
    control: ExecutionControl = field(default_factory=ExecutionControl, repr=False)
    on_retry: RetryListener = field(default=ignore_retry, repr=False)

    @property
    def stopping(self) -> bool:
        """Return True if the worker is stopping. Work continues until the drain deadline."""
        return self.control.stopping

    def checkpoint(self) -> None:
        """End the work here if it must stop. Call this regularly in long work.

        Raises:
            Interrupted: The work was released, timed out or lost its claim; with ``on_stop="release"`` also when
                the worker stops. Do not catch it: the function has nothing left to do.
        """
        self.control.check()

    def retrying(
        self, on: Exceptions = Exception, *, attempts: int = 3, base_seconds: float = 0.1, cap_seconds: float = 5.0
    ) -> Retrying:
        """Retry transient faults: ``for attempt in ctx.retrying(ConnectionError): with attempt: ...``.

        Waits grow exponentially with full jitter and every retry is logged. Retries do not count as attempts of the
        message. The last exception is re-raised.

        Args:
            on: Exception types to retry.
            attempts: Maximum number of tries, including the first.
            base_seconds: Upper bound of the first wait; it doubles with each try.
            cap_seconds: Upper bound of any wait.

        Raises:
            Interrupted: The work ended during a wait, as in `checkpoint`.
        """
        return Retrying(sleep=self._sleep, **self._options(on, attempts, base_seconds, cap_seconds))

    def retrying_async(
        self, on: Exceptions = Exception, *, attempts: int = 3, base_seconds: float = 0.1, cap_seconds: float = 5.0
    ) -> AsyncRetrying:
        """Retry in async functions: ``async for attempt in ctx.retrying_async(...): with attempt: ...``.

        A retry waits without blocking the event loop. The arguments are those of `retrying`.
        """
        return AsyncRetrying(**self._options(on, attempts, base_seconds, cap_seconds))

    def _options(self, on: Exceptions, attempts: int, base_seconds: float, cap_seconds: float) -> dict[str, Any]:

        return {
            "retry": retry_if_exception_type(on),
            "stop": stop_after_attempt(attempts),
            "wait": wait_random_exponential(multiplier=base_seconds, max=cap_seconds),
            "before_sleep": self._before_sleep,
            "reraise": True,
        }

    def _before_sleep(self, state: RetryCallState) -> None:
        raised = state.outcome.exception() if state.outcome is not None else None
        if raised is not None:
            self.on_retry(state.attempt_number, state.upcoming_sleep, raised)

    def _sleep(self, seconds: float) -> None:
        self.control.sleep(seconds)
        self.checkpoint()


RECHECK_SECONDS = 1.0  # how soon to check again if the time is used up but no user code is running


class CallTime:
    """The running time of the user's code in one execution, without the time that it waits for the ledger.

    The thread that runs the execution replaces ``_state`` as a whole; any thread may read it.
    """

    __slots__ = ("_clock", "_state")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state: tuple[float, float | None] = (0.0, None)  # seconds counted before; start of the current count

    def __enter__(self) -> None:
        """Count the time inside the block."""
        self._state = (self._state[0], self._clock.monotonic())

    def __exit__(self, *raised: object) -> None:
        before, since = self._state
        if since is not None:
            self._state = (before + self._clock.monotonic() - since, None)

    def left_seconds(self, timeout_seconds: float) -> float:
        """Return the seconds before which the timeout cannot expire; 0 or less if it has expired.

        User code that has returned never counts as timed out.
        """
        before, since = self._state
        if since is None:
            return max(timeout_seconds - before, RECHECK_SECONDS)
        return timeout_seconds - before - (self._clock.monotonic() - since)
