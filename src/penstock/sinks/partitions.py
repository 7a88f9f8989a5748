"""Partition fields: a column, or a transform of one, as in ``["day(ts)", "bucket(16, user)", "country"]``.

A field is known by its text everywhere: in declarations, in the sinks' protocols, and in the ledger, whose files have a
value for each text. The text of a column is its name. In a table that has a column of that name, a text always means
the column, even if it looks like a transform.

The transforms are those of the Iceberg specification. `penstock.sinks.derived` computes their values. A file does not
contain the columns that its table is partitioned by; the source columns of transforms stay in the files.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from penstock.errors import UsageError

YEAR, MONTH, DAY, HOUR = "year", "month", "day", "hour"
BUCKET, TRUNCATE = "bucket", "truncate"
TIMES = (YEAR, MONTH, DAY, HOUR)
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # in folders: Hive's name for null and for the empty string
ARGUMENT_MAX = (1 << 31) - 1  # Iceberg's numbers of buckets and widths are ints

_ARGUMENTS = {BUCKET: "N", TRUNCATE: "W"}
_SUFFIXES = {TRUNCATE: "trunc"}  # of a field's name; the other transforms' own names
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*([0-9]+)\s*,(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """One field that a table is partitioned by."""

    source: str  # the column
    transform: str | None = None  # None: the column itself
    argument: int | None = None  # the number of buckets, or the width

    def __str__(self) -> str:
        if self.transform is None:
            return self.source
        argument = "" if self.argument is None else f"{self.argument}, "
        return f"{self.transform}({argument}{self.source})"

    @property
    def name(self) -> str:
        """The name of the field, as other writers of Iceberg tables make it: ``ts_day``, ``user_bucket``."""
        return (
            self.source if self.transform is None else f"{self.source}_{_SUFFIXES.get(self.transform, self.transform)}"
        )


def parse(text: str) -> PartitionField:
    """Return the field of a text. Raises `UsageError` for an unknown transform, or for wrong arguments."""
    call = _CALL.fullmatch(text)
    if call is None:
        return PartitionField(source=text)
    transform, inner = call[1].lower(), call[2]
    if transform not in (*TIMES, *_ARGUMENTS):
        raise UsageError(
            f"The partition field {text} has an unknown transform; write a column, or one of {', '.join(_forms())}."
        )
    argument = None
    if transform in _ARGUMENTS:
        found = _ARGUMENT.fullmatch(inner)
        argument, inner = (int(found[1]), found[2]) if found is not None else (0, "")
    source = inner.strip()
    if not source or (argument is not None and not 0 < argument <= ARGUMENT_MAX):
        number = "" if argument is None else f", with a whole number {_ARGUMENTS[transform]} from 1 to {ARGUMENT_MAX}"
        raise UsageError(f"The partition field {text} cannot be understood; write {_form(transform)}{number}.")
    return PartitionField(source=source, transform=transform, argument=argument)


def resolve(partition_by: Iterable[str], columns: Collection[str]) -> tuple[PartitionField, ...]:
    """Return the fields of a table with these columns. Raises `UsageError` as `parse` does."""
    return tuple(PartitionField(source=text) if text in columns else parse(text) for text in partition_by)


def declared(partition_by: Iterable[str], *, table: str, has_transforms: bool) -> tuple[str, ...]:
    """Return the texts of declared fields, in the spelling of `PartitionField`.

    Raises `UsageError` for transforms that are unknown or that the table's format lacks, and for two fields of which
    one follows from the other.
    """
    texts = tuple(partition_by)
    if not has_transforms:
        _refuse_transforms(texts, table)
        fields = tuple(PartitionField(source=text) for text in texts)
    else:
        fields = tuple(map(parse, texts))
    for number, field in enumerate(fields):
        for other in fields[:number]:
            if field == other:
                raise UsageError(f"The table {table} is partitioned by {field} more than once.")
            if _overlap(field, other):
                raise UsageError(f"The table {table} is partitioned by {other} and {field}; keep one of them.")
    return tuple(map(str, fields))


def split(text: str) -> list[str]:
    """Return the fields of a text that lists them, separated by commas outside of parentheses."""
    parts = [""]
    depth = 0
    for character in text:
        depth = max(0, depth + {"(": 1, ")": -1}.get(character, 0))
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def names_of(fields: Sequence[PartitionField], columns: Collection[str]) -> tuple[str, ...]:
    """Return the fields' names. That of a transform gets underscores appended while a column has the same name."""
    taken = {name.lower() for name in columns}
    return tuple(field.name if field.transform is None else _free(field.name, taken) for field in fields)


def _free(name: str, taken: set[str]) -> str:
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


def _refuse_transforms(texts: Iterable[str], table: str) -> None:
    for text in texts:
        call = _CALL.fullmatch(text)
        if call is not None and call[1].lower() in (*TIMES, *_ARGUMENTS):
            raise UsageError(
                f"The table {table} cannot be partitioned by {text}, as its format has no partition transforms; add a "
                "column with these values in the transform, and partition by that."
            )


def _overlap(one: PartitionField, other: PartitionField) -> bool:
    if one.source != other.source:
        return False
    return None in (one.transform, other.transform) or _kind(one) == _kind(other)


def _kind(field: PartitionField) -> str | None:
    return "time" if field.transform in TIMES else field.transform


def _form(transform: str) -> str:
    argument = f"{_ARGUMENTS[transform]}, " if transform in _ARGUMENTS else ""
    return f"{transform}({argument}COLUMN)"


def _forms() -> list[str]:
    return [_form(transform) for transform in (*TIMES, *_ARGUMENTS)]
