"""Process one delivery: open the message, claim its key, call the function, record, decide.

The steps are the same for plain and async functions. Only the call itself differs: `PlainCall` and `AsyncCall` here,
`process_call` in a child process, and `batch_call` combines the steps of several deliveries.
Every result of a function maps to one settlement, in `decision`. The result is recorded first, then the worker settles.
"""

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic_core import PydanticSerializationError, to_json

from penstock.errors import Interrupted, InvalidMessage, NewerMessage, Reject, Retry, TemporaryError
from penstock.events import (
    Bus,
    MessageFailed,
    MessageFinished,
    MessageInterrupted,
    MessageInvalid,
    MessageRetrying,
    MessageSkipped,
    MessageStarted,
)
from penstock.handlers.breaker import CircuitBreaker, ExecutionDeliveries
from penstock.handlers.context import Context
from penstock.handlers.decision import Exhausted, TimedOut, decide, decide_newer, exhausted, requested_delay
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.keys import IdempotencyKeys, KeyBusy, KeyClaim, KeyDone
from penstock.handlers.outage import OutageWatch
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.call import NO_RESOURCES, CallTime, ExecutionControl
from penstock.messaging.clock import Clock
from penstock.messaging.declarations import run_to_its_end, takes_context
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.failure import FailureDetails, failure_of, fingerprint
from penstock.messaging.forks import OwnProcess
from penstock.messaging.handler import HeldClaim, Settlements
from penstock.messaging.schema import BodyCodec
from penstock.messaging.settlement import UNCOUNTED, Ack, DeadLetter, Release, Settlement
from penstock.messaging.threads import AsideThreads
from penstock.messaging.tracing import NO_TRACING, Tracing

Result = TypeVar("Result")

BUSY_JITTER_SECONDS = 1.0
_DONE = Ack()  # immutable, so all calls share it
QUEUE_PAUSED = "the queue is paused: consecutive messages failed with the same error"


