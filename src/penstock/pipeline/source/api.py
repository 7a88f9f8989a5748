"""What the rest of the pipeline calls: plan, read, drain, summarise. Needs pyspark."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.source.datasource import NAME, PARTITIONS, PenstockSource, options_of
from penstock.pipeline.source.ddl import columns_read, format_ddl, parse_ddl
from penstock.pipeline.source.infer import infer_schema
from penstock.pipeline.source.options import CsvOptions, ReadOptions
from penstock.pipeline.source.plan import ReadPlan, make_plan
from penstock.pipeline.source.quarantine import QUARANTINE_SCHEMA
from penstock.pipeline.source.report import REFUSALS, FailureKind, ObjectFailure
from penstock.pipeline.source.summary import ObjectReading, Summary, summarise

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
    """Make the source known to a session: once, before the first `read`."""
    spark.dataSource.register(PenstockSource)


def read(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """The rows of a saved plan, typed, with ``_object`` and ``_offset`` where the plan wants them. Lazy."""
    return spark.read.format(NAME).options(**options_of(plan)).load()


def drain(spark: SparkSession, plan: ReadPlan, partitions: Sequence[int]) -> None:
    """Read some partitions to their end for their reports and quarantine alone. Blocks."""
    if not partitions:
        return
    numbers = ",".join(str(partition) for partition in partitions)
    source = spark.read.format(NAME).options(**options_of(plan)).option(PARTITIONS, numbers)
    source.load().write.format("noop").mode("append").save()


def canonical_ddl(ddl: str) -> str:
    """Schema text in the one form that is remembered and compared. Raises `UsageError` for what cannot be read."""
    return format_ddl(parse_ddl(ddl))
