"""The ids that the ledger knows, as a DataFrame: each task reads ranges of them over a connection of its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.ledger import Ledger
from penstock.ledger.known_ids import ID_BYTES, IDS_END, known_ids_at
from penstock.pipeline.session import cores

KNOWN_ID = "known_id"
KNOWN = StructType([StructField(KNOWN_ID, BinaryType(), nullable=False)])
TASKS_A_CORE = 2
TASKS_MAX = 64  # each is a connection to the database
_ARROW = pa.schema([pa.field(KNOWN_ID, pa.binary(), nullable=False)])
_LOCAL = "local"


def known_frame(spark: SparkSession, ledger: Ledger, pipeline: str, *, seen_at: float) -> DataFrame:
    """The ids that need no message, for a comparison with what existed at ``seen_at``; see `Ledger.known_ids`.

    One column, `KNOWN_ID`. A ledger of this host alone is read here, where Spark's executors are elsewhere.
    """
    if ledger.is_of_this_process or (ledger.is_of_this_host and not _runs_here(spark)):
        table = pa.Table.from_batches(_batches(ledger.known_ids(pipeline, seen_at=seen_at)), schema=_ARROW)
        return spark.createDataFrame(table, KNOWN)
    tasks = min(TASKS_A_CORE * cores(spark), TASKS_MAX)
    task = _Task(
        url=ledger.secret_url,
        pipeline=pipeline,
        seen_at=seen_at,
        bounds=[IDS_END * n // tasks for n in range(tasks + 1)],
    )
    return spark.range(0, tasks, 1, tasks).mapInArrow(task.rows, KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Travels to the executors, and is never shown: there is a password in it."""

    url: str = field(repr=False)
    pipeline: str
    seen_at: float
    bounds: Sequence[int]

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                low, high = self.bounds[number], self.bounds[number + 1]
                yield from _batches(known_ids_at(self.url, self.pipeline, low, high, seen_at=self.seen_at))


def _batches(blobs: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Ids of one length, one behind the other, are a column of Arrow's already: only its offsets are made."""
    for blob in blobs:
        count = len(blob) // ID_BYTES
        offsets = np.arange(0, len(blob) + 1, ID_BYTES, dtype=np.int32)
        ids = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(blob)])
        yield pa.RecordBatch.from_arrays([ids], schema=_ARROW)


def _runs_here(spark: SparkSession) -> bool:
    return (spark.sparkContext.master or "").startswith(_LOCAL)
