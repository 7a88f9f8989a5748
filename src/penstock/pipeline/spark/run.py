"""One Spark run: plan, read, transform, write, list.

All output is named after the attempt and the run and has no effect until the ledger names it.

`reread_on_driver` repeats on the driver the reads that failed on other hosts of a cluster: a missing mount, missing
permissions or a broken network of one host is no fault of the objects, so if the driver's read succeeds, the attempt
does not count. `write` chooses the writer of a run's rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from socket import gethostname
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ObjectError, TemporaryError, TransformError, UsageError
from penstock.ledger.records import BatchRecord, KnownBeginning, ObjectResult, OnChange
from penstock.messaging.clock import Clock
from penstock.messaging.failure import location_of
from penstock.messaging.steps import Probe, Step
from penstock.messaging.wording import counted
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import is_replay
from penstock.objects.store import ObjectStore
from penstock.objects.stores import ahead, store_at
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, run_files, run_work, save
from penstock.pipeline.engine import ReadFailure, RunResult
from penstock.pipeline.replacing import has_addresses, may_be_of
from penstock.pipeline.spark.arrow_writer import arrow_schema, gathered, write_parquet
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.direct import write_as_read
from penstock.pipeline.spark.faults import is_of_spark
from penstock.pipeline.spark.fold import DELETES, folded, list_kept, move_deletes
from penstock.pipeline.spark.partition_columns import with_partition_columns
from penstock.pipeline.spark.runtime import SparkRuntime
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.shared_folders import prove_shared
from penstock.pipeline.spark.source.added import new_columns, unknown_counts, with_added
from penstock.pipeline.spark.source.beginnings import beginning_of, reading_of, usable_beginnings
from penstock.pipeline.spark.source.datasource import drain, read
from penstock.pipeline.spark.source.ddl import OBJECT
from penstock.pipeline.spark.source.options import checked
from penstock.pipeline.spark.source.plan import ReadPlan, make_plan
from penstock.pipeline.spark.source.report import REFUSALS, FailureKind, ObjectFailure
from penstock.pipeline.spark.source.summary import Summary, summarise
from penstock.pipeline.spark.table_schema import Agree, Evolution, SchemaAgreement, agreed, check_partitions
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import WrittenFile, list_files
from penstock.sinks.schema import encode as encode_columns
from penstock.storage.address import is_s3
from penstock.storage.files import Files

_MISSING = frozenset({FailureKind.DELETED, FailureKind.SUPERSEDED})

# Bounds of long strings are shortened outwards instead of being left out, which would cost the file all its bounds.
_PARQUET_OPTIONS = {"parquet.statistics.truncate.length": "64"}  # bytes

_CHANGED_ADDRESSES = (
    f"The transform {{}} the column {OBJECT.name}, by which the rows of a changed object are found: let it return this "
    "column as it is, or choose on_change='add' or 'refuse' (--on-change)."
)
DRAINS_MAX = 3  # rounds; a partition still without a report after a full read had a failed task

F = TypeVar("F")
Cuts = Mapping[bytes, Sequence[int]]  # offsets at which to cut objects, by object id


def reread_on_driver(summary: Summary, plan: ReadPlan) -> Summary:
    """Return the summary with `FailureKind.HOST` for each failed read that succeeds on this host.

    Raises `TemporaryError` if an executor reports a file as deleted or replaced that this host finds unchanged: the
    executor does not see the current source, so its report must not end the object. For the same reason a corrupt file
    is only unreadable: another host may read other bytes at the next attempt.
    """
    if not is_s3(plan.source):
        summary = replace(summary, failures=_unreadable(summary.failures), exclude=_unreadable(summary.exclude))
    # S3 is the same for all hosts, so a deletion there is not doubted
    doubted = REFUSALS if is_s3(plan.source) else REFUSALS | _MISSING
    refs = {
        index: plan.source_of(index)
        for index, failure in {**summary.failures, **summary.exclude}.items()
        if failure.kind in doubted
    }
    if not refs:
        return summary
    with ahead(store_at(plan.source, plan.aws, remembers=False), list(refs.values())) as store:

        def judged(failures: Mapping[int, ObjectFailure]) -> dict[int, ObjectFailure]:
            return {
                index: _judged(store, refs[index], failure, plan.source) if index in refs else failure
                for index, failure in failures.items()
            }

        return replace(summary, failures=judged(summary.failures), exclude=judged(summary.exclude))


class Stopwatch:
    """Seconds per stage; a stage entered twice adds up. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        return {stage: round(seconds, 3) for stage, seconds in self._seconds.items()}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began_at = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.monotonic() - began_at


