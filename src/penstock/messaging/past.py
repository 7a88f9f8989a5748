"""What a message died of before: its past, which it carries along from one life to the next.

A dead letter that is replayed is a message again, and has no death: that becomes the newest entry of the attribute
`penstock-past`, in brief. So a letter that died several times tells of all its deaths, and when it was first sent. The
past is bounded: the first entry, which knows the beginning, and the last ones are kept. What is read may be forged or
garbled: it is then no past at all.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from penstock.messaging.message import Attributes

DEATH_ATTRIBUTE = "penstock-death"  # as `penstock.messaging.death` writes it
PAST_ATTRIBUTE = "penstock-past"
PAST_MAX = 10  # deaths
_CHARS_MAX = 200  # of each text
_BYTES_MAX = 128 * 1024  # ten entries of four such texts, each character an escape of twelve bytes, are within it


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDeath:
    """A death that a replay ended, in brief. Times are epoch seconds by the broker's clock."""

    reason: str
    queue: str
    message_id: str
    enqueued_at: float
    attempts: int
    last_failed_at: float
    worker: str


def past_of(attributes: Attributes) -> Sequence[PastDeath]:
    """The deaths before the last one, oldest first."""
    value = attributes.get(PAST_ATTRIBUTE)
    if not isinstance(value, str) or len(value) > _BYTES_MAX:
        return ()
    try:
        entries = json.loads(value)
        return tuple(_read(entry) for entry in entries[:PAST_MAX])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return ()


def with_past(attributes: Attributes) -> Attributes:
    """The attributes without a death: if there was one, it is the past's newest entry."""
    if DEATH_ATTRIBUTE not in attributes:
        return attributes
    rest = {name: value for name, value in attributes.items() if name != DEATH_ATTRIBUTE}
    try:
        newest = _read(json.loads(str(attributes[DEATH_ATTRIBUTE])))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return MappingProxyType(rest)  # of an unreadable death there is nothing to remember
    past = [*past_of(attributes), newest]
    kept = past if len(past) <= PAST_MAX else [past[0], *past[1 - PAST_MAX :]]
    return MappingProxyType({**rest, PAST_ATTRIBUTE: json.dumps([asdict(each) for each in kept])})


def _read(fields: Mapping[str, Any]) -> PastDeath:
    attempts = fields["attempts"]
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 0 <= attempts < 2**31:
        raise TypeError
    return PastDeath(
        reason=_text(fields["reason"]),
        queue=_text(fields["queue"]),
        message_id=_text(fields["message_id"]),
        enqueued_at=_time(fields["enqueued_at"]),
        attempts=attempts,
        last_failed_at=_time(fields["last_failed_at"]),
        worker=_text(fields["worker"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value[:_CHARS_MAX].encode("utf-8", "backslashreplace").decode("utf-8")


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(float(value)):
        raise TypeError
    return float(value)
