"""Subtract the known objects from the existing ones on Spark, and classify the rest.

In reading order: the ids that the ledger knows, as a DataFrame (each task reads ranges of ids over its own connection);
the missing objects and those left out on purpose; Spark jobs with progress events, cancellation and Penstock's errors.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.events import BatchProgressed, Bus, Event, ReconcileProgressed
from penstock.ledger import Ledger
from penstock.ledger.known_ids import ID_BYTES, IDS_END, known_ids_at
from penstock.ledger.records import OnChange
from penstock.objects.notification import URL
from penstock.objects.reference import S3_KEY_BYTES_MAX, ObjectRef, decode_key, encode_key, uri_of
from penstock.objects.scanner import CHUNK_OBJECTS, PROBLEMS_MAX, TABLE_FOLDERS
from penstock.objects.selection import Selection
from penstock.pipeline.reconcile.alone import PREFIXES_MAX, LeftOut, MissingPrefix, ReconcileScope
from penstock.pipeline.reconcile.existing import object_id
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.probe import require_packages
from penstock.pipeline.spark.progress import watched
from penstock.pipeline.spark.requirements import FOR_LEDGER
from penstock.pipeline.spark.session import runtime_of

KNOWN_ID = "known_id"
KNOWN = StructType([StructField(KNOWN_ID, BinaryType(), nullable=False)])
TASKS_A_CORE = 2
TASKS_MAX = 64  # each is a connection to the database
_ARROW = pa.schema([pa.field(KNOWN_ID, pa.binary(), nullable=False)])

_EXTRAS = {"pymysql": "mysql", "psycopg": "postgresql"}  # pip extras of the ledger's drivers
_TABLE = rf"^((?:[^/]*/)*?)(?:{'|'.join(TABLE_FOLDERS)})/"
_FIRST_FOLDER = r"^[^/]*/"
_PROBLEM = "problem"
_SKIPPED = "skipped"

POOL = "penstock-reconcile"  # a scheduler pool, so that pipelines' batches do not wait behind these jobs


def known_frame(
    spark: SparkSession, ledger: Ledger, pipeline: str, *, seen_at: float, on_change: OnChange = OnChange.ADD
) -> DataFrame:
    """Return a DataFrame of the ids that need no message, to compare with objects that existed at ``seen_at``.

    One column, `KNOWN_ID`; see `Ledger.known_ids`. The driver reads the ledger if the executors cannot reach it. Raises
    `ConfigurationError` if they could but lack the packages for its server.
    """
    if ledger.is_in_this_process or (ledger.is_local and not runtime_of(spark).is_local):
        table = pa.Table.from_batches(
            _batches(ledger.known_ids(pipeline, seen_at=seen_at, on_change=on_change)), schema=_ARROW
        )
        return spark.createDataFrame(table, KNOWN)
    if not ledger.is_local:
        require_packages(
            spark,
            {**FOR_LEDGER, ledger.driver: ""},
            purpose="a reconcile with this ledger",
            extra=_EXTRAS.get(ledger.driver, ""),
        )
    tasks = min(TASKS_A_CORE * runtime_of(spark).tasks_at_once(), TASKS_MAX)
    task = _KnownIdsTask(
        url=ledger.secret_url,
        pipeline=pipeline,
        seen_at=seen_at,
        on_change=on_change,
        bounds=[IDS_END * n // tasks for n in range(tasks + 1)],
    )
    return spark.range(0, tasks, 1, tasks).mapInArrow(task.rows, KNOWN)


class MissingObjects:
    """The missing objects, and counts of those left out. Kept on the executors' disks until `close`."""

    def __init__(self, kept: DataFrame, scope: ReconcileScope, *, listed: int) -> None:
        self.listed = listed
        self._kept = kept
        self._scope = scope
        self._judged = kept.withColumn("left_out", _left_out(scope, _tables(kept, scope)))
        counts = {row["left_out"]: row["count"] for row in self._judged.groupBy("left_out").count().collect()}
        self.count: int = counts.pop(None, 0)
        self._problems_count: int = counts.pop(_PROBLEM, 0)
        self.left_out: Mapping[LeftOut, int] = {LeftOut(reason): number for reason, number in counts.items()}

    @property
    def problems(self) -> Sequence[str]:
        """Some of the problems: sentences about paths or entries that could not be read."""
        if not self._problems_count:
            return ()
        rows = self._judged.where(F.col("left_out") == _PROBLEM).select("problem").limit(PROBLEMS_MAX).collect()
        return sorted(row["problem"] for row in rows)

    def prefixes(self) -> Sequence[MissingPrefix]:
        """Return the first-level folders with the most missing objects, in descending order."""
        if not self.count:
            return ()
        first = F.regexp_extract(_relative(self._scope), _FIRST_FOLDER, 0)
        found = self._rows().groupBy(first.cast("binary").alias("first")).count()
        rows = found.orderBy(F.desc("count"), "first").limit(PREFIXES_MAX).collect()
        scope = self._scope
        return [
            MissingPrefix(uri=uri_of(scope.bucket, scope.below + decode_key(bytes(row["first"]))), missing=row["count"])
            for row in rows
        ]

    def chunks(self, *, limit: int | None = None, objects_max: int = CHUNK_OBJECTS) -> Iterator[Sequence[ObjectRef]]:
        """Yield the missing objects, up to ``limit``, unordered, in chunks of ``objects_max``."""
        rows = self._rows() if limit is None else self._rows().limit(limit)
        found = iter(rows.select("key", "size_bytes", "version_id", "etag").toLocalIterator(prefetchPartitions=True))
        while chunk := tuple(islice(found, objects_max)):
            yield [
                ObjectRef(
                    bucket=self._scope.bucket,
                    key=decode_key(bytes(row["key"])),
                    size_bytes=row["size_bytes"],
                    version_id=row["version_id"],
                    etag=row["etag"],
                )
                for row in chunk
            ]

    def close(self) -> None:
        """Free the disk space on the executors."""
        self._kept.unpersist()

    def _rows(self) -> DataFrame:
        return self._judged.where(F.col("left_out").isNull())


