"""Writes a DataFrame's rows as Parquet from Spark's executors, through Arrow, to places that the JVM has no way to.

A Python stage behind the transform: every task streams its batches into files of its own and returns their paths, rows
and bytes as its result, through Spark. So only files of the task attempts that Spark accepted count, and all of them.
Files of failed and repeated task attempts are named by no manifest.

Types and folders are those of Spark's own writer. Measured: a tenth to a quarter more time than it takes.

Spark's types as Arrow's: what a DataFrame's columns are in the files and in the table.

PySpark's own conversion is private and takes other arguments in every version.

Add the host to the text of a fault that occurred on another host than the driver's.

Columns of a DataFrame by their names as they are: Spark would take dots and blanks for an expression.
"""

import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter
from socket import gethostname

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import __version__ as spark_version
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql import types as spark_types

from penstock.errors import ConfigurationError, TableError, TemporaryError, TransformError
from penstock.sinks.parquet import NULL_PARTITION, WrittenFile
from penstock.storage.files import Files

_PLAIN: dict[type[spark_types.DataType], pa.DataType] = {
    spark_types.BooleanType: pa.bool_(),
    spark_types.ByteType: pa.int8(),
    spark_types.ShortType: pa.int16(),
    spark_types.IntegerType: pa.int32(),
    spark_types.LongType: pa.int64(),
    spark_types.FloatType: pa.float32(),
    spark_types.DoubleType: pa.float64(),
    spark_types.StringType: pa.string(),
    spark_types.BinaryType: pa.binary(),
    spark_types.DateType: pa.date32(),
    spark_types.TimestampType: pa.timestamp("us", tz="UTC"),
    spark_types.TimestampNTZType: pa.timestamp("us"),
}


def arrow_schema(struct: spark_types.StructType) -> pa.Schema:
    """A DataFrame's columns, all nullable. Raises `TransformError` naming a column whose type no table can hold."""
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType, field.name)) for field in struct.fields])


def _arrow_type(kind: spark_types.DataType, column: str) -> pa.DataType:
    if isinstance(kind, spark_types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark_types.ArrayType):
        return pa.list_(_arrow_type(kind.elementType, f"{column}.element"))
    if isinstance(kind, spark_types.MapType):
        return pa.map_(_arrow_type(kind.keyType, f"{column}.key"), _arrow_type(kind.valueType, f"{column}.value"))
    if isinstance(kind, spark_types.StructType):
        return pa.struct(
            [pa.field(field.name, _arrow_type(field.dataType, f"{column}.{field.name}")) for field in kind.fields]
        )
    found = _PLAIN.get(type(kind))
    if found is None:
        raise TransformError(
            f"The transform returned the column {column} of type {kind.simpleString()}, which the table cannot hold; "
            "cast it to another type or drop it."
        )
    return found


FAULTS = (TemporaryError, TableError, ConfigurationError)  # of a machine or its settings, not of the data


@contextmanager
def naming_host(driver_host: str) -> Iterator[None]:
    """Raise faults from the block with the name of this host, unless it is the driver's."""
    try:
        yield
    except FAULTS as fault:
        if gethostname() == driver_host:
            raise
        raise type(fault)(f"on the host {gethostname()}, {fault}") from fault


def column(name: str) -> Column:
    """The column of exactly that name."""
    return functions.col("`" + name.replace("`", "``") + "`")


def gathered(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Each partition's rows in few tasks, or every task would write a crumb into every partition."""
    return frame.hint("rebalance", *map(column, partition_by)) if partition_by else frame


ROW_GROUP_BYTES = 128 << 20  # in memory: what a task holds before it writes
FILE_BYTES = 256 << 20  # a file that has as much is followed by another

_ANSWER = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("fault", pa.string()),
        ("reason", pa.string()),
    ]
)
_ANSWER_DDL = "path string, rows bigint, size_bytes bigint, fault string, reason string"
_FAULTS = {fault.__name__: fault for fault in (TemporaryError, TableError)}  # of the store: no row is to blame

# What Spark's ExternalCatalogUtils escapes; and NUL, which no writer of Spark's gets as far as a name.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
# By it Spark knows that old dates are of the calendar that all others use, too.
_METADATA = {"org.apache.spark.version": spark_version}


def write_parquet(
    frame: DataFrame,
    files: Files,
    directory: str,
    *,
    partition_by: Sequence[str],
    row_group_bytes: int = ROW_GROUP_BYTES,
    file_bytes: int = FILE_BYTES,
) -> Sequence[WrittenFile]:
    """Write all rows below ``directory`` and return the files, as their tasks report them. Blocks, as a Spark job does.

    Raises what Spark raises of the frame, `TransformError` where partition columns are all there is, and what
    ``files`` raises in the executors.
    """
    stored = [name for name in frame.columns if name not in partition_by]
    if not stored:
        raise TransformError(f"All columns are partition columns ({', '.join(partition_by)}), and files need another.")
    task = _WriteTask(
        files=files,
        directory=directory,
        schema=arrow_schema(frame.select(*map(column, stored)).schema).with_metadata(_METADATA),
        partition_by=tuple(partition_by),
        row_group_bytes=row_group_bytes,
        file_bytes=file_bytes,
        driver_host=gethostname(),
    )
    answers = _arranged(frame, stored, partition_by).mapInArrow(task.answers, _ANSWER_DDL).collect()
    for answer in answers:
        if answer.fault is not None:
            raise _FAULTS[answer.fault](answer.reason)
    return [WrittenFile(path=answer.path, rows=answer["rows"], size_bytes=answer.size_bytes) for answer in answers]


