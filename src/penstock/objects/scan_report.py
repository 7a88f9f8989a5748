"""What a walk over a folder or a prefix found, and what it left out for which reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from penstock.objects.reference import ObjectRef

CHUNK_OBJECTS = 500
TABLE_FOLDERS = (
    "_delta_log",
    "_penstock",
)  # what holds one of them is no source, whoever wrote it
PROBLEMS_MAX = 100  # kept as text; beyond that only counted


class Reason(StrEnum):
    """Why something that lies there is no object to work on."""

    HIDDEN = "hidden"  # its name starts with a dot
    EXCLUDED = "excluded"  # a table, or a folder that was to be left out
    SPECIAL = "special_file"  # FIFO, socket, device
    LINK_TO_SCANNED = "link_to_scanned"  # its target is found under its own name
    LINK_BROKEN = "link_broken"  # leads nowhere, or in a circle
    VANISHED = "vanished"  # deleted between listing and looking
    FOLDER_MARKER = "folder_marker"  # in S3: an empty object whose name ends in a slash, as consoles make for a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """What a walk found. Nothing is left out silently: every entry is found, ignored for a reason, or a problem."""

    found: int
    size_bytes: int  # of what was found
    ignored: Mapping[Reason, int]  # locally, a hidden or excluded folder counts once, with all it holds
    problems: Sequence[str]  # what could not be looked at, or was refused: sentences, at most 100
    problems_count: int


@dataclass(slots=True)
class Tally:
    """The report in the making; written by the thread that walks."""

    found: int = 0
    size_bytes: int = 0
    ignored: Counter[Reason] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    problems_count: int = 0

    def find(self, ref: ObjectRef) -> None:
        self.found += 1
        self.size_bytes += ref.size_bytes

    def ignore(self, reason: Reason) -> None:
        self.ignored[reason] += 1

    def note(self, problem: str) -> None:
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def report(self) -> ScanReport:
        return ScanReport(
            found=self.found,
            size_bytes=self.size_bytes,
            ignored=MappingProxyType(dict(self.ignored)),
            problems=tuple(self.problems),
            problems_count=self.problems_count,
        )
