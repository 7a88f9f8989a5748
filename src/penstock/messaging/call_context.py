"""What every user's function may be handed, whatever it is called with: resources, and the ways to behave well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.messaging.control import Control

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState, Retrying

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
    control: Control = field(default_factory=Control, repr=False)
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
