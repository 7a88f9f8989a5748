"""Tables of the simulation: real Parquet files, real sinks or a fast one in memory, with steps of the schedule.

`MemorySink` keeps the log of a table in memory and its files on disk, so that publishing, replacing and compaction run
unchanged and fast. `SteppedSink` wraps any sink: other actors may run before and after each access to the table's log,
and replies may be lost. `ForeignWriter` is another program that appends to the table and merges its files.
"""

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from tests.conformance.publishing.batch_maker import shown_files
from tests.services.spark_writer import SparkWriter
from tests.simulation.change_rules import Row
from tests.simulation.changing_store import SCHEMA
from tests.simulation.scheduler import Scheduler

from penstock.errors import PublishConflict, PublishHalted, TableError
from penstock.messaging.steps import Probe
from penstock.pipeline.publish_chunk import START
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.registry import open_sink
from penstock.sinks.sink import Append, CheckpointedTable, LoggedFile, Position, TableCommit, TableFile, TableSink
from penstock.storage.local import LocalFiles

FOREIGN = "foreign"  # the address in the rows of another writer
FORMATS = ("memory", "delta", "iceberg")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVersion:
    """One version of a `MemoryTable`."""

    files: Mapping[str, LoggedFile]
    position: Position


@dataclass(slots=True, kw_only=True)
class MemoryTable:
    """The log of a table. Every commit is conditional on the version that it was made for."""

    root: LocalFiles
    schema: pa.Schema = field(default_factory=lambda: SCHEMA)
    conditional: bool = True
    versions: list[LogVersion] = field(default_factory=list)

    @property
    def newest(self) -> int:
        return len(self.versions) - 1

    def commit(
        self, version: int, *, removed: Sequence[LoggedFile], added: Sequence[DataFile], position: Position | None
    ) -> int:
        if version != self.newest and self.conditional:
            raise PublishConflict(f"another writer committed version {self.newest}")
        for file in added:
            if self.root.stat(file.path) is None:
                raise PublishHalted(f"{file.path} does not exist")
        newest = self.versions[-1]
        files = dict(newest.files)
        for gone in removed:
            if files.pop(gone.path, None) is None and self.conditional:
                raise AssertionError(f"{gone.path} is not in the table")
        files |= {file.path: _logged(file) for file in added}
        self.versions.append(LogVersion(files=files, position=position or newest.position))
        return self.newest


def _logged(file: DataFile) -> LoggedFile:
    return LoggedFile(
        logged_path=file.path,
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        modified_at=file.modified_at,
        partition_values=file.partition_values,
        statistics=file.statistics,
    )


class MemorySink:
    """A `TableSink` and `TableHistory` over a `MemoryTable`."""

    commit_log = None
    retention_property = "none"

    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    @property
    def uri(self) -> str:
        return self.table.root.uri

    @property
    def root(self) -> LocalFiles:
        return self.table.root

    @property
    def history(self) -> "MemorySink":
        return self

    def check_location(self) -> None:
        """Accept any location."""

    def load(self) -> "MemorySnapshot | None":
        return MemorySnapshot(self.table, self.table.newest) if self.table.versions else None

    def load_version(self, version: int) -> "MemorySnapshot":
        return MemorySnapshot(self.table, version)

    def versions(self) -> Sequence[int]:
        return range(self.table.newest, -1, -1)

    def commit_at(self, version: int) -> TableCommit | None:
        raise TableError(f"version {version} is not read in the simulation")

    def commits(self) -> Iterator[TableCommit]:
        return iter(())

    def ensure_schema(self, schema: pa.Schema) -> None:
        assert schema.names in ([], self.table.schema.names)
        if not self.table.versions:
            self.table.versions.append(LogVersion(files={}, position=START))

    def replace_files(
        self, *, version: int, removed: Sequence[LoggedFile], added: Sequence[DataFile], now: float, engine: str
    ) -> int:
        assert (now >= 0, bool(engine)) == (True, True)
        return self.table.commit(version, removed=removed, added=added, position=None)


class MemorySnapshot:
    """One version of a `MemoryTable`. A `VersionedTable`."""

    partition_by: Sequence[str] = ()
    schema_document: Mapping[str, Any] = {}

    def __init__(self, table: MemoryTable, version: int) -> None:
        self._table = table
        self.version = version

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def root(self) -> LocalFiles:
        return self._table.root

    @property
    def position(self) -> Position:
        return self._table.versions[self.version].position

    def files(self) -> Sequence[TableFile]:
        return [
            TableFile(path=file.path, size_bytes=file.size_bytes, partition_values={}) for file in self.logged_files()
        ]

    def logged_files(self) -> Sequence[LoggedFile]:
        return list(self._table.versions[self.version].files.values())

    @property
    def field_ids(self) -> Mapping[int, str]:
        return {}

    def files_to_search(self, columns: Collection[str]) -> Sequence[LoggedFile]:
        return self.logged_files()

    def rows(self) -> int | None:
        return sum(file.rows for file in self.logged_files())

    def dataset(self) -> Any:
        raise TableError("the simulation reads files")

    def vacuum(self, *, retention_hours: int | None, dry_run: bool) -> Sequence[str]:
        raise TableError(f"not vacuumed: {retention_hours}, {dry_run}")

    def append(self, append: Append) -> int:
        position = Position(seq=append.seq, attempt_token=attempt_token(append.attempt_id))
        return self._table.commit(self.version, removed=append.replaced, added=append.files, position=position)