def find_missing(existing: DataFrame, known: DataFrame, scope: ReconcileScope) -> MissingObjects:
    """Return the rows of `EXISTING` whose ids are not known. Duplicates are found once.

    The anti join is a merge join: it spills to disk, so that neither side has to fit in memory.
    """
    observation = Observation()
    identified = existing.withColumn("object_id", object_id(scope.bucket)).observe(
        observation, F.count_if(F.col("problem").isNull()).alias("listed")
    )
    unknown = identified.join(known, F.col("object_id") == F.col(KNOWN_ID), "left_anti").dropDuplicates(["object_id"])
    if not scope.is_local:  # there the scanner left out the others
        unknown = unknown.withColumn(_SKIPPED, _skipped(scope.selection))
    kept = unknown.persist(StorageLevel.DISK_ONLY)
    try:
        kept.count()
        return MissingObjects(kept, scope, listed=observation.get["listed"])
    except BaseException:
        kept.unpersist()
        raise


@contextmanager
def jobs(spark: SparkSession, tag: str, pipeline: str, bus: Bus) -> Iterator[None]:
    """Run this thread's Spark jobs under ``tag``, in a pool of their own. Raise Penstock's errors for Spark's."""
    runtime = runtime_of(spark)
    try:
        with (
            runtime.tagged(tag, f"penstock reconcile {pipeline}", pool=POOL),
            watched(runtime, pipeline, tag, Bus(_progress_emitter(bus))),
        ):
            yield
    except SPARK_ERRORS as error:
        raise explain(error) from error


