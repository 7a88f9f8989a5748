"""Add the values of partition transforms to a DataFrame, so that writers partition by them as by any column.

They are computed with Arrow, in a `mapInArrow` stage in front of the writer. Frames without transforms get no such
stage.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from penstock.pipeline.spark.arrow_writer import column
from penstock.sinks.derived import folder_texts, texts
from penstock.sinks.partitions import PartitionField, names_of, resolve


def with_partition_columns(frame: DataFrame, partition_by: Sequence[str]) -> tuple[DataFrame, Sequence[str]]:
    """Return the frame with a text column for each transform, and the columns to partition by.

    Columns are renamed to numbers in between because `mapInArrow` fails on names with a dot.
    """
    fields = resolve(partition_by, frame.columns)
    names = names_of(fields, frame.columns)
    added = {name: field for name, field in zip(names, fields, strict=True) if field.transform is not None}
    if not added:
        return frame, partition_by
    task = _DeriveTask(sources=tuple((frame.columns.index(field.source), field) for field in added.values()))
    numbered = [StructField(f"c{number}", field.dataType) for number, field in enumerate(frame.schema.fields)]
    derived = [StructField(f"d{number}", StringType()) for number in range(len(added))]
    renamed = frame.select(*(column(name).alias(f"c{number}") for number, name in enumerate(frame.columns)))
    found = renamed.mapInArrow(task.rows, StructType([*numbered, *derived]))
    return found.toDF(*frame.columns, *added), names


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeriveTask:
    """The stage that computes the values, run by every task. Pickled to the executors."""

    sources: tuple[tuple[int, PartitionField], ...]  # the number of the source column, and the field

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            derived = [folder_texts(texts(field, batch.column(number))) for number, field in self.sources]
            names = [*batch.schema.names, *(f"d{number}" for number in range(len(derived)))]
            yield pa.RecordBatch.from_arrays([*batch.columns, *derived], names)
