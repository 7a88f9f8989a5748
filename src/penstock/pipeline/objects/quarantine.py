"""Lines that could not be read, kept with where they stood: all of them counted, some of them shown."""

from collections.abc import Sequence
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
        self.count = 0

    @property
    def kept(self) -> Sequence[QuarantinedLine]:
        """The first lines, 1,000 at most."""
        return tuple(self._kept)

    @property
    def sample(self) -> Sequence[tuple[int, str]]:
        """Offset and reason of a few, for logs."""
        return [(line.offset, line.reason) for line in self._kept[:LINES_TOLD_MAX]]

    def add(self, number: int, offset: int, reason: str, raw: bytes) -> None:
        """One line more."""
        self.count += 1
        if len(self._kept) < LINES_KEPT_MAX:
            self._kept.append(QuarantinedLine(number=number, offset=offset, reason=reason, raw=raw[:RAW_BYTES_MAX]))
