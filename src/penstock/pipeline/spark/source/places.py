"""Places: the parts of an object that a replay reads, as ranges of offsets or row numbers.

A line is read again if it begins in the range of a quarantined one: all of its lines are, if a fixed dialect now cuts
a bad record into several. The ranges travel as bytes, sorted and apart from each other, in the run's plan.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from penstock.pipeline.spark.source.ddl import OFFSET

_PAIR = 2


def ranges_of(found: Iterable[tuple[int, int]], *, place: str) -> bytes:
    """Return the ranges of quarantined lines, given the place and the size of each.

    ``place``: the name of the column with a row's place. A row number covers itself only.
    """
    by_offset = place == OFFSET.name
    spans = sorted((start, start + (max(1, size) if by_offset else 1)) for start, size in found)
    merged: list[list[int]] = []
    for start, stop in spans:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(stop, merged[-1][1])
        else:
            merged.append([start, stop])
    return np.array(merged, dtype="<i8").tobytes()


def are_within(positions: npt.NDArray[np.int64], ranges: bytes) -> npt.NDArray[np.bool_]:
    """Return for each position if it is in one of the ranges."""
    edges = np.frombuffer(ranges, dtype="<i8").reshape(-1, _PAIR)
    at = np.searchsorted(edges[:, 0], positions, side="right") - 1
    within: npt.NDArray[np.bool_] = (at >= 0) & (positions < edges[np.maximum(at, 0), 1]) if len(edges) else at >= 0
    return within
