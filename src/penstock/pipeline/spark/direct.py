"""Write the rows of a run where they are read, if nothing changes them on the way. The JVM never sees them.

Each task of a `mapInArrow` stage over the numbers of the plan's partitions reads one partition and writes its files, as
in `arrow_writer`. It leaves the same reports and quarantine files as a task of the data source (`source.datasource`).
"""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.objects.stores import store_at
from penstock.pipeline.spark.arrow_writer import RESULT_DDL, WriteTask, collected
from penstock.pipeline.spark.source.plan import ReadPlan, SavedPlan
from penstock.pipeline.spark.source.reading import partition_task, read_encoded
from penstock.pipeline.spark.source.report import ReadingId
from penstock.sinks.parquet import WrittenFile
from penstock.storage.files import Files


def write_as_read(
    spark: SparkSession, plan: ReadPlan, files: Files, directory: str, *, attempts_max: int = 1
) -> Sequence[WrittenFile]:
    """Read a saved plan, and write its rows as Parquet below ``directory``. Return the files that the tasks report.

    ``attempts_max``: how often Spark starts a task whose attempts fail. Blocks like any Spark job. Raises Spark's
    errors, and the faults of the store and of the files.
    """
    if not plan.partitions:
        return []
    writer = WriteTask.of(plan.options.columns, files=files, directory=directory, attempts_max=attempts_max)
    task = DirectTask(plan=SavedPlan.load(plan.work), writer=writer)
    count = len(plan.partitions)
    numbers = spark.range(0, count, 1, count)  # one per task
    return collected(numbers.mapInArrow(task.results, RESULT_DDL))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectTask:
    """The only stage of a run, run by every task. Pickled to the executors, with the header of the plan."""

    plan: SavedPlan
    writer: WriteTask

    def results(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _allocate_plainly()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.writer.results(self._rows(number))

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        task = partition_task(self.plan, number)
        store = store_at(self.plan.source, self.plan.aws, remembers=False)
        yield from read_encoded(task, store, ReadingId(task.reports, number))


def _allocate_plainly() -> None:
    """Let Arrow allocate with glibc in this process, unless the environment chooses an allocator.

    Its default returns large blocks to the system after each use, and the pages of new ones cost a task a tenth of its
    time (measured).
    """
    if platform.libc_ver()[0] == "glibc" and not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
        pa.set_memory_pool(pa.system_memory_pool())
