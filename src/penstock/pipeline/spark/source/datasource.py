"""The Spark side of reading, and the API for the rest of the pipeline: plan, read, drain, summarise.

A Python data source over a stored plan; `read_partition` does the work in the executors. Uses only the data source API
of pyspark 4.0.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from socket import gethostname
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.pipeline.spark.arrow_writer import naming_host
from penstock.pipeline.spark.source.ddl import format_ddl, parse_ddl, spark_ddl
from penstock.pipeline.spark.source.plan import ReadPlan, SavedPlan
from penstock.pipeline.spark.source.reading import PartitionTask, partition_task, read_partition
from penstock.pipeline.spark.source.report import ReadingId
from penstock.storage.aws import Aws
from penstock.storage.roots import files_at

NAME = "penstock"
WORK, AWS = "work", "aws"  # options: location of the plan, and the settings to reach it in S3, as JSON
PARTITIONS = "partitions"  # option of a drain run: partition numbers, separated by commas

_registered: "WeakSet[SparkSession]" = WeakSet()  # sessions that have the source


@dataclass
class PlannedPartition(InputPartition):
    """One partition of the plan, as Spark sends it to an executor: its number. The executor reads the plan's file."""

    number: int


class PenstockSource(DataSource):
    """The data source: ``spark.read.format("penstock").options(**options_of(plan))``.

    Spark asks for the schema in one process and for the reader in another, and pickles the source in between. The
    header of the plan is loaded by the first and travels with the source.
    """

    _loaded: SavedPlan | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = self._plan.options
        return spark_ddl(options.columns)

    def reader(self, schema: StructType) -> "PenstockReader":  # noqa: ARG002 # Spark passes it by name
        partitions = self.options.get(PARTITIONS)
        drained = None if partitions is None else [int(number) for number in partitions.split(",")]
        return PenstockReader(self._plan, drained)

    @property
    def _plan(self) -> SavedPlan:
        if self._loaded is None:
            self._loaded = SavedPlan.load(files_at(self.options[WORK], Aws(**json.loads(self.options[AWS]))))
        return self._loaded


def options_of(plan: ReadPlan) -> dict[str, str]:
    """Return the data source options that lead to a saved plan."""
    return {WORK: str(plan.work), AWS: json.dumps(asdict(plan.aws))}


class PenstockReader(DataSourceReader):
    """Plans the partitions and reads one. Pickled to every task, with the header of the plan."""

    def __init__(self, plan: SavedPlan, drained: list[int] | None) -> None:
        self._plan = plan
        self._drained = drained
        self._driver_host = gethostname()  # Spark plans on the driver
        self._store: ObjectStore = store_at(plan.source, plan.aws, remembers=False)

    def partitions(self) -> list[InputPartition]:
        numbers = range(self._plan.partitions_count) if self._drained is None else self._drained
        return [PlannedPartition(number) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedPartition):
            return iter(())  # Spark makes up a partition if a source has none
        # Raises here, before any row, if this host does not see the plan.
        return self._read(partition_task(self._plan, partition.number, drain=self._drained is not None))

    def _read(self, task: PartitionTask) -> Iterator[pa.RecordBatch]:
        with naming_host(self._driver_host):
            yield from read_partition(task, self._store, ReadingId(task.reports, task.partition))


def register(spark: SparkSession) -> None:
    """Register the source in a session once. The first time takes a second, and starts a Python process."""
    if spark not in _registered:
        spark.dataSource.register(PenstockSource)
        _registered.add(spark)


def read(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """Return the rows of a saved plan, typed, with provenance if the plan asks for it. Lazy."""
    register(spark)
    return spark.read.format(NAME).options(**options_of(plan)).load()


def drain(spark: SparkSession, plan: ReadPlan, partitions: Sequence[int]) -> None:
    """Read some partitions to their end, only for their reports and quarantine files. Blocks."""
    if not partitions:
        return
    register(spark)
    numbers = ",".join(str(partition) for partition in partitions)
    source = spark.read.format(NAME).options(**options_of(plan)).option(PARTITIONS, numbers)
    source.load().write.format("noop").mode("append").save()


def canonical_ddl(ddl: str) -> str:
    """Return schema text in the canonical form, which is stored and compared. Raises `UsageError` if it is invalid."""
    return format_ddl(parse_ddl(ddl))
