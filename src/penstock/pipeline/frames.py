"""A table as a DataFrame, without connector jars: exactly the files that a snapshot names.

Partition columns are not in the files, and folder names are no guide to them (an attempt's files lie in folders of its
own): their values come from the table's log. Few distinct ones make a union, from which Spark drops what a filter does
not want; for many it is left to the reader how it gets them to the rows.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from functools import reduce
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from penstock.pipeline.columns import column
from penstock.pipeline.local_frames import LocalReader
from penstock.pipeline.remote_frames import RemoteReader
from penstock.sinks.reading import ReadableTable, TableFile

UNION_MAX = 64  # distinct partitions

Values = tuple[Any, ...]


class Reader(Protocol):
    """Reads Parquet files of one table. Columns that a file lacks are null in its rows."""

    def rows(self, stored: StructType, files: Sequence[TableFile]) -> DataFrame:
        """The files' rows; there is at least one file."""
        ...

    def valued_rows(self, stored: StructType, added: StructType, files: Sequence[TableFile]) -> DataFrame:
        """The same with the partition columns, as the files' values say."""
        ...


def frame_of(spark: SparkSession, table: ReadableTable, *, union_max: int = UNION_MAX) -> DataFrame:
    """The rows of a snapshot. Columns that a file lacks, since they were added later, are null in its rows.

    Spark's own reader where a path leads to the table, else one of ours, in the executors.
    """
    schema = StructType.fromJson(dict(table.schema_document))
    files = table.files()
    if not files:
        return spark.createDataFrame([], schema)
    root = table.root
    reader: Reader = LocalReader(spark, root) if root.is_local else RemoteReader(spark, root)
    stored = StructType([field for field in schema if field.name not in table.partition_by])
    added = StructType([schema[name] for name in table.partition_by])
    if not added:
        return reader.rows(stored, files)
    by_values = _grouped(files, table.partition_by)
    if len(by_values) <= union_max:
        frame = _union([_with_values(reader.rows(stored, some), added, values) for values, some in by_values.items()])
    else:
        frame = reader.valued_rows(stored, added, files)
    return frame.select([column(name) for name in schema.names])


def _grouped(files: Sequence[TableFile], columns: Sequence[str]) -> Mapping[Values, Sequence[TableFile]]:
    groups: dict[Values, list[TableFile]] = {}
    for file in files:
        groups.setdefault(tuple(file.partition_values[name] for name in columns), []).append(file)
    return groups


def _with_values(frame: DataFrame, added: StructType, values: Values) -> DataFrame:
    for field, value in zip(added.fields, values, strict=True):
        frame = frame.withColumn(field.name, _literal(value).cast(field.dataType))
    return frame


def _literal(value: Any) -> Column:
    """PySpark stumbles over dates before the year 1000."""
    return functions.lit(value.isoformat() if type(value) is date else value)


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), parts)