class Stepped:
    """Forwards everything to a target. Subclasses add steps to some calls."""

    def __init__(self, target: Any, scheduler: Scheduler, committed: Callable[[], object]) -> None:
        self._target, self._scheduler, self._committed = target, scheduler, committed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def _commit(self, name: str, commit: Callable[[], int]) -> int:
        self._scheduler.step(name)
        if self._scheduler.chance(0.02):
            raise PublishConflict("the connection broke before the request was sent")
        version = commit()
        self._committed()
        if self._scheduler.chance(0.04):
            raise PublishConflict("no reply")
        self._scheduler.step(f"{name}: done")
        return version


class SteppedSink(Stepped):
    """A `TableSink` whose calls are steps of the schedule. ``committed`` is called after each commit."""

    @property
    def history(self) -> "SteppedSink":
        return self

    def load(self) -> "SteppedTable | None":
        self._scheduler.step("load")
        table = self._target.load()
        return None if table is None else SteppedTable(table, self._scheduler, self._committed)

    def ensure_schema(self, schema: pa.Schema) -> None:
        self._scheduler.step("ensure schema")
        self._target.ensure_schema(schema)

    def replace_files(self, **options: Any) -> int:
        return self._commit("replace files", lambda: self._target.replace_files(**options))


class SteppedTable(Stepped):
    """A snapshot whose commits are steps of the schedule."""

    def append(self, append: Append) -> int:
        return self._commit("append", lambda: self._target.append(append))

    def is_checkpoint_due(self, version: int) -> bool:
        return isinstance(self._target, CheckpointedTable) and self._target.is_checkpoint_due(version)

    def write_checkpoint(self, version: int, *, probe: Probe) -> None:
        self._target.write_checkpoint(version, probe=probe)


@dataclass(slots=True, kw_only=True)
class ChangingTable:
    """The table of one schedule, in one of `FORMATS`."""

    format: str
    root: LocalFiles
    pipeline: str
    schema: pa.Schema = field(default_factory=lambda: SCHEMA)
    memory: MemoryTable = field(init=False)
    foreign: Counter[Row] = field(default_factory=Counter)  # the rows of another writer
    _foreign_files: int = 0

    def __post_init__(self) -> None:
        self.memory = MemoryTable(root=self.root, schema=self.schema)

    def sink(self) -> TableSink:
        """Return the sink of a new process, without steps."""
        if self.format == "memory":
            return cast(TableSink, MemorySink(self.memory))
        return open_sink(self.root, scheme=self.format, pipeline=self.pipeline)

    def stepped(self, scheduler: Scheduler, committed: Callable[[], object]) -> TableSink:
        """Return the sink of a new process as an actor sees it."""
        return cast(TableSink, SteppedSink(self.sink(), scheduler, committed))

    def rows(self) -> Counter[tuple[str, str]]:
        """Return the rows that a reader sees: address and line."""
        found: Counter[tuple[str, str]] = Counter()
        for path in self._paths():
            table = pq.read_table(path)
            found.update(zip(table["_object"].to_pylist(), table["line"].to_pylist(), strict=True))
        return found

    def _paths(self) -> Sequence[Any]:
        if self.format == "memory":
            files = self.memory.versions[-1].files if self.memory.versions else {}
            return [f"{self.root}/{path}" for path in files]
        return shown_files(self.root.root) if self.sink().load() is not None else []

    # -- another writer ------------------------------------------------------------------------------------------

    def foreign_append(self) -> None:
        """Append a row, as another program does. Iceberg's other writers are left to `penstock.sinks.iceberg`."""
        if self.format == "iceberg" or self.sink().load() is None:
            return
        self._foreign_files += 1
        line = f"theirs-{self._foreign_files}"
        if self.format == "delta":
            SparkWriter(files=self.root).append({"line": [line], "_object": [FOREIGN]}).put()
        else:
            file = self._write(pa.table([[line], [FOREIGN]], schema=SCHEMA))
            self.memory.commit(self.memory.newest, removed=(), added=[file], position=None)
        self.foreign[FOREIGN, line] += 1

    def foreign_rewrite(self) -> None:
        """Merge all files into one, as another program's compaction does."""
        if self.format == "iceberg" or self.sink().load() is None:
            return
        if self.format == "delta":
            merge = SparkWriter(files=self.root).optimize()
            if merge is not None:
                merge.put()
            return
        files = list(self.memory.versions[-1].files.values())
        if len(files) > 1:
            self._foreign_files += 1
            tables = [pq.read_table(f"{self.root}/{file.path}") for file in files]
            merged = self._write(pa.concat_tables(tables))
            self.memory.commit(self.memory.newest, removed=files, added=[merged], position=None)

    def _write(self, rows: pa.Table) -> DataFile:
        data, path = io.BytesIO(), f"theirs-{self._foreign_files}.parquet"
        pq.write_table(rows, data)
        self.root.write(path, data.getvalue())
        return DataFile(path=path, size_bytes=len(data.getvalue()), rows=len(rows), modified_at=1.0)
