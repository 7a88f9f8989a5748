"""Existing objects as a DataFrame of one schema, `EXISTING`, whose object ids are computed in the JVM.

`folder_frame` walks a local folder in a single task, which is as fast as a disk lists files. `listing_frame` lists an
S3 prefix in spans of keys, one task per span.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so
from pyspark.sql.types import BinaryType, BooleanType, DoubleType, LongType, StringType, StructField, StructType

from penstock.objects.local_store import LocalStore, modified_at
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_listing import Entry, S3Pages, Span, is_archived, reference, s3_spans
from penstock.objects.scanner import Scanner
from penstock.objects.selection import Selection
from penstock.pipeline.spark.arrow_writer import arrow_schema
from penstock.pipeline.spark.session import runtime_of
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws

BATCH_ROWS = 10_000
_ID_HEX_CHARS = 32
_SEPARATOR = b"\0"

EXISTING = StructType(
    [
        StructField("key", BinaryType()),
        StructField("size_bytes", LongType()),
        StructField("version_id", StringType()),
        StructField("etag", StringType()),
        StructField("modified_at", DoubleType()),
        StructField("is_archived", BooleanType()),
        StructField("problem", StringType()),
    ]
)
_ARROW = arrow_schema(EXISTING)

SPANS_MIN = 32
SPANS_A_CORE = 4  # more spans than cores, since their lengths differ


class Existing(NamedTuple):
    """One existing object, or a sentence about a path that could not be read."""

    key: bytes | None = None
    size_bytes: int | None = None
    version_id: str | None = None  # never empty, never "null"
    etag: str | None = None  # without quotes, never empty
    modified_at: float | None = None  # epoch seconds
    is_archived: bool = False  # it must be restored before it can be read
    problem: str | None = None


def batches(rows: Iterable[Existing]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Arrow batches of up to `BATCH_ROWS`."""
    remaining = iter(rows)
    while some := list(islice(remaining, BATCH_ROWS)):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def object_id(bucket: str) -> Column:
    """Return `ObjectRef.object_id` for a row of `EXISTING`; for a problem, the digest of its sentence."""
    version = F.coalesce(
        F.col("version_id"), F.concat(F.coalesce(F.col("etag"), F.lit("")), F.lit("+"), F.col("size_bytes"))
    )
    separator = F.lit(_SEPARATOR)
    named = F.concat(F.lit(bucket.encode() + _SEPARATOR), F.col("key"), separator, version.cast("binary"))
    digest = F.sha2(F.coalesce(named, F.col("problem").cast("binary")), 256)
    return F.unhex(F.substring(digest, 1, _ID_HEX_CHARS))


def folder_frame(spark: SparkSession, folder: str, *, excluded: Sequence[str], selection: Selection) -> DataFrame:
    """Return the source's files in a local folder as rows of `EXISTING`. Raise `UsageError` if it cannot be listed."""
    task = _FolderTask(folder=folder, excluded=tuple(excluded), selection=selection)
    task.scanner()
    return spark.range(0, 1, 1, 1).mapInArrow(task.rows, EXISTING)


def listing_frame(spark: SparkSession, address: S3Address, aws: Aws, *, prefix: str, all_versions: bool) -> DataFrame:
    """Return the objects below an S3 address as rows of `EXISTING`: the current ones, or all versions.

    ``prefix``: only those whose keys begin with it, see `S3Pages`.
    Raises `UsageError`, `ConfigurationError` and `TemporaryError` if the prefix cannot be listed.
    """
    next(
        iter(S3Pages(address, aws, prefix=prefix, page_keys=1)), None
    )  # check access before tasks start, for a clear error
    parts = max(SPANS_MIN, SPANS_A_CORE * runtime_of(spark).tasks_at_once())
    spans = s3_spans(address, aws, prefix=prefix, parts=parts)
    task = _ListingTask(address=address, prefix=prefix, aws=aws, spans=spans, all_versions=all_versions)
    return spark.range(0, len(spans), 1, len(spans)).mapInArrow(task.rows, EXISTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FolderTask:
    """A task that is sent to the executor."""

    folder: str
    excluded: Sequence[str]
    selection: Selection

    def scanner(self) -> Scanner:
        return Scanner(self.folder, store=LocalStore(self.folder), excluded=self.excluded, selection=self.selection)

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for _ in range(batch.num_rows):
                yield from batches(self._existing())

    def _existing(self) -> Iterator[Existing]:
        scanner = self.scanner()
        for chunk in scanner.chunks():
            yield from map(_existing_file, chunk)
        for problem in scanner.report().problems:
            yield Existing(problem=problem)


def _existing_file(ref: ObjectRef) -> Existing:
    return Existing(key=ref.key_bytes, size_bytes=ref.size_bytes, etag=ref.etag, modified_at=modified_at(ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListingTask:
    """A task that is sent to the executors."""

    address: S3Address
    prefix: str
    aws: Aws
    spans: Sequence[Span]
    all_versions: bool

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from batches(self._existing(self.spans[number]))

    def _existing(self, span: Span) -> Iterator[Existing]:
        pages = S3Pages(self.address, self.aws, prefix=self.prefix, span=span, all_versions=self.all_versions)
        for page in pages:
            for entry in page.entries:
                yield _existing_object(self.address.bucket, entry)


def _existing_object(bucket: str, entry: Entry) -> Existing:
    ref = reference(bucket, entry)
    return Existing(
        key=ref.key_bytes,
        size_bytes=ref.size_bytes,
        version_id=ref.version_id,
        etag=ref.etag,
        modified_at=entry["LastModified"].timestamp(),
        is_archived=is_archived(entry),
    )
