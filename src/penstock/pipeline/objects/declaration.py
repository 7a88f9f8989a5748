"""The declaration of an object handler, checked once and then frozen, and the context of each of its calls."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import UsageError
from penstock.ledger.records import ObjectAttempt
from penstock.messaging.call import CallContext
from penstock.messaging.declarations import OnStop, check_on_stop, takes_context
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt

_MIB = 1 << 20

_ENDS = {"given_back": AttemptEnd.RELEASED, "expired": AttemptEnd.EXPIRED, "worker_died": AttemptEnd.EXPIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHandlerDeclaration:
    """A function that is called with each object: ``function(obj)`` or ``function(obj, ctx)``, plain or async.

    Attributes:
        name: Identity of the handler in the ledger, like a pipeline's. An object is processed once per name.
        timeout_seconds: Limit for all objects of one message together. S3 sends one object per message.
        cleanup: Takes the same arguments as ``function``; called before it if an earlier attempt on the object failed
            or was interrupted.
    """

    name: str
    function: Callable[..., Any]
    attempts_max: int = 4
    timeout_seconds: float | None = None
    on_stop: OnStop = "finish"
    cleanup: Callable[..., Any] | None = None
    encoding: str = "utf-8"  # for `lines`
    object_bytes_max: int = 1 << 30  # as stored; larger objects fail at once
    inflated_bytes_max: int = 4 << 30  # limit for a compressed object that `lines` inflates
    line_bytes_max: int = 128 * _MIB
    memory_bytes_max: int = 8 * _MIB  # content held in memory; above it a temporary file is used

    def __post_init__(self) -> None:
        name = f"The object handler {self.name}"
        if not self.name:
            raise UsageError("An object handler needs a name.")
        if not callable(self.function):
            raise UsageError(f"{name} is not a function.")
        if self.attempts_max < 1:
            raise UsageError(f"{name} has attempts_max={self.attempts_max}; it has to be at least 1.")
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise UsageError(f"{name} has timeout_seconds={self.timeout_seconds}; it has to be more than 0.")
        check_on_stop(self.on_stop, name)
        for bound in ("object_bytes_max", "inflated_bytes_max", "line_bytes_max", "memory_bytes_max"):
            if getattr(self, bound) < 1:
                raise UsageError(f"{name} has {bound}={getattr(self, bound)}; it has to be at least 1.")
        _check_encoding(name, self.encoding)
        if self.cleanup is not None and not callable(self.cleanup):
            raise UsageError(f"{name} has cleanup={self.cleanup!r}; give a function that takes the object.")
        for function in (self.function, self.cleanup):
            if function is not None:
                takes_context(function, name, first="object")


def previous_attempt(timeline: Sequence[ObjectAttempt]) -> PreviousAttempt | None:
    """Return the latest attempt of an object that has ended. The current one has not."""
    for attempt in reversed(timeline):
        if attempt.ended_at is not None:
            return PreviousAttempt(
                started_at=attempt.started_at,
                ended_at=attempt.ended_at,
                worker=attempt.worker,
                end=_ENDS.get(attempt.outcome, AttemptEnd.FAILED),
                reason=attempt.reason,
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectContext(CallContext):
    """The context of one call for one object, used by the thread or task of the call. Reading is a checkpoint.

    Attributes:
        attempt_id: Unique per attempt: use it to name outputs.
        attempt: Number of this attempt, from 1; released attempts do not count.
        previous_attempt: The attempt before this one, from the ledger; None if there was none.
        handler: The handler's name.
        resources: The resources of the app's lifespans.
    """

    attempt_id: str
    attempt: int
    previous_attempt: PreviousAttempt | None


def _check_encoding(name: str, encoding: str) -> None:
    try:
        newline = codecs.lookup(encoding).encode("\n")[0]
    except (LookupError, TypeError, ValueError):
        newline = b""
    if newline != b"\n":
        raise UsageError(f"{name} has encoding={encoding!r}; lines are found only in encodings that extend ASCII.")
