"""The engine of object handlers: one run is one call of the user's function, plain or async, for one object.

`ObjectEngine` opens the object in its version, calls cleanup and function, and maps every way this can end to a result
that the protocol records.
"""

import asyncio
import inspect
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import (
    DeviceFailed,
    Interrupted,
    ObjectDenied,
    ObjectError,
    ObjectGone,
    ObjectSuperseded,
    Reject,
    Retry,
    TemporaryError,
    UserError,
)
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, BatchRecord, ObjectResult
from penstock.messaging.call import NO_RESOURCES, CallTime, ExecutionControl
from penstock.messaging.declarations import run_to_its_end, takes_context
from penstock.messaging.failure import failure_of
from penstock.messaging.forks import OwnProcess
from penstock.messaging.handler import ServiceWatch, Unwatched
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.engine import ReadFailure, RunCancelled, RunReleased, RunRequest, RunResult
from penstock.pipeline.failures import Denials
from penstock.pipeline.objects.declaration import ObjectContext, ObjectHandlerDeclaration, previous_attempt
from penstock.pipeline.objects.stream import ContentFault, IncomingObject
from penstock.pipeline.reporting import BatchEvents


def call(function: Callable[..., Any], obj: IncomingObject, context: ObjectContext) -> None:
    """Call the function and wait for its end. An async function gets its own event loop in this thread for the call.

    The return value is ignored. Raises TypeError if the function returns a generator or awaitable, whose work would
    never be done.
    """
    arguments = (obj, context) if takes_context(function, context.handler, first="object") else (obj,)
    process = OwnProcess()
    with process:
        returned = function(*arguments)
    if inspect.iscoroutine(returned):
        returned = asyncio.run(_cancelled_at_end(returned, context, process))
    run_to_its_end(returned)