class NotBegun(TemporaryError):
    """The call could not begin on this machine. The message is released, which does not count as an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRuntime:
    """The fields that all calls of a handler share."""

    declaration: HandlerDeclaration
    codec: BodyCodec[Any]
    function: Callable[..., Any]  # the user's function, or a function that runs it in another process
    wants_context: bool
    bus: Bus
    clock: Clock
    random: Random
    outage: OutageWatch
    breaker: CircuitBreaker
    tracing: Tracing = NO_TRACING
    keys: IdempotencyKeys | None = None  # for an idempotent handler
    bookkeeping: AsideThreads | None = None  # threads in which async calls use the ledger; set if `keys` is
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)
    process: OwnProcess = field(default_factory=OwnProcess)  # the worker's: it begins every call


class KeyedMessage(NamedTuple):
    """A decoded message of an idempotent handler, before its key is claimed."""

    keys: IdempotencyKeys
    body: Any
    key: str


class OpenedMessage(NamedTuple):
    """A message that is ready for the function."""

    body: Any
    key: str | None  # for an idempotent handler
    previous: PreviousAttempt | None
    cleanup: bool  # whether there was an earlier attempt, which may have left something to clean up


_READABLE = (KeyedMessage, OpenedMessage)  # made once: `isinstance(read, A | B)` makes a union in each call


class Call:
    """The steps of one call: a `penstock.messaging.handler.Execution` without its `run`, owned by the executor.

    A run may finish while the worker ends it from another thread. The first of them ends the call, and only that one
    emits its outcome. The steps left are then skipped: a function not yet called is not called any more, and a claim
    obtained too late is released.
    """

    def __init__(
        self, delivery: Delivery, runtime: HandlerRuntime, together: ExecutionDeliveries | None = None
    ) -> None:
        """``together``: all deliveries of the execution, if it has several; they fail and succeed together."""
        self._delivery = delivery
        self._runtime = runtime
        self._together = together or ExecutionDeliveries((delivery,))
        self._control = ExecutionControl(ends_at_stop=runtime.declaration.on_stop == "release")
        self._lock = threading.Lock()
        self._ended = False  # under the lock
        self._claim: KeyClaim | None = None  # under the lock; written by the thread that runs
        self._settlements: Settlements | None = None  # the result of the run; written by the running thread
        self._time = CallTime(runtime.clock)  # of the user's code: key, cleanup, function
        self._process = runtime.process  # entered around the same code
        # The function returned and its completion is being recorded; written by the running thread.
        self._recording = False
        self._began_at = runtime.clock.monotonic()

    @property
    def ended(self) -> bool:
        """Return True if the call has finished or was ended from outside."""
        return self._ended

    # -- called by the worker, in other threads --------------------------------------------------------------------

    def claim(self) -> HeldClaim | None:
        claim = self._claim
        # A claim that is being ended need not be extended, and is not lost either.
        return None if claim is None or self._ended else claim.held

    def loses(self, claim: HeldClaim) -> bool:  # noqa: ARG002 - a call has one claim
        return not self._ended

    def drain(self) -> None:
        self._control.stop()

    def left_seconds(self, timeout_seconds: float) -> float:
        return self._time.left_seconds(timeout_seconds)

    def time_out(self) -> Settlements:
        if not self._end_once():  # the run ended first, by a moment
            return self._settlements or self._settle_with(
                self._release_later("its result was being recorded when its timeout expired")
            )
        raised = TimedOut(f"it ran longer than its timeout of {self._runtime.declaration.timeout_seconds:g} s")
        failure = FailureDetails(error_type="TimedOut", error=str(raised), traceback=self._stack() or "")
        return self._settle_with(self._fail(raised, failure))

    def release(self) -> None:
        first = self._end_once()
        # Keep the claim while the completion is being recorded: with a free key, the work would be done twice.
        if self._claim is not None and not self._recording:
            self._claim.release()
        if first:
            self._runtime.breaker.skip(self._together)
            self._emit(MessageInterrupted, duration_seconds=self._duration_seconds())

    def interrupt(self) -> None:
        if self._end_once():
            self._runtime.breaker.skip(self._together)
        self._control.end()

    # -- steps of a run --------------------------------------------------------------------------------------------

    def open(self) -> OpenedMessage | Settlements:
        """Read the message and claim its key.

        Return the opened message, or the settlement if the function must not be called.
        """
        read = self.read()
        return self.claim_key(read) if isinstance(read, KeyedMessage) else read

    def read(self) -> KeyedMessage | OpenedMessage | Settlements:
        """Run the first half of `open`, which does not use the ledger."""
        if self._ended:
            return {}
        release_seconds = self._runtime.breaker.decide_release_seconds(self._together)
        if release_seconds is not None:
            read: KeyedMessage | OpenedMessage | Settlements = self._settle_with(
                Release(delay_seconds=release_seconds, uncounted=True, reason=QUEUE_PAUSED)
            )
        else:
            read = self._decode()
        if not isinstance(read, _READABLE):
            self._runtime.breaker.skip(self._together)
        return read

    def claim_key(self, read: KeyedMessage) -> OpenedMessage | Settlements:
        """Run the second half of `open`: claim the key in the ledger."""
        if self._ended:
            return {}
        opened = self._claim_key(read)
        if not isinstance(opened, OpenedMessage):
            self._runtime.breaker.skip(self._together)
        return opened

    def begin_recording(self) -> None:
        """Note that the function returned: from now on a stop does not release the key."""
        self._recording = True

    def record_completion(self, result: Any) -> Settlements:
        """Record the completion of a function that returned, then ack."""
        self.begin_recording()
        first = self._end_once()
        if first:
            self._runtime.breaker.record_success(self._together)
        if self._claim is not None:  # even if another thread ended the call, so that the work is not repeated
            try:
                recorded = self._claim.finish(_outcome(result))
            except TemporaryError as unknown:  # it may be recorded or not: the next delivery finds out
                return self._settle_once(self._release_later(str(unknown)), first)
            except Exception as error:  # for example a result that cannot be stored as JSON
                return self._settle_once(self._fail(error, failure_of(error)), first) if first else {}
            if not recorded:
                return self._settle_once(self._release_later("the claim was lost before the work was recorded"), first)
        if first and self._runtime.bus.wants(MessageFinished):
            self._emit(
                MessageFinished,
                enqueued_at=self._delivery.message.enqueued_at,
                duration_seconds=self._duration_seconds(),
            )
        return self._settle_once(_DONE, first)

    def record_failure(self, raised: BaseException) -> Settlements:
        """Record the failure of a function that raised, then decide."""
        first = self._end_once()
        if isinstance(raised, Interrupted):
            return self._settle_once(self._release_claim(first), first)
        if isinstance(raised, NotBegun):
            self._release_claim(first)
            return self._settle_once(self._release_later(str(raised)), first)
        return self._settle_once(self._fail(raised, failure_of(raised)), first) if first else {}

    def clean_up(self, opened: OpenedMessage) -> Any:
        """Call the cleanup function, if any, and return its result. Only for a message that needs cleanup."""
        cleanup = self._runtime.declaration.cleanup
        if cleanup is None:
            return None
        if takes_context(cleanup, self._runtime.declaration.name, first="body"):
            return cleanup(opened.body, self.context(opened))
        return cleanup(opened.body)

    def call_function(self, opened: OpenedMessage) -> Any:
        """Call the function and return its result: an awaitable if it is async."""
        if self._runtime.wants_context:
            return self._runtime.function(opened.body, self.context(opened))
        return self._runtime.function(opened.body)

    def context(self, opened: OpenedMessage) -> Context:
        """Return the context for functions that take one."""
        return Context(
            message=self._delivery.message,
            queue=self._delivery.queue,
            handler=self._runtime.declaration.name,
            attempt=self._delivery.attempt,
            previous_attempt=opened.previous,
            key=opened.key,
            resources=self._runtime.resources,
            control=self._control,
            on_retry=self.emit_retry,
        )

    def emit_retry(self, tries: int, delay_seconds: float, raised: BaseException) -> None:
        """Emit that a call inside the function failed and will be retried there."""
        failure = failure_of(raised)
        self._emit(
            MessageRetrying,
            tries=tries,
            delay_seconds=delay_seconds,
            error_type=failure.error_type,
            error=failure.error,
        )

    # -- helpers of the steps --------------------------------------------------------------------------------------

    def _decode(self) -> KeyedMessage | OpenedMessage | Settlements:
        try:
            body = self._runtime.codec.decode(self._delivery.message)
        except InvalidMessage as invalid:
            self._emit(MessageInvalid, reason=str(invalid))
            return self._settle_with(self._decide(invalid, None))
        except NewerMessage as newer:
            return self._settle_with(self._handle_newer(newer))
        if self._runtime.keys is None:
            return self._begin(body, None, self._delivery.previous)
        try:
            with self._time, self._process:
                key = self._key(body)
        except Exception as error:
            return self._settle_with(self._fail(error, failure_of(error)))
        return KeyedMessage(self._runtime.keys, body, key)

    def _key(self, body: Any) -> str:
        function = self._runtime.declaration.idempotency
        key = function(body) if function is not None else None
        if not isinstance(key, str) or not key:
            raise TypeError(f"the idempotency key has to be text of at least one character, not {key!r}")
        return key

    def _claim_key(self, read: KeyedMessage) -> OpenedMessage | Settlements:
        keys, body, key = read
        outage = self._runtime.outage
        refusal = outage.refusal
        if refusal is not None:
            return self._ledger_unavailable(refusal)
        try:
            with outage.watch_request():
                attempt = keys.begin(key)
        except TemporaryError as away:
            return self._ledger_unavailable(str(away))
        if isinstance(attempt, KeyDone):
            self._emit(MessageSkipped, reason="already_done", key=key)
            return self._settle_with(Ack())
        if isinstance(attempt, KeyBusy):
            self._emit(MessageSkipped, reason="in_progress", key=key)
            delay_seconds = attempt.seconds + BUSY_JITTER_SECONDS * self._runtime.random()
            return self._settle_with(
                Release(delay_seconds=delay_seconds, uncounted=True, reason="another attempt is processing its key")
            )
        outage.record_success()
        with self._lock:
            self._claim = attempt.claim
            ended = self._ended
        if ended:
            with suppress(TemporaryError):
                attempt.claim.release()
            return {}
        return self._begin(body, key, attempt.previous or self._delivery.previous)

    def _ledger_unavailable(self, reason: str) -> Settlements:
        delay_seconds = self._runtime.outage.pause_seconds(self._runtime.random)
        return self._settle_with(Release(delay_seconds=delay_seconds, uncounted=True, reason=reason))

    def _begin(self, body: Any, key: str | None, previous: PreviousAttempt | None) -> OpenedMessage | Settlements:
        used_up = exhausted(self._delivery, self._runtime.declaration.retry)
        if used_up is not None and not self._runtime.breaker.is_excused(self._delivery):
            failure = FailureDetails(error_type=type(used_up).__name__, error=str(used_up), traceback="")
            return self._settle_with(self._fail(used_up, failure))
        self._began_at = self._runtime.clock.monotonic()
        if self._runtime.bus.wants(MessageStarted):
            self._emit(MessageStarted, enqueued_at=self._delivery.message.enqueued_at)
        return OpenedMessage(body, key, previous, cleanup=previous is not None or self._delivery.attempt > 1)

    def _fail(self, raised: BaseException, failure: FailureDetails) -> Settlement:
        excused_seconds = self._excused_seconds(raised, failure)
        if self._claim is not None:
            try:
                # It was finished just now, or lost: the next delivery finds out.
                if not self._claim.fail(failure.summary):
                    return self._release_later("the claim was lost")
            except TemporaryError:
                pass  # its lease will expire
        settlement = self._decide(raised, failure, excused_seconds)
        self._emit(
            MessageFailed,
            enqueued_at=self._delivery.message.enqueued_at,
            duration_seconds=self._duration_seconds(),
            error_type=failure.error_type,
            error=failure.error,
            # A deliberate rejection or retry needs no traceback.
            traceback=None if isinstance(raised, Reject | Retry) else failure.traceback,
            exception=raised,
            final=isinstance(settlement, DeadLetter),
            delay_seconds=settlement.delay_seconds if isinstance(settlement, Release) else None,
        )
        return settlement

    def _excused_seconds(self, raised: BaseException, failure: FailureDetails) -> float | None:
        """Report to the breaker; return the delay if an outage caused the failure."""
        breaker = self._runtime.breaker
        if isinstance(raised, Exhausted):
            return None
        if isinstance(raised, Reject | InvalidMessage | NewerMessage) or requested_delay(raised) is not None:
            breaker.record_decided(self._together)
            return None
        if not breaker.is_on:
            return None
        name = fingerprint(self._runtime.declaration.name, failure.error_type, raised, failure.traceback)
        return breaker.record_failure(self._together, fingerprint=name, error=failure.summary)

    def _release_claim(self, first: bool) -> Settlement:
        if self._claim is not None:
            with suppress(TemporaryError):
                self._claim.release()
        if first:  # otherwise the thread that ended the call has reported it
            self._runtime.breaker.skip(self._together)
            self._emit(MessageInterrupted, duration_seconds=self._duration_seconds())
        return UNCOUNTED

    def _handle_newer(self, newer: NewerMessage) -> Settlement:
        settlement = decide_newer(
            newer,
            delivery=self._delivery,
            policy=self._runtime.declaration.retry,
            now=self._delivery.received_at,
            random=self._runtime.random,
        )
        if isinstance(settlement, DeadLetter):
            self._emit(MessageInvalid, reason=settlement.reason)
        else:
            self._emit(MessageSkipped, reason="newer_schema")
        return settlement

    def _decide(
        self, raised: BaseException, failure: FailureDetails | None, excused_seconds: float | None = None
    ) -> Settlement:
        return decide(
            raised,
            failure,
            delivery=self._delivery,
            policy=self._runtime.declaration.retry,
            random=self._runtime.random,
            handler=self._runtime.declaration.name,
            excused_seconds=excused_seconds,
        )

    def _release_later(self, reason: str) -> Release:
        """Return a release with backoff that does not count as an attempt: the message is not at fault."""
        policy = self._runtime.declaration.retry
        delay_seconds = backoff_seconds(
            attempt=self._delivery.attempt,
            base_seconds=policy.base_seconds,
            cap_seconds=policy.cap_seconds,
            random=self._runtime.random,
        )
        return Release(delay_seconds=delay_seconds, uncounted=True, reason=reason)

    def _end_once(self) -> bool:
        """Return True to the first caller, which ends the call."""
        with self._lock:
            first, self._ended = not self._ended, True
        return first

    def _settle_once(self, settlement: Settlement, first: bool) -> Settlements:
        """Return the settlements of the run; none if another thread ended the call."""
        if not first:
            return {}
        self._settlements = self._settle_with(settlement)
        return self._settlements

    def _settle_with(self, settlement: Settlement) -> Settlements:
        return {self._delivery.receipt: settlement}

    def _duration_seconds(self) -> float:
        return self._runtime.clock.monotonic() - self._began_at

    def _stack(self) -> str | None:
        """Return the current stack of the work, without variables."""
        return None

    def _emit(self, kind: type[Any], **fields: Any) -> None:
        bus, delivery = self._runtime.bus, self._delivery
        if bus.wants(kind):
            bus.emit(
                kind(
                    queue=delivery.queue,
                    handler=self._runtime.declaration.name,
                    message_id=delivery.message.id,
                    attempt=delivery.attempt,
                    **fields,
                )
            )


class PlainCall(Call):
    """One call of a plain function, in a thread of the pool."""

    _thread_id: int | None = None  # written by the running thread

    def run(self) -> Settlements:
        self._thread_id = threading.get_ident()
        opened = self.open()
        if not isinstance(opened, OpenedMessage):
            return opened
        try:
            with self._time, self._process:
                if opened.cleanup:
                    run_to_its_end(self.clean_up(opened))
                result = run_to_its_end(self.call_function(opened))
        except BaseException as raised:  # SystemExit too: the delivery must be settled, whatever user code raises
            return self.record_failure(raised)
        return self.record_completion(result)

    def _stack(self) -> str | None:
        frame = sys._current_frames().get(self._thread_id or 0)
        return None if frame is None else "".join(traceback.format_stack(frame))


class OwnTask:
    """The asyncio task of one execution. Cancelling it before its begin or after its end does nothing."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None  # this and the next: written by the loop
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Remember the current task. Called by the task itself."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)

    def cancel(self) -> None:
        """Cancel the task. Thread-safe."""
        task, loop = self._task, self._loop
        if task is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)

    def stack(self) -> str | None:
        """Return the stack of the task, without variables."""
        task = self._task
        if task is None:
            return None
        return "".join(line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1))


