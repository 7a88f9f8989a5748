"""Which rows a relay takes: the first of each stream, without a gap. Pure.

A stream is a queue and a group; what is in order is in order there. So no row is taken while an earlier one of its
stream is in another relay's hands, or was so a moment ago.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row that is due, as a look found it."""

    id: int
    stream_id: bytes
    body_bytes: int
    claimed: bool  # another relay is sending it


def takeable(rows: Iterable[Seen], *, rows_max: int, bytes_max: int) -> Sequence[Seen]:
    """Those of the rows, given by id, that may be taken: at least one where any may, whatever its size."""
    taken: list[Seen] = []
    busy: set[bytes] = set()
    size = 0
    for row in rows:
        if row.claimed:
            busy.add(row.stream_id)
        elif row.stream_id not in busy:
            size += row.body_bytes
            if len(taken) == rows_max or (taken and size > bytes_max):
                break
            taken.append(row)
    return taken


def unbroken(wanted: Iterable[Seen], got: Set[int]) -> Sequence[int]:
    """The ids of those that were got, each stream's up to the first that was not."""
    kept: list[int] = []
    broken: set[bytes] = set()
    for row in wanted:
        if row.id not in got:
            broken.add(row.stream_id)
        elif row.stream_id not in broken:
            kept.append(row.id)
    return kept