def write(
    frame: DataFrame, files: Files, directory: str, *, partition_by: Sequence[str], marks: Sequence[str] = ()
) -> Sequence[WrittenFile] | None:
    """Write the frame's rows as Parquet below ``directory``. Return the files that count; None: all files in there.

    ``marks`` are more columns to partition by, the first ones, which have few values.

    Spark's own writer is a little faster but does not report its files. It is used only when no stray file is possible:
    the directory is on this host's disk, and all tasks run on this host with one attempt each.
    """
    frame, partition_by = with_partition_columns(frame, [*marks, *partition_by])
    runtime = runtime_of(frame.sparkSession)
    if not (files.is_local and runtime.tasks_run_once):
        return write_parquet(
            frame,
            files,
            directory,
            partition_by=partition_by,
            marks=marks,
            attempts_max=runtime.task_attempts_max,
        )
    writer = gathered(frame, partition_by, marks=marks).write.options(**_PARQUET_OPTIONS)
    writer.partitionBy(*partition_by).parquet(f"{files}/{directory}")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The collaborators that all runs of a pipeline share."""

    spark: SparkSession
    runtime: SparkRuntime  # of that session
    declaration: Declaration
    agree: Agree
    evolution: Evolution
    clock: Clock
    probe: Probe


class SparkRun:
    """The ``number``-th run of an attempt, over the given objects.

    ``added``: the columns that earlier batches, or an earlier run of the attempt, added for new fields.
    """

    def __init__(
        self,
        context: RunContext,
        attempt_id: str,
        number: int,
        objects: Sequence[ObjectRef],
        cuts: Cuts | None = None,
        added: Mapping[str, str] | None = None,
        places: Mapping[bytes, bytes] | None = None,
        *,
        current_only: bool = False,
        beginnings: Mapping[bytes, KnownBeginning] | None = None,
        sources: Mapping[bytes, ObjectRef] | None = None,
    ) -> None:
        """``places``, ``sources``: the ranges that replays read, and of which version, by object id.

        ``current_only``, ``beginnings``: see `RunRequest`.
        """
        self._context = context
        self._added = added or {}
        self._attempt_id = attempt_id
        self._declaration = context.declaration
        self._files = run_files(attempt_id, number)
        self._work = run_work(self._declaration.work, attempt_id, number)
        self._current_only = current_only
        self._beginnings = beginnings or {}
        self._sources = sources or {}
        self._plan = self._made_plan(attempt_id, number, objects, cuts or {}, places or {})
        self._stopwatch = Stopwatch(context.clock)
        self._agreement: SchemaAgreement | None = None  # set by read_and_write, as is _written
        self._written: Sequence[WrittenFile] | None = None  # the files that count; None: all files in the run's folder

    def read_and_write(self) -> Summary:
        """Run the Spark job. Afterwards the files and the reports of all partitions exist."""
        self._plan.save()
        self._context.probe(Step.PLANNED)
        with self._stopwatch.stage("read and write"):
            frame, columns = self._planned()
            self._agreement = self._agree(columns)
            self._written = self._write(frame)
        self._context.probe(Step.WRITTEN)
        with self._stopwatch.stage("drain"):
            summary = self._drained(summarise(self._plan))
        return summary if self._context.runtime.is_local else reread_on_driver(summary, self._plan)

    def new_columns(self, summary: Summary) -> Mapping[str, str]:
        """Return columns for the fields that the objects have and the run did not read. Empty unless they are added."""
        if self._plan.options.evolve != "add" or not summary.readings.unknown:
            return {}
        table = self._context.evolution.table()
        new = new_columns(summary.readings, self._plan.options, table, added_before=len(self._added))
        if new:
            self._context.probe(Step.COLUMNS_FOUND)
        return new

    def misread(self) -> Cuts:
        """After a failed run, return new cuts for objects that were cut inside a record, a possible cause.

        Partitions without a report are read once more, without the transform.
        """
        if not self._plan.cuts_are_guesses:
            return {}
        return self.by_object(self._drained(summarise(self._plan)).recut)

    def result(self, summary: Summary, failed: Mapping[bytes, ReadFailure]) -> RunResult:
        """List the written files and save the batch record.

        Every object of the plan must be in the summary's readings or in ``failed``.
        """
        agreement = self._agreement
        assert agreement is not None, "read_and_write comes first"
        with self._stopwatch.stage("list"):
            files, deletes = self._listed(agreement.schema)
            self._check_rows(files, summary)
            self._check_quarantine(summary)
        names_objects = has_addresses(agreement.schema) and self._keeps_addresses(files)
        self._context.probe(Step.MANIFESTED)
        result = RunResult(
            processed=self._processed(summary),
            failed=failed,
            record=BatchRecord(
                rows=sum(file.rows for file in files),
                lines_quarantined=summary.lines_quarantined,
                bytes=summary.bytes,
                manifest=encode(files),
                quarantine_manifest=encode(summary.quarantine),
                stage_seconds=self._stopwatch.seconds,
                spark_ui_url=self._context.runtime.page(self._attempt_id),
                transform=self._declaration.transform_name,
                merge=None if self._declaration.merge is None else self._declaration.merge.text(),
                tombstones=encode(deletes) if deletes else "",
            ),
            schema_id=agreement.schema_id,
            new_schema=agreement.new_schema,
            samples=self.by_object(summary.readings.samples),
            reasons=self.by_object(summary.readings.reasons),
            has_addresses=names_objects,
            place=self._declaration.read.place,
            agree_again=self._agree_again,
            added_columns=self._added,
        )
        if result.processed:
            save(self._declaration.table, self._recorded(result, summary, agreement.schema))
            self._context.probe(Step.RECORDED)
        return result

    def _listed(self, schema: pa.Schema) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """Return the files that the run wrote, and those with its deletes."""
        merge, root, partition_by = self._declaration.merge, self._declaration.table, self._declaration.partition_by
        list_ = partial(list_files, root, partition_by=partition_by, schema=schema)
        if merge is None:
            return list_(self._files, written=self._written), ()
        deletes = move_deletes(
            root, self._files, merge, list_, schema=schema, written=self._written, probe=self._context.probe
        )
        return list_kept(self._files, list_, written=self._written), deletes

    def _agree_again(self) -> tuple[int, str | None]:
        assert self._agreement is not None, "read_and_write comes first"
        now = self._agree(self._agreement.schema)
        return now.schema_id, now.new_schema

    def _agree(self, columns: pa.Schema) -> SchemaAgreement:
        return agreed(self._context.agree, self._context.evolution, columns, added=self._added)

    def _recorded(self, result: RunResult, summary: Summary, columns: pa.Schema) -> RecordedBatch:
        """Return the record from which a lost ledger can be rebuilt."""
        return RecordedBatch(
            pipeline=self._declaration.pipeline,
            attempt_id=self._attempt_id,
            objects=[
                RecordedObject(
                    ref=self._plan.objects[index],
                    rows=done.rows,
                    lines_quarantined=done.lines_quarantined,
                    beginning=done.beginning,
                    appended_to=done.appended_to,
                )
                for index, done in zip(summary.readings, result.processed, strict=True)
            ],
            columns=encode_columns(columns),
            record=result.record,
            place=self._declaration.read.place,
            replaces_versions=self._replaces_versions(names_objects=result.has_addresses),
        )

    def _keeps_addresses(self, files: Sequence[DataFile]) -> bool:
        """Return False if the transform changed the addresses of objects, as to the name of the file alone.

        Raises `UsageError` if the rows of earlier versions are to be replaced.
        """
        refs = self._plan.objects
        replays = any(is_replay(ref.version_id, ref.etag) for ref in refs)
        if replays or may_be_of(files, {ref.uri for ref in refs}):
            return True
        if self._declaration.on_change is not None and self._declaration.on_change.replaces:
            raise UsageError(_CHANGED_ADDRESSES.format("changes the values of"))
        return False

    def _replaces_versions(self, *, names_objects: bool) -> bool:
        """Return True if the commit will replace the rows of earlier versions: not if changed objects are refused."""
        refuses = self._declaration.on_change is OnChange.REFUSE
        return self._plan.current_only and not refuses and names_objects

    def by_object(self, found: Mapping[int, F]) -> dict[bytes, F]:
        """Convert keys from positions in the plan to object ids."""
        return {self._plan.objects[index].object_id: value for index, value in found.items()}

    def _made_plan(
        self,
        attempt_id: str,
        number: int,
        objects: Sequence[ObjectRef],
        cuts: Cuts,
        places: Mapping[bytes, bytes],
    ) -> ReadPlan:
        options = checked(with_added(self._declaration.read, self._added))
        self._reading = reading_of(options, self._declaration.transform_name)
        return make_plan(
            objects,
            attempt_id=attempt_id,
            run=number,
            options=options,
            cores=self._context.runtime.tasks_at_once(),
            source=self._declaration.source,
            aws=self._declaration.aws,
            quarantine=self._declaration.quarantine,
            work=self._work,
            cuts={index: cuts[ref.object_id] for index, ref in enumerate(objects) if ref.object_id in cuts},
            places={index: places[ref.object_id] for index, ref in enumerate(objects) if ref.object_id in places},
            current_only=self._current_only,
            hashes=self._declaration.on_change is OnChange.TAIL,
            beginnings=usable_beginnings(self._beginnings, objects, options, reading=self._reading),
            sources={
                index: self._sources[ref.object_id]
                for index, ref in enumerate(objects if self._sources else ())
                if ref.object_id in self._sources
            },
        )

    def _planned(self) -> tuple[DataFrame | None, pa.Schema]:
        """Return the rows to write, and their columns. The rows are None if tasks write them as they are read.

        Raises `UsageError` if the rows of earlier versions are to be replaced and cannot be found.
        """
        frame = self._frame()
        if frame is not None and self._declaration.merge is not None:
            _columns(frame, ())
            last = folded(frame, self._declaration.merge, self._declaration.partition_by)
            return last, _columns(last.drop(DELETES), self._declaration.partition_by)
        columns = self._plan.options.columns if frame is None else _columns(frame, self._declaration.partition_by)
        if has_addresses(columns):
            return frame, columns
        if self._declaration.on_change is not None and self._declaration.on_change.replaces:
            change = "changes the type of" if OBJECT.name in columns.names else "drops"
            raise UsageError(_CHANGED_ADDRESSES.format(change))
        if self._declaration.on_change is None and self._plan.current_only:
            # Such a table gets the rows of every version, also of those that are not current any more.
            self._plan = replace(self._plan, current_only=False)
            self._plan.save()
            frame = self._frame()
        return frame, columns

    def _frame(self) -> DataFrame | None:
        """Return the transformed rows; None if tasks write them as they are read."""
        if self._declaration.takes_rows_as_read:
            return None
        return self._transformed(read(self._context.spark, self._plan))

    def _write(self, frame: DataFrame | None) -> Sequence[WrittenFile] | None:
        """Write the run's rows. Return the files that belong to it; None: all in its folder."""
        table = self._declaration.table
        if frame is None:
            attempts_max = self._context.runtime.task_attempts_max
            return write_as_read(self._context.spark, self._plan, table, self._files, attempts_max=attempts_max)
        marks = () if self._declaration.merge is None else (DELETES,)
        return write(frame, table, self._files, partition_by=self._declaration.partition_by, marks=marks)

    def _transformed(self, frame: DataFrame) -> DataFrame:
        transform = self._declaration.transform
        if transform is None:
            return frame
        try:
            returned: Any = transform(frame)
        except (Exception, SystemExit) as error:
            if is_of_spark(error):
                raise  # the engine explains it: the data may have caused it
            location = location_of(error)
            where = "" if location is None else f" ({location})"
            raise TransformError(f"The transform raised {type(error).__name__}{where}: {error}.") from error
        if not isinstance(returned, DataFrame):
            raise TransformError(f"The transform returned {type(returned).__name__} and not a DataFrame.")
        return returned

    def _drained(self, summary: Summary) -> Summary:
        """Read partitions that the transform did not read to the end once more, for their reports."""
        for number in range(DRAINS_MAX):
            if not summary.missing:
                return summary
            if number == 0:  # the report may be missing because it is on another host's disk
                prove_shared(self._context.spark, self._declaration)
            drain(self._context.spark, self._plan, summary.missing)
            summary = summarise(self._plan)
        if summary.missing:
            raise TemporaryError(f"{counted(len(summary.missing), 'partition')} of a run left no report")
        return summary

    def _check_rows(self, files: Sequence[DataFile], summary: Summary) -> None:
        """Raise `TemporaryError` if the row counts written and read differ without a transform or a merge."""
        rows = sum(file.rows for file in files)
        changes_rows = self._declaration.transform is not None or self._declaration.merge is not None
        if not changes_rows and not summary.exclude and rows != summary.rows:
            raise TemporaryError(
                f"{self._declaration.table}/{self._files} holds {counted(rows, 'row')}, and {summary.rows:,} were "
                "read; nothing was committed."
            )

    def _check_quarantine(self, summary: Summary) -> None:
        """Raise `TemporaryError` if a quarantine file is missing or differs in size from its task's report."""
        location = self._declaration.quarantine
        there = {file.path: file for file in location.list(self._files)} if summary.quarantine else {}
        for file in summary.quarantine:
            info = there.get(file.path) or location.stat(file.path)
            if info is None or info.size_bytes != file.size_bytes:
                subject = "is not there" if info is None else f"has {info.size_bytes} bytes"
                raise TemporaryError(
                    f"{location}/{file.path} {subject} as seen from this host, and the task that wrote it reported "
                    f"{file.size_bytes} bytes; nothing was committed."
                )

    def _processed(self, summary: Summary) -> list[ObjectResult]:
        readings = summary.readings
        columns = (readings.objects.tolist(), readings.rows.tolist(), readings.lines_quarantined.tolist())
        return [
            ObjectResult(
                object_id=self._plan.objects[index].object_id,
                rows=rows,
                lines_quarantined=lines_quarantined,
                unknown=unknown_counts(readings.unknown.get(index)),
                beginning=beginning_of(
                    self._plan.objects[index], readings.beginnings.get(index), reading=self._reading
                ),
                appended_to=self._plan.beginnings[index].attempt_id if index in readings.grown else None,
            )
            for index, rows, lines_quarantined in zip(*columns, strict=True)
        ]


