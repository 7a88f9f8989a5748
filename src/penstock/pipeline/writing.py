"""Where a run's rows go: one function chooses who writes them."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from penstock.pipeline.arrow_writer import write_parquet
from penstock.pipeline.columns import gathered
from penstock.storage.files import Files


def write(frame: DataFrame, files: Files, directory: str, *, partition_by: Sequence[str]) -> Sequence[str] | None:
    """Write the frame's rows as Parquet below ``directory``: by Spark's own writer where a path leads there.

    The paths that count, relative to the root; None: all that lies in the directory.
    """
    if not files.is_local:
        return write_parquet(frame, files, directory, partition_by=partition_by)
    gathered(frame, partition_by).write.partitionBy(*partition_by).parquet(f"{files}/{directory}")
    return None
