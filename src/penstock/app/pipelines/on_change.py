"""The rule for objects that change: what a pipeline does with an object of which it has processed another version.

Rows can be replaced only if the table says which object each is from, in the column `_object`. So without a rule of the
user, a table with this column replaces them, and another one adds the rows of every version. A transform may drop the
column or change its type, which is known once the first batch has set the table's columns. Until then the table has no
rows to replace, and each run checks its own columns.
"""

from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import OnChange
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.replacing import has_addresses
from penstock.pipeline.spark.source.formats import FORMATS, format_of
from penstock.pipeline.spark.table_schema import table_columns
from penstock.sinks.sink import RemovalCheck, Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRule:
    """The rule of one pipeline. Thread-safe."""

    given: OnChange | None  # by the user
    provenance: bool  # objects are read with the column `_object`
    ledger: Ledger
    sink: Sink | None  # None: columns of a table that no batch was committed to do not matter
    pipeline: str
    merges: bool = False  # rows of the same key take the place of earlier ones

    def current(self) -> OnChange:
        """Return the rule by the table's present columns. Reads the ledger, unless the rule is given.

        Raises `TableError` if rows are to be replaced in a table with a setting that forbids it.
        """
        rule = self._by_columns() if self.given is None else self.given
        if rule.replaces or self.merges:
            self.check_removal()
        return rule

    def check_removal(self) -> None:
        """Raise `TableError` if a setting of the table forbids the removal of rows."""
        if self.sink is None:
            return
        table: object = self.sink.load()
        if isinstance(table, RemovalCheck):
            table.check_removal()

    def _by_columns(self) -> OnChange:
        if not self.provenance:
            return OnChange.ADD
        columns = table_columns(self.sink, self.ledger.ensure_pipeline(self.pipeline).table_schema)
        return OnChange.REPLACE if columns is None or has_addresses(columns) else OnChange.ADD


def merge_rule(given: OnChange | None, merge: Merge | None) -> OnChange | None:
    """Return the rule for objects that change. A merge adds the rows of each version, since keys replace them."""
    return OnChange.ADD if given is None and merge is not None else given


def check_format(given: OnChange | None, format_name: str) -> None:
    """Raise `UsageError` for the rule ``tail`` if appended lines of this format cannot be read alone."""
    if given is OnChange.TAIL and not format_of(format_name).can_grow:
        growing = ", ".join(name for name, kind in FORMATS.items() if kind.can_grow)
        raise UsageError(
            f"--on-change tail was given, and the format is {format_name}: appended lines can be read alone only in "
            f"{growing}; write --on-change replace."
        )
