"""Which events are failures, and what each of them tells, as data.

Being given back is no failure, nor is an object that is gone or superseded, nor a broker that is away for a while.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock import events
from penstock.errors import Interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One failure. ``handler`` is the pipeline's name for what a pipeline does."""

    handler: str
    error_type: str
    error: str
    final: bool
    exception: BaseException | None = None
    traceback: str | None = None
    queue: str | None = None
    message_id: str | None = None
    attempt: int | None = None
    object_uri: str | None = None
    attempt_id: str | None = None


def may_fail(kind: type[events.Event]) -> bool:
    """Whether events of this kind may tell a failure."""
    return kind in _FAILURES


def occurrence_of(event: events.Event) -> Occurrence | None:
    """The failure that an event tells, if it tells one."""
    describe = _FAILURES.get(type(event))
    return None if describe is None else describe(event)


def _message_failed(event: events.MessageFailed) -> Occurrence | None:
    if isinstance(event.exception, Interrupted):
        return None
    return Occurrence(
        handler=event.handler,
        error_type=event.error_type,
        error=event.error,
        final=event.final,
        exception=event.exception,
        traceback=event.traceback,
        queue=event.queue,
        message_id=event.message_id,
        attempt=event.attempt,
    )


def _message_invalid(event: events.MessageInvalid) -> Occurrence:
    return Occurrence(
        handler=event.handler,
        error_type="InvalidMessage",
        error=event.reason,
        final=True,
        queue=event.queue,
        message_id=event.message_id,
        attempt=event.attempt,
    )


def _object_failed(event: events.ObjectFailed) -> Occurrence | None:
    if event.outcome not in ("retry", "dead"):
        return None
    return Occurrence(
        handler=event.pipeline,
        error_type=event.error_type or _type_in(event.reason, otherwise="ObjectFailed"),
        error=event.reason,
        final=event.outcome == "dead",
        exception=event.exception,
        traceback=event.traceback,
        object_uri=event.object_uri,
        attempt_id=event.attempt_id,
    )


def _run_failed(event: events.RunFailed) -> Occurrence:
    return Occurrence(
        handler=event.pipeline,
        error_type=_type_in(event.error, otherwise="RunFailed"),
        error=event.error,
        final=False,
        attempt_id=event.attempt_id,
    )


def _execution_failed(event: events.ExecutionFailed) -> Occurrence:
    return Occurrence(
        handler=event.handler,
        error_type=_type_in(event.error, otherwise="ExecutionFailed"),
        error=event.error,
        final=False,
        message_id=event.message_ids[0] if len(event.message_ids) == 1 else None,
    )


def _upkeep_failed(event: events.UpkeepFailed) -> Occurrence:
    return Occurrence(
        handler=event.handler,
        error_type=_type_in(event.error, otherwise="UpkeepFailed"),
        error=event.error,
        final=False,
    )


def _type_in(error: str, *, otherwise: str) -> str:
    """The type, in texts of the form ``Type: message``."""
    name = error.partition(":")[0]
    return name if name.replace(".", "").isidentifier() else otherwise


_FAILURES: Mapping[type[events.Event], Callable[[Any], Occurrence | None]] = MappingProxyType(
    {
        events.MessageFailed: _message_failed,
        events.MessageInvalid: _message_invalid,
        events.ObjectFailed: _object_failed,
        events.RunFailed: _run_failed,
        events.ExecutionFailed: _execution_failed,
        events.UpkeepFailed: _upkeep_failed,
    }
)
