"""The production engine: each run is a Spark job that reads, transforms and writes Parquet.

An attempt may need several runs. An object that broke midway, whose repeated reads disagree, or that has too many bad
lines is left out, and the others are read again into a new folder. A CSV object that was cut inside a record is read
again with other cuts. Fields that get new columns are known only after a run, so another one reads them into these.

`DeferredEngine` wraps an engine that starts while the worker already serves other queues.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from penstock.errors import RestartNeeded, TemporaryError
from penstock.events import Bus
from penstock.ledger.records import AttemptFailure
from penstock.messaging.clock import Clock
from penstock.messaging.handler import ServiceWatch, Unwatched
from penstock.messaging.steps import Probe, no_probe
from penstock.objects.local_store import LocalRoot
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import is_replay
from penstock.pipeline.engine import CheckedEngine, ReadFailure, RunBroken, RunCancelled, RunRequest, RunResult
from penstock.pipeline.failures import Denials
from penstock.pipeline.quarantine_lines import QuarantineLines
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.progress import watched
from penstock.pipeline.spark.run import RunContext, SparkRun
from penstock.pipeline.spark.run_sessions import run_session
from penstock.pipeline.spark.runtime import SparkRuntime
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.source.places import ranges_of
from penstock.pipeline.spark.source.report import SHARED, FailureKind, ObjectFailure
from penstock.pipeline.spark.table_schema import Agree, Evolution
from penstock.storage.address import is_s3

CANCEL_AGAIN_SECONDS = 0.5
CANCELS_MAX = 120  # then cancel gives up: the claim is no longer ours, so the run cannot be committed
RUNS_MAX = 10  # per attempt; each leaves out at least one more object or corrects at least one object's cuts


@dataclass(slots=True, kw_only=True)
class _Running:
    """A run in progress. Its thread writes the second field; another one may cancel the run."""

    ended: threading.Event
    runtime: SparkRuntime | None = None  # of the session in which its jobs run; None: before and after them


class SparkEngine:
    """A `penstock.pipeline.engine.CheckedEngine` on one Spark session, which it neither starts nor stops.

    Runs that overlap have sessions of their own, siblings of that one.
    """

    def __init__(
        self,
        spark: SparkSession,
        declaration: Declaration,
        *,
        agree: Agree,
        quarantine: QuarantineLines,
        evolution: Evolution,
        clock: Clock,
        bus: Bus,
        probe: Probe = no_probe,
        store_watch: ServiceWatch | None = None,
    ) -> None:
        """``agree`` raises `TableError` if a run's columns do not fit the table's.

        ``quarantine`` has the lines that replays read again.
        """
        self._runtime = runtime_of(spark)
        self._declaration = declaration
        self._context = RunContext(
            spark=spark,
            runtime=self._runtime,
            declaration=declaration,
            agree=agree,
            evolution=evolution,
            clock=clock,
            probe=probe,
        )
        self._bus = bus
        self._store_watch = store_watch or Unwatched()
        self._quarantine = quarantine
        self._denials = Denials()
        self._root = None if is_s3(declaration.source) else LocalRoot(os.fsencode(declaration.source))
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}  # guarded by _lock, by attempt
        self._cancelled: set[str] = set()  # guarded by _lock; never cleared, since attempts are few and ids unique

    def run(self, request: RunRequest) -> RunResult:
        pipeline, attempt_id = self._declaration.pipeline, request.attempt_id
        with (
            self._track(attempt_id) as running,
            self._store_watch.watch_request(),
            self._explained(attempt_id),
            run_session(self._context.spark, partial(self._check_cancelled, attempt_id)) as spark,
        ):
            running.runtime = runtime = runtime_of(spark)
            try:
                with (
                    runtime.tagged(attempt_id, f"penstock {pipeline}"),
                    watched(runtime, pipeline, attempt_id, self._bus),
                ):
                    result = self._until_whole(request, replace(self._context, spark=spark))
            finally:
                running.runtime = None  # its session is about to be left: nothing may be cancelled in it any more
        if result.processed:  # otherwise possibly no object was read
            self._store_watch.record_success()
        return result

    def cancel(self, attempt_id: str) -> None:
        with self._lock:
            self._cancelled.add(attempt_id)
            running = self._running.get(attempt_id)
        if running is None:
            return
        # A cancel ends only the jobs that run now; a run between two jobs starts another one, so cancel again.
        for _ in range(CANCELS_MAX):
            with suppress(*SPARK_ERRORS, RestartNeeded):  # Spark has ended: the run notices on its own
                if (runtime := running.runtime) is not None:
                    runtime.cancel(attempt_id)
            if running.ended.wait(CANCEL_AGAIN_SECONDS):
                return

    def check(self) -> None:
        """Raise `RestartNeeded` if Spark has ended. Thread-safe, also between runs."""
        self._runtime.check()

    @contextmanager
    def _explained(self, attempt_id: str) -> Iterator[None]:
        """Translate errors raised in the block.

        A cancel and the end of the JVM are checked first, because PySpark reports a broken connection as many different
        errors.
        """
        try:
            yield
        except Exception as error:
            self._check_cancelled(attempt_id)
            self.check()
            if isinstance(error, SPARK_ERRORS):
                raise explain(error) from error
            raise

    def _until_whole(self, request: RunRequest, context: RunContext) -> RunResult:
        replays = [ref for ref in request.objects if is_replay(ref.version_id, ref.etag)]
        sources = self._quarantine.sources(replays) if replays else {}
        places, left_out = replay_places(request.objects, self._quarantine, self._declaration.read.place)
        cuts: dict[bytes, Sequence[int]] = {}
        added = dict(context.evolution.added())
        found: Mapping[str, str] = {}
        for number in range(RUNS_MAX):
            self._check_cancelled(request.attempt_id)
            objects = [ref for ref in request.objects if ref.object_id not in left_out]
            if not objects:
                return _nothing(left_out)
            run = SparkRun(
                context,
                request.attempt_id,
                number,
                objects,
                cuts,
                added,
                places,
                current_only=request.current_only,
                beginnings=request.beginnings,
                sources=sources,
            )
            try:
                summary = run.read_and_write()
            except SPARK_ERRORS as error:
                self._check_cancelled(request.attempt_id)
                if not isinstance(explain(error), RunBroken) or not (misread := run.misread()):
                    raise
                cuts |= misread  # the transform may have failed on a fragment of a record
                continue
            cuts |= run.by_object(summary.recut)
            if summary.readings:
                self._denials.clear()
            if self._root is not None and summary.readings:
                self._root.record_found()
            new = {} if found else run.new_columns(summary)
            if not summary.exclude and not summary.recut and not new:
                result = run.result(summary, left_out | self._judged(run.by_object(summary.failures), objects))
                return replace(result, new_columns=found)
            left_out |= self._judged(run.by_object(summary.exclude), objects)
            if new:  # once: what it did not bring to light is rescued, and added by the next batch
                added |= new
                found = new
        raise RunBroken(
            f"after {RUNS_MAX} runs there still are objects that break in the middle", fingerprint="runs exhausted"
        )

    def _judged(
        self, failures: Mapping[bytes, ObjectFailure], objects: Sequence[ObjectRef]
    ) -> dict[bytes, ReadFailure]:
        """Classify failures with `judged`; a file missing with its whole file system does not count as an attempt."""
        found = judged(failures, self._denials)
        if self._root is None:
            return found
        for ref in objects:
            if ref.object_id in found and found[ref.object_id].failure is AttemptFailure.DELETED:
                try:
                    self._root.check_missing(ref.key_bytes)
                except TemporaryError as away:
                    found[ref.object_id] = ReadFailure(failure=AttemptFailure.RETRY, reason=str(away), uncounted=True)
        return found

    @contextmanager
    def _track(self, attempt_id: str) -> Iterator[_Running]:
        """Yield the run's record; set its event at the end of the block, for which `cancel` waits."""
        running = _Running(ended=threading.Event())
        with self._lock:
            self._running[attempt_id] = running
        try:
            yield running
        finally:
            with self._lock:
                del self._running[attempt_id]
            running.ended.set()

    def _check_cancelled(self, attempt_id: str) -> None:
        with self._lock:
            if attempt_id in self._cancelled:
                raise RunCancelled(f"the run of attempt {attempt_id} was cancelled")


