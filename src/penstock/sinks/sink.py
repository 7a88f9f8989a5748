"""The sink protocol: a table that accepts batches of files, in order, each exactly once.

A sink stores the sequence number of the last published batch and a token of its attempt inside the table, in the same
commit as the files. A commit is conditional on the snapshot that was checked. `ReadableTable` is the reader's view: the
columns, and exactly the files of one snapshot.

A table format implements `TableSink`, and `TableHistory` if it keeps earlier versions, which repair, compaction and
vacuum need. The checks that all formats share are in `penstock.sinks.checks`. Code above this package knows these
protocols only; `penstock.sinks.registry` opens the sink of a table.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from penstock.messaging.steps import Probe
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files

REPLACES_ROWS = "MERGE"  # operation of a commit that removed files, and added one with the rows that stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last batch of one pipeline that a table shows. ``seq`` 0: none yet.

    Several pipelines may publish to one table, each with a position of its own.
    """

    seq: int
    attempt_token: int | None  # `attempt_token` of that batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """The files of all batches after the snapshot's position up to ``seq``."""

    seq: int
    attempt_id: str  # of the batch ``seq``
    files: Sequence[DataFile]
    # Files of the snapshot that leave the table in the same commit, since these batches replace some of their rows. The
    # other rows are in ``files``.
    replaced: Sequence["LoggedFile"] = ()
    replacing: int | None = None  # the batch that replaces rows; set also if the snapshot has none of these
    rewritten_in: str = ""  # the folder with what is left of the replaced files
    # Set if the files are of earlier batches, the first after this one, whose commit was overwritten. ``seq`` is then
    # the snapshot's position.
    republished_after: int | None = None


class LoadedTable(Protocol):
    """One snapshot of the table. Commits apply to the snapshot that was read."""

    @property
    def version(self) -> int:
        """The table format's version of this snapshot."""
        ...

    @property
    def position(self) -> Position:
        """The last batch of this pipeline in this snapshot."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The snapshot's columns, in order."""
        ...

    def append(self, append: Append) -> int:
        """Commit files and position unless the position moved since the snapshot; return the new version.

        A commit that replaces files has the operation `REPLACES_ROWS` in the history.

        Raises:
            PublishConflict: Another process committed, or the outcome is unknown: load again and check.
            PublishHalted: A file of the append does not exist.
        """
        ...


