"""`Dms`: files of AWS Database Migration Service become rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.pipeline.merging.declaration import Merge
from penstock.transforms.naming import transform_name

if TYPE_CHECKING:
    from penstock.pipeline.spark.declaration import Frame

TIMESTAMP_COLUMN = "dms_timestamp"
_DELETED = "_op = 'D'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dms:
    """A transform for CSV and Parquet files that AWS DMS writes to S3, of full loads and of changes.

    The frame that it returns has the columns of the row, then all others, such as ``_object``, then ``_op`` (I, U or D;
    rows of files without a column ``Op`` are I) and ``_position``, which sorts changes by their timestamp, and those of
    one transaction by their place in the files.

    The object of a row fails, with a sentence, if ``Op`` or the timestamp has another form.

    Args:
        timestamp_column: The name that the endpoint's ``TimestampColumnName`` gives. Set
            ``UseTaskStartTimeForFullLoadTimestamp=true`` too, or rows of the full load may seem newer than changes made
            during it.

    Raises:
        UsageError: The name is empty. As a transform: the columns lack the timestamp.
    """

    timestamp_column: str = TIMESTAMP_COLUMN

    def __post_init__(self) -> None:
        if not self.timestamp_column:
            raise UsageError(
                "Dms has an empty timestamp_column; write the name that TimestampColumnName has in the endpoint of DMS."
            )

    def __call__(self, frame: "Frame") -> "Frame":
        from penstock.pipeline.spark.change_data.dms import rows_of_files

        return rows_of_files(frame, timestamp_column=self.timestamp_column)

    @property
    def transform_name(self) -> str:
        """The name that the ledger remembers: of the ready-made transform, else of the class with its options."""
        return transform_name(self, dms=Dms())

    def merge(self, *, key: str | Sequence[str]) -> Merge:
        """Return the merge for these rows: the last change of each key, and none if that is a delete.

        Raises:
            UsageError: The key is empty, or has a column twice.
        """
        return Merge(key=key, order_by="_position", delete_when=_DELETED, drop="_op")

    def schema(self, columns: str) -> str:
        """Return the schema of the files for the table's columns, both in Spark DDL.

        It fits Parquet, and CSV with the names of columns (``AddColumnName=true``).
        """
        return f"Op STRING, {columns}, {self.timestamp_column} STRING"
