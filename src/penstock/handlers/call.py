"""One delivery in the hands of a function: open the message, claim its key, call, record, decide.

The steps are the same for plain and async functions; only the call itself differs in colour, and has a module for each
(`plain_call`, `async_call`, `child_call`). Whatever a function does comes to one settlement, in one place (`decision`).
Recorded first, then settled (by the worker), as everywhere.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from penstock.errors import Interrupted, InvalidMessage, NewerMessage, Reject, TemporaryError
from penstock.events import (
    Bus,
    MessageFailed,
    MessageFinished,
    MessageGivenBack,
    MessageInvalid,
    MessageRetrying,
    MessageSkipped,
    MessageStarted,
)
from penstock.handlers.breaker import ExecutionDeliveries, LineBreaker
from penstock.handlers.context import Context
from penstock.handlers.decision import Exhausted, TimedOut, decide, decide_newer, delay_asked, exhausted
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.keys import IdempotencyKeys, KeyBusy, KeyClaim, KeyDone
from penstock.handlers.outage import OutageWatch
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.call import NO_RESOURCES, CallTime, ExecutionControl
from penstock.messaging.clock import Clock
from penstock.messaging.declarations import takes_context
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.failure import FailureDetails, failure_of, fingerprint
from penstock.messaging.forks import OwnProcess
from penstock.messaging.handler import Answer, HeldClaim
from penstock.messaging.schema import BodyCodec
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.threads import AsideThreads
from penstock.messaging.tracing import NO_TRACING, Tracing

Step = TypeVar("Step", "KeyedMessage | OpenedMessage | Answer", "OpenedMessage | Answer")

GIVEN_BACK = Release(refund=True)
BUSY_JITTER_SECONDS = 1.0
QUEUE_PAUSED = "the queue is paused, since message after message failed in the same way"


class NotBegun(TemporaryError):
    """This machine could not begin the call. The message is released, which does not count as an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRuntime:
    """What the calls of one handler share."""

    declaration: HandlerDeclaration
    codec: BodyCodec[Any]
    function: Callable[..., Any]  # the user's, or what runs it in another process
    wants_context: bool
    bus: Bus
    clock: Clock
    random: Random
    outage: OutageWatch
    breaker: LineBreaker
    tracing: Tracing = NO_TRACING
    keys: IdempotencyKeys | None = None  # of an idempotent handler
    bookkeeping: AsideThreads | None = None  # where async calls talk to the ledger; set with `keys`
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)


class KeyedMessage(NamedTuple):
    """A message of an idempotent handler that was read, before its key is claimed."""

    keys: IdempotencyKeys
    body: Any
    key: str


class OpenedMessage(NamedTuple):
    """A message that can be worked on, and what is known of it beside its delivery."""

    body: Any
    key: str | None  # of an idempotent handler
    previous: PreviousAttempt | None
    cleanup: bool  # whether an attempt before this one was broken off


