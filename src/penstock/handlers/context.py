"""What a function is handed beside the body."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.messaging.call import CallContext
from penstock.messaging.delivery import Delivery, PreviousAttempt
from penstock.messaging.message import Message

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext(CallContext):
    """One call of a function of batches, and the ways to behave well in it."""

    queue: str


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
