"""The Spark side of reading, and the API for the rest of the pipeline: plan, read, drain, summarise.

A Python data source over a stored plan; `read_partition` does the work in the executors. Uses only the data source API
of pyspark 4.0.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from socket import gethostname

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.pipeline.spark.arrow_writer import naming_host
from penstock.pipeline.spark.source.ddl import columns_read, format_ddl, parse_ddl
from penstock.pipeline.spark.source.infer import infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.plan import ReadPlan, make_plan
from penstock.pipeline.spark.source.quarantine import QUARANTINE_SCHEMA
from penstock.pipeline.spark.source.reading import PartitionTask, partition_task, read_partition
from penstock.pipeline.spark.source.report import (
    REFUSALS,
    FailureKind,
    ObjectFailure,
    ObjectReading,
    ReadingId,
    Summary,
    summarise,
)
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

NAME = "penstock"
WORK, AWS = "work", "aws"  # options: location of the plan, and the settings to reach it in S3, as JSON
PARTITIONS = "partitions"  # option of a drain run: partition numbers, separated by commas


@dataclass
class PlannedPartition(InputPartition):
    """One partition of the plan, as Spark sends it to an executor."""

    task: PartitionTask


class PenstockSource(DataSource):
    """The data source: ``spark.read.format("penstock").options(**options_of(plan))``."""

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
    """Return the data source options that lead to a saved plan."""
    return {WORK: str(plan.work), AWS: json.dumps(asdict(plan.aws))}


class PenstockReader(DataSourceReader):
    """Plans the partitions and reads one. Pickled to every task, so the partitions, not the reader, hold the data."""

    def __init__(self, work: Files, drained: list[int] | None) -> None:
        self._work = work
        self._drained = drained
        self._driver_host = gethostname()  # Spark plans on the driver
        plan = ReadPlan.load(work)
        self._store: ObjectStore = store_at(plan.source, plan.aws, remembers=False)

    def partitions(self) -> list[InputPartition]:
        plan = ReadPlan.load(self._work)
        numbers = range(len(plan.partitions)) if self._drained is None else self._drained
        drain = self._drained is not None
        return [PlannedPartition(partition_task(plan, number, drain=drain)) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PlannedPartition):
            return iter(())  # Spark makes up a partition if a source has none
        ReadPlan.check_seen(self._work)
        task = partition.task
        return self._read(task)

    def _read(self, task: PartitionTask) -> Iterator[pa.RecordBatch]:
        with naming_host(self._driver_host):
            yield from read_partition(task, self._store, ReadingId(task.reports, task.partition))


__all__ = [
    "QUARANTINE_SCHEMA",
    "REFUSALS",
    "CsvOptions",
    "FailureKind",
    "ObjectFailure",
    "ObjectReading",
    "ReadOptions",
    "ReadPlan",
    "Summary",
    "canonical_ddl",
    "columns_read",
    "drain",
    "infer_schema",
    "make_plan",
    "read",
    "register",
    "summarise",
]


def register(spark: SparkSession) -> None:
    """Register the source in a session. Call it once before the first `read`."""
    spark.dataSource.register(PenstockSource)


def read(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """Return the rows of a saved plan, typed, with ``_object`` and ``_offset`` if the plan asks for them. Lazy."""
    return spark.read.format(NAME).options(**options_of(plan)).load()


def drain(spark: SparkSession, plan: ReadPlan, partitions: Sequence[int]) -> None:
    """Read some partitions to their end, only for their reports and quarantine files. Blocks."""
    if not partitions:
        return
    numbers = ",".join(str(partition) for partition in partitions)
    source = spark.read.format(NAME).options(**options_of(plan)).option(PARTITIONS, numbers)
    source.load().write.format("noop").mode("append").save()


def canonical_ddl(ddl: str) -> str:
    """Return schema text in the canonical form, which is stored and compared. Raises `UsageError` if it is invalid."""
    return format_ddl(parse_ddl(ddl))