def replay_places(
    objects: Sequence[ObjectRef], quarantine: QuarantineLines, place: str
) -> tuple[dict[bytes, bytes], dict[bytes, ReadFailure]]:
    """Return the ranges that each replay among the objects reads, and the failures of those that cannot be read."""
    wanted = [ref for ref in objects if is_replay(ref.version_id, ref.etag)]
    spans, refused = quarantine.places(wanted, place=place) if wanted else ({}, {})
    failed = {id: ReadFailure(failure=AttemptFailure.DEAD, reason=reason) for id, reason in refused.items()}
    return {id: ranges_of(found, place=place) for id, found in spans.items()}, failed


def judged(failures: Mapping[bytes, ObjectFailure], denials: Denials) -> dict[bytes, ReadFailure]:
    """Map read failures to `ReadFailure`, by object id.

    A refusal counts as an attempt only if its cause can be the object itself, not one that many objects share.
    """
    denied = [object_id for object_id, failure in failures.items() if failure.kind in SHARED]
    for object_id in denied:  # register all denials before classifying any: each can excuse the others
        denials.add(object_id)
    forgiven = {object_id for object_id in denied if denials.add(object_id)}
    return {
        object_id: replace(found := read_failure(failure), uncounted=found.uncounted or object_id in forgiven)
        for object_id, failure in failures.items()
    }