class Call:
    """The steps of one call, as a `penstock.messaging.handler.Execution` without its `run`.

    A run that comes to its end and a worker that ends it from outside may meet. The first of them ends the call, and
    only that one tells of it. What a call that was ended has yet to come to is then left out: a function that was not
    called so far is not called any more, and a claim that comes late is given back.
    """

    def __init__(self, delivery: Delivery, around: HandlerRuntime, party: ExecutionDeliveries | None = None) -> None:
        """``party``: of a call that takes several deliveries; they fail and succeed together."""
        self._delivery = delivery
        self._around = around
        self._party = party or ExecutionDeliveries((delivery,))
        self._control = ExecutionControl(gives_back=around.declaration.on_stop == "give_back")
        self._lock = threading.Lock()
        self._ended = False  # under the lock
        self._claim: KeyClaim | None = None  # under the lock; written by the thread that runs
        self._given: Answer | None = None  # what the run came to; written by the thread that runs
        self._time = CallTime(around.clock)  # of the user's code: key, cleanup, function
        self._process = OwnProcess()  # around the same
        self._recording = False  # the function returned, and its completion is on its way; written as above
        self._began_at = around.clock.monotonic()

    @property
    def ended(self) -> bool:
        """Whether it came to its end, or somebody ended it."""
        return self._ended

    # -- by the worker, from other threads -----------------------------------------------------------------------

    def claim(self) -> HeldClaim | None:
        claim = self._claim
        # A claim that is being ended is not ours to extend, and not lost either.
        return None if claim is None or self._ended else claim.held

    def loses(self, claim: HeldClaim) -> bool:  # noqa: ARG002 - a call has one claim
        return not self._ended

    def drain(self) -> None:
        self._control.stop()

    def left_seconds(self, timeout_seconds: float) -> float:
        return self._time.left_seconds(timeout_seconds)

    def time_out(self) -> Answer:
        if not self._ends():  # the run was quicker by a moment
            return self._given or self._answer(self._later("its end was being recorded when its timeout was over"))
        raised = TimedOut(f"it ran longer than its timeout of {self._around.declaration.timeout_seconds:g} s")
        failure = FailureDetails(error_type="TimedOut", error=str(raised), traceback=self._where() or "")
        return self._answer(self._fail(raised, failure))

    def give_back(self) -> None:
        first = self._ends()
        # The completion that is being recorded keeps its claim: freed, the key would have its work done twice.
        if self._claim is not None and not self._recording:
            self._claim.give_back()
        if first:
            self._around.breaker.left(self._party)
            self._emit(MessageGivenBack, duration_seconds=self._duration_seconds())

    def interrupt(self) -> None:
        if self._ends():
            self._around.breaker.left(self._party)
        self._control.end()

    # -- steps of a run ------------------------------------------------------------------------------------------

    def open(self) -> OpenedMessage | Answer:
        """Read the message and claim its key; answers what to call with, or that there is nothing to call."""
        read = self.read()
        return self.claimed(read) if isinstance(read, KeyedMessage) else read

    def read(self) -> KeyedMessage | OpenedMessage | Answer:
        """The first half of `open`, which asks no ledger."""
        if self._ended:
            return {}
        held_seconds = self._around.breaker.holds_back(self._party)
        if held_seconds is not None:
            self._around.breaker.left(self._party)
            return self._answer(Release(delay_seconds=held_seconds, refund=True, reason=QUEUE_PAUSED))
        return self._called_or_left(self._read())

    def claimed(self, read: KeyedMessage) -> OpenedMessage | Answer:
        """The second half: claim the key in the ledger."""
        if self._ended:
            return {}
        return self._called_or_left(self._claimed(read))

    def returned(self) -> None:
        """The function returned: from here on a stop leaves the key to its completion."""
        self._recording = True

    def finish(self, result: Any) -> Answer:
        """The function returned: record that, then ack."""
        self.returned()
        first = self._ends()
        if first:
            self._around.breaker.succeeded(self._party)
        if self._claim is not None:  # whoever ended the call: what is recorded is not done again
            try:
                recorded = self._claim.finish(_outcome(result))
            except TemporaryError as unknown:  # recorded or not: the next delivery finds out
                return self._gives(self._later(str(unknown)), first)
            except Exception as error:  # a result that is no JSON
                return self._gives(self._fail(error, failure_of(error)), first) if first else {}
            if not recorded:
                return self._gives(self._later("the claim was lost before the work was recorded"), first)
        if first:
            self._emit(
                MessageFinished,
                enqueued_at=self._delivery.message.enqueued_at,
                duration_seconds=self._duration_seconds(),
            )
        return self._gives(Ack(), first)

    def failed(self, raised: BaseException) -> Answer:
        """The function raised: record that, then decide."""
        first = self._ends()
        if isinstance(raised, Interrupted):
            return self._gives(self._gave_back(first), first)
        if isinstance(raised, NotBegun):
            self._gave_back(first)
            return self._gives(self._later(str(raised)), first)
        return self._gives(self._fail(raised, failure_of(raised)), first) if first else {}

    def cleaned(self, opened: OpenedMessage) -> Any:
        """Call cleanup, where there is one; answers what it returned. Only where there is something to clean."""
        cleanup = self._around.declaration.cleanup
        if cleanup is None:
            return None
        if takes_context(cleanup, self._around.declaration.name, first="body"):
            return cleanup(opened.body, self.context(opened))
        return cleanup(opened.body)

    def called(self, opened: OpenedMessage) -> Any:
        """Call the function; answers what it returned: of an async one, what is to be awaited."""
        if self._around.wants_context:
            return self._around.function(opened.body, self.context(opened))
        return self._around.function(opened.body)

    def context(self, opened: OpenedMessage) -> Context:
        """What a function is handed beside the body, where it takes it."""
        return Context(
            message=self._delivery.message,
            queue=self._delivery.queue,
            handler=self._around.declaration.name,
            attempt=self._delivery.attempt,
            previous_attempt=opened.previous,
            key=opened.key,
            resources=self._around.resources,
            control=self._control,
            tell_retry=self.tell_retry,
        )

    # -- parts of these ------------------------------------------------------------------------------------------

    def _called_or_left(self, opened: "Step") -> "Step":
        """Where the function is not called, that says nothing of what it stands on."""
        if not isinstance(opened, KeyedMessage | OpenedMessage):
            self._around.breaker.left(self._party)
        return opened

    def _read(self) -> KeyedMessage | OpenedMessage | Answer:
        try:
            body = self._around.codec.decode(self._delivery.message)
        except InvalidMessage as invalid:
            self._emit(MessageInvalid, reason=str(invalid))
            return self._answer(self._decide(invalid, None))
        except NewerMessage as newer:
            return self._answer(self._newer(newer))
        if self._around.keys is None:
            return self._opened(body, None, self._delivery.previous)
        try:
            with self._time.counted(), self._process:
                key = self._key(body)
        except Exception as error:
            return self._answer(self._fail(error, failure_of(error)))
        return KeyedMessage(self._around.keys, body, key)

    def _key(self, body: Any) -> str:
        function = self._around.declaration.idempotency
        key = function(body) if function is not None else None
        if not isinstance(key, str) or not key:
            raise TypeError(f"the idempotency key has to be text of at least one character, and it is {key!r}")
        return key

    def _claimed(self, read: KeyedMessage) -> OpenedMessage | Answer:
        keys, body, key = read
        outage = self._around.outage
        refusal = outage.refusal
        if refusal is not None:
            return self._ledger_away(refusal)
        try:
            with outage.asked():
                begun = keys.begin(key)
        except TemporaryError as away:
            return self._ledger_away(str(away))
        if isinstance(begun, KeyDone):
            self._emit(MessageSkipped, reason="already_done", key=key)
            return self._answer(Ack())
        if isinstance(begun, KeyBusy):
            self._emit(MessageSkipped, reason="in_progress", key=key)
            delay_seconds = begun.seconds + BUSY_JITTER_SECONDS * self._around.random()
            return self._answer(Release(delay_seconds=delay_seconds, refund=True, reason="its key is being worked on"))
        outage.succeeded()
        with self._lock:
            self._claim = begun.claim
            late = self._ended
        if late:
            with suppress(TemporaryError):
                begun.claim.give_back()
            return {}
        return self._opened(body, key, begun.previous or self._delivery.previous)

    def _ledger_away(self, reason: str) -> Answer:
        delay_seconds = self._around.outage.pause_seconds(self._around.random)
        return self._answer(Release(delay_seconds=delay_seconds, refund=True, reason=reason))

    def _opened(self, body: Any, key: str | None, previous: PreviousAttempt | None) -> OpenedMessage | Answer:
        used_up = exhausted(self._delivery, self._around.declaration.retry)
        if used_up is not None and not self._around.breaker.spares(self._delivery):
            failure = FailureDetails(error_type=type(used_up).__name__, error=str(used_up), traceback="")
            return self._answer(self._fail(used_up, failure))
        self._began_at = self._around.clock.monotonic()
        self._emit(MessageStarted, enqueued_at=self._delivery.message.enqueued_at)
        return OpenedMessage(body, key, previous, cleanup=previous is not None or self._delivery.attempt > 1)

    def _fail(self, raised: BaseException, failure: FailureDetails) -> Settlement:
        excused_seconds = self._excused_seconds(raised, failure)
        if self._claim is not None:
            try:
                if not self._claim.fail(failure.summary):  # finished just now, or lost: the next delivery finds out
                    return self._later("the claim was lost")
            except TemporaryError:
                pass  # its lease ends by itself
        settlement = self._decide(raised, failure, excused_seconds)
        self._emit(
            MessageFailed,
            enqueued_at=self._delivery.message.enqueued_at,
            duration_seconds=self._duration_seconds(),
            error_type=failure.error_type,
            error=failure.error,
            traceback=None if isinstance(raised, Reject) else failure.traceback,  # said on purpose, from a known place
            exception=raised,
            final=isinstance(settlement, DeadLetter),
            delay_seconds=settlement.delay_seconds if isinstance(settlement, Release) else None,
        )
        return settlement

    def _excused_seconds(self, raised: BaseException, failure: FailureDetails) -> float | None:
        """Tell the breaker; answers a wait where the failure is an outage's."""
        breaker = self._around.breaker
        if isinstance(raised, Exhausted):
            return None
        if isinstance(raised, Reject | InvalidMessage | NewerMessage) or delay_asked(raised) is not None:
            breaker.answered(self._party)
            return None
        if not breaker.is_on:
            return None
        name = fingerprint(self._around.declaration.name, failure.error_type, raised, failure.traceback)
        return breaker.failed(self._party, fingerprint=name, error=failure.summary)

    def _gave_back(self, first: bool) -> Settlement:
        if self._claim is not None:
            with suppress(TemporaryError):
                self._claim.give_back()
        if first:  # else whoever broke it off has told so
            self._around.breaker.left(self._party)
            self._emit(MessageGivenBack, duration_seconds=self._duration_seconds())
        return GIVEN_BACK

    def _newer(self, newer: NewerMessage) -> Settlement:
        settlement = decide_newer(
            newer,
            delivery=self._delivery,
            policy=self._around.declaration.retry,
            now=self._delivery.received_at,
            random=self._around.random,
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
            policy=self._around.declaration.retry,
            random=self._around.random,
            handler=self._around.declaration.name,
            excused_seconds=excused_seconds,
        )

    def _later(self, reason: str) -> Release:
        """Not the message's fault: it costs no attempt."""
        policy = self._around.declaration.retry
        delay_seconds = backoff_seconds(
            attempt=self._delivery.attempt,
            base_seconds=policy.base_seconds,
            cap_seconds=policy.cap_seconds,
            random=self._around.random,
        )
        return Release(delay_seconds=delay_seconds, refund=True, reason=reason)

    def _ends(self) -> bool:
        """True for the first who ends the call."""
        with self._lock:
            first, self._ended = not self._ended, True
        return first

    def _gives(self, settlement: Settlement, first: bool) -> Answer:
        """The run's answer; none where somebody else decided before."""
        if not first:
            return {}
        self._given = self._answer(settlement)
        return self._given

    def _answer(self, settlement: Settlement) -> Answer:
        return {self._delivery.receipt: settlement}

    def _duration_seconds(self) -> float:
        return self._around.clock.monotonic() - self._began_at

    def _where(self) -> str | None:
        """What the work is doing now, as a stack without variables."""
        return None

    def tell_retry(self, tries: int, delay_seconds: float, raised: BaseException) -> None:
        """A call inside the function failed and is tried again there."""
        failure = failure_of(raised)
        self._emit(
            MessageRetrying,
            tries=tries,
            delay_seconds=delay_seconds,
            error_type=failure.error_type,
            error=failure.error,
        )

    def _emit(self, kind: type[Any], **fields: Any) -> None:
        bus, delivery = self._around.bus, self._delivery
        if bus.hears(kind):
            bus.emit(
                kind(
                    queue=delivery.queue,
                    handler=self._around.declaration.name,
                    message_id=delivery.message.id,
                    attempt=delivery.attempt,
                    **fields,
                )
            )


def _outcome(result: Any) -> str:
    """What is stored of a completion: the result as JSON. Raises for one that is none."""
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(result).decode("utf-8")
    except PydanticSerializationError as error:
        raise TypeError(f"what an idempotent function returns is stored as JSON, and this is none: {error}") from error
