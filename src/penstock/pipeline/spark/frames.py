"""Read a table snapshot as a DataFrame without connector jars: exactly the files that the snapshot names.

Partition columns are not stored in the files, and folder names do not show them (each attempt has its own folders), so
their values come from the table's log. Few distinct values become a union of frames, from which Spark prunes those that
a filter excludes; for many, the reader attaches the values to the rows.

`LocalFrameReader` uses Spark's own Parquet reader for tables with a local path. `RemoteFrameReader` reads tables that
the JVM cannot reach with Arrow in Spark's executors: it packs whole files into tasks by size, and a task holds one row
group at a time. Spark cannot push a projection into it, so it always reads every column.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import TableError
from penstock.pipeline.spark.arrow_writer import arrow_schema, column
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.shipping import ship
from penstock.sinks.sink import ReadableTable, ReadCheck, TableFile
from penstock.storage.files import Files

_GLOB = re.compile(r"([{}\[\]*?\\])")
_FILE = "__penstock_file"
_PATH_CHARS = frozenset("-_.!~*'():@&=+$,;/")  # not escaped in a URI's path, like a to z and 0 to 9

PACK_BYTES_MAX = 128 << 20  # for several files together; the same default as Spark's own reader, as is OPENING_BYTES
OPENING_BYTES = 4 << 20  # bytes that could be read in the time it takes to open a file
BATCH_ROWS = 10_000

UNION_MAX = 64  # distinct partitions; above this, a join

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LocalFrameReader:
    """A `FrameReader` for a table in a folder."""

    spark: SparkSession
    root: Files

    def rows(self, stored: StructType, files: Sequence[TableFile]) -> DataFrame:
        """Return the files' rows. ``recursiveFileLookup`` keeps Spark from reading folder names as partitions."""
        reader = self.spark.read.schema(stored).option("recursiveFileLookup", "true")
        return reader.parquet(*(_GLOB.sub(r"\\\1", self._address(file)) for file in files))

    def valued_rows(self, stored: StructType, added: StructType, files: Sequence[TableFile]) -> DataFrame:
        """Return the files' rows with partition values, joined by file name."""
        rows = [
            (hadoop_path(self._path(file)), *(file.partition_values[name] for name in added.names)) for file in files
        ]
        names = self.spark.createDataFrame(rows, StructType([StructField(_FILE, StringType()), *added]))
        path_read = functions.regexp_replace(
            "_metadata.file_path", "^file:/*", "/"
        )  # one slash or three, depending on Spark's version
        frame = self.rows(stored, files)
        return frame.withColumn(_FILE, path_read).join(functions.broadcast(names), _FILE, "left")

    def _address(self, file: TableFile) -> str:
        return f"file://{self._path(file)}"

    def _path(self, file: TableFile) -> str:
        return file.path if file.path.startswith("/") else f"{self.root}/{file.path}"


@dataclass(frozen=True, slots=True)
class RemoteFrameReader:
    """A `FrameReader` for a table in S3."""

    spark: SparkSession
    root: Files

    def rows(self, stored: StructType, files: Sequence[TableFile]) -> DataFrame:
        return self.valued_rows(stored, StructType([]), files)

    def valued_rows(self, stored: StructType, added: StructType, files: Sequence[TableFile]) -> DataFrame:
        """Return the files' rows with partition values, added in the executors.

        Raises `TableError` for a file outside the table.
        """
        for file in files:
            if file.path.startswith("/") or "://" in file.path:
                raise TableError(
                    f"The table {self.root.uri} names the file {file.path}, which is not below it. Penstock cannot "
                    "read such a table; another reader of its format can."
                )
        runtime = runtime_of(self.spark)
        ship(runtime)
        packs = packed(files, tasks=runtime.tasks_at_once())
        task = _ReadTask(root=self.root, packs=packs, stored=arrow_schema(stored), added=arrow_schema(added))
        numbers = self.spark.range(0, len(packs), 1, len(packs))  # one per task
        return numbers.mapInArrow(task.rows, StructType([*stored, *added]))


