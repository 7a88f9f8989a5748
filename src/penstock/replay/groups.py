"""Dead letters by what they died of: a hundred thousand letters are mostly three reasons.

Letters of one fingerprint are one group. Where a death has none, its reason is the group, without what differs from
message to message: numbers, ids, quoted texts, paths.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.messaging.death import Death
from penstock.replay.letters import Letter

GROUPS_MAX = 1_000  # that are told apart; letters of further ones are counted together
NO_REASON = "no reason was recorded"
_REASON_CHARS_MAX = 200
_PARTS = (
    (re.compile(r"""(?<!\w)(?:"[^"]*"|'[^']*'|`[^`]*`|«[^»]*»)"""), "<text>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE), "<address>"),
    (re.compile(r"(?<![\w<])(?:~|\.{1,2})?/[^\s:;,()]+"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?:0x[0-9a-f]+|(?=[0-9a-f]*\d)[0-9a-f]{8,})\b", re.IGNORECASE), "<id>"),
    (re.compile(r"(?<![A-Za-z_])[-+]?\d[\d.,:_]*"), "<n>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Letters that died of the same. Times are epoch seconds: when they became dead letters."""

    key: str  # what `--error` finds them by
    count: int
    first_at: float
    last_at: float
    queues: tuple[str, ...]  # where they lie
    reason: str  # of the example
    example_id: str
    example_queue: str


@dataclass(slots=True, kw_only=True)
class _Tally:
    """A group that grows."""

    example: Letter
    reason: str
    count: int = 0
    first_at: float = float("inf")
    last_at: float = float("-inf")
    queues: dict[str, None] = field(default_factory=dict)


class Grouping:
    """Counts letters as they are looked at, and keeps one of each group."""

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._groups: dict[str, _Tally] = {}
        self.letters = 0
        self.others = 0  # letters of groups beyond the bound

    def add(self, letters: Iterable[Letter]) -> None:
        """Count these, too."""
        for letter in letters:
            self.letters += 1
            death = letter.death
            tally = self._tally(key_of(death), letter, death)
            if tally is None:
                self.others += 1
                continue
            at = letter.message.enqueued_at
            tally.count += 1
            tally.first_at, tally.last_at = min(tally.first_at, at), max(tally.last_at, at)
            tally.queues[letter.queue] = None

    def groups(self) -> Sequence[Group]:
        """The largest first."""
        found = sorted(self._groups.items(), key=lambda item: (-item[1].count, item[1].first_at))
        return [
            Group(
                key=key,
                count=tally.count,
                first_at=tally.first_at,
                last_at=tally.last_at,
                queues=tuple(tally.queues),
                reason=tally.reason,
                example_id=tally.example.id,
                example_queue=tally.example.queue,
            )
            for key, tally in found
        ]

    def _tally(self, key: str, letter: Letter, death: Death | None) -> _Tally | None:
        if key not in self._groups:
            if len(self._groups) >= self._groups_max:
                return None
            self._groups[key] = _Tally(example=letter, reason=NO_REASON if death is None else death.reason)
        return self._groups[key]


def key_of(death: Death | None) -> str:
    """The group's name."""
    if death is None:
        return NO_REASON
    return death.fingerprint or normalised(death.reason)


@lru_cache(maxsize=4096)
def normalised(reason: str) -> str:
    """A reason without what differs from message to message."""
    text = reason[: 4 * _REASON_CHARS_MAX]
    for pattern, name in _PARTS:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:_REASON_CHARS_MAX] or NO_REASON
