"""What a pipeline is, apart from how it is run: where it reads, what it does to the rows, where they go."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from penstock.pipeline.spark.source.plan import ReadOptions
from penstock.storage.aws import Aws
from penstock.storage.files import Files

Frame = DataFrame  # for the rooms above, which name the type and never import Spark
Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One pipeline from objects into a table. Executors reach all of its places."""

    pipeline: str  # its id in the ledger
    source: str  # a folder's real path, or s3://BUCKET/PREFIX
    table: Files
    quarantine: Files
    work: Files  # for plans and reports
    read: ReadOptions
    transform: Transform | None = None
    partition_by: Sequence[str] = ()
    aws: Aws = field(default_factory=Aws)
