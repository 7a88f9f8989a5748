"""Map events to failures, as data, and define the arguments of an error hook.

Not failures: a released message, an object that was deleted or superseded, a broker that is unavailable for a while.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock import events
from penstock.messaging.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One failure. ``handler`` is the pipeline's name for a failure in a pipeline."""

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
    subject: str | None = None  # a short description, unless the failure is that the handler failed


def may_fail(kind: type[events.Event]) -> bool:
    """Return True if events of this type can be failures."""
    return kind in _FAILURES


def occurrence_of(event: events.Event) -> Occurrence | None:
    """Return the failure that an event reports; None if it reports none."""
    describe = _FAILURES.get(type(event))
    return None if describe is None else describe(event)


def _message_failed(event: events.MessageFailed) -> Occurrence:
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


def _job_failed(event: events.JobFailed) -> Occurrence:
    return Occurrence(
        handler=event.job,
        error_type=_type_in(event.error, otherwise="JobFailed"),
        error=event.error,
        final=False,
    )


def _ledger_rolled_back(event: events.LedgerRolledBack) -> Occurrence:
    return Occurrence(handler=event.pipeline, error_type="LedgerRolledBack", error=event.error, final=True)


def _commit_overwritten(event: events.CommitOverwritten) -> Occurrence:
    return Occurrence(handler=event.pipeline, error_type="CommitOverwritten", error=event.error, final=False)


def _compaction_undone(event: events.CompactionUndone) -> Occurrence | None:
    if event.error is None:
        return None
    return Occurrence(handler=event.pipeline, error_type="RowsTwice", error=event.error, final=True)


def _consumer_halted(event: events.ConsumerHalted) -> Occurrence:
    return Occurrence(
        handler=event.handler,
        error_type=_type_in(event.error, otherwise="QueueHalted"),
        error=f"The queue is served no more by this worker: {event.error}",
        final=True,
        queue=event.queue,
        subject=f"the queue {event.queue} is served no more",
    )


def _process_ended(event: events.ProcessExited) -> Occurrence | None:
    """Return a failure for a process that a signal ended; other processes have reported their own."""
    if event.exit_code >= 0:
        return None
    again = "it is not started again" if event.restart_in_seconds is None else "it is started again"
    return Occurrence(
        handler="",
        error_type="ProcessExited",
        error=f"The worker process {event.process} was ended by signal {-event.exit_code}; {again}",
        final=event.restart_in_seconds is None,
        subject=f"a worker process was ended by signal {-event.exit_code}",
    )


def _objects_overdue(event: events.ObjectsOverdue) -> Occurrence:
    return Occurrence(
        handler=event.pipeline,
        error_type="ObjectsOverdue",
        error=(
            f"{counted(event.overdue, 'object waits', 'objects wait')} to be processed for more than "
            f"{event.after_seconds:,.0f} s, the oldest for {event.oldest_age_seconds:,.0f} s"
        ),
        final=True,
        subject=f"{counted(event.overdue, 'object')} overdue",
    )


def _objects_missing(event: events.ObjectsMissing) -> Occurrence:
    return Occurrence(
        handler=event.pipeline,
        error_type="ObjectsMissing",
        error=(
            f"{counted(event.missing, 'object')} of {event.source} "
            f"{'was' if event.missing == 1 else 'were'} never processed"
        ),
        final=True,
        subject=f"{counted(event.missing, 'object')} missing",
    )


def _dead_letters_expiring(event: events.DeadLettersExpiring) -> Occurrence:
    end = "archived before they are deleted" if event.archived else "deleted soon unless they are replayed"
    dead_letters = counted(event.count, "dead letter")
    subject = f"{dead_letters} of {event.queue} {'grows' if event.count == 1 else 'grow'} old"
    return Occurrence(
        handler="",
        error_type="DeadLettersExpiring",
        error=f"{subject}, the oldest has waited for {event.oldest_age_seconds:,.0f} s; they are {end}",
        final=True,
        queue=event.queue,
        subject=subject,
    )


def _type_in(error: str, *, otherwise: str) -> str:
    """Return the type from a text of the form ``Type: message``."""
    name = error.partition(":")[0]
    return name if name.replace(".", "").isidentifier() else otherwise


_FAILURES: Mapping[type[events.Event], Callable[[Any], Occurrence | None]] = MappingProxyType(
    {
        events.MessageFailed: _message_failed,
        events.MessageInvalid: _message_invalid,
        events.ObjectFailed: _object_failed,
        events.RunFailed: _run_failed,
        events.ExecutionFailed: _execution_failed,
        events.JobFailed: _job_failed,
        events.LedgerRolledBack: _ledger_rolled_back,
        events.CommitOverwritten: _commit_overwritten,
        events.CompactionUndone: _compaction_undone,
        events.ConsumerHalted: _consumer_halted,
        events.ProcessExited: _process_ended,
        events.ObjectsOverdue: _objects_overdue,
        events.ObjectsMissing: _objects_missing,
        events.DeadLettersExpiring: _dead_letters_expiring,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """The known facts of a failure. None: it has no such fact."""

    process: str  # the kind of process: worker, replayer, monitor, ingest, ...
    handler: str  # the handler, or the pipeline
    worker: str
    fingerprint: str  # handler|type|file:function
    error: str
    final: bool  # it is not retried
    occurrences: int  # of this fingerprint since its last report, including this one
    traceback: str | None  # without local variables
    queue: str | None = None
    message_id: str | None = None
    attempt: int | None = None
    object_uri: str | None = None
    attempt_id: str | None = None
    subject: str | None = None  # a short description, unless the failure is that the handler failed


ErrorHook = Callable[[BaseException | None, ErrorContext], None]