def read_failure(failure: ObjectFailure) -> ReadFailure:
    """Map the failure of one reading to the consequence for the object's next attempt."""
    match failure.kind:
        case FailureKind.DELETED:
            return ReadFailure(failure=AttemptFailure.DELETED, reason=failure.reason)
        case FailureKind.SUPERSEDED:
            return ReadFailure(failure=AttemptFailure.SUPERSEDED, reason=failure.reason)
        case FailureKind.TOO_LARGE | FailureKind.CORRUPT | FailureKind.UNKNOWN_FIELD | FailureKind.REPLAYED_NOTHING:
            return ReadFailure(failure=AttemptFailure.DEAD, reason=failure.reason, raised=failure.raised)
        case FailureKind.HOST:
            return ReadFailure(failure=AttemptFailure.RETRY, reason=failure.reason, uncounted=True)
        case (
            FailureKind.UNREADABLE
            | FailureKind.REFUSED
            | FailureKind.DENIED
            | FailureKind.DEVICE
            | FailureKind.QUARANTINE_RATIO
            | FailureKind.DISAGREED
        ):
            return ReadFailure(failure=AttemptFailure.RETRY, reason=failure.reason, raised=failure.raised)


class DeferredEngine:
    """A `penstock.pipeline.engine.CheckedEngine` whose engine `start` makes. Its consumer starts no run before that."""

    def __init__(self, make: Callable[[], CheckedEngine]) -> None:
        self._make = make
        self._made: CheckedEngine | None = None  # written by the thread that calls start

    def start(self) -> None:
        """Make the engine. Raises the errors of its factory."""
        self._made = self._make()

    def run(self, request: RunRequest) -> RunResult:
        return self._engine.run(request)

    def cancel(self, attempt_id: str) -> None:
        self._engine.cancel(attempt_id)

    def check(self) -> None:
        if self._made is not None:
            self._made.check()

    @property
    def _engine(self) -> CheckedEngine:
        if self._made is None:
            raise RuntimeError("a run began before its engine was started")
        return self._made


def _nothing(left_out: Mapping[bytes, ReadFailure]) -> RunResult:
    """Return the result of an attempt that left out every object: failures only, nothing to commit."""
    return RunResult(processed=(), failed=left_out)