def _arranged(frame: DataFrame, stored: Sequence[str], partition_by: Sequence[str]) -> DataFrame:
    """Partition columns last and as the text that Spark makes of them, by which rows are sorted: so a task has one
    file open at a time.

    Columns are numbered: `mapInArrow` stumbles over names with a dot.
    """
    columns = [column(name).alias(f"c{number}") for number, name in enumerate(stored)]
    if not partition_by:
        return frame.select(*columns)
    keys = [f"p{number}" for number in range(len(partition_by))]
    texts = [
        functions.coalesce(column(name).cast("string"), functions.lit("")).alias(key)
        for name, key in zip(partition_by, keys, strict=True)
    ]
    return gathered(frame, partition_by).select(*columns, *texts).sortWithinPartitions(*keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteTask:
    """What every task does. Travels to the executors."""

    files: Files
    directory: str
    schema: pa.Schema  # of the files
    partition_by: tuple[str, ...]
    row_group_bytes: int
    file_bytes: int
    driver_host: str

    def answers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row per written file. A fault of the store is a row as well: raised here, it would reach the driver
        as text among Spark's, where it looks like a fault of the rows."""
        try:
            with naming_host(self.driver_host):
                for file in self._written(batches):
                    yield _answer(path=file.path, rows=file.rows, size_bytes=file.size_bytes)
        except tuple(_FAULTS.values()) as error:
            fault = next(name for name, kind in _FAULTS.items() if isinstance(error, kind))
            yield _answer(fault=fault, reason=str(error))

    def _written(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        for folder, pieces in itertools.groupby(self._pieces(batches), key=itemgetter(0)):
            yield from self._files_of(folder, (rows for _, rows in pieces))

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows, as they are stored, cut where another folder begins."""
        for batch in batches:
            columns = [values.cast(field.type) for values, field in zip(batch.columns, self.schema, strict=False)]
            rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            keys = batch.columns[len(columns) :]
            for start, end in itertools.pairwise(_bounds(keys, batch.num_rows)):
                values = [key[start].as_py() for key in keys]
                yield self._folder(values), rows.slice(start, end - start)

    def _folder(self, values: Sequence[str]) -> str:
        names = (partition_folder(name, value) for name, value in zip(self.partition_by, values, strict=True))
        return "/".join([self.directory, *names])

    def _files_of(self, folder: str, pieces: Iterator[pa.RecordBatch]) -> Iterator[WrittenFile]:
        groups = self._row_groups(pieces)
        for first in groups:
            path = f"{folder}/part-{uuid.uuid4()}.snappy.parquet"  # another one in every attempt of a task
            yield self._write_file(path, itertools.chain([first], groups))

    def _write_file(self, path: str, groups: Iterator[pa.Table]) -> WrittenFile:
        """Takes from the row groups until the file is large enough."""
        rows = 0
        with self.files.open_output(path) as file:
            sink = pa.PythonFile(file, mode="w")  # never closed: the file is not ours to close
            with self._writer(sink) as writer:
                for group in groups:
                    writer.write_table(group, row_group_size=group.num_rows)
                    rows += group.num_rows
                    if sink.tell() >= self.file_bytes:
                        break
            size_bytes = sink.tell()
        return WrittenFile(path=path, rows=rows, size_bytes=size_bytes)

    def _writer(self, sink: pa.NativeFile) -> pq.ParquetWriter:
        """As Spark's own: decimals as integers where they fit, and an index of pages, by which its readers skip."""
        return pq.ParquetWriter(
            sink,
            self.schema,
            compression="snappy",
            store_schema=False,
            store_decimal_as_integer=True,
            write_page_index=True,
        )

    def _row_groups(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        gathered: list[pa.RecordBatch] = []
        gathered_bytes = 0
        for piece in pieces:
            gathered.append(piece)
            gathered_bytes += piece.nbytes
            if gathered_bytes >= self.row_group_bytes:
                yield pa.Table.from_batches(gathered, self.schema)
                gathered, gathered_bytes = [], 0
        if gathered:
            yield pa.Table.from_batches(gathered, self.schema)


def partition_folder(name: str, value: str) -> str:
    """The folder of a partition, as Hive and Spark name it; "" is null."""
    return f"{_escaped(name)}={_escaped(value) or NULL_PARTITION}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _bounds(keys: Sequence[pa.Array], rows: int) -> Sequence[int]:
    """Where runs of equal keys begin, and where the last one ends."""
    if not rows:
        return []
    changes = [pc.not_equal(key[1:], key[:-1]) for key in keys]
    inner = pc.indices_nonzero(reduce(pc.or_, changes)).to_pylist() if changes else []
    return [0, *(before + 1 for before in inner), rows]


def _answer(**values: str | int) -> pa.RecordBatch:
    """One row; the columns that are not given are null."""
    return pa.RecordBatch.from_pylist([values], schema=_ANSWER)
