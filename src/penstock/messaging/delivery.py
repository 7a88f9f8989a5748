"""Deliveries: one hand-over of a message to one worker."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.messaging.message import Message


class AttemptEnd(StrEnum):
    """How an attempt ended that did not settle its message for good."""

    FAILED = "failed"  # released to be tried again
    GIVEN_BACK = "given_back"  # broken off by a shutdown, or never begun
    EXPIRED = "expired"  # its lease ran out: the worker died, hung or was cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousAttempt:
    """The hand-over before this one: when, where, and how it ended. Times are epoch seconds, the broker's clock."""

    started_at: float
    ended_at: float
    worker: str  # as the broker knows its clients
    end: AttemptEnd
    reason: str | None = None  # what a release said


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One hand-over: who may settle it is decided by the receipt, and only while its lease holds.

    ``attempt`` is 1 for the first hand-over. Every hand-over counts but those that were released with
    ``refund=True`` (given back unstarted or interrupted by a shutdown). ``previous`` is the hand-over before, refunded
    or not, where the broker remembers it (`Capabilities.remembers_attempts`).
    """

    message: Message
    queue: str
    receipt: str  # never repeats, for this or any other message
    attempt: int
    received_at: float  # epoch seconds, the broker's clock
    previous: PreviousAttempt | None = None
    moved_from: str | None = None  # of a dead letter that the broker itself gave up on and says no more of: its queue
