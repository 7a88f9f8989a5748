"""The form in which every source tells of existing objects, and their identity, computed in the JVM."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so
from pyspark.sql.types import BinaryType, BooleanType, DoubleType, LongType, StringType, StructField, StructType

from penstock.pipeline.arrow_types import arrow_schema

BATCH_ROWS = 10_000
_ID_HEX_CHARS = 32
_SEPARATOR = b"\0"


class Existing(NamedTuple):
    """One object that is there, or a sentence about something that could not be looked at."""

    key: bytes | None = None
    size_bytes: int | None = None
    version_id: str | None = None  # never empty, never "null"
    etag: str | None = None  # without quotes, never empty
    modified_at: float | None = None  # epoch seconds
    is_archived: bool = False  # it cannot be read as it is
    problem: str | None = None


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


def batches(rows: Iterable[Existing]) -> Iterator[pa.RecordBatch]:
    """The rows as Spark takes them, bounded numbers at a time."""
    remaining = iter(rows)
    while some := list(islice(remaining, BATCH_ROWS)):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def object_id(bucket: str) -> Column:
    """`ObjectRef.object_id` of a row of `EXISTING`; of a problem, the digest of its sentence."""
    version = F.coalesce(
        F.col("version_id"), F.concat(F.coalesce(F.col("etag"), F.lit("")), F.lit("+"), F.col("size_bytes"))
    )
    separator = F.lit(_SEPARATOR)
    named = F.concat(F.lit(bucket.encode() + _SEPARATOR), F.col("key"), separator, version.cast("binary"))
    digest = F.sha2(F.coalesce(named, F.col("problem").cast("binary")), 256)
    return F.unhex(F.substring(digest, 1, _ID_HEX_CHARS))
