"""The Spark side: a Python data source over a stored plan.

Keep to the API of pyspark 4.0. What runs in executors is `read_partition`; this file only hands it its task.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from socket import gethostname

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.pipeline.faulty_host import naming_host
from penstock.pipeline.source.ddl import columns_read, format_ddl
from penstock.pipeline.source.plan import ReadPlan
from penstock.pipeline.source.reading import PartitionTask, partition_task, read_partition
from penstock.pipeline.source.report import ReadingId
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

NAME = "penstock"
WORK, AWS = "work", "aws"  # options: where the plan lies, and how to come there if it is in S3, as JSON
PARTITIONS = "partitions"  # option of a drain run: which ones, with commas


@dataclass
class PlannedPartition(InputPartition):
    """One partition of the plan, as Spark carries it to an executor."""

    task: PartitionTask


class PenstockSource(DataSource):
    """``spark.read.format("penstock").options(**options_of(plan))``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = ReadPlan.load(self._work).options
        return format_ddl(columns_read(options.schema_ddl, provenance=options.provenance))

    def reader(self, schema: StructType) -> "PenstockReader":  # noqa: ARG002 # Spark passes it by name
        partitions = self.options.get(PARTITIONS)
        drained = None if partitions is None else [int(number) for number in partitions.split(",")]
        return PenstockReader(self._work, drained)

    @property
    def _work(self) -> Files:
        return files_at(self.options[WORK], Aws(**json.loads(self.options[AWS])))


def options_of(plan: ReadPlan) -> dict[str, str]:
    """What leads Spark to a saved plan."""
    return {WORK: str(plan.work), AWS: json.dumps(asdict(plan.aws))}


class PenstockReader(DataSourceReader):
    """Travels to every task, so it holds next to nothing; the partitions hold the rest."""

    def __init__(self, work: Files, drained: list[int] | None) -> None:
        self._work = work
        self._drained = drained
        self._driver_host = gethostname()  # where Spark plans
        plan = ReadPlan.load(work)
        self._store: ObjectStore = store_at(plan.source, plan.aws, remembers=False)

    def partitions(self) -> list[InputPartition]:
        plan = ReadPlan.load(self._work)
        numbers = range(len(plan.partitions)) if self._drained is None else self._drained
        drain = self._drained is not None
        return [PlannedPartition(partition_task(plan, number, drain=drain)) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedPartition):
            return iter(())  # Spark makes a partition up where a source has none
        ReadPlan.check_seen(self._work)
        task = partition.task
        return self._read(task)

    def _read(self, task: PartitionTask) -> Iterator[pa.RecordBatch]:
        with naming_host(self._driver_host):
            yield from read_partition(task, self._store, ReadingId(task.reports, task.partition))