def hadoop_path(path: str) -> str:
    """Return an absolute path as Spark shows it in ``_metadata.file_path``: encoded like a `java.net.URI`.

    Characters outside ASCII stay, except for blanks and control characters.
    """
    return "".join(map(_encoded, os.path.normpath(path)))


def packed(files: Sequence[TableFile], *, tasks: int) -> Sequence[Sequence[TableFile]]:
    """Distribute the files over packs of about equal size for ``tasks`` parallel tasks, large files first."""
    total_bytes = sum(file.size_bytes + OPENING_BYTES for file in files)
    target_bytes = min(PACK_BYTES_MAX, max(OPENING_BYTES, total_bytes // tasks))
    packs: list[list[TableFile]] = []
    left_bytes = 0
    for file in sorted(files, key=lambda file: file.size_bytes, reverse=True):
        if not packs or file.size_bytes > left_bytes:
            packs.append([])
            left_bytes = target_bytes
        packs[-1].append(file)
        left_bytes -= file.size_bytes + OPENING_BYTES
    return packs


class FrameReader(Protocol):
    """Reads Parquet files of one table. Columns missing from a file are null in its rows."""

    def rows(self, stored: StructType, files: Sequence[TableFile]) -> DataFrame:
        """Return the files' rows; there is at least one file."""
        ...

    def valued_rows(self, stored: StructType, added: StructType, files: Sequence[TableFile]) -> DataFrame:
        """Return the same rows with the partition columns added, with each file's values."""
        ...


def frame_of(spark: SparkSession, table: ReadableTable, *, union_max: int = UNION_MAX) -> DataFrame:
    """Return the rows of a snapshot. Columns added after a file was written are null in its rows.

    Uses Spark's own reader for tables with a local path, otherwise Arrow in the executors. Raises `TableError` for a
    snapshot whose rows are not those of its files.
    """
    if isinstance(table, ReadCheck):
        table.check_readable()
    schema = StructType.fromJson(dict(table.schema_document))
    files = table.files()
    if not files:
        return spark.createDataFrame([], schema)
    root = table.root
    reader: FrameReader = LocalFrameReader(spark, root) if root.is_local else RemoteFrameReader(spark, root)
    stored = StructType([field for field in schema if field.name not in table.partition_by])
    added = StructType([schema[name] for name in table.partition_by if name in schema.names])  # not the transforms
    if not added:
        return reader.rows(stored, files)
    by_values = _grouped(files, added.names)
    if len(by_values) <= union_max:
        frame = _union([_with_values(reader.rows(stored, some), added, values) for values, some in by_values.items()])
    else:
        frame = reader.valued_rows(stored, added, files)
    return frame.select([column(name) for name in schema.names])


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadTask:
    """The reading stage of one DataFrame, run by every task. Pickled to the executors."""

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
                f"The file {file.path} of the table {self.root.uri} was deleted: the table has changed since this "
                "DataFrame was made. Read the table again."
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


def _encoded(char: str) -> str:
    if char.isascii():
        return char if char.isalnum() or char in _PATH_CHARS else f"%{ord(char):02X}"
    if unicodedata.category(char) in {"Zs", "Zl", "Zp", "Cc"}:
        return "".join(f"%{byte:02X}" for byte in char.encode())
    return char


def _batches(opened: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a file's batches; the columns of a row group are requested together, in few requests."""
    file = pq.ParquetFile(opened, pre_buffer=True, coerce_int96_timestamp_unit="us")
    there = [name for name in file.schema_arrow.names if name in names]
    for group in range(file.num_row_groups):
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=there)


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
    """Return the value as a literal; dates go as text because PySpark fails on dates before the year 1000."""
    return functions.lit(value.isoformat() if type(value) is date else value)


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), parts)
