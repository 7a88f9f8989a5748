"""Why a message died, written on the dead letter itself.

Every broker dead-letters in the same way (`buried`): body, group and attributes stay as they are, and one attribute
more, `penstock-death`, carries a `Death` as JSON. A death before that one goes to the message's past. A letter that
goes on to the second tier keeps its death, and `penstock-set-aside` says why nothing brings it back by itself. What is
read back may be forged or garbled: it is then no death at all.

What a message died of before: its past, which it carries along from one life to the next.

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

from penstock.messaging.message import ORIGIN_ATTRIBUTE, Attributes, Message
from penstock.messaging.settlement import DeadLetter

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
        return tuple(_past_in(entry) for entry in entries[:PAST_MAX])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return ()


def with_past(attributes: Attributes) -> Attributes:
    """The attributes without a death: if there was one, it is the past's newest entry."""
    if DEATH_ATTRIBUTE not in attributes:
        return attributes
    rest = {name: value for name, value in attributes.items() if name != DEATH_ATTRIBUTE}
    try:
        newest = _past_in(json.loads(str(attributes[DEATH_ATTRIBUTE])))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return MappingProxyType(rest)  # of an unreadable death there is nothing to remember
    past = [*past_of(attributes), newest]
    kept = past if len(past) <= PAST_MAX else [past[0], *past[1 - PAST_MAX :]]
    return MappingProxyType({**rest, PAST_ATTRIBUTE: json.dumps([asdict(each) for each in kept])})


def _past_in(fields: Mapping[str, Any]) -> PastDeath:
    attempts = fields["attempts"]
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 0 <= attempts < 2**31:
        raise TypeError
    return PastDeath(
        reason=_past_text(fields["reason"]),
        queue=_past_text(fields["queue"]),
        message_id=_past_text(fields["message_id"]),
        enqueued_at=_past_time(fields["enqueued_at"]),
        attempts=attempts,
        last_failed_at=_past_time(fields["last_failed_at"]),
        worker=_past_text(fields["worker"]),
    )


def _past_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value[:_CHARS_MAX].encode("utf-8", "backslashreplace").decode("utf-8")


def _past_time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(float(value)):
        raise TypeError
    return float(value)


__all__ = ["DEATH_ATTRIBUTE", "SET_ASIDE_ATTRIBUTE", "AttemptRecord", "Death", "buried", "death_of", "set_aside_reason"]

SET_ASIDE_ATTRIBUTE = "penstock-set-aside"
DEATH_BYTES_MAX = 64 * 1024
_TEXT_BYTES_MAX = 4 * 1024  # of each field but the traceback, which gets what is left over
_TRIMMED = "[... trimmed ...]\n"
TRIES_MAX = 10  # the last ones are kept
DIED = "dead"  # how the attempt ended that gave up on the message
_TRY_CHARS_MAX = 200  # of each text of an attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt of a message that died. Times are epoch seconds by the broker's clock."""

    started_at: float
    ended_at: float
    worker: str
    end: str  # as `penstock.messaging.delivery.AttemptEnd` says it; `DIED` of the one that gave up, if any did
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The last of a message in its own queue. Times are epoch seconds by the broker's clock."""

    reason: str
    attempts: int
    last_failed_at: float
    worker: str
    queue: str  # the queue it died in
    message_id: str  # its id there
    enqueued_at: float  # when it was put into that queue
    first_failed_at: float | None = None
    exception: str | None = None
    traceback: str | None = None
    poison: bool = False
    fingerprint: str | None = None
    handler: str | None = None
    tries: tuple[AttemptRecord, ...] = ()  # as many of its attempts as the broker remembers, oldest first


def with_death(attributes: Attributes, death: Death) -> Attributes:
    """The attributes of a message that is about to become a dead letter; an older death becomes its past."""
    return MappingProxyType({**with_past(attributes), DEATH_ATTRIBUTE: encode_death(death)})


def buried(attributes: Attributes, settlement: DeadLetter, death: Death) -> Attributes:
    """The attributes of a dead letter, of whichever tier."""
    if not settlement.set_aside:
        return with_death(attributes, death)
    origin = {} if DEATH_ATTRIBUTE in attributes else {ORIGIN_ATTRIBUTE: death.message_id}  # no death names the id then
    return MappingProxyType({**origin, **attributes, SET_ASIDE_ATTRIBUTE: _cut(settlement.reason)})


def origin_id(letter: Message) -> str:
    """Return the id that a message was first delivered under, however often it died and was replayed since.

    A message that SQS itself moved has no record of its death, and keeps its id: then the letter's own id is returned.
    """
    origin = letter.attributes.get(ORIGIN_ATTRIBUTE)
    if origin and isinstance(origin, str):
        return origin
    death = death_of(letter.attributes)
    return letter.id if death is None else death.message_id


def set_aside_reason(attributes: Attributes) -> str | None:
    """Why a letter is in the second tier; None where nothing says so."""
    reason = attributes.get(SET_ASIDE_ATTRIBUTE)
    return reason if isinstance(reason, str) else None


def death_of(attributes: Attributes) -> Death | None:
    """What a dead letter died of; None where nothing readable says so."""
    return decode_death(attributes.get(DEATH_ATTRIBUTE))


def encode_death(death: Death, *, bytes_max: int = DEATH_BYTES_MAX) -> str:
    """ASCII JSON of at most ``bytes_max`` bytes (no less than 40 KiB makes sense): texts are cut to fit.

    Of a traceback the end is kept, where the error is.
    """
    fields = {name: _cut(value) if isinstance(value, str) else value for name, value in asdict(death).items()}
    fields["tries"] = [_brief(each) for each in death.tries[-TRIES_MAX:]]
    if death.traceback is None:
        return json.dumps(fields)
    fields["traceback"] = ""
    fields["traceback"] = _tail(_clean(death.traceback), bytes_max - len(json.dumps(fields)))
    return json.dumps(fields)


def decode_death(value: object) -> Death | None:
    """The `Death` in an attribute's value, or None: whatever the value is, nothing is raised."""
    if not isinstance(value, str) or len(value) > DEATH_BYTES_MAX:
        return None
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    try:
        return _read(fields)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _read(fields: Mapping[str, object]) -> Death:
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
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise TypeError
    return tuple(
        AttemptRecord(
            started_at=_time(each["started_at"]),
            ended_at=_time(each["ended_at"]),
            worker=_text(each["worker"]),
            end=_text(each["end"]),
            reason=None if each.get("reason") is None else _text(each["reason"]),
        )
        for each in value[-TRIES_MAX:]
    )


def _brief(tried: AttemptRecord) -> Mapping[str, object]:
    """What is kept of an attempt: of what it failed with, the beginning."""
    return {
        **asdict(tried),
        "worker": _clean(tried.worker)[:_TRY_CHARS_MAX],
        "reason": None if tried.reason is None else _clean(tried.reason)[:_TRY_CHARS_MAX],
    }


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return _clean(value)


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
    """Without lone surrogates (file names bring them): no page, log or database takes those."""
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
    """How many characters of one end fit: found by halving, as escapes make characters 1 to 12 bytes long."""
    low, high = 0, min(len(text), max(bytes_max, 0))
    while low < high:
        middle = (low + high + 1) // 2
        part = text[len(text) - middle :] if from_end else text[:middle]
        low, high = (middle, high) if _size(part) <= bytes_max else (low, middle - 1)
    return low
