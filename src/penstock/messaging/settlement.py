"""The three ways in which a delivery ends. The type is closed: there is no other."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The work is done and recorded: the message leaves the queue.

    The fields are only logged and do not affect equality.
    """

    objects: tuple[str, ...] | None = field(default=None, compare=False)  # addresses, if the message names any
    reason: str | None = field(default=None, compare=False)  # set if there was nothing to process


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The message returns to its queue and is visible after the delay.

    ``uncounted`` does not count the attempt, if the broker supports that: for work that never started or that a
    shutdown interrupted. ``reason`` is kept for the next consumer, if the broker supports that (`PreviousAttempt`).
    """

    delay_seconds: float = 0.0
    uncounted: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """The message is given up and moves to the dead-letter queue with its history."""

    reason: str
    exception: str | None = None  # type and message, e.g. "ValueError: not a number"
    traceback: str | None = None  # without local variables, which may hold secrets
    set_aside: bool = False  # from DLQ to final DLQ, for this reason; its death stays unchanged
    # The fields below are recorded in the message and do not affect equality.
    poison: bool = field(default=False, compare=False)  # rejected or unreadable: another attempt cannot help
    fingerprint: str | None = field(default=None, compare=False)  # from `penstock.messaging.failure`
    handler: str | None = field(default=None, compare=False)  # the handler that gave up


Settlement = Ack | Release | DeadLetter

# The work never started, or a shutdown interrupted it: no attempt is counted, and the message is visible at once.
UNCOUNTED = Release(uncounted=True)

Operation = Literal["ack", "release", "dead_letter"]


def operation_of(settlement: Settlement) -> Operation:
    """Return the name of a settlement in logs and metrics."""
    match settlement:
        case Ack():
            return "ack"
        case Release():
            return "release"
        case DeadLetter():
            return "dead_letter"
