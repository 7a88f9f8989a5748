"""Check before anything is claimed that all hosts of a Spark cluster share the folders of a pipeline.

The driver writes a token into each folder that tasks write to; a job on all executors reads the token and writes a
reply file, and the driver must see every reply. The source may be read-only, so tasks only check that they see files
the driver sees. All hosts share S3, and a Spark inside this process's own JVM has one host: neither needs a proof.
Executors that join later are caught by `ReadPlan.check_seen` before they read and by `list_files` after they wrote.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError, ObjectError, TableError, TemporaryError
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner
from penstock.pipeline.batch_record import DATA_FOLDER
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.runtime import SparkRuntime
from penstock.pipeline.spark.session import runtime_of
from penstock.storage.address import is_s3
from penstock.storage.files import Files

ROUNDS_MAX = 5  # task rounds, until every executor has run one
TASK_SECONDS_MIN = 0.2  # a task keeps its slot this long, so that Spark gives the next task to another executor
SAMPLE_FILES = 8  # of the source

_TOKEN_FILE = "driver"
_REPLY = pa.schema(
    [
        ("executor", pa.string()),
        ("host", pa.string()),
        ("folder", pa.int32()),  # index of the written folder; null: the source
        ("reply_file", pa.string()),  # written by the task beside the token; null: the task does not see the token
        ("unseen", pa.string()),  # the URI of a source file that the task does not see
        ("reason", pa.string()),
    ]
)
_REPLY_DDL = "executor string, host string, folder int, reply_file string, unseen string, reason string"


def prove_shared(spark: SparkSession, declaration: Declaration) -> None:
    """Prove that all executors share the folders of a pipeline. Blocks for a small job unless nothing needs a proof.

    Raises `ConfigurationError` for a folder that an executor does not share, and Spark's errors as `explain` maps them.
    """
    prove_places(
        spark,
        table=declaration.table,
        quarantine=declaration.quarantine,
        work=declaration.work,
        source=declaration.source,
    )


def prove_places(spark: SparkSession, *, table: Files, quarantine: Files, work: Files, source: str | None) -> int:
    """Prove that all executors share the folders of a table and, if given, its source. Return the number of folders.

    Places in S3 count as shared, and a Spark in this process has one host. Raises as `prove_shared`.
    """
    if runtime_of(spark).is_local:
        return 0
    places = (table.below(DATA_FOLDER), quarantine.below(DATA_FOLDER), work)
    written = [location for location in places if location.is_local]
    folder = None if source is None or is_s3(source) else source
    _prove(spark, written, folder)
    return len(written) + (folder is not None)


def prove_readable(spark: SparkSession, source: str) -> None:
    """Prove that all executors see a source, as `prove_shared` does."""
    if not (is_s3(source) or runtime_of(spark).is_local):
        _prove(spark, (), source)


def _prove(spark: SparkSession, written: Sequence[Files], source: str | None) -> None:
    if not written and source is None:
        return
    with _Token(written, source) as token:
        task = _ProofTask(
            token=token.text,
            folder=token.folder,
            folders=tuple(written),
            source=source,
            sample=token.sample,
            hidden=token.hidden,
        )
        proof = _Proof(spark, task)
        for _ in range(ROUNDS_MAX):
            proof.run_round()
            if proof.is_complete:
                return


class _Token:
    """Context manager that keeps the token of one proof in all folders. Used by one thread."""

    def __init__(self, written: Sequence[Files], source: str | None) -> None:
        self.text = uuid4().hex
        self.folder = f".shared-{uuid4().hex}"
        self.sample: tuple[ObjectRef, ...] = () if source is None else _sample(source)
        self.hidden: str | None = None  # path of the token in a source without files
        self._written = written
        self._source = source

    def __enter__(self) -> "_Token":
        for location in self._written:
            location.write(f"{self.folder}/{_TOKEN_FILE}", self.text.encode())
        if self._source is not None and not self.sample:
            hidden = Path(self._source, f".penstock{self.folder}")
            with suppress(OSError):  # a read-only source: until it has files, its existence is the only check
                hidden.write_text(self.text)
                self.hidden = str(hidden)
        return self

    def __exit__(self, *_: object) -> None:
        if self.hidden is not None:
            with suppress(OSError):  # the mount is gone, or read-only by now
                Path(self.hidden).unlink()
        for location in self._written:
            with suppress(TemporaryError, TableError):
                location.delete([f"{self.folder}/{name}" for name in location.names(self.folder)])
                location.prune(self.folder)


class _Proof:
    """The rounds of one proof. Used by one thread."""

    def __init__(self, spark: SparkSession, task: "_ProofTask") -> None:
        self._spark = spark
        self._runtime: SparkRuntime = runtime_of(spark)
        self._task = task
        self._seen: set[str] = set()  # executors that replied
        self.is_complete = False  # every registered executor has replied, as of the last round

    def run_round(self) -> None:
        """Run one task per slot, and one more, and check their replies.

        If the number of executors is unknown, the proof is complete when a round has met no new one.
        """
        known = len(self._seen)
        for reply in self._replies():
            self._seen.add(reply.executor)
            if reply.folder is not None:
                self._check_folder(reply)
            elif reply.unseen is not None:
                self._check_source(reply)
        executors = self._runtime.executors()
        self.is_complete = len(self._seen) == known if executors is None else len(self._seen) >= executors

    def _replies(self) -> Sequence[Any]:
        tasks = max(self._runtime.tasks_at_once(), self._runtime.executors() or 1) + 1
        numbers = self._spark.range(0, tasks, 1, tasks)
        try:
            return numbers.mapInArrow(self._task.replies, _REPLY_DDL).collect()
        except SPARK_ERRORS as error:
            raise explain(error) from error

    def _check_folder(self, reply: Any) -> None:
        location = self._task.folders[reply.folder]
        if reply.reply_file is None:
            raise self._not_shared(
                location, reply.reason or f"the host {reply.host} does not see what this host writes"
            )
        if location.stat(reply.reply_file) is None:
            raise self._not_shared(location, f"this host does not see what the host {reply.host} writes")

    def _check_source(self, reply: Any) -> None:
        """Raise for an unseen file, unless the driver no longer sees it either: a deleted file proves nothing."""
        source = self._task.source
        assert source is not None
        for ref in self._task.sample:
            if ref.uri == reply.unseen and _reason_unseen(LocalStore(source), ref) is not None:
                return
        raise self._not_shared(source, f"the host {reply.host} does not see {reply.reason}")

    def _not_shared(self, location: object, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"The hosts of the Spark cluster {self._runtime.address} do not share the folder {location}: {why}. Mount "
            "it on all hosts under the same path, use a location in S3, or set spark.master to local[*] to run on this "
            "host alone."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProofTask:
    """The proof that every task runs. Pickled to the executors."""

    token: str
    folder: str  # of the token, in each folder
    folders: Sequence[Files]
    source: str | None
    sample: Sequence[ObjectRef]
    hidden: str | None

    def replies(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row per folder and per unseen file; at least one row, which shows that this executor replied."""
        for _ in numbers:
            pass
        host, executor = gethostname(), f"{gethostname()} {os.getppid()}"
        found = [*map(self._write_reply, range(len(self.folders))), *self._source()]
        for values in found or [{}]:
            yield pa.RecordBatch.from_pylist([{**values, "host": host, "executor": executor}], schema=_REPLY)
        threading.Event().wait(TASK_SECONDS_MIN)

    def _write_reply(self, number: int) -> dict[str, Any]:
        location = self.folders[number]
        try:
            if location.read(f"{self.folder}/{_TOKEN_FILE}").decode() != self.token:
                return {"folder": number}
            reply_file = f"{self.folder}/{uuid4().hex}"
            location.write(reply_file, b"")
        except FileNotFoundError:
            return {"folder": number}
        except (TemporaryError, TableError) as error:
            return {"folder": number, "reason": f"on the host {gethostname()}, {error}"}
        return {"folder": number, "reply_file": reply_file}

    def _source(self) -> Iterator[dict[str, Any]]:
        if self.source is None:
            return
        if not Path(self.source).is_dir() or (self.hidden is not None and not Path(self.hidden).exists()):
            yield {"unseen": self.source, "reason": "the files that this host sees there"}
        store = LocalStore(self.source)
        for ref in self.sample:
            reason = _reason_unseen(store, ref)
            if reason is not None:
                yield {"unseen": ref.uri, "reason": f"a file of the source ({reason})"}


def _reason_unseen(store: LocalStore, ref: ObjectRef) -> str | None:
    """Return why this host does not see this version of a file; None if it does."""
    try:
        store.open(ref).close()
    except (ObjectError, TemporaryError) as error:
        return str(error)
    return None


def _sample(source: str) -> tuple[ObjectRef, ...]:
    """Return a few files of the source, spread over the first chunk that a scan finds."""
    found = next(iter(Scanner(source, store=LocalStore(source)).chunks()), ())
    return tuple(found[:: max(1, len(found) // SAMPLE_FILES)][:SAMPLE_FILES])
