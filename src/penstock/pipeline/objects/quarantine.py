"""Lines that could not be read, kept with where they stood: all of them counted, some of them shown."""

import codecs
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINES_KEPT_MAX = 1_000
LINES_TOLD_MAX = 10
RAW_BYTES_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedLine:
    """A line that was left out. ``offset`` is where it begins in the (inflated) object."""

    number: int
    offset: int
    reason: str
    raw: bytes  # its first bytes


class Quarantine:
    """Of one object. Written by the thread that reads it."""

    def __init__(self) -> None:
        self._kept: list[QuarantinedLine] = []
        self._reasons: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """All of them."""
        return self._reasons.total()

    @property
    def reasons(self) -> Mapping[str, int]:
        """All of them, by the word for what is wrong."""
        return dict(self._reasons)

    @property
    def kept(self) -> Sequence[QuarantinedLine]:
        """The first lines, 1,000 at most."""
        return tuple(self._kept)

    @property
    def sample(self) -> Sequence[tuple[int, str]]:
        """Offset and reason of a few, for logs."""
        return [(line.offset, line.reason) for line in self._kept[:LINES_TOLD_MAX]]

    def add(self, number: int, offset: int, reason: str, raw: bytes, *, word: str) -> None:
        """One line more; ``word`` is one of few."""
        self._reasons[word] += 1
        if len(self._kept) < LINES_KEPT_MAX:
            self._kept.append(QuarantinedLine(number=number, offset=offset, reason=reason, raw=raw[:RAW_BYTES_MAX]))


def invalid(encoding: str) -> str:
    """The word for a line that is no text in the encoding."""
    return "invalid UTF-8" if codecs.lookup(encoding).name == "utf-8" else "invalid encoding"
