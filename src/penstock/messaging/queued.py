"""A message as found in its queue, without receiving it: `Broker.peek` and `Broker.find` return these values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.messaging.death import AttemptRecord
from penstock.messaging.message import Message

PEEK_BODIES_BYTES_MAX = 8 * 1024 * 1024  # of one page: it ends with the message that exceeds this


class QueuedState(StrEnum):
    """The state of a message in its queue."""

    WAITING = "waiting"  # visible: the next receive may deliver it
    IN_FLIGHT = "in_flight"  # leased by a worker
    DELAYED = "delayed"  # invisible until its time, after a send or a release with a delay


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message with its state, at one moment. Times are epoch seconds by the broker's clock."""

    message: Message
    state: QueuedState
    near: str  # where the broker found it, for a later `Broker.find`; its form is the broker's own
    deliveries: int  # so far, including the current one
    attempts: int  # the deliveries that count as attempts, including the current one
    visible_at: float | None = None  # when the delay or the lease ends; None while it waits
    leased_at: float | None = None  # when the current delivery began
    worker: str | None = None  # which holds it
    tries: Sequence[AttemptRecord] = ()  # the ended deliveries in this queue that the broker remembers, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedPage:
    """Some of a queue's messages in one state."""

    messages: Sequence[QueuedMessage] = ()
    next: str | None = None  # the argument ``after`` of the next page, which may be empty; None if there is none
