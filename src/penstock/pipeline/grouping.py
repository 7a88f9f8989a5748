"""Who shares a run with whom: one culprit must not use up its siblings' attempts.

A run that failed with nobody to blame makes all its objects suspects. After k such failures an object shares a run only
with objects of the same k, and at most ``objects_max ** (1 - k / (attempts_max - 1))`` of them: a batch of 5,000 with
one culprit and four attempts shrinks to 292, 17 and 1, so that the last attempt of an innocent object is its own.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Suspect(Protocol):
    """What grouping has to know of a delivery."""

    @property
    def objects_count(self) -> int: ...

    @property
    def failures(self) -> int: ...


S = TypeVar("S", bound=Suspect)


def group_objects_max(failures: int, *, objects_max: int, attempts_max: int) -> int:
    """How many objects with that many unattributed failures may share a run; at least 1."""
    if failures <= 0:
        return objects_max
    if failures >= attempts_max - 1:
        return 1
    return max(1, int(objects_max ** (1.0 - failures / (attempts_max - 1))))


def groups(suspects: Sequence[S], *, objects_max: int, attempts_max: int) -> list[list[S]]:
    """Split into runs, the unsuspected first. A delivery stays whole, even where it has more objects than a run may."""
    answer: list[list[S]] = []
    for failures in sorted({suspect.failures for suspect in suspects}):
        limit = group_objects_max(failures, objects_max=objects_max, attempts_max=attempts_max)
        group: list[S] = []
        objects_count = 0
        for suspect in suspects:
            if suspect.failures != failures:
                continue
            if group and objects_count + suspect.objects_count > limit:
                answer.append(group)
                group, objects_count = [], 0
            group.append(suspect)
            objects_count += suspect.objects_count
        answer.append(group)
    return answer