def _unreadable(failures: Mapping[int, ObjectFailure]) -> Mapping[int, ObjectFailure]:
    """Return the failures with `FailureKind.UNREADABLE` for corrupt objects."""
    return {
        index: replace(failure, kind=FailureKind.UNREADABLE) if failure.kind is FailureKind.CORRUPT else failure
        for index, failure in failures.items()
    }


def _judged(store: ObjectStore, ref: ObjectRef, failure: ObjectFailure, source: str) -> ObjectFailure:
    try:
        with store.open(ref) as reader:
            reader.pread(failure.offset, failure.length_bytes)
    except ObjectError:
        return failure
    if failure.kind in _MISSING:
        raise TemporaryError(
            f"The host {failure.host} does not see a file of the source as it is ({failure.reason}), and the driver "
            f"does: all hosts of the Spark cluster must share the folder {source}."
        )
    return replace(
        failure,
        kind=FailureKind.HOST,
        reason=f"{failure.reason}, on the host {failure.host}; this host ({gethostname()}) can read it: check the "
        f"mounts and permissions on {failure.host}",
    )


def _columns(frame: DataFrame, partition_by: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of a DataFrame that a table can take.

    Raises:
        TransformError: The frame has no column, two columns of one name, or a type that a table cannot hold.
        UsageError: A partition column is missing.
        TableError: A partition column has an unfit type.
    """
    if not frame.columns:
        raise TransformError("The transform returned a DataFrame without columns.")
    count = Counter(name.lower() for name in frame.columns)
    twice = sorted(name for name, number in count.items() if number > 1)
    if twice:
        raise TransformError(f"The transform returned more than one column named {', '.join(twice)}.")
    columns = arrow_schema(frame.schema)
    check_partitions(columns, partition_by)
    return columns
