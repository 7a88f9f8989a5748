"""What the rest of the pipeline calls: plan, read, drain, summarise. Needs pyspark."""

import os
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from penstock.pipeline.source.datasource import NAME, PARTITIONS, PLAN, PenstockSource
from penstock.pipeline.source.ddl import format_ddl, parse_ddl
from penstock.pipeline.source.infer import infer_schema
from penstock.pipeline.source.plan import ReadOptions, ReadPlan, make_plan
from penstock.pipeline.source.quarantine import QUARANTINE_SCHEMA
from penstock.pipeline.source.report import FailureKind, ObjectFailure
from penstock.pipeline.source.summary import ObjectReading, Summary, summarise

__all__ = [
    "QUARANTINE_SCHEMA",
    "FailureKind",
    "ObjectFailure",
    "ObjectReading",
    "ReadOptions",
    "ReadPlan",
    "Summary",
    "canonical_ddl",
    "check_schema",
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


def read(spark: SparkSession, plan_path: str | os.PathLike[str]) -> DataFrame:
    """The rows of a stored plan, typed, with ``_object`` and ``_offset`` where the plan wants them. Lazy."""
    return spark.read.format(NAME).option(PLAN, os.fspath(plan_path)).load()


def drain(spark: SparkSession, plan_path: str | os.PathLike[str], partitions: Sequence[int]) -> None:
    """Read some partitions to their end for their reports and quarantine alone. Blocks."""
    if not partitions:
        return
    numbers = ",".join(str(partition) for partition in partitions)
    source = spark.read.format(NAME).option(PLAN, os.fspath(plan_path)).option(PARTITIONS, numbers)
    source.load().write.format("noop").mode("append").save()


def check_schema(ddl: str) -> spark_types.StructType:
    """Schema text as Spark's type; needs no session. Raises `UsageError` for what the source cannot read."""
    return _struct(parse_ddl(ddl))


def canonical_ddl(ddl: str) -> str:
    """Schema text in the one form that is remembered and compared. Raises `UsageError` as `check_schema`."""
    return format_ddl(parse_ddl(ddl))


_SPARK_TYPES: dict[pa.DataType, spark_types.DataType] = {
    pa.int8(): spark_types.ByteType(),
    pa.int16(): spark_types.ShortType(),
    pa.int32(): spark_types.IntegerType(),
    pa.int64(): spark_types.LongType(),
    pa.float32(): spark_types.FloatType(),
    pa.float64(): spark_types.DoubleType(),
    pa.bool_(): spark_types.BooleanType(),
    pa.string(): spark_types.StringType(),
    pa.date32(): spark_types.DateType(),
    pa.timestamp("us", tz="UTC"): spark_types.TimestampType(),
    pa.timestamp("us"): spark_types.TimestampNTZType(),
}


def _struct(fields: pa.Schema | pa.StructType) -> spark_types.StructType:
    return spark_types.StructType([spark_types.StructField(field.name, _spark_type(field.type)) for field in fields])


def _spark_type(kind: pa.DataType) -> spark_types.DataType:
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        return spark_types.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_decimal(kind):
        return spark_types.DecimalType(kind.precision, kind.scale)
    return _SPARK_TYPES[kind]