class Sink(Protocol):
    """A table at an address, for publishing. Stateless; any process may publish to it."""

    @property
    def uri(self) -> str:
        """The table's canonical address."""
        ...

    def load(self) -> LoadedTable | None:
        """Return the newest snapshot, or None if there is no table. Raises `TableError` for unsupported features."""
        ...

    def ensure_schema(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns it lacks; idempotent. Raises `TableError` for any other difference.

        A new table must be recognizable, so that a source above it does not read its files: see
        `penstock.sinks.checks.mark_table`.
        """
        ...


@runtime_checkable
class ColumnCheck(Protocol):
    """A sink whose format cannot have all the columns that `penstock.sinks.schema.canonical` accepts."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise `TableError` for columns that no table of this format can have. Makes no access."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One Parquet file of a snapshot."""

    path: str  # relative to the table's root, unless the table's log names a file elsewhere
    size_bytes: int
    partition_values: Mapping[str, Any]  # typed values of columns that the file does not contain, texts of transforms


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFile:
    """A file as a snapshot's log names it."""

    logged_path: str  # as in the log, with escapes
    path: str  # relative to the table's root
    size_bytes: int
    rows: int
    modified_at: float  # epoch seconds
    partition_values: Mapping[str, str | None]  # as in the log
    statistics: Mapping[str, Any] = field(default_factory=dict)  # as those of a `DataFile`
    # Why Penstock neither reads the file nor writes its rows again, with the file as the subject; empty if it can. The
    # path is then the one of the log.
    unreadable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One version of a table, as its log describes it."""

    version: int
    committed_at: float | None  # epoch seconds by the committer's clock
    position: Position | None  # of the pipeline, if the commit moved it
    added: Sequence[DataFile]
    removed: Sequence[str] = ()  # files removed together with their rows
    merged: Sequence[str] = ()  # files removed whose rows are in the added files
    restated: Sequence[DataFile] = ()  # files that the table had already, added again, as with other statistics
    operation: str = ""  # the committer's name for it, in capitals
    engine: str = ""  # the committer's name for itself
    is_ours: bool = False  # Penstock made it, for this pipeline or another
    republished_after: int | None = None  # as in `Append`, like the next two
    replacing: int | None = None
    rewritten_in: str = ""
    sets_columns: bool = False  # it set the table's columns, properties or features

    @property
    def named(self) -> Sequence[DataFile]:
        """All files that the commit says are in the table."""
        return (*self.added, *self.restated)


class ReadableTable(Protocol):
    """One snapshot of a table, for reading."""

    @property
    def root(self) -> Files:
        """The table's location."""
        ...

    @property
    def partition_by(self) -> Sequence[str]:
        """The partition fields, in order, as `penstock.sinks.partitions` spells them."""
        ...

    @property
    def schema_document(self) -> Mapping[str, Any]:
        """The columns as the JSON document that Delta and Spark use for schemas."""
        ...

    def files(self) -> Sequence[TableFile]:
        """Return the files, unordered."""
        ...


@runtime_checkable
class ReadCheck(Protocol):
    """A snapshot that has other rows than its files, if other programs wrote to the table."""

    def check_readable(self) -> None:
        """Raise `TableError` if the files, read by the names of the columns, do not show exactly the rows."""
        ...


@runtime_checkable
class RemovalCheck(Protocol):
    """A snapshot of a table with a setting that may forbid to take rows out of it."""

    def check_removal(self) -> None:
        """Raise `TableError` if no row may leave the table in a file that is written again without it."""
        ...


@runtime_checkable
class CheckpointedTable(Protocol):
    """A snapshot of a table whose readers begin at a checkpoint.

    In Delta, it is a file with the state of the log at a version. In Iceberg it is the version hint of the table's
    folder, which each commit moves.
    """

    def is_checkpoint_due(self, version: int) -> bool:
        """Return True if ``version``, which this snapshot's `append` committed, is to have a checkpoint."""
        ...

    def write_checkpoint(self, version: int, *, probe: Probe) -> None:
        """Write the checkpoint of a version, then delete the log of versions past its retention.

        Without it, readers take longer, or see an earlier version. Raises `TableError` or `TemporaryError` if it cannot
        be written.
        """
        ...


class TableSnapshot(LoadedTable, ReadableTable, Protocol):
    """One snapshot of a table, for publishing, reading and checks."""

    def rows(self) -> int | None:
        """Return the number of rows in this snapshot; None if it is unknown."""
        ...

    def dataset(self) -> Any:
        """Return the rows as a `pyarrow.dataset.Dataset`."""
        ...


class VersionedTable(TableSnapshot, Protocol):
    """One snapshot of a table whose format keeps earlier versions."""

    @property
    def field_ids(self) -> Mapping[int, str]:
        """The names of the columns by the numbers that files may have for them; empty if names count in files."""
        ...

    def logged_files(self) -> Sequence[LoggedFile]:
        """Return the files below the root that Penstock can read, with all fields that a commit needs.

        Raises `TableError` for partition columns of a type that Penstock does not partition by.
        """
        ...

    def files_to_search(self, columns: Collection[str]) -> Sequence[LoggedFile]:
        """Return all files of the snapshot, with the bounds of these columns if the log has them.

        Also those that Penstock cannot read, since they may have the rows that are searched for. Raises as
        `logged_files` does.
        """
        ...

    def vacuum(self, *, retention_hours: int | None, dry_run: bool) -> Sequence[str]:
        """Delete files that left the table before the retention period; return their paths.

        The default is the table's own retention. Files that no version ever named are kept: a run may be writing them.
        Raises `TableError` for a retention below the table's.
        """
        ...


class TableHistory(Protocol):
    """The versions of a table."""

    @property
    def retention_property(self) -> str:
        """The table property that sets for how long, or how many, commits stay known."""
        ...

    def load(self) -> VersionedTable | None:
        """Return the newest snapshot, like `Sink.load`."""
        ...

    def load_version(self, version: int) -> VersionedTable:
        """Return the snapshot of a version. Raises `TableError` if the table no longer has it."""
        ...

    def versions(self) -> Sequence[int]:
        """Return the versions whose commits are still known, newest first, up to the first gap."""
        ...

    def commit_at(self, version: int) -> TableCommit | None:
        """Return the commit of a version; None if it is no longer known. Raises `TableError` for an unreadable one."""
        ...

    def commits(self) -> Iterator[TableCommit]:
        """Yield commits newest first, each read on demand. Raises `TableError` for an unreadable one."""
        ...

    def replace_files(
        self, *, version: int, removed: Sequence[LoggedFile], added: Sequence[DataFile], now: float, engine: str
    ) -> int:
        """Commit files with the same rows as the version after ``version``, and return its number.

        ``engine`` must be unique to this commit. Raises `PublishConflict` if another writer committed that version, or
        the outcome is unknown.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """The file of one version in a table's log. Another tag: the file was replaced."""

    version: int
    tag: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogListing:
    """The versions in a table's log, as one listing returned them."""

    commits: Mapping[int, LogEntry]
    checkpoints: Sequence[int]  # versions with a checkpoint: readers that begin there read no earlier commit


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommit:
    """A commit, and the file that it was read from."""

    entry: LogEntry
    commit: TableCommit


class CommitLog(Protocol):
    """A table's log of one file per version, which a writer that puts without a condition may replace."""

    def listing(self, *, after: int) -> LogListing:
        """Return the versions after this one."""
        ...

    def read(self, version: int) -> LoggedCommit | None:
        """Return the commit of a version; None if it is no longer known. Raises `TableError` for an unreadable one."""
        ...

    def apply_again(self, *, version: int, of_version: int, paths: Collection[str], now: float) -> int:
        """Commit the changes that an earlier commit made to these files as the version after ``version``.

        Raises `PublishConflict` if another writer committed that version, or the outcome is unknown.
        """
        ...


@runtime_checkable
class RestatingHistory(TableHistory, Protocol):
    """The versions of a table whose log has statistics of files, which may be stated again."""

    def restate_files(self, *, version: int, files: Sequence[LoggedFile], now: float, engine: str) -> int:
        """Commit the statistics of files that ``version`` has, and return the number of files that get bounds.

        Commits nothing if none does. Raises as `TableHistory.replace_files` does.
        """
        ...


@runtime_checkable
class SparseHistory(TableHistory, Protocol):
    """The versions of a table that forgets additions earlier than removals."""

    def earlier_removals(self) -> Iterator[TableCommit]:
        """Yield the commits that removed files before those of `TableHistory.commits`, newest first."""
        ...


class TableSink(Sink, Protocol):
    """A table at an address, for everything that Penstock does with tables. See `penstock.sinks.registry`."""

    @property
    def root(self) -> Files:
        """The table's location."""
        ...

    @property
    def history(self) -> TableHistory | None:
        """The table's versions; None if the format keeps no earlier ones."""
        ...

    @property
    def commit_log(self) -> CommitLog | None:
        """The table's log; None if no other writer can replace a commit of this format."""
        ...

    def check_location(self) -> None:
        """Raise `TableError` if the location has no table and cannot hold one either."""
        ...

    def load(self) -> TableSnapshot | None:
        """Return the newest snapshot, or None if there is no table. Raises `TableError` for unsupported features."""
        ...
