"""End a pass of maintenance between two units of its work.

A unit is a folder, a row, a file or a page of objects. An exception ends the pass, so that an incomplete listing is
never taken for a complete one: files that it lacks might be deleted.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Unit = TypeVar("_Unit")


class PassEnded(Exception):
    """The pass was asked to end. What is done stays done, and the next pass continues."""


def interruptible(units: Iterable[_Unit], stopped: Callable[[], bool]) -> Iterator[_Unit]:
    """Yield each unit, after asking ``stopped``. Raises `PassEnded` if it returns True."""
    for unit in units:
        if stopped():
            raise PassEnded
        yield unit