@contextmanager
def cancelled_when(stop_requested: threading.Event, spark: SparkSession, tag: str) -> Iterator[None]:
    """Cancel the jobs with this tag once the event is set, until the block ends."""
    ended, runtime = threading.Event(), runtime_of(spark)

    def wait() -> None:
        stop_requested.wait()
        while not ended.is_set():  # repeat: a job that starts later is not covered by the first cancellation
            runtime.cancel(tag)
            ended.wait(0.2)

    threading.Thread(target=wait, name="penstock-reconcile-cancel", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        stop_requested.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownIdsTask:
    """A task that is sent to the executors. Never log it: its URL contains a password."""

    url: str = field(repr=False)
    pipeline: str
    seen_at: float
    on_change: OnChange
    bounds: Sequence[int]

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                low, high = self.bounds[number], self.bounds[number + 1]
                found = known_ids_at(self.url, self.pipeline, low, high, seen_at=self.seen_at, on_change=self.on_change)
                yield from _batches(found)


def _batches(blobs: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches over blobs of concatenated fixed-length ids. The ids are not copied."""
    for blob in blobs:
        count = len(blob) // ID_BYTES
        offsets = np.arange(0, len(blob) + 1, ID_BYTES, dtype=np.int32)
        ids = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(blob)])
        yield pa.RecordBatch.from_arrays([ids], schema=_ARROW)


def _tables(kept: DataFrame, scope: ReconcileScope) -> Sequence[str]:
    """Return the key prefixes of tables below the source. No ledger knows a table's files, so these rows have them."""
    if scope.is_local:
        return ()
    relative = _relative(scope)
    inside = [F.contains(relative, F.lit(f"{folder}/")) for folder in TABLE_FOLDERS]
    rows = kept.where(inside[0] | inside[1]).where(relative.rlike(_TABLE))
    roots = rows.select(F.regexp_extract(relative, _TABLE, 1).alias("root")).distinct().collect()
    return [f"{scope.below}{row['root']}" for row in roots]


def _left_out(scope: ReconcileScope, tables: Sequence[str]) -> Column:
    key = F.col("key").cast("string")
    young = F.when(F.col("modified_at") >= scope.before, F.lit(LeftOut.YOUNG.value))
    found = F.when(F.col("problem").isNotNull(), F.lit(_PROBLEM))
    if scope.is_local:
        return F.coalesce(found, young)
    if scope.excluded or tables:
        prefixes = [*(f"{prefix.rstrip('/')}/" for prefix in scope.excluded), *tables]
        below = F.array(*map(F.lit, prefixes))
        named = key.isin(list(scope.excluded)) if scope.excluded else F.lit(False)
        excluded = named | F.exists(below, lambda prefix: F.startswith(key, prefix))
        found = found.when(excluded, F.lit(LeftOut.EXCLUDED.value))
    unnameable = (
        (F.octet_length("key") > S3_KEY_BYTES_MAX) | key.rlike(f"^{URL.pattern}") | F.contains(key, F.lit("\0"))
    )
    found = (
        found.when(F.col(_SKIPPED).isNotNull(), F.col(_SKIPPED))
        .when(unnameable, F.lit(LeftOut.UNNAMEABLE.value))
        .when(F.col("is_archived"), F.lit(LeftOut.ARCHIVED.value))
    )
    return F.coalesce(found, young)


def _skipped(selection: Selection) -> Column:
    """Return why a source leaves out the object of a row, as text."""

    def reason(key: bytes | None, size_bytes: int | None) -> str | None:
        found = None if key is None else selection.left_out(decode_key(bytes(key)), size_bytes or 0)
        return None if found is None else found.value

    # without Arrow, which would need pandas
    return F.udf(reason, StringType(), useArrow=False)("key", "size_bytes")


def _relative(scope: ReconcileScope) -> Column:
    """Return the key relative to the source's prefix, or the whole key if it lacks the prefix."""
    key, below = F.col("key"), encode_key(scope.below)
    return F.when(F.startswith(key, F.lit(below)), F.substr(key, F.lit(len(below) + 1))).otherwise(key).cast("string")


def _progress_emitter(bus: Bus) -> Callable[[Event], None]:
    def emit_progress(event: Event) -> None:
        if isinstance(event, BatchProgressed):
            bus.emit(
                ReconcileProgressed(pipeline=event.pipeline, unit="tasks", done=event.tasks_done, total=event.tasks)
            )

    return emit_progress
