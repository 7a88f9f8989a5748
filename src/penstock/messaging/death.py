"""Store in a dead-lettered message why it died, and its earlier deaths.

Every broker dead-letters in the same way (`buried`): body, group and attributes stay unchanged, and the attribute
`penstock-death` adds a `Death` as JSON. A message that moves on to the final DLQ keeps its death, and
`penstock-set-aside` holds the reason why it is not replayed automatically.

A replay removes the death and adds a summary of it to the attribute `penstock-past`. The history thus lists all
deaths of a message and its first send. It is bounded: the first entry, which has the original send, and the latest
ones are kept.

Attributes may be forged or garbled; unreadable ones count as absent.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from penstock.messaging.message import ORIGIN_ATTRIBUTE, Attributes, Message
from penstock.messaging.settlement import DeadLetter

DEATH_ATTRIBUTE = "penstock-death"
EARLIER_DEATHS_ATTRIBUTE = "penstock-past"
SET_ASIDE_ATTRIBUTE = "penstock-set-aside"
DEATH_BYTES_MAX = 64 * 1024
EARLIER_DEATHS_MAX = 10  # deaths; the first and the last ones are kept
TRIES_MAX = 10  # the last ones are kept
DIED = "dead"  # end of the attempt that dead-lettered the message
_TEXT_BYTES_MAX = 4 * 1024  # of each field but the traceback, which may use the remaining bytes
_TRY_CHARS_MAX = 200  # of each text of an attempt
_TRIMMED = "[... trimmed ...]\n"
_EARLIER_CHARS_MAX = 200  # of each text of an earlier death
_EARLIER_BYTES_MAX = 128 * 1024  # fits ten deaths with four such texts each, even if every character takes twelve bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt of a message that died. Times are epoch seconds by the broker's clock."""

    started_at: float
    ended_at: float
    worker: str
    end: str  # an `AttemptEnd` value, or `DIED` for the attempt that dead-lettered the message
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The final failure of a message in its own queue. Times are epoch seconds by the broker's clock."""

    reason: str
    attempts: int
    last_failed_at: float
    worker: str
    queue: str  # the queue in which it died
    message_id: str  # its id there
    enqueued_at: float  # when it was put into that queue
    first_failed_at: float | None = None
    exception: str | None = None
    traceback: str | None = None
    poison: bool = False
    fingerprint: str | None = None
    handler: str | None = None
    tries: tuple[AttemptRecord, ...] = ()  # the attempts that the broker remembers, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierDeath:
    """A summary of a death before a replay. Times are epoch seconds by the broker's clock."""

    reason: str
    queue: str
    message_id: str
    enqueued_at: float
    attempts: int
    last_failed_at: float
    worker: str


def with_death(attributes: Attributes, death: Death) -> Attributes:
    """Return the attributes of a message with its death added; an older death moves to the history."""
    return MappingProxyType({**move_death_to_history(attributes), DEATH_ATTRIBUTE: encode_death(death)})


def buried(attributes: Attributes, settlement: DeadLetter, death: Death) -> Attributes:
    """Return the attributes of a dead-lettered message, for the DLQ or the final DLQ."""
    if not settlement.set_aside:
        return with_death(attributes, death)
    origin = {} if DEATH_ATTRIBUTE in attributes else {ORIGIN_ATTRIBUTE: death.message_id}  # no death has the id
    return MappingProxyType({**origin, **attributes, SET_ASIDE_ATTRIBUTE: _cut(settlement.reason)})


def origin_id(dead_letter: Message) -> str:
    """Return the id of the message's first delivery, however often it died and was replayed since.

    A message that SQS itself moved has no record of its death but keeps its id, so its own id is returned.
    """
    origin = dead_letter.attributes.get(ORIGIN_ATTRIBUTE)
    if origin and isinstance(origin, str):
        return origin
    death = death_of(dead_letter.attributes)
    return dead_letter.id if death is None else death.message_id


def set_aside_reason(attributes: Attributes) -> str | None:
    """Return why a message was moved to the final DLQ; None if no reason is recorded."""
    reason = attributes.get(SET_ASIDE_ATTRIBUTE)
    return reason if isinstance(reason, str) else None


def death_of(attributes: Attributes) -> Death | None:
    """Return the death of a dead-lettered message; None if there is no readable one."""
    return decode_death(attributes.get(DEATH_ATTRIBUTE))


def earlier_deaths_of(attributes: Attributes) -> Sequence[EarlierDeath]:
    """Return the deaths before the latest one, oldest first."""
    value = attributes.get(EARLIER_DEATHS_ATTRIBUTE)
    if not isinstance(value, str) or len(value) > _EARLIER_BYTES_MAX:
        return ()
    try:
        entries = json.loads(value)
        return tuple(_earlier_death_in(entry) for entry in entries[:EARLIER_DEATHS_MAX])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return ()


