"""Group dead-lettered messages by cause: even a hundred thousand of them mostly have a few causes.

Messages with the same fingerprint form a group. Without a fingerprint, the reason defines the group, after removing
everything that varies between messages: numbers, also inside words, ids, quoted texts and paths.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.death import DEATH_ATTRIBUTE, Death
from penstock.messaging.message import NO_ATTRIBUTES

GROUPS_MAX = 1_000  # messages of further groups are counted together
NO_REASON = "no reason was recorded"
_REASON_CHARS_MAX = 200
_ID_CHARS = 16
_FINGERPRINT = re.compile(r'"fingerprint": (null|"(?:[^"\\]|\\.)*")')
_REASON = re.compile(r'\{"reason": ("(?:[^"\\]|\\.)*")')
_VARYING_PARTS = (
    (re.compile(r"""(?<!\w)(?:"[^"]*"|'[^']*'|`[^`]*`|«[^»]*»)"""), "<text>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE), "<address>"),
    (re.compile(r"(?<![\w<])(?:~|\.{1,2})?/[^\s:;,()]+"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?:0x[0-9a-f]+|(?=[0-9a-f]*\d)[0-9a-f]{8,})\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?=(?:[^\W\d]*\d){4})\w{12,}\b"), "<id>"),
    (re.compile(r"[-+]?\d[\d.,:_]*"), "<n>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Messages with the same cause. Times are epoch seconds at which they were dead-lettered."""

    key: str  # accepted by `--error`
    count: int
    first_at: float
    last_at: float
    queues: tuple[str, ...]  # the DLQs that hold them
    reason: str  # of the example
    example_id: str
    example_queue: str

    @property
    def id(self) -> str:
        return group_id(self.key)


@dataclass(slots=True, kw_only=True)
class _PartialGroup:
    """A group while messages are counted."""

    example: DeadLetteredMessage
    reason: str
    count: int = 0
    first_at: float = float("inf")
    last_at: float = float("-inf")
    queues: dict[str, None] = field(default_factory=dict)


class Grouping:
    """Count messages by cause, and keep an example of each group. Created for one listing, and used by one thread."""

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._groups: dict[str, _PartialGroup] = {}
        self.dead_letters = 0
        self.others = 0  # messages of groups beyond the limit

    def add(self, dead_letters: Iterable[DeadLetteredMessage]) -> None:
        """Count these messages."""
        for dead_letter in dead_letters:
            self.add_one(dead_letter)

    def add_one(self, dead_letter: DeadLetteredMessage) -> str | None:
        """Count a message; return the key of its group, or None if there are too many groups."""
        self.dead_letters += 1
        key, group = self._group(_key_from_text(dead_letter), dead_letter)
        if group is None:
            self.others += 1
            return None
        at = dead_letter.message.enqueued_at
        group.count += 1
        group.first_at, group.last_at = min(group.first_at, at), max(group.last_at, at)
        group.queues[dead_letter.queue] = None
        return key

    def groups(self) -> Sequence[FailureGroup]:
        """Return the groups, largest first."""
        found = sorted(self._groups.items(), key=lambda item: (-item[1].count, item[1].first_at))
        return [
            FailureGroup(
                key=key,
                count=group.count,
                first_at=group.first_at,
                last_at=group.last_at,
                queues=tuple(group.queues),
                reason=group.reason,
                example_id=group.example.id,
                example_queue=group.example.queue,
            )
            for key, group in found
        ]

    def _group(self, key: str | None, dead_letter: DeadLetteredMessage) -> tuple[str, _PartialGroup | None]:
        if key is not None and key in self._groups:
            return key, self._groups[key]
        death = dead_letter.death
        key = key_of(death)  # the exact key, in case a forged death misled the quick one
        if key not in self._groups:
            if len(self._groups) >= self._groups_max:
                return key, None
            self._groups[key] = _PartialGroup(
                example=_without_content(dead_letter), reason=NO_REASON if death is None else death.reason
            )
        return key, self._groups[key]


def group_of(dead_letter: DeadLetteredMessage) -> str:
    """Return the key of a message's group, decoding its death only if its text is not as Penstock writes it."""
    key = _key_from_text(dead_letter)
    return key_of(dead_letter.death) if key is None else key


@lru_cache(maxsize=4096)
def group_id(key: str) -> str:
    """Return the id of a group, for addresses: its key is an error text, and may hold secrets or any character."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_CHARS]


def key_of(death: Death | None) -> str:
    """Return the key of a death's group."""
    if death is None:
        return NO_REASON
    return death.fingerprint or normalised(death.reason)


@lru_cache(maxsize=4096)
def normalised(reason: str) -> str:
    """Return a reason without the parts that vary between messages."""
    text = reason[: 4 * _REASON_CHARS_MAX]
    for pattern, name in _VARYING_PARTS:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:_REASON_CHARS_MAX] or NO_REASON


def _key_from_text(dead_letter: DeadLetteredMessage) -> str | None:
    """Return `key_of` by searching the text of a death as Penstock writes it; None if that is not possible.

    This skips decoding the rest, which is mostly a traceback. Quotes inside a text are escaped, so no text is mistaken
    for a field.
    """
    text = dead_letter.message.attributes.get(DEATH_ATTRIBUTE)
    if not isinstance(text, str):
        return NO_REASON
    found = _FINGERPRINT.search(text)
    if found is None:
        return None
    if found[1] != "null":
        return _text(found[1])
    reason = _REASON.match(text)
    text = None if reason is None else _text(reason[1])
    return None if text is None else normalised(text)


def _without_content(dead_letter: DeadLetteredMessage) -> DeadLetteredMessage:
    """Drop body and attributes, to save memory."""
    return replace(dead_letter, message=replace(dead_letter.message, body=b"", attributes=NO_ATTRIBUTES))


@lru_cache(maxsize=4096)
def _text(quoted: str) -> str | None:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None
