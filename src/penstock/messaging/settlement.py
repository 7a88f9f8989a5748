"""The three ways a delivery ends. The type is closed: nothing else ends one."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The work is done and recorded: the message leaves the queue.

    What follows is told in the log, and makes no other settlement of it.
    """

    objects: tuple[str, ...] | None = field(default=None, compare=False)  # addresses, where the message announced any
    reason: str | None = field(default=None, compare=False)  # where there was nothing to work on


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The message goes back to its queue and is visible after the delay.

    ``refund`` gives the attempt back, where the broker can: for work that was never begun or that a shutdown broke off.
    ``reason`` is kept, where the broker can, for whoever gets the message next (`PreviousAttempt`).
    """

    delay_seconds: float = 0.0
    refund: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """The message is given up on and moves to the dead-letter queue with its history."""

    reason: str
    exception: str | None = None  # type and message, e.g. "ValueError: not a number"
    traceback: str | None = None  # without local variables: they hold secrets
    set_aside: bool = False  # of a dead letter: it goes on to the second tier for this reason, its own death unchanged
    # What follows is told on the letter, and makes no other settlement of it.
    poison: bool = field(default=False, compare=False)  # rejected or unreadable: another attempt cannot help
    fingerprint: str | None = field(default=None, compare=False)  # as `penstock.messaging.failure` makes it
    handler: str | None = field(default=None, compare=False)  # who gave up


Settlement = Ack | Release | DeadLetter

Operation = Literal["ack", "release", "dead_letter"]


def operation_of(settlement: Settlement) -> Operation:
    """What a settlement is called in logs and metrics."""
    match settlement:
        case Ack():
            return "ack"
        case Release():
            return "release"
        case DeadLetter():
            return "dead_letter"
