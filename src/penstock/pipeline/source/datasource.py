"""The Spark side: a Python data source over a stored plan.

Keep to the API of pyspark 4.0. What runs in executors is `read_partition`; this file only hands it its task.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.objects.local import LocalStore
from penstock.objects.store import ObjectStore
from penstock.pipeline.source.ddl import columns_read, format_ddl
from penstock.pipeline.source.plan import ReadPlan
from penstock.pipeline.source.reading import PartitionTask, partition_task, read_partition
from penstock.pipeline.source.report import ReadingId

NAME = "penstock"
PLAN, PARTITIONS = "plan", "partitions"  # options: path of the plan; for a drain run, which partitions, comma-separated


@dataclass
class PlannedPartition(InputPartition):
    """One partition of the plan, as Spark carries it to an executor."""

    task: PartitionTask


class PenstockSource(DataSource):
    """``spark.read.format("penstock").option("plan", path)``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = ReadPlan.load(self.options[PLAN]).options
        return format_ddl(columns_read(options.schema_ddl, provenance=options.provenance))

    def reader(self, schema: StructType) -> "PenstockReader":  # noqa: ARG002 # Spark passes it by name
        partitions = self.options.get(PARTITIONS)
        drained = None if partitions is None else [int(number) for number in partitions.split(",")]
        return PenstockReader(self.options[PLAN], drained)


class PenstockReader(DataSourceReader):
    """Travels to every task, so it holds next to nothing; the partitions hold the rest."""

    def __init__(self, plan_path: str, drained: list[int] | None) -> None:
        self._plan_path = plan_path
        self._drained = drained
        self._store: ObjectStore = LocalStore(*ReadPlan.load(plan_path).roots)

    def partitions(self) -> list[InputPartition]:
        plan = ReadPlan.load(self._plan_path)
        numbers = range(len(plan.partitions)) if self._drained is None else self._drained
        drain = self._drained is not None
        return [PlannedPartition(partition_task(plan, number, drain=drain)) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedPartition):
            return iter(())  # Spark makes a partition up where a source has none
        task = partition.task
        return read_partition(task, self._store, ReadingId(Path(task.reports_dir), task.partition))
