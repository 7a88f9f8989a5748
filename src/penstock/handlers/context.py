"""What a function is handed beside the body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.errors import Interrupted
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.message import Message

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState, Retrying

Body = TypeVar("Body")
Exceptions = type[BaseException] | tuple[type[BaseException], ...]
TellRetry = Callable[[int, float, BaseException], None]  # tries so far, seconds until the next, what was raised

NO_RESOURCES: Mapping[str, Any] = MappingProxyType({})


def tell_nobody(tries: int, delay_seconds: float, raised: BaseException) -> None:
    """For contexts made by hand, in tests."""


class Flag:
    """What a call is told from outside. Each field is set once, by whichever thread comes to it."""

    __slots__ = ("_gives_back", "_sleeper", "over", "stopping")

    def __init__(self, *, gives_back: bool = False) -> None:
        self.stopping = False
        self.over = False
        self._gives_back = gives_back
        self._sleeper: threading.Event | None = None  # made by the call, when it first sleeps: most never do

    def end(self) -> None:
        """The work is no longer ours."""
        self.over = True
        if self._sleeper is not None:
            self._sleeper.set()

    def check(self) -> None:
        """Raise `Interrupted` when the work is no longer ours, or is to be given back now."""
        if self.over or (self._gives_back and self.stopping):
            raise Interrupted

    def sleep(self, seconds: float) -> None:
        """Wait, no longer than the work is ours."""
        if self._sleeper is None:
            self._sleeper = threading.Event()
        if not self.over:  # looked at after the sleeper was made, so that `end` cannot slip between
            self._sleeper.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """One call of a function of batches, and the ways to behave well in it."""

    queue: str
    handler: str
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)  # what the app's lifespans gave
    flag: Flag = field(default_factory=Flag, repr=False)
    tell_retry: TellRetry = field(default=tell_nobody, repr=False)

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: work goes on until the drain deadline."""
        return self.flag.stopping

    def checkpoint(self) -> None:
        """A place where the work may end early. Call it now and then in long work.

        Raises `Interrupted` when the delivery was given back, ran out of its time or lost its claim; with
        ``on_stop="give_back"`` also as soon as the worker stops. Let it pass: nothing more is asked of the function.
        """
        self.flag.check()

    def retrying(
        self, on: Exceptions = Exception, *, attempts: int = 3, base_seconds: float = 0.1, cap_seconds: float = 5.0
    ) -> Retrying:
        """For a fault that passes by itself: ``for attempt in ctx.retrying(ConnectionError): with attempt: ...``.

        Waits grow with full jitter, every retry is logged, no attempt of the message is spent, and what the last try
        raised is raised. A stop ends the waiting.
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
        self.flag.sleep(seconds)
        self.checkpoint()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(BatchContext):
    """One call of a function of one message: its message, its attempt, and the ways to behave well in it."""

    message: Message
    attempt: int  # 1-based
    previous_attempt: PreviousAttempt | None  # where broker or ledger remember it
    key: str | None = None  # of an idempotent handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Generic[Body]):
    """One delivery in a batch."""

    body: Body
    message: Message
    attempt: int
    previous_attempt: PreviousAttempt | None


def item_of(delivery: Delivery, body: Any) -> Item[Any]:
    """The delivery as a function of batches sees it."""
    return Item(body=body, message=delivery.message, attempt=delivery.attempt, previous_attempt=delivery.previous)
