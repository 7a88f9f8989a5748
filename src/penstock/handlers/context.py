"""The arguments of users' functions: contexts, and the items of a batch."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.messaging.call import CallContext
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.message import Message

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext(CallContext):
    """Context of one call of a function that takes batches: checkpoints, retries and resources.

    Created for the call, and used by the thread or task that runs it.

    Attributes:
        queue: The queue of the messages.
        handler: The handler's name.
        resources: The resources of the app's lifespans.
    """

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(BatchContext):
    """Context of one call of a function that takes one message: message, attempt, checkpoints, retries and resources.

    It also has the attributes of `BatchContext`.

    Attributes:
        message: The message.
        attempt: Number of this attempt, from 1.
        previous_attempt: The attempt before this one, if the broker or the ledger records it.
        key: The idempotency key; None if the handler is not idempotent.
    """

    message: Message
    attempt: int
    previous_attempt: PreviousAttempt | None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Generic[Body]):
    """One message of a batch.

    Attributes:
        body: The decoded body.
        message: The message.
        attempt: Number of this attempt, from 1.
        previous_attempt: The attempt before this one, if the broker records it.
    """

    body: Body
    message: Message
    attempt: int
    previous_attempt: PreviousAttempt | None


def item_of(delivery: Delivery, body: Any) -> Item[Any]:
    """Return a delivery as an item for functions that take batches."""
    return Item(body=body, message=delivery.message, attempt=delivery.attempt, previous_attempt=delivery.previous)
