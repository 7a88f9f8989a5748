"""Small trial jobs for the things that a pipeline needs from Spark. `penstock doctor` runs them."""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError, PenstockError
from penstock.objects.s3_listing import S3Pages
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.probe import unchanged
from penstock.pipeline.spark.session import runtime_of
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws, access

JOB_SECONDS = 30.0  # after these, the job that is to be cancelled ends on its own
CANCEL_AGAIN_SECONDS = 0.5
GIVE_UP_SECONDS = 60.0  # a job that waits for executors ends neither on its own nor, perhaps, by a cancel

_REPLY = pa.schema([("host", pa.string()), ("found", pa.string()), ("fault", pa.string())])
_REPLY_DDL = "host string, found string, fault string"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReply:
    """The reply of a task on one host. ``fault`` is None if it succeeded."""

    host: str
    found: str | None
    fault: str | None


def try_out(spark: SparkSession, folder: Path) -> None:
    """Send numbers through Python workers. If they run on this host, also write them as Parquet below ``folder``.

    Raises `ConfigurationError`.
    """
    try:
        numbers = spark.range(100).mapInArrow(unchanged, "id long")
        if runtime_of(spark).is_local:
            numbers.write.parquet(str(folder / "try"))
        else:
            numbers.collect()
    except SPARK_ERRORS as error:
        raise ConfigurationError(f"Spark started, but a trial job failed: {explain(error)}") from error


def run_arrow(spark: SparkSession) -> int:
    """Send numbers through an Arrow function, in one task per slot; return the number of tasks."""
    tasks = runtime_of(spark).tasks_at_once()
    spark.range(0, tasks, 1, tasks).mapInArrow(unchanged, "id long").collect()
    return tasks


def cancel_by_tag(spark: SparkSession) -> bool:
    """Start a tagged job and cancel it from another thread. Return False if it ran on regardless."""
    runtime, tag = runtime_of(spark), f"penstock-doctor-{uuid4().hex}"
    ended, cancelled = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with runtime.tagged(tag, "penstock doctor"):
                spark.range(0, 1, 1, 1).mapInArrow(_Wait(JOB_SECONDS).rows, "id long").collect()
        except SPARK_ERRORS:
            cancelled.set()
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="penstock-doctor-job", daemon=True)
    give_up_at = time.monotonic() + GIVE_UP_SECONDS
    thread.start()
    while not ended.wait(CANCEL_AGAIN_SECONDS):
        with suppress(*SPARK_ERRORS):
            runtime.cancel(tag)
        if time.monotonic() >= give_up_at:
            break
    return cancelled.is_set()


def list_s3(spark: SparkSession, address: S3Address, aws: Aws) -> Sequence[TaskReply]:
    """List one key below an address in S3, in one task per slot and one more. Return the different replies.

    A reply names the kind of credentials, never the credentials.
    """
    tasks = runtime_of(spark).tasks_at_once() + 1
    numbers = spark.range(0, tasks, 1, tasks)
    rows = numbers.mapInArrow(_ListTask(address, aws).replies, _REPLY_DDL).collect()
    found = sorted({json.dumps(row.asDict()) for row in rows})
    return [TaskReply(**json.loads(text)) for text in found]


@dataclass(frozen=True, slots=True)
class _ListTask:
    """A task that is sent to the executors."""

    address: S3Address
    aws: Aws

    def replies(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in numbers:
            pass
        found = fault = None
        try:
            next(iter(S3Pages(self.address, self.aws, page_keys=1)), None)
            found = access(self.aws).provider
        except PenstockError as error:
            fault = str(error)
        yield pa.RecordBatch.from_pylist([{"host": gethostname(), "found": found, "fault": fault}], schema=_REPLY)


@dataclass(frozen=True, slots=True)
class _Wait:
    """A task that does nothing for a while."""

    seconds: float

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            threading.Event().wait(self.seconds)
            yield batch
