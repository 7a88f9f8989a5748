"""Deliveries of messages to workers, and the ends of earlier attempts."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.messaging.message import Message


class AttemptEnd(StrEnum):
    """The end of an attempt that did not settle its message for good."""

    FAILED = "failed"  # released for another attempt
    RELEASED = "given_back"  # interrupted by a shutdown, or never started
    EXPIRED = "expired"  # its lease expired: the worker crashed, hung or lost its connection


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousAttempt:
    """The previous delivery of a message, and how it ended. Times are epoch seconds by the broker's clock."""

    started_at: float
    ended_at: float
    worker: str  # the broker's name for the client
    end: AttemptEnd
    reason: str | None = None  # the reason given by a release


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivery of a message to one worker.

    Only the holder of its receipt handle can settle it, while the lease lasts. ``attempt`` counts deliveries from 1,
    without those released with ``uncounted=True`` (never started, or interrupted by a shutdown). ``previous`` is the
    delivery before this one, counted or not, if the broker remembers it (`BrokerCapabilities.remembers_attempts`).
    """

    message: Message
    queue: str
    receipt: str  # unique among all deliveries of all messages
    attempt: int
    received_at: float  # epoch seconds, the broker's clock
    previous: PreviousAttempt | None = None
    moved_from: str | None = None  # the source queue, if the broker itself dead-lettered without a reason