def move_death_to_history(attributes: Attributes) -> Attributes:
    """Return the attributes with the death, if any, moved to the end of the history."""
    if DEATH_ATTRIBUTE not in attributes:
        return attributes
    rest = {name: value for name, value in attributes.items() if name != DEATH_ATTRIBUTE}
    try:
        newest = _earlier_death_in(json.loads(str(attributes[DEATH_ATTRIBUTE])))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return MappingProxyType(rest)  # an unreadable death leaves nothing to record
    earlier = [*earlier_deaths_of(attributes), newest]
    kept = earlier if len(earlier) <= EARLIER_DEATHS_MAX else [earlier[0], *earlier[1 - EARLIER_DEATHS_MAX :]]
    return MappingProxyType({**rest, EARLIER_DEATHS_ATTRIBUTE: json.dumps([asdict(entry) for entry in kept])})


def encode_death(death: Death, *, bytes_max: int = DEATH_BYTES_MAX) -> str:
    """Encode a death as ASCII JSON of at most ``bytes_max`` bytes (at least 40 KiB), with texts cut to fit.

    A traceback keeps its end, which names the error.
    """
    fields = {name: _cut(value) if isinstance(value, str) else value for name, value in asdict(death).items()}
    fields["tries"] = [_attempt_fields(attempt) for attempt in death.tries[-TRIES_MAX:]]
    if death.traceback is None:
        return json.dumps(fields)
    fields["traceback"] = ""
    fields["traceback"] = _tail(_clean(death.traceback), bytes_max - len(json.dumps(fields)))
    return json.dumps(fields)


def decode_death(value: object) -> Death | None:
    """Return the `Death` in an attribute's value, or None. Never raises, whatever the value is."""
    if not isinstance(value, str) or len(value) > DEATH_BYTES_MAX:
        return None
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    try:
        return _death_in(fields)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _earlier_death_in(fields: Mapping[str, Any]) -> EarlierDeath:
    return EarlierDeath(
        reason=_text(fields["reason"], chars_max=_EARLIER_CHARS_MAX),
        queue=_text(fields["queue"], chars_max=_EARLIER_CHARS_MAX),
        message_id=_text(fields["message_id"], chars_max=_EARLIER_CHARS_MAX),
        enqueued_at=_time(fields["enqueued_at"]),
        attempts=_count(fields["attempts"]),
        last_failed_at=_time(fields["last_failed_at"]),
        worker=_text(fields["worker"], chars_max=_EARLIER_CHARS_MAX),
    )


def _death_in(fields: Mapping[str, object]) -> Death:
    return Death(
        reason=_text(fields["reason"]),
        attempts=_count(fields["attempts"]),
        last_failed_at=_time(fields["last_failed_at"]),
        worker=_text(fields["worker"]),
        queue=_text(fields["queue"]),
        message_id=_text(fields["message_id"]),
        enqueued_at=_time(fields["enqueued_at"]),
        first_failed_at=None if fields.get("first_failed_at") is None else _time(fields["first_failed_at"]),
        exception=None if fields.get("exception") is None else _text(fields["exception"]),
        traceback=None if fields.get("traceback") is None else _text(fields["traceback"]),
        poison=fields.get("poison") is True,
        fingerprint=None if fields.get("fingerprint") is None else _text(fields["fingerprint"]),
        handler=None if fields.get("handler") is None else _text(fields["handler"]),
        tries=_tries(fields.get("tries")),
    )


def _tries(value: object) -> tuple[AttemptRecord, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise TypeError
    return tuple(
        AttemptRecord(
            started_at=_time(entry["started_at"]),
            ended_at=_time(entry["ended_at"]),
            worker=_text(entry["worker"]),
            end=_text(entry["end"]),
            reason=None if entry.get("reason") is None else _text(entry["reason"]),
        )
        for entry in value[-TRIES_MAX:]
    )


def _attempt_fields(attempt: AttemptRecord) -> Mapping[str, object]:
    """Return the stored form of an attempt, with long texts cut at the end."""
    return {
        **asdict(attempt),
        "worker": _clean(attempt.worker)[:_TRY_CHARS_MAX],
        "reason": None if attempt.reason is None else _clean(attempt.reason)[:_TRY_CHARS_MAX],
    }


def _text(value: object, *, chars_max: int | None = None) -> str:
    if not isinstance(value, str):
        raise TypeError
    return _clean(value[:chars_max])


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    if not 0 <= value < 2**31:
        raise ValueError
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _clean(text: str) -> str:
    """Escape lone surrogates, which file names may contain: pages, logs and databases reject them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    text = _clean(text)
    if _size(text) <= _TEXT_BYTES_MAX:
        return text
    return text[: _fitting(text, _TEXT_BYTES_MAX, from_end=False)]


def _tail(text: str, bytes_max: int) -> str:
    if _size(text) <= bytes_max:
        return text
    length = _fitting(text, bytes_max - _size(_TRIMMED), from_end=True)
    return _TRIMMED + text[len(text) - length :]


def _size(text: str) -> int:
    return len(json.dumps(text)) - 2


def _fitting(text: str, bytes_max: int, *, from_end: bool) -> int:
    """Return how many characters fit, from one end. Bisects, because an escaped character has 1 to 12 bytes."""
    low, high = 0, min(len(text), max(bytes_max, 0))
    while low < high:
        middle = (low + high + 1) // 2
        part = text[len(text) - middle :] if from_end else text[:middle]
        low, high = (middle, high) if _size(part) <= bytes_max else (low, middle - 1)
    return low
