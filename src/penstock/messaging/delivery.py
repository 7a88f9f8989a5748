"""Deliveries: one hand-over of a message to one worker."""

from dataclasses import dataclass

from penstock.messaging.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One hand-over: who may settle it is decided by the receipt, and only while its lease holds.

    ``attempt`` is 1 for the first hand-over. Every hand-over counts but those that were released with
    ``refund=True`` (given back unstarted or interrupted by a shutdown).
    """

    message: Message
    queue: str
    receipt: str  # never repeats, for this or any other message
    attempt: int
    received_at: float  # epoch seconds, the broker's clock
