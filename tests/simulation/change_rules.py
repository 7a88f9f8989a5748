"""The rows that a table must show, by the rule for objects that change: a few lines of plain Python for each rule.

The oracle of the simulation and of the random sequences on Spark. It shares no code with the product: a rule knows the
versions that batches committed, in order, and retractions. To add a rule, write a class here and a line in `RULES`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Row = tuple[str, str]  # the key of the object, and a line of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of an object. ``id`` is its identity in the store: the same content may come back under another."""

    key: str
    id: bytes
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One committed batch: the versions that it read, or the keys that it retracted."""

    versions: Sequence[Version] = ()
    retracted: Collection[str] = ()


class Rule(Protocol):
    """The effect of a committed version on the rows of the object's earlier ones."""

    name: str  # as users write it: on_change="..."
    orders_versions: bool  # a version counts only if the store had it after every other one was committed

    def rows(self, history: Sequence[Batch]) -> Counter[Row]:
        """Return the rows that a table shows after these batches."""
        ...

    def unfinished(self, history: Sequence[Batch], stored: Mapping[str, Version]) -> str | None:
        """Return what the table lacks once everything is processed; None if nothing. ``stored``: what the store has."""
        ...


class Add:
    """Every version adds its rows. Each is read once, if it was in the store when it was read."""

    name = "add"
    orders_versions = False

    def rows(self, history: Sequence[Batch]) -> Counter[Row]:
        shown: dict[str, Counter[Row]] = {}
        for batch in history:
            for key in batch.retracted:
                shown[key] = Counter()
            for version in batch.versions:
                shown.setdefault(version.key, Counter()).update(rows_of(version))
        return total(shown)

    def unfinished(self, history: Sequence[Batch], stored: Mapping[str, Version]) -> str | None:
        read = Counter(version.id for batch in history for version in batch.versions)
        if read and max(read.values()) > 1:
            return "a version was read twice"
        missing = [version.key for version in stored.values() if not read[version.id]]
        return f"never read: {missing}" if missing else None


class Replace:
    """The rows of a version take the place of the object's earlier rows. In the end the table shows the store."""

    name = "replace"
    orders_versions = True

    def rows(self, history: Sequence[Batch]) -> Counter[Row]:
        shown: dict[str, Counter[Row]] = {}
        for batch in history:
            shown |= {key: Counter() for key in batch.retracted}
            shown |= {version.key: rows_of(version) for version in batch.versions}
        return total(shown)

    def unfinished(self, history: Sequence[Batch], stored: Mapping[str, Version]) -> str | None:
        last: dict[str, bytes] = {}
        read: set[Version] = set()
        retracted: set[bytes] = set()
        for batch in history:
            for version in batch.versions:
                last[version.key] = version.id
                read.add(version)
            retracted |= {version.id for version in read if version.key in batch.retracted}
        stale = [
            version.key
            for version in stored.values()
            if last.get(version.key) != version.id and version.id not in retracted
        ]
        return f"not the store's version: {stale}" if stale else None


class Tail(Replace):
    """As `Replace`: reading only what was appended must not show."""

    name = "tail"


class Refuse(Add):
    """The first version counts, and others fail until its rows are retracted."""

    name = "refuse"

    def unfinished(self, history: Sequence[Batch], stored: Mapping[str, Version]) -> str | None:
        shown: dict[str, set[bytes]] = {}
        read: dict[str, int] = {}
        for batch in history:
            shown |= {key: set() for key in batch.retracted}
            for version in batch.versions:
                shown.setdefault(version.key, set()).add(version.id)
                read[version.key] = read.get(version.key, 0) + 1
        if any(len(ids) > 1 for ids in shown.values()):
            return "two versions of an object count"
        missing = [key for key in stored if not read.get(key)]
        return f"no version was read: {missing}" if missing else None


class MergeByKey(Add):
    """Every version is read, and the table has the last row of each key, if it is no delete.

    A line is "KEY RANK OPERATION NUMBER". Of rows with equal rank a delete is the last, then the greatest line. The
    order of the batches does not matter.
    """

    def rows(self, history: Sequence[Batch]) -> Counter[Row]:
        last: dict[str, tuple[int, bool, str, str]] = {}
        for batch in history:
            for version in batch.versions:
                for line in version.lines:
                    key, rank, operation, _ = line.split()
                    row = (int(rank), operation == "D", line, version.key)
                    last[key] = max(last.get(key, row), row)
        return Counter((address, line) for _, deletes, line, address in last.values() if not deletes)


RULES: Mapping[str, Rule] = {rule.name: rule for rule in (Add(), Replace(), Tail(), Refuse())}


def rows_of(version: Version) -> Counter[Row]:
    return Counter((version.key, line) for line in version.lines)


def total(shown: Mapping[str, Counter[Row]]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for rows in shown.values():
        found += rows
    return found
