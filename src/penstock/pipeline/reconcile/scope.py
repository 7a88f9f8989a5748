"""What a reconcile looks for, and how it names what it found. Needs neither Spark nor Arrow."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PREFIXES_MAX = 20


class LeftOut(StrEnum):
    """Why an object that is there and that nobody knows is not missing."""

    YOUNG = "young"  # younger than the margin: it may still be on its way
    EXCLUDED = "excluded"  # a table's file, or in a place that Penstock writes itself
    FOLDER_MARKER = "folder_marker"  # empty, and its name ends in a slash
    HIDDEN = "hidden"  # a part of its name begins with a dot
    ARCHIVED = "archived"  # in a storage class that cannot be read as it is
    UNNAMEABLE = "unnameable"  # no notification can name its key


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is looked for. ``excluded`` are the keys of places, and what is below them."""

    bucket: str
    below: str  # what keys of the source begin with
    before: float  # epoch seconds: only what was modified earlier
    excluded: Sequence[str] = ()
    is_local: bool = False  # then the scanner has left out what is no object


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A folder of the source, and how many are missing below it."""

    uri: str
    missing: int
