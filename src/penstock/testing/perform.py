"""Run one handler on one message, in the test's own thread, with the same steps as in a worker."""

import asyncio
import inspect
import random
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from penstock.app.handlers import Handlers
from penstock.events import Bus, Event, MessageFailed
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.function_handler import FunctionHandler
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.messaging.call import NO_RESOURCES
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.handler import HeldClaim, Settlements
from penstock.messaging.message import NO_ATTRIBUTES, Message
from penstock.messaging.schema import BodyCodec
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.testing.recorder import Sent, recorded

RECEIPT = "perform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """The outcome of the message, the events of the handler, and the messages it sent."""

    settlement: Settlement
    error: BaseException | None  # raised by the handler
    events: tuple[Event, ...]
    sent: tuple[Sent, ...] = ()  # through any `App`, oldest first

    @property
    def acked(self) -> bool:
        """Return True if the message was processed."""
        return isinstance(self.settlement, Ack)

    @property
    def released(self) -> bool:
        """Return True if the message returned to the queue for another attempt."""
        return isinstance(self.settlement, Release)

    @property
    def dead(self) -> bool:
        """Return True if the message was dead-lettered."""
        return isinstance(self.settlement, DeadLetter)

    @property
    def reason(self) -> str | None:
        """Return why the message was not acked; None if it was."""
        return None if isinstance(self.settlement, Ack) else self.settlement.reason


def perform(
    app: Handlers,
    handler: Callable[..., Any],
    body: Any,
    *,
    attempt: int = 1,
    previous_attempt: PreviousAttempt | None = None,
    group: str | None = None,
    attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    resources: Mapping[str, Any] = NO_RESOURCES,
) -> Performed:
    """Run the handler on one message, without a broker, a ledger or another thread.

    Messages that the handler sends through an `App` (`send`, `send_many`, `announce`) appear in ``Performed.sent``
    and are not delivered; inside a `TestWorker` they also go to that worker's queues. An idempotent handler always
    finds its key free. A handler with ``isolation="process"`` runs in the test's process.

    Args:
        app: The app or handlers with which the handler is registered.
        handler: The decorated function.
        body: Encoded and decoded by the queue's contract, like a sent body. Pass bytes for an unchecked body.
        attempt: The attempt number that the handler sees, from 1.
        previous_attempt: The previous attempt that the handler sees.
        group: The message's group.
        attributes: Attributes of the message, in addition to the contract's own.
        resources: The resources that lifespans would provide.

    Returns:
        The settlement of the message, the exception, the events and the sent messages.
    """
    declaration = app.declaration_of(handler)
    codec: BodyCodec[Any] = BodyCodec(declaration.queue)
    message = Message(
        id="message-1",
        body=body if isinstance(body, bytes) else codec.encode(body),
        enqueued_at=SystemClock().now(),
        attributes={**codec.attributes(), **attributes},
        group=group,
    )
    delivery = Delivery(
        message=message,
        queue=declaration.queue.name,
        receipt=RECEIPT,
        attempt=attempt,
        received_at=message.enqueued_at,
        previous=previous_attempt,
    )
    with recorded() as sent:
        performed = _performed(declaration, delivery, resources)
    return replace(performed, sent=tuple(sent))


def _performed(declaration: HandlerDeclaration, delivery: Delivery, resources: Mapping[str, Any]) -> Performed:
    events: list[Event] = []
    here = replace(declaration, isolation="none")
    made = FunctionHandler(
        here,
        bus=Bus(events.append),
        clock=SystemClock(),
        random=random.random,
        keys=_FreeKeys() if declaration.idempotency is not None else None,
        resources=resources,
    )
    returned = made.begin([delivery]).run()
    settlements = _awaited(returned) if inspect.iscoroutine(returned) else returned
    failures = [event.exception for event in events if isinstance(event, MessageFailed)]
    return Performed(
        settlement=settlements[RECEIPT],  # type: ignore[index] # a coroutine was awaited above
        error=failures[0] if failures else None,
        events=tuple(events),
    )


def _awaited(coroutine: Coroutine[Any, Any, Settlements]) -> Settlements:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:  # an async test has a running loop in this thread
        return thread.submit(asyncio.run, coroutine).result()


class _FreeClaim:
    @property
    def held(self) -> HeldClaim:
        raise AssertionError("no heartbeat extends this claim")

    def finish(self, outcome: str) -> bool:  # noqa: ARG002 - the signature is `Claim`'s
        return True

    def fail(self, reason: str) -> bool:  # noqa: ARG002 - as above
        return True

    def release(self) -> bool:
        return True


class _FreeKeys:
    """Keys that are always free and never recorded."""

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:  # noqa: ARG002 - the signature is `Keys`'s
        return KeyBegun(claim=_FreeClaim(), previous=None)

    def forget(self) -> None:
        """Do nothing: no key is recorded."""
