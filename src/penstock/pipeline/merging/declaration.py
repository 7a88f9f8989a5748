"""The declaration of a merge: the key, the order of a key's rows, and which rows delete."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import UsageError
from penstock.messaging.declarations import checks_class_options

PROVENANCE = ("_object", "_offset", "_row")  # columns that every version of an object fills differently


@checks_class_options("Merge")
@dataclass(frozen=True, slots=True)
class Merge:
    """Rows with the same key replace each other: the table has the last one, as from an upsert or change data capture.

    The result depends only on which objects were processed, not on their order, on batches or on retries. Rows that are
    equal in ``order_by`` are ordered by a delete (last) and then by the values of their columns, by name.

    Args:
        key: The columns that identify a row, after the transform: whole numbers, strings, dates, timestamps, decimals
            or booleans. An object with a null in one of them fails, and with an empty string in one that
            the table is partitioned by.
        order_by: The column, or columns in order, that say which row of a key is later, such as "updated_at". Null is
            the oldest. They stay in the table.
        delete_when: A condition in Spark SQL on the values of one row, such as "op = 'D'". A row for which it is true
            removes its key, also from rows that are older and arrive later.
        drop: Columns that are read for the condition and not stored.

    Raises:
        UsageError: A column is missing, named twice, or dropped although the merge needs it.
    """

    key: str | Sequence[str]
    order_by: str | Sequence[str] = field(kw_only=True)
    delete_when: str | None = field(default=None, kw_only=True)
    drop: str | Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name in ("key", "order_by", "drop"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for name in ("key", "order_by"):
            if not getattr(self, name):
                raise UsageError(f"The merge has no {name}; name at least one column.")
        if self.delete_when is not None and not str(self.delete_when).strip():
            raise UsageError("The merge has an empty delete_when; write a condition such as \"op = 'D'\".")
        needed = sorted(set(self.drop) & {*self.key, *self.order_by})
        if needed:
            raise UsageError(
                f"The merge drops {', '.join(needed)}, by which rows of later batches are compared with those in the "
                "table: leave it in the table."
            )
        own = sorted({*self.key, *self.order_by}.intersection(PROVENANCE))
        if own:
            raise UsageError(
                f"The merge names {', '.join(own)}, which depends on the file that a row is in: name columns of the "
                "data."
            )

    @property
    def compared(self) -> Sequence[str]:
        """The columns of the key and of the order, each once."""
        return tuple(dict.fromkeys([*self.key, *self.order_by]))

    def check_names(self, columns: Sequence[str]) -> None:
        """Raise `UsageError` if the merge names a column that is not in ``columns``, the columns of the rows."""
        missing = [name for name in (*self.compared, *self.drop) if name not in columns]
        if missing:
            raise UsageError(
                f"The merge names {', '.join(missing)}, and the rows have {', '.join(columns)}: name columns that the "
                "rows have after the transform."
            )

    def text(self) -> str:
        """Return the declaration as the ledger remembers it."""
        document = {
            "key": list(self.key),
            "order_by": list(self.order_by),
            "delete_when": self.delete_when,
            "drop": sorted(self.drop),
        }
        return json.dumps(document, separators=(",", ":"))


def merge_of(text: str) -> Merge:
    """Return the declaration that `Merge.text` made a text of."""
    return Merge(**json.loads(text))


def _names(option: str, given: object) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"The merge has {option}={given!r}; write the name of a column, or a list of names.")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"The merge has the column {twice} twice in {option}.")
    return tuple(names)
