"""A table as a DataFrame, without connector jars: exactly the files that a snapshot names, read by Spark's own reader.

Partition columns are not in the files, and folder names are no guide to them (an attempt's files lie in folders of its
own): their values come from the table's log. Few distinct ones make a union, from which Spark drops what a filter does
not want; many are joined to the files' names.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StringType, StructField, StructType

from penstock.sinks.reading import ReadableTable, TableFile

UNION_MAX = 64  # distinct partitions
_GLOB = re.compile(r"([{}\[\]*?\\])")
_FILE = "__penstock_file"

Values = tuple[Any, ...]


def frame_of(spark: SparkSession, table: ReadableTable, *, union_max: int = UNION_MAX) -> DataFrame:
    """The rows of a snapshot. Columns that a file lacks, since they were added later, are null in its rows."""
    schema = StructType.fromJson(dict(table.schema_document))
    files = table.files()
    if not files:
        return spark.createDataFrame([], schema)
    stored = StructType([field for field in schema if field.name not in table.partition_by])
    added = [schema[name] for name in table.partition_by]
    if not added:
        return _read(spark, stored, files)
    by_values = _grouped(files, table.partition_by)
    if len(by_values) <= union_max:
        parts = [_with_values(_read(spark, stored, group), added, values) for values, group in by_values.items()]
        frame = _union(parts)
    else:
        frame = _joined(spark, stored, added, by_values)
    return frame.select([_column(name) for name in schema.names])


def _read(spark: SparkSession, schema: StructType, files: Sequence[TableFile]) -> DataFrame:
    """``recursiveFileLookup`` keeps Spark from taking folders for partitions."""
    reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
    return reader.parquet(*(_GLOB.sub(r"\\\1", f"file://{file.path}") for file in files))


def _grouped(files: Sequence[TableFile], columns: Sequence[str]) -> Mapping[Values, Sequence[TableFile]]:
    groups: dict[Values, list[TableFile]] = {}
    for file in files:
        groups.setdefault(tuple(file.partition_values[name] for name in columns), []).append(file)
    return groups


def _with_values(frame: DataFrame, fields: Sequence[StructField], values: Values) -> DataFrame:
    for field, value in zip(fields, values, strict=True):
        frame = frame.withColumn(field.name, functions.lit(value).cast(field.dataType))
    return frame


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), parts)


def _joined(
    spark: SparkSession,
    stored: StructType,
    added: Sequence[StructField],
    by_values: Mapping[Values, Sequence[TableFile]],
) -> DataFrame:
    jvm: Any = spark.sparkContext._jvm  # Spark names files as Hadoop escapes them, so Hadoop is asked
    path_of = jvm.org.apache.hadoop.fs.Path
    rows = [
        (path_of(f"file://{file.path}").toUri().getRawPath(), *values)
        for values, group in by_values.items()
        for file in group
    ]
    names = spark.createDataFrame(rows, StructType([StructField(_FILE, StringType()), *added]))
    path_read = functions.regexp_replace(
        "_metadata.file_path", "^file:/*", "/"
    )  # one slash or three, by Spark's version
    frame = _read(spark, stored, [file for group in by_values.values() for file in group])
    return frame.withColumn(_FILE, path_read).join(functions.broadcast(names), _FILE, "left")


def _column(name: str) -> Column:
    return functions.col("`" + name.replace("`", "``") + "`")
