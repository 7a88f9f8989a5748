"""`penstock` without Spark: `python -m tests.chaos.in_process ingest ...` runs its batches in its own process.

For tests of the protocol around a run: claim, commit, publish, settle, and the recovery after a kill. Such a process
starts in about a second, a JVM in six to nine. Only the engine differs from the product: plan, reader, reports,
manifest and batch record are the product's. The engine announces the same steps as `penstock.pipeline.spark.run`, so a
process can be killed at them here, too. Tests on Spark show that Spark's own runs survive these kills.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.chaos.transforms import AT_GATE, GATE, is_shut

from penstock.app.pipelines.plan import PipelineBlueprint
from penstock.app.spark import Spark
from penstock.cli.main import main
from penstock.ledger.records import BatchRecord, ObjectResult, OnChange
from penstock.messaging.steps import Probe, Step
from penstock.objects.reference import ObjectRef
from penstock.objects.stores import store_at
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, run_files, run_work, save
from penstock.pipeline.engine import ReadFailure, RunCancelled, RunRequest, RunResult
from penstock.pipeline.quarantine_lines import QuarantineLines
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.engine import _nothing, read_failure, replay_places
from penstock.pipeline.spark.source.added import new_columns, unknown_counts, with_added
from penstock.pipeline.spark.source.beginnings import beginning_of, reading_of, usable_beginnings
from penstock.pipeline.spark.source.options import ReadOptions, checked
from penstock.pipeline.spark.source.plan import ReadPlan, make_plan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import FailureKind, ObjectFailure, ReadingId
from penstock.pipeline.spark.source.summary import Summary, summarise
from penstock.pipeline.spark.table_schema import Agree, Evolution, SchemaAgreement, agreed, agreement
from penstock.sinks.manifest import encode
from penstock.sinks.parquet import WrittenFile, list_files
from penstock.sinks.schema import encode as encode_columns

LEFT_OUT = {FailureKind.DELETED, FailureKind.SUPERSEDED}
CORES = 2  # as in the tests on Spark
GATE_SECONDS_MAX = 120.0


class InProcessEngine:
    """A `penstock.pipeline.engine.CheckedEngine`. One Parquet file per partition that has rows.

    It supports no transforms, no partition columns, and no objects that fail in another way than by being deleted or
    replaced: tests of these need Spark.
    """

    def __init__(
        self,
        declaration: Declaration,
        *,
        agree: Agree,
        evolution: Evolution,
        probe: Probe,
        quarantine: QuarantineLines,
    ) -> None:
        assert declaration.transform is None, "transforms are Spark's"
        assert not declaration.partition_by, "partitions are Spark's"
        self._declaration = declaration
        self._agree = agree
        self._evolution = evolution
        self._probe = probe
        self._quarantine = quarantine
        self._lock = threading.Lock()
        self._cancelled: set[str] = set()  # under the lock; attempts

    def run(self, request: RunRequest) -> RunResult:
        self._check_cancelled(request.attempt_id)
        added = dict(self._evolution.added())
        new: dict[str, str] = {}
        left_out: dict[bytes, ReadFailure] = {}
        for run in count():  # another one if there are new columns, or rows of an object that does not count
            objects = [ref for ref in request.objects if ref.object_id not in left_out]
            if not objects:
                return _nothing(left_out)
            plan = self._plan(request, objects, run, added | new)
            plan.save()
            self._probe(Step.PLANNED)
            columns = self._agreed(plan.options.columns, added | new)
            written = list(self._written(plan, columns.schema))
            self._probe(Step.WRITTEN)
            summary = summarise(plan)
            found = {} if new else self._new_columns(plan, summary, len(added))
            if not summary.exclude and not found:
                break
            left_out |= _failures(plan, summary.exclude)
            if found:
                new = found
                self._probe(Step.COLUMNS_FOUND)
        failed = left_out | _failures(plan, summary.failures)
        assert len(summary.readings) + len(failed) == len(request.objects), f"some objects have no result: {summary}"
        return self._result(plan, summary, columns, written, added | new, failed=failed)

    def cancel(self, attempt_id: str) -> None:
        with self._lock:
            self._cancelled.add(attempt_id)

    def check(self) -> None:
        """Do nothing: the engine needs nothing that can end before the process."""

    def _new_columns(self, plan: ReadPlan, summary: Summary, added: int) -> dict[str, str]:
        if plan.options.evolve != "add":
            return {}
        return new_columns(summary.readings, plan.options, self._evolution.table(), added_before=added)

    def _agreed(self, columns: pa.Schema, added: Mapping[str, str]) -> SchemaAgreement:
        return agreed(self._agree, self._evolution, columns, added=added)

    def _plan(self, request: RunRequest, objects: Sequence[ObjectRef], run: int, added: Mapping[str, str]) -> ReadPlan:
        declaration = self._declaration
        places, unknown = replay_places(objects, self._quarantine, declaration.read.place)
        assert not unknown, f"objects that fail are Spark's: {unknown}"
        options = checked(with_added(declaration.read, added))
        return make_plan(
            objects,
            current_only=request.current_only,
            attempt_id=request.attempt_id,
            run=run,
            options=options,
            cores=CORES,
            source=declaration.source,
            aws=declaration.aws,
            quarantine=declaration.quarantine,
            work=run_work(declaration.work, request.attempt_id, run),
            places={index: places[ref.object_id] for index, ref in enumerate(objects) if ref.object_id in places},
            hashes=declaration.on_change is OnChange.TAIL,
            beginnings=usable_beginnings(request.beginnings, objects, options, reading=_reading(declaration, options)),
        )

    def _written(self, plan: ReadPlan, schema: pa.Schema) -> Iterator[WrittenFile]:
        store = store_at(plan.source, plan.aws, remembers=False)
        for partition in range(len(plan.partitions)):
            task = partition_task(plan, partition)
            batches = list(read_partition(task, store, ReadingId(task.reports, partition)))
            self._wait_at_gate(plan)
            rows = pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
            if rows.num_rows:
                yield self._write(f"{run_files(plan.attempt_id, plan.run)}/part-{partition}.parquet", rows)

    def _write(self, path: str, rows: pa.Table) -> WrittenFile:
        with self._declaration.table.open_output(path) as file:
            sink = pa.PythonFile(file, mode="w")  # never closed: `open_output` closes the file
            pq.write_table(rows, sink)
            size_bytes = sink.tell()
        return WrittenFile(path=path, rows=rows.num_rows, size_bytes=size_bytes)

    def _result(
        self,
        plan: ReadPlan,
        summary: Summary,
        columns: SchemaAgreement,
        written: list[WrittenFile],
        added: Mapping[str, str],
        *,
        failed: Mapping[bytes, ReadFailure],
    ) -> RunResult:
        folder = run_files(plan.attempt_id, plan.run)
        files = list_files(self._declaration.table, folder, partition_by=(), schema=columns.schema, written=written)
        self._probe(Step.MANIFESTED)
        result = RunResult(
            processed=[
                ObjectResult(
                    object_id=plan.objects[index].object_id,
                    rows=reading.rows,
                    lines_quarantined=reading.lines_quarantined,
                    unknown=unknown_counts(reading.unknown),
                    beginning=beginning_of(
                        plan.objects[index], reading.beginning, reading=_reading(self._declaration, plan.options)
                    ),
                    appended_to=plan.beginnings[index].attempt_id if reading.grew else None,
                )
                for index, reading in summary.readings.items()
            ],
            failed=failed,
            record=BatchRecord(
                rows=sum(file.rows for file in files),
                lines_quarantined=summary.lines_quarantined,
                bytes=summary.bytes,
                manifest=encode(files),
                quarantine_manifest=encode(summary.quarantine),
                transform=self._declaration.transform_name,
            ),
            schema_id=columns.schema_id,
            new_schema=columns.new_schema,
            samples={plan.objects[index].object_id: one.samples for index, one in summary.readings.items()},
            place=self._declaration.read.place,
            agree_again=partial(self._agree_again, columns.schema, added),
            added_columns=added,
            new_columns={name: kind for name, kind in added.items() if name not in self._evolution.added()},
        )
        if result.processed:
            save(self._declaration.table, self._record(plan, result, columns.schema))
            self._probe(Step.RECORDED)
        return result

    def _record(self, plan: ReadPlan, result: RunResult, columns: pa.Schema) -> RecordedBatch:
        refs = {ref.object_id: ref for ref in plan.objects}
        return RecordedBatch(
            pipeline=self._declaration.pipeline,
            attempt_id=plan.attempt_id,
            objects=[
                RecordedObject(
                    ref=refs[one.object_id],
                    rows=one.rows,
                    lines_quarantined=one.lines_quarantined,
                    beginning=one.beginning,
                    appended_to=one.appended_to,
                )
                for one in result.processed
            ],
            record=result.record,
            columns=encode_columns(columns),
            place=self._declaration.read.place,
        )

    def _wait_at_gate(self, plan: ReadPlan) -> None:
        """Hold the run while the test has the gate shut for one of its objects. Raises `RunCancelled`."""
        deadline = time.monotonic() + GATE_SECONDS_MAX
        self._check_cancelled(plan.attempt_id)
        while is_shut(Path(GATE), [ref.uri for ref in plan.objects]) and time.monotonic() < deadline:
            Path(AT_GATE).touch()
            time.sleep(0.02)  # between two looks at a file that the test removes
            self._check_cancelled(plan.attempt_id)

    def _agree_again(self, columns: pa.Schema, added: Mapping[str, str]) -> tuple[int, str | None]:
        now = self._agreed(columns, added)
        return now.schema_id, now.new_schema

    def _check_cancelled(self, attempt_id: str) -> None:
        with self._lock:
            if attempt_id in self._cancelled:
                raise RunCancelled(f"the run of attempt {attempt_id} was cancelled")


def _reading(declaration: Declaration, options: ReadOptions) -> str:
    return reading_of(options, declaration.transform_name)


def _failures(plan: ReadPlan, failures: Mapping[int, ObjectFailure]) -> dict[bytes, ReadFailure]:
    assert {failure.kind for failure in failures.values()} <= LEFT_OUT, f"objects that fail are Spark's: {failures}"
    return {plan.objects[index].object_id: read_failure(failure) for index, failure in failures.items()}


def replace_spark() -> None:
    """Let this process start no Spark, and give its pipelines this engine."""

    def engine(blueprint: PipelineBlueprint, _: Any) -> InProcessEngine:
        agree = partial(agreement, blueprint.ledger, blueprint.tables.rows, blueprint.declaration.pipeline)
        evolution = Evolution(
            ledger=blueprint.ledger, sink=blueprint.tables.rows, pipeline=blueprint.declaration.pipeline
        )
        return InProcessEngine(
            blueprint.declaration,
            agree=agree,
            evolution=evolution,
            probe=blueprint.tools.probe,
            quarantine=blueprint.tables.quarantine_lines,
        )

    setattr(Spark, "session", lambda _: None)  # noqa: B010 # as the next, not an assignment that mypy could allow
    setattr(PipelineBlueprint, "_engine", engine)  # noqa: B010


if __name__ == "__main__":
    replace_spark()
    main()
