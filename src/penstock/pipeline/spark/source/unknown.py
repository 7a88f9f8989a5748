"""Count the fields of objects that no column takes, and values of another type that are rescued: per object, bounded.

A field counts once per row, or bad line of the wrong type, that has a value for it; null is no value. For formats with
named columns (CSV, Parquet, ORC) every row of the object counts, because reading columns only to count them would cost
too much.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa

from penstock.pipeline.spark.source.column_types import wider
from penstock.pipeline.spark.source.ddl import parse_ddl, type_text

NAMES_MAX = 50  # per object; the most frequent ones
_NAMES_HELD_MAX = 1_000  # per piece, while it is read: keys may be ids
NAME_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownField:
    """One field of an object that no column takes."""

    rows: int
    first: int  # position of the first row that has it
    ddl: str = ""  # type of a column for its values; empty: they have none, as [], or it was not asked for

    def joined(self, other: "UnknownField") -> "UnknownField":
        """Return the sum of two parts of an object."""
        return UnknownField(
            rows=self.rows + other.rows, first=min(self.first, other.first), ddl=_wider_ddl(self.ddl, other.ddl)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFields:
    """The fields of an object that no column takes: the most frequent by name, and the sum of the others.

    ``wrong_type`` and ``wrong_type_others`` are the same for columns: rows whose value is of another type, and rescued.
    """

    fields: Mapping[str, UnknownField] = field(default_factory=dict)
    others: int = 0
    wrong_type: Mapping[str, int] = field(default_factory=dict)
    wrong_type_others: int = 0

    def __bool__(self) -> bool:
        return bool(self.fields or self.others or self.wrong_type or self.wrong_type_others)

    @staticmethod
    def sum(parts: Iterable["UnknownFields"]) -> "UnknownFields":
        """Return the fields of several pieces of one object."""
        count = UnknownCount()
        for part in parts:
            for name, found in part.fields.items():
                count.add(name, found)
            for name, rows in part.wrong_type.items():
                count.add_wrong_type(name, rows)
            count.others += part.others
            count.wrong_type_others += part.wrong_type_others
        return count.result()


@dataclass(slots=True)
class UnknownCount:
    """`UnknownFields` while they are counted. Used by one thread."""

    fields: dict[str, UnknownField] = field(default_factory=dict)
    others: int = 0
    wrong_type: Counter[str] = field(default_factory=Counter)  # by column, so their number needs no bound here
    wrong_type_others: int = 0

    def add(self, name: str, found: UnknownField) -> None:
        """Add some rows with a field."""
        known = self.fields.get(name)
        if known is not None:
            self.fields[name] = known.joined(found)
        elif len(self.fields) < _NAMES_HELD_MAX:
            self.fields[name] = found
        else:
            self.others += found.rows

    def add_wrong_type(self, name: str, rows: int) -> None:
        """Add some rows whose value in a column is of another type."""
        self.wrong_type[name] += rows

    def result(self) -> UnknownFields:
        """Return the most frequent fields by name, and the others as a sum."""
        ordered = sorted(self.fields.items(), key=lambda item: (-item[1].rows, item[1].first, item[0]))
        rest = sum(found.rows for _, found in ordered[NAMES_MAX:])
        wrong_type = sorted(self.wrong_type.items(), key=lambda item: (-item[1], item[0]))
        return UnknownFields(
            fields=dict(ordered[:NAMES_MAX]),
            others=self.others + rest,
            wrong_type=dict(wrong_type[:NAMES_MAX]),
            wrong_type_others=self.wrong_type_others + sum(rows for _, rows in wrong_type[NAMES_MAX:]),
        )


NO_UNKNOWN = UnknownFields()


def wider_kind(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Return the type of a column for the values of both; one without a type, such as [], fits every column or none."""
    if one is None or other is None:
        return other if one is None else one
    return wider(one, other)


def _wider_ddl(one: str, other: str) -> str:
    if one == other or not (one and other):
        return one or other
    kinds = [parse_ddl(f"value {ddl}").field(0).type for ddl in (one, other)]
    return type_text(reduce(wider, kinds))


def name_shown(name: str) -> str:
    """Return a name of bounded length, as it is stored and shown."""
    text = name.encode("utf-8", errors="backslashreplace").decode()
    return text if len(text) <= NAME_CHARS_MAX else text[:NAME_CHARS_MAX] + "..."
