"""Read an S3 Inventory into rows: local files with Spark's readers, files in S3 with Arrow on the executors."""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from penstock.objects.s3_listing import ARCHIVED
from penstock.pipeline.reconcile import manifest as names
from penstock.pipeline.reconcile.existing import EXISTING
from penstock.pipeline.reconcile.manifest import Inventory, Manifest
from penstock.pipeline.spark.arrow_writer import arrow_schema
from penstock.storage.address import S3Address
from penstock.storage.files import Files

_TYPED = {
    names.SIZE: LongType(),
    names.MODIFIED: TimestampType(),
    names.LATEST: BooleanType(),
    names.MARKER: BooleanType(),
}
_GZIP = ".gz"
_CSV_BLOCK_BYTES = 4 << 20


def inventory_frame(spark: SparkSession, inventory: Inventory, below: S3Address, *, all_versions: bool) -> DataFrame:
    """Return the inventory's objects below a prefix as rows of `EXISTING`: the current ones then, or all versions."""
    found = _local(spark, inventory) if inventory.root.is_local else _remote(spark, inventory)
    there = [name for name in names.COLUMNS if name in inventory.manifest.columns]
    lacking = [F.lit(None).cast(_type(name)).alias(name) for name in names.COLUMNS if name not in there]
    return _normalised(
        found.select(*there, *lacking), below, encoded=inventory.manifest.format == "csv", all_versions=all_versions
    )


def _normalised(found: DataFrame, below: S3Address, *, encoded: bool, all_versions: bool) -> DataFrame:
    """Filter and convert the rows. Only CSV has form-URL-encoded keys, which are decoded here, once."""
    key = F.try_url_decode(names.KEY) if encoded else F.col(names.KEY)
    marker = F.coalesce(_typed(names.MARKER), F.lit(False))
    latest = F.coalesce(_typed(names.LATEST), F.lit(True))
    kept = found.where(~marker & (F.lit(all_versions) | latest)).withColumn("_key", key)
    if below.prefix:
        unread = F.col("_key").isNull()
        kept = kept.where(unread | (F.col("_key") == below.prefix) | F.col("_key").startswith(below.folder))
    size, modified = _typed(names.SIZE), _typed(names.MODIFIED)
    incomplete = F.col("_key").isNull() | size.isNull() | modified.isNull()
    key_or_object = F.coalesce(F.col(names.KEY), F.lit("an object"))
    return kept.select(
        F.when(~incomplete, F.col("_key").cast("binary")).alias("key"),
        size.alias("size_bytes"),
        F.nullif(_filled(F.col(names.VERSION)), F.lit("null")).alias("version_id"),
        _filled(F.btrim(F.col(names.ETAG), F.lit('"'))).alias("etag"),
        (F.unix_micros(modified) / 1e6).alias("modified_at"),
        F.coalesce(F.col(names.STORAGE_CLASS).isin(*ARCHIVED), F.lit(False)).alias("is_archived"),
        F.when(incomplete, F.concat(F.lit("the inventory lacks key, size or time of "), key_or_object)).alias(
            "problem"
        ),
    ).to(EXISTING)


def _typed(name: str) -> Column:
    """Return the column with its type. In CSV every value is text, and a missing one is the empty string."""
    return F.col(name).try_cast(_type(name))


def _filled(text: Column) -> Column:
    return F.nullif(text, F.lit(""))


def _type(name: str) -> Any:
    return _TYPED.get(name, StringType())


def _columns(manifest: Manifest) -> StructType:
    """Return the schema of the columns to read, under Penstock's names. In CSV every column is text."""
    kept = [name for name in manifest.columns if name in names.COLUMNS]
    return StructType([StructField(name, StringType() if manifest.format == "csv" else _type(name)) for name in kept])


def _local(spark: SparkSession, inventory: Inventory) -> DataFrame:
    manifest = inventory.manifest
    paths = [f"{inventory.root.uri}/{_escaped(path)}" for path in inventory.paths]
    if not paths:
        return spark.createDataFrame([], _columns(manifest))
    if manifest.format == "csv":
        every = StructType([StructField(name, StringType()) for name in manifest.columns])
        return spark.read.schema(every).csv(paths, escape='"', mode="FAILFAST")
    found = spark.read.format(manifest.format).load(paths)
    return found.select(*(F.col(f"`{manifest.columns[name]}`").alias(name) for name in _columns(manifest).names))


def _escaped(path: str) -> str:
    """Escape glob characters, which Spark would expand, and percent signs, which it would decode."""
    return "".join(f"%{ord(character):02X}" if character in "%?#[]{}*\\ " else character for character in path)


def _remote(spark: SparkSession, inventory: Inventory) -> DataFrame:
    columns = _columns(inventory.manifest)
    task = _InventoryTask(
        root=inventory.root, paths=tuple(inventory.paths), manifest=inventory.manifest, schema=arrow_schema(columns)
    )
    if not inventory.paths:
        return spark.createDataFrame([], columns)
    numbers = spark.range(0, len(inventory.paths), 1, len(inventory.paths))  # one row per task
    return numbers.mapInArrow(task.rows, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InventoryTask:
    """A task that is sent to the executors."""

    root: Files
    paths: Sequence[str]
    manifest: Manifest
    schema: pa.Schema

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with self.root.open_input(self.paths[number]) as opened:
                    for found in self._batches(opened, self.paths[number]):
                        yield self._typed(found)

    def _batches(self, opened: BinaryIO, path: str) -> Iterator[pa.RecordBatch]:
        wanted = [self.manifest.columns[name] for name in self.schema.names]
        match self.manifest.format:
            case "parquet":
                yield from pq.ParquetFile(opened, pre_buffer=True).iter_batches(columns=wanted)
            case "orc":
                file = pyarrow.orc.ORCFile(opened)
                for stripe in range(file.nstripes):
                    yield file.read_stripe(stripe, columns=wanted)
            case _:
                yield from self._csv_batches(opened, path, wanted)

    def _csv_batches(self, opened: BinaryIO, path: str, wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        every = list(self.manifest.columns.values())
        yield from pyarrow.csv.open_csv(
            gzip.GzipFile(fileobj=opened) if path.endswith(_GZIP) else opened,
            read_options=pyarrow.csv.ReadOptions(column_names=every, block_size=_CSV_BLOCK_BYTES),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(every, pa.string()), strings_can_be_null=False
            ),
        )

    def _typed(self, found: pa.RecordBatch) -> pa.RecordBatch:
        columns = [found.column(self.manifest.columns[field.name]).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
