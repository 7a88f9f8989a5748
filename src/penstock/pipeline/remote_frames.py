"""Files that the JVM has no way to as a DataFrame: read with Arrow in Spark's executors.

Files are packed into tasks by size, none is split. A task holds one row group at a time. Spark cannot see into it:
every column is read, whatever is selected behind it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import TableError
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.session import cores
from penstock.sinks.reading import TableFile
from penstock.storage.files import Files

PACK_BYTES_MAX = 128 << 20  # of several files together: as Spark's own reader packs them, and so is the next
OPENING_BYTES = 4 << 20  # what might be read in the time that opening a file takes
BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class RemoteReader:
    """A `penstock.pipeline.frames.Reader` of the files of a table in S3."""

    spark: SparkSession
    root: Files

    def rows(self, stored: StructType, files: Sequence[TableFile]) -> DataFrame:
        return self.valued_rows(stored, StructType([]), files)

    def valued_rows(self, stored: StructType, added: StructType, files: Sequence[TableFile]) -> DataFrame:
        """The values are put to the rows in the executors. Raises `TableError` for a file outside of the table."""
        for file in files:
            if file.path.startswith("/") or "://" in file.path:
                raise TableError(
                    f"The table {self.root.uri} names the file {file.path}, which is not below it; read the table "
                    "with a reader that can go there."
                )
        packs = packed(files, tasks=cores(self.spark))
        task = _Task(root=self.root, packs=packs, stored=arrow_schema(stored), added=arrow_schema(added))
        numbers = self.spark.range(0, len(packs), 1, len(packs))  # one for each task
        return numbers.mapInArrow(task.rows, StructType([*stored, *added]))


def packed(files: Sequence[TableFile], *, tasks: int) -> Sequence[Sequence[TableFile]]:
    """The files of each task, for so many tasks at once: the large ones first."""
    total_bytes = sum(file.size_bytes + OPENING_BYTES for file in files)
    target_bytes = min(PACK_BYTES_MAX, max(OPENING_BYTES, total_bytes // tasks))
    packs: list[list[TableFile]] = []
    room_bytes = 0
    for file in sorted(files, key=lambda file: file.size_bytes, reverse=True):
        if not packs or file.size_bytes > room_bytes:
            packs.append([])
            room_bytes = target_bytes
        packs[-1].append(file)
        room_bytes -= file.size_bytes + OPENING_BYTES
    return packs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What every task does. Travels to the executors."""

    root: Files
    packs: Sequence[Sequence[TableFile]]
    stored: pa.Schema
    added: pa.Schema

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file in self.packs[number]:
                    yield from self._rows_of(file)

    def _rows_of(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        try:
            with self.root.open_input(file.path) as opened:
                for batch in _batches(opened, self.stored.names):
                    yield self._typed(batch, file)
        except FileNotFoundError as error:
            raise TableError(
                f"The file {file.path} of the table {self.root.uri} is not there any more: the table has moved on "
                "since this DataFrame was made; read the table anew."
            ) from error

    def _typed(self, batch: pa.RecordBatch, file: TableFile) -> pa.RecordBatch:
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [
            found[field.name].cast(field.type) if field.name in found else pa.nulls(batch.num_rows, field.type)
            for field in self.stored
        ]
        values = [pa.scalar(file.partition_values[field.name], field.type) for field in self.added]
        columns += [pa.repeat(value, batch.num_rows) for value in values]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*self.stored, *self.added]))


def _batches(opened: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A row group's columns are asked for at once, in few requests."""
    file = pq.ParquetFile(opened, pre_buffer=True, coerce_int96_timestamp_unit="us")
    there = [name for name in file.schema_arrow.names if name in names]
    for group in range(file.num_row_groups):
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=there)
