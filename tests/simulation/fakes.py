"""Fakes of Spark and Delta: an engine that writes tiny files, and a table with conditional appends.

They keep the contracts of `penstock.pipeline.engine.Engine` and `penstock.sinks.sink.Sink`. A file holds one line a
row: the object's key and the row's number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
from tests.simulation.stage import Crash, Stage

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
    CULPRIT = "culprit"  # breaks every run it is in, and nobody can tell that it was the one
    GONE = "gone"
    SUPERSEDED = "superseded"


POISON = frozenset({Kind.UNREADABLE, Kind.CULPRIT})
WITH_ROWS = frozenset({Kind.GOOD, Kind.LINES, Kind.FLAKY})


@dataclass(slots=True, kw_only=True)
class Thing:
    """An object of the play. The counters are the harness's own book, kept beside the product's."""

    ref: ObjectRef
    kind: Kind
    rows: int
    reads: int = 0
    charges: int = 0  # attempts that ended in a way that counts, as far as the harness can see


@dataclass(slots=True, kw_only=True)
class World:
    """The state that all actors of one schedule share besides ledger and queue."""

    stage: Stage
    probe: Callable[[Step], None]
    root: Path
    things: Mapping[str, Thing]  # by key
    late_files: list[tuple[Path, str]] = field(default_factory=list)  # what executors of dead drivers may still write

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
    """Reads objects by their kind and writes one file of rows and one of quarantined lines a run."""

    def __init__(self, world: World, agree: Agree) -> None:
        self._world = world
        self._agree = agree
        self._cancelled: set[str] = set()

    def cancel(self, attempt_id: str) -> None:
        self._cancelled.add(attempt_id)

    def run(self, request: RunRequest) -> RunResult:
        world, stage = self._world, self._world.stage
        self._check_cancelled(request)
        world.probe(Step.PLANNED)
        agreed = self._agree(SCHEMA)
        if stage.chance(0.02):
            raise TemporaryError("no space left on device")
        number = 1 if stage.chance(0.05) else 0  # the first run may have been repeated: its folder stays behind
        things = [world.things[ref.key] for ref in request.objects]
        failed = {thing.ref.object_id: failure for thing in things if (failure := _read(thing)) is not None}
        good = [thing for thing in things if thing.kind in WITH_ROWS and thing.ref.object_id not in failed]
        rows = [f"{thing.ref.key} {n}" for thing in good for n in range(thing.rows)]
        lines = [f"{thing.ref.key} bad" for thing in good if thing.kind is Kind.LINES]
        folder = f"data/{request.attempt_id}/r{number}"
        manifest = self._write(request, world.table_root, folder, rows)
        self._blame_nobody(things)
        quarantine_manifest = self._write(request, world.quarantine_root, folder, lines)
        world.probe(Step.WRITTEN)
        self._check_cancelled(request)
        world.probe(Step.MANIFESTED)
        world.probe(Step.RECORDED)  # nobody here repairs a ledger, so the record itself is left out
        return RunResult(
            processed=[
                ObjectResult(
                    object_id=thing.ref.object_id, rows=thing.rows, lines_quarantined=int(thing.kind is Kind.LINES)
                )
                for thing in good
            ],
            failed=failed,
            record=BatchRecord(
                rows=len(rows),
                lines_quarantined=len(lines),
                bytes=sum(thing.ref.size_bytes for thing in good),
                manifest=manifest,
                quarantine_manifest=quarantine_manifest,
            ),
            schema_id=agreed.schema_id,
            new_schema=agreed.new_schema,
        )

    def _write(self, request: RunRequest, root: Path, folder: str, rows: list[str]) -> str:
        """Half a file first; whoever dies in between may leave executors that finish it."""
        if not rows:
            return ""
        path = root / folder / "part-0.parquet"
        text = "\n".join(rows)
        write_file(path, text[: len(text) // 2])
        try:
            self._world.stage.step("writing")
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

    def _blame_nobody(self, things: list[Thing]) -> None:
        culprit = next((thing for thing in things if thing.kind is Kind.CULPRIT), None)
        if culprit is not None:
            for thing in things:
                thing.charges += 1
            raise RunBroken("a task failed", fingerprint=culprit.ref.key)


def _read(thing: Thing) -> ReadFailure | None:
    """Why an object gives no rows this time."""
    thing.reads += 1
    if thing.kind is Kind.UNREADABLE or (thing.kind is Kind.FLAKY and thing.reads == 1):
        thing.charges += 1
        return ReadFailure(failure=AttemptFailure.RETRY, reason="permission denied")
    if thing.kind is Kind.GONE:
        thing.charges += 1
        return ReadFailure(failure=AttemptFailure.DELETED, reason="not there")
    if thing.kind is Kind.SUPERSEDED:
        return ReadFailure(failure=AttemptFailure.SUPERSEDED, reason="another version is there")
    return None


class FakeTable:
    """A `penstock.sinks.sink.Sink` that is the table too. Rows are read when a file is named, as a reader would."""

    def __init__(self, world: World, root: Path, *, conditional: bool = True) -> None:
        self.world = world
        self.root = root
        self.created = False
        self.version = 0
        self.position = Position(seq=0, attempt_token=None)
        self.files: dict[str, list[str]] = {}  # what the table names, and the rows in it
        self.attempts: list[str] = []  # whose files were ever named
        self.replaced: list[str] = []  # by compaction; to be deleted later
        self.conditional = conditional

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def load(self) -> "FakeHandle | None":
        stage = self.world.stage
        stage.step("load")
        if stage.chance(0.02):
            raise TemporaryError("the table's store is away")
        return FakeHandle(self) if self.created else None

    def ensure_schema(self, schema: pa.Schema) -> None:
        self.world.stage.step("ensure schema")
        if not self.created:
            self.created, self.version = True, 1

    def rows(self) -> list[str]:
        return [row for rows in self.files.values() for row in rows]

    def compact(self) -> None:
        """One new file for all. The position stays, and appends under way are not disturbed."""
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
        table, stage = self._table, self._table.world.stage
        stage.step("append")
        if stage.chance(0.03):
            raise PublishConflict("the connection broke before anything was sent")
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
        if stage.chance(0.05):
            raise PublishConflict("no reply")
        stage.step("appended")
        return table.version


def missing_files(table: FakeTable) -> list[str]:
    """Return the files that the table names and that do not exist any more."""
    return [path for path in table.files if path.startswith("data/") and not (table.root / path.split()[0]).exists()]
