"""Fakes of Spark and Delta: an engine that writes tiny files, and a table with conditional appends.

They keep the contracts of `penstock.pipeline.engine.Engine` and `penstock.sinks.sink.Sink`. A file has one line per
row: the object's key and the row's number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
from tests.simulation.scheduler import Crash, Scheduler

from penstock.errors import PublishConflict, PublishHalted, TemporaryError
from penstock.ledger.records import AttemptFailure, BatchRecord, ObjectResult
from penstock.messaging.steps import Step
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import ReadFailure, RunBroken, RunCancelled, RunRequest, RunResult
from penstock.pipeline.spark.table_schema import Agree
from penstock.sinks.manifest import DataFile, attempt_token, encode
from penstock.sinks.sink import Append, Position

SCHEMA = pa.schema([("row", pa.string())])


class Kind(StrEnum):
    """How an object behaves."""

    GOOD = "good"
    LINES = "lines"  # good, with a line that goes into quarantine
    FLAKY = "flaky"  # its first read fails
    UNREADABLE = "unreadable"  # every read fails
    CULPRIT = "culprit"  # breaks every run with it, without being named as the cause
    GONE = "gone"
    SUPERSEDED = "superseded"


POISON = frozenset({Kind.UNREADABLE, Kind.CULPRIT})
WITH_ROWS = frozenset({Kind.GOOD, Kind.LINES, Kind.FLAKY})


@dataclass(slots=True, kw_only=True)
class SimulatedObject:
    """An object of the simulation. The counters are kept by the harness, independently of the product."""

    ref: ObjectRef
    kind: Kind
    rows: int
    reads: int = 0
    counted_attempts: int = 0  # attempts whose end counts, as far as the harness can see


@dataclass(slots=True, kw_only=True)
class World:
    """The state that all actors of one schedule share, apart from ledger and queue."""

    scheduler: Scheduler
    probe: Callable[[Step], None]
    root: Path
    objects: Mapping[str, SimulatedObject]  # by key
    late_files: list[tuple[Path, str]] = field(default_factory=list)  # that executors of dead drivers may write

    @property
    def table_root(self) -> Path:
        return self.root / "table"

    @property
    def quarantine_root(self) -> Path:
        return self.root / "table_quarantine"


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class FakeEngine:
    """An engine that reads objects by their kind, and writes one file of rows and one of quarantined lines per run."""

    def __init__(self, world: World, agree: Agree) -> None:
        self._world = world
        self._agree = agree
        self._cancelled: set[str] = set()

    def cancel(self, attempt_id: str) -> None:
        self._cancelled.add(attempt_id)

    def run(self, request: RunRequest) -> RunResult:
        world, scheduler = self._world, self._world.scheduler
        self._check_cancelled(request)
        world.probe(Step.PLANNED)
        agreed = self._agree(SCHEMA)
        if scheduler.chance(0.02):
            raise TemporaryError("no space left on device")
        number = 1 if scheduler.chance(0.05) else 0  # the first run may have been repeated; its folder remains
        objects = [world.objects[ref.key] for ref in request.objects]
        failed = {obj.ref.object_id: failure for obj in objects if (failure := _read(obj)) is not None}
        good = [obj for obj in objects if obj.kind in WITH_ROWS and obj.ref.object_id not in failed]
        rows = [f"{obj.ref.key} {n}" for obj in good for n in range(obj.rows)]
        lines = [f"{obj.ref.key} bad" for obj in good if obj.kind is Kind.LINES]
        folder = f"data/{request.attempt_id}/r{number}"
        manifest = self._write(request, world.table_root, folder, rows)
        self._fail_unattributed(objects)
        quarantine_manifest = self._write(request, world.quarantine_root, folder, lines)
        world.probe(Step.WRITTEN)
        self._check_cancelled(request)
        world.probe(Step.MANIFESTED)
        world.probe(Step.RECORDED)  # no ledger is repaired here, so the record itself is left out
        return RunResult(
            processed=[
                ObjectResult(object_id=obj.ref.object_id, rows=obj.rows, lines_quarantined=int(obj.kind is Kind.LINES))
                for obj in good
            ],
            failed=failed,
            record=BatchRecord(
                rows=len(rows),
                lines_quarantined=len(lines),
                bytes=sum(obj.ref.size_bytes for obj in good),
                manifest=manifest,
                quarantine_manifest=quarantine_manifest,
            ),
            schema_id=agreed.schema_id,
            new_schema=agreed.new_schema,
        )

    def _write(self, request: RunRequest, root: Path, folder: str, rows: list[str]) -> str:
        """Write half a file first. A crash in between may leave executors that complete it."""
        if not rows:
            return ""
        path = root / folder / "part-0.parquet"
        text = "\n".join(rows)
        write_file(path, text[: len(text) // 2])
        try:
            self._world.scheduler.step("writing")
        except Crash:
            self._world.late_files.append((path, text))
            raise
        self._check_cancelled(request)
        write_file(path, text)
        file = DataFile(
            path=f"{folder}/part-0.parquet", size_bytes=len(text), rows=len(rows), modified_at=1_700_000_000.0
        )
        return encode([file])

    def _check_cancelled(self, request: RunRequest) -> None:
        if request.attempt_id in self._cancelled:
            raise RunCancelled("cancelled")

    def _fail_unattributed(self, objects: list[SimulatedObject]) -> None:
        culprit = next((obj for obj in objects if obj.kind is Kind.CULPRIT), None)
        if culprit is not None:
            for obj in objects:
                obj.counted_attempts += 1
            raise RunBroken("a task failed", fingerprint=culprit.ref.key)


def _read(obj: SimulatedObject) -> ReadFailure | None:
    """Return why an object has no rows this time, or None."""
    obj.reads += 1
    if obj.kind is Kind.UNREADABLE or (obj.kind is Kind.FLAKY and obj.reads == 1):
        obj.counted_attempts += 1
        return ReadFailure(failure=AttemptFailure.RETRY, reason="permission denied")
    if obj.kind is Kind.GONE:
        obj.counted_attempts += 1
        return ReadFailure(failure=AttemptFailure.DELETED, reason="missing")
    if obj.kind is Kind.SUPERSEDED:
        return ReadFailure(failure=AttemptFailure.SUPERSEDED, reason="another version exists")
    return None


class FakeTable:
    """A `penstock.sinks.sink.Sink` that is also the table. Rows are read when a file is named, as a reader would."""

    def __init__(self, world: World, root: Path, *, conditional: bool = True) -> None:
        self.world = world
        self.root = root
        self.created = False
        self.version = 0
        self.position = Position(seq=0, attempt_token=None)
        self.files: dict[str, list[str]] = {}  # the files that the table names, with their rows
        self.attempts: list[str] = []  # the attempts whose files were ever named
        self.replaced: list[str] = []  # files replaced by compaction, to be deleted later
        self.conditional = conditional

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def load(self) -> "FakeHandle | None":
        scheduler = self.world.scheduler
        scheduler.step("load")
        if scheduler.chance(0.02):
            raise TemporaryError("the table's store is down")
        return FakeHandle(self) if self.created else None

    def ensure_schema(self, schema: pa.Schema) -> None:
        self.world.scheduler.step("ensure schema")
        if not self.created:
            self.created, self.version = True, 1

    def rows(self) -> list[str]:
        return [row for rows in self.files.values() for row in rows]

    def compact(self) -> None:
        """Replace all files by a new one. The position stays, and appends in progress are not disturbed."""
        if len(self.files) > 1:
            rows = self.rows()
            self.replaced += [path for path in self.files if path.startswith("data/")]
            self.version += 1
            self.files = {f"compacted-{self.version}": rows}

    def vacuum(self) -> None:
        for path in self.replaced:
            (self.root / path).unlink(missing_ok=True)
        self.replaced.clear()


class FakeHandle:
    """One snapshot of a `FakeTable`."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self._version = table.version
        self._position = table.position

    @property
    def version(self) -> int:
        return self._version

    @property
    def position(self) -> Position:
        return self._position

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def append(self, append: Append) -> int:
        table, scheduler = self._table, self._table.world.scheduler
        scheduler.step("append")
        if scheduler.chance(0.03):
            raise PublishConflict("the connection broke before the request was sent")
        if table.conditional and table.position != self._position:
            raise PublishConflict("the table moved")
        for file in append.files:
            if not (table.root / file.path).exists():
                raise PublishHalted(f"{file.path} does not exist")
        for file in append.files:
            name = file.path if file.path not in table.files else f"{file.path} again, {table.version}"
            table.files[name] = (table.root / file.path).read_text().split("\n")
            table.attempts.append(file.path.split("/")[1])
        table.version += 1
        table.position = Position(seq=append.seq, attempt_token=attempt_token(append.attempt_id))
        if scheduler.chance(0.05):
            raise PublishConflict("no reply")
        scheduler.step("appended")
        return table.version


def missing_files(table: FakeTable) -> list[str]:
    """Return the files that the table names and that no longer exist."""
    return [path for path in table.files if path.startswith("data/") and not (table.root / path.split()[0]).exists()]
