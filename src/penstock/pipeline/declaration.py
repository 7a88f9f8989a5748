"""What a pipeline is, apart from how it is run: where it reads, what it does to the rows, where they go."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from penstock.pipeline.source.plan import ReadOptions

Frame = DataFrame  # for the rooms above, which name the type and never import Spark
Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One pipeline from a folder into a local table. All paths are real paths that executors can reach."""

    pipeline: str  # its id in the ledger
    source_root: Path
    table_root: Path
    quarantine_root: Path
    work_root: Path
    read: ReadOptions
    transform: Transform | None = None
    partition_by: Sequence[str] = ()