class AsyncCall(Call):
    """One call of an async function, as a task on the worker's event loop."""

    def __init__(self, delivery: Delivery, runtime: HandlerRuntime) -> None:
        super().__init__(delivery, runtime)
        self._task = OwnTask()
        self._bookkeeping = runtime.bookkeeping

    async def run(self) -> Settlements:
        self._task.begin()
        read = self.read()
        opened = await self._aside(self.claim_key, read) if isinstance(read, KeyedMessage) else read
        if not isinstance(opened, OpenedMessage):
            return opened
        try:
            with self._time, self._process:
                if opened.cleanup:
                    await _awaited(self.clean_up(opened))
                result = run_to_its_end(await self.call_function(opened))
        except asyncio.CancelledError as cancelled:
            if self._control.over:
                raise
            return await self._aside(self.record_failure, cancelled, urgent=True)  # the function cancelled itself
        except BaseException as raised:
            return await self._aside(self.record_failure, raised, urgent=True)
        if self._bookkeeping is None:
            return self.record_completion(result)
        self.begin_recording()
        return await self._bookkeeping.run(self.record_completion, result, urgent=True)

    def interrupt(self) -> None:
        super().interrupt()
        self._task.cancel()

    async def _aside(self, step: Callable[..., Result], *arguments: Any, urgent: bool = False) -> Result:
        """Run a step, in another thread if it uses the ledger, which blocks. Urgent steps overtake the others."""
        if self._bookkeeping is None:
            return step(*arguments)
        return await self._bookkeeping.run(step, *arguments, urgent=urgent)

    def _stack(self) -> str | None:
        return self._task.stack()


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _outcome(result: Any) -> str:
    """Return the result as JSON, to be stored with the completion. Raises `TypeError` if it cannot be serialised."""
    try:
        return to_json(result).decode("utf-8")
    except PydanticSerializationError as error:
        raise TypeError(
            f"the result of an idempotent function is stored as JSON, and this one cannot be: {error}"
        ) from error