async def _cancelled_at_end(returned: Coroutine[Any, Any, Any], context: ObjectContext, process: OwnProcess) -> Any:
    """Await the coroutine, and cancel it when the work must end. So an async function needs no checkpoints."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop is closed: the function has returned
            loop.call_soon_threadsafe(task.cancel)

    context.control.watch(cancel)
    try:
        with process:  # inside: a forked copy that closed its loop would remove descriptors from the parent's
            return await returned
    finally:
        context.control.watch(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEngineRuntime:
    """The collaborators that all calls of one handler share."""

    declaration: ObjectHandlerDeclaration
    ledger: Ledger
    store: ObjectStore
    scratch: Path | None  # for content too large for memory; None: the system's temporary folder
    events: BatchEvents
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)
    denials: Denials = field(default_factory=Denials)
    store_watch: ServiceWatch = field(default_factory=Unwatched)


class ObjectEngine:
    """The `penstock.pipeline.engine.Engine` of one execution, which owns it. Each of its runs processes one object."""

    def __init__(self, runtime: ObjectEngineRuntime, control: ExecutionControl, time: CallTime) -> None:
        self._runtime = runtime
        self._declaration = runtime.declaration
        self._control = control
        self._time = time  # spent in the user's code

    def run(self, request: RunRequest) -> RunResult:
        [ref] = request.objects
        if self._control.ends:
            raise _ending(self._control)
        if ref.size_bytes > self._declaration.object_bytes_max:
            reason = f"{ref.uri} has {ref.size_bytes:,} bytes; at most {self._declaration.object_bytes_max:,} are read"
            return _failed(ref, ReadFailure(failure=AttemptFailure.DEAD, reason=reason))
        try:
            obj = self._open(ref, request)
        except ObjectError as error:
            return _failed(ref, self._unread(ref, ContentFault(error=error, lasting=False)))
        with closing(obj):
            context = self._context(ref, request)
            with self._time:
                failure = self._call(obj, context)
            if obj.fault is not None:
                failure = self._unread(ref, obj.fault)
            else:
                self._runtime.denials.clear()  # only now: a failing disk may open the object and fail at its first byte
        return _processed(ref, obj) if failure is None else _failed(ref, failure)

    def cancel(self, attempt_id: str) -> None:  # noqa: ARG002 - an execution has one run at a time
        self._control.end()

    def _open(self, ref: ObjectRef, request: RunRequest) -> IncomingObject:
        with self._runtime.store_watch.watch_request():
            reader = self._runtime.store.open(ref)
        self._runtime.store_watch.record_success()
        return IncomingObject(
            ref,
            store=self._runtime.store,
            reader=reader,
            original_message=request.claimed[ref.object_id].original_message,
            declaration=self._declaration,
            check=self._control.check,
            scratch=self._runtime.scratch,
        )

    def _context(self, ref: ObjectRef, request: RunRequest) -> ObjectContext:
        timeline = self._runtime.ledger.attempts_of(self._declaration.name, ref.object_id)
        return ObjectContext(
            handler=self._declaration.name,
            attempt_id=request.attempt_id,
            attempt=request.claimed[ref.object_id].attempts,
            previous_attempt=previous_attempt(timeline),
            resources=self._runtime.resources,
            control=self._control,
            on_retry=partial(self._runtime.events.emit_retrying, ref, request.attempt_id),
        )

    def _call(self, obj: IncomingObject, context: ObjectContext) -> ReadFailure | None:
        """Call cleanup and function. Return their failure, if any. Raise if the work was ended from outside."""
        try:
            if context.previous_attempt is not None and self._declaration.cleanup is not None:
                call(self._declaration.cleanup, obj, context)
            call(self._declaration.function, obj, context)
        except BaseException as raised:  # SystemExit too: user code must not be able to leave the attempt open
            if self._control.ends and isinstance(raised, Interrupted | CancelledError):
                raise _ending(self._control) from raised
            return failure_by(raised)
        return None

    def _unread(self, ref: ObjectRef, fault: ContentFault) -> ReadFailure:
        """Classify an error in reading the object. Raise it if it is a fault of the infrastructure or of the setup."""
        match fault.error:
            case TemporaryError():
                with self._runtime.store_watch.watch_request():
                    raise fault.error
            case UserError():
                raise fault.error
            case ObjectGone():
                return ReadFailure(failure=AttemptFailure.DELETED, reason=str(fault.error))
            case ObjectSuperseded():
                return ReadFailure(failure=AttemptFailure.SUPERSEDED, reason=str(fault.error))
            case ObjectDenied() | DeviceFailed():
                uncounted = self._runtime.denials.add(ref.object_id)
                return ReadFailure(failure=AttemptFailure.RETRY, reason=str(fault.error), uncounted=uncounted)
            case _:
                failure = AttemptFailure.DEAD if fault.lasting else AttemptFailure.RETRY
                return ReadFailure(failure=failure, reason=str(fault.error))


def failure_by(raised: BaseException) -> ReadFailure:
    """Classify an exception of the user's function."""
    described = failure_of(raised)
    match raised:
        case Reject():
            return ReadFailure(
                failure=AttemptFailure.DEAD, reason=described.error or "rejected", raised=described, exception=raised
            )
        case Retry(delay_seconds=delay_seconds):
            delay = None if delay_seconds is None else max(0.0, delay_seconds)
            return ReadFailure(
                failure=AttemptFailure.RETRY,
                reason=described.error,
                delay_seconds=delay,
                raised=described,
                exception=raised,
            )
        case _:
            return ReadFailure(
                failure=AttemptFailure.RETRY, reason=described.summary, raised=described, exception=raised
            )


def _ending(control: ExecutionControl) -> RunCancelled | RunReleased:
    """Return the error that reports the end of the work to the protocol."""
    if control.over:
        return RunCancelled("the work is no longer ours")
    return RunReleased("released at a checkpoint because the worker stops")


def _processed(ref: ObjectRef, obj: IncomingObject) -> RunResult:
    result = ObjectResult(object_id=ref.object_id, rows=0, lines_quarantined=obj.lines_quarantined)
    return RunResult(
        processed=(result,),
        failed={},
        record=BatchRecord(lines_quarantined=obj.lines_quarantined, bytes=ref.size_bytes),
        works=True,
        samples={ref.object_id: obj.quarantine_sample},
        reasons={ref.object_id: obj.quarantine_reasons},
    )


def _failed(ref: ObjectRef, failure: ReadFailure) -> RunResult:
    return RunResult(processed=(), failed={ref.object_id: failure})
