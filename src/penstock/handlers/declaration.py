"""The declaration of a handler, validated once and then frozen."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import UsageError
from penstock.handlers.schedule import Schedule
from penstock.messaging.backoff import RETRY_ATTEMPTS_MAX, RETRY_BASE_SECONDS, RETRY_CAP_SECONDS
from penstock.messaging.declarations import OnStop, check_annotations, check_on_stop, takes_context
from penstock.messaging.schema import Queue

Isolation = Literal["none", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Number of attempts and their delays: uniform(0, min(cap, base x 2^(attempt-1))), exponential with full jitter."""

    max_attempts: int = RETRY_ATTEMPTS_MAX
    base_seconds: float = RETRY_BASE_SECONDS
    cap_seconds: float = RETRY_CAP_SECONDS
    newer_wait_seconds: float = 3_600.0  # how long a message with a newer schema waits for a newer worker

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise UsageError(f"max_attempts={self.max_attempts} has to be at least 1.")
        if not (self.base_seconds > 0 and self.cap_seconds > 0 and self.newer_wait_seconds >= 0):
            raise UsageError("The waits of a retry policy have to be above 0 seconds.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Batch limits of a function that takes several messages at once."""

    messages_max: int
    wait_seconds: float  # how long to wait for more messages after the first

    def __post_init__(self) -> None:
        if self.messages_max < 1:
            raise UsageError(f"batch={self.messages_max} has to be at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeclaration:
    """One function that handles the messages of one queue."""

    name: str
    queue: Queue[Any]
    function: Callable[..., Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_seconds: float | None = None
    concurrency: int | None = None  # concurrent calls in one worker; None: the worker's slots
    idempotency: Callable[[Any], str] | None = None
    cleanup: Callable[..., Any] | None = None
    batch: BatchOptions | None = None
    isolation: Isolation = "none"
    on_stop: OnStop = "finish"
    schedule: Schedule | None = None
    # Consecutive failures that pause the queue; 0: never; None: the default of the settings.
    breaker_failures: int | None = None

    def __post_init__(self) -> None:
        name = f"The handler {self.name}"
        if not callable(self.function):
            raise UsageError(f"{name} is not a function.")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise UsageError(f"{name} is a generator function, so a call does not run it; remove the yield.")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"{name} has concurrency={self.concurrency}; it has to be at least 1.")
        if self.breaker_failures is not None and self.breaker_failures < 0:
            raise UsageError(f"{name} has breaker_failures={self.breaker_failures}; it has to be 0 or more.")
        if self.isolation not in ("none", "process"):
            raise UsageError(f"{name} has isolation={self.isolation!r}; it is 'none' or 'process'.")
        check_on_stop(self.on_stop, name)
        if self.isolation == "process" and (self.is_async or self.batch is not None):
            raise UsageError(f"{name} has isolation='process', which needs a plain function that takes one message.")
        if self.idempotency is not None:
            _check_idempotency(name, self.idempotency)
        if self.batch is not None and self.idempotency is not None:
            raise UsageError(f"{name} takes batches; idempotency is only for functions that take one message.")
        if self.batch is not None and self.cleanup is not None:
            raise UsageError(f"{name} takes batches; cleanup is only for functions that take one message.")
        _ = self.wants_context  # raises for functions with other arguments
        self._check_annotations(name, self.function)
        if self.cleanup is not None:
            self._check_cleanup(name, self.cleanup)

    def _check_cleanup(self, name: str, cleanup: Any) -> None:
        if not callable(cleanup):
            raise UsageError(f"{name} has cleanup={cleanup!r}; give a function that takes the body.")
        if not self.is_async and inspect.iscoroutinefunction(cleanup):
            raise UsageError(f"{name} is a plain function and its cleanup is async; make both the same.")
        takes_context(cleanup, f"{name}, in its cleanup,", first="body")
        self._check_annotations(f"{name}, in its cleanup,", cleanup)

    def _check_annotations(self, name: str, function: Callable[..., Any]) -> None:
        model: Any = self.queue.model
        if self.batch is not None:
            check_annotations(function, name, model=None, example="items: list[Item]")
        else:
            body = "message: Message" if model is None else f"body: {getattr(model, '__name__', model)}"
            check_annotations(function, name, model=model, example=body)

    @property
    def is_async(self) -> bool:
        """Return True if the function runs on the event loop."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004 - checks if it is async, not if it exists
        )

    @property
    def wants_context(self) -> bool:
        """Return True if the function takes the context as its second argument."""
        return takes_context(self.function, f"The handler {self.name}", first="body")


def _check_idempotency(name: str, idempotency: Any) -> None:
    if not callable(idempotency):
        raise UsageError(
            f"{name} has idempotency={idempotency!r}; give a function that returns the key of a body, such as "
            "idempotency=lambda body: body.id."
        )
    if inspect.iscoroutinefunction(idempotency):
        raise UsageError(f"{name} has an async function for idempotency; give a plain one that returns the key.")
