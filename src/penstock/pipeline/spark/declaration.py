"""The declaration of a pipeline: its source, its transform and its table, apart from how it is run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from penstock.ledger.records import OnChange
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.storage.address import is_s3
from penstock.storage.aws import Aws
from penstock.storage.files import Files

if TYPE_CHECKING:  # it needs pydantic, and tasks import this module
    from penstock.pipeline.merging.declaration import Merge

Frame = DataFrame  # for packages above, which name the type but never import Spark
Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One pipeline from objects into a table. Executors must reach all of its locations."""

    pipeline: str  # id in the ledger
    source: str  # a folder's real path, or s3://BUCKET/PREFIX
    table: Files
    quarantine: Files
    work: Files  # for plans and reports
    read: ReadOptions
    transform: Transform | None = None
    transform_name: str | None = None  # as the ledger records it, see `BatchRecord`
    on_change: OnChange | None = None  # None: as the columns allow
    partition_by: Sequence[str] = ()
    merge: "Merge | None" = None  # None: rows are added as they are
    aws: Aws = field(default_factory=Aws)

    @property
    def takes_rows_as_read(self) -> bool:
        """Return True if the table gets the rows as they are, and no partition has to gather some of them."""
        return self.transform is None and self.merge is None and not self.partition_by

    @property
    def uses_s3(self) -> bool:
        """Return True if tasks read or write objects in S3."""
        return is_s3(self.source) or not (self.table.is_local and self.quarantine.is_local and self.work.is_local)
