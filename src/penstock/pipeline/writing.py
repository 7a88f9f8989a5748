"""Where a run's rows go: one function chooses who writes them."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from penstock.pipeline.arrow_writer import write_parquet
from penstock.pipeline.columns import gathered
from penstock.pipeline.session import tasks_run_once
from penstock.sinks.parquet import WrittenFile
from penstock.storage.files import Files


def write(
    frame: DataFrame, files: Files, directory: str, *, partition_by: Sequence[str]
) -> Sequence[WrittenFile] | None:
    """Write the frame's rows as Parquet below ``directory`` and return the files that count; None: all in there.

    Spark's own writer, which is a little faster, does not report its files. It is used only where that cannot hide
    anything: the directory is on this host's disk, and so are all tasks, each of which has one attempt.
    """
    if not (files.is_local and tasks_run_once(frame.sparkSession)):
        return write_parquet(frame, files, directory, partition_by=partition_by)
    gathered(frame, partition_by).write.partitionBy(*partition_by).parquet(f"{files}/{directory}")
    return None
