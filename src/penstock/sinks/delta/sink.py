"""The Delta sink: files and position in one commit, on the snapshot that was checked.

Penstock reads the state of the newest version and writes its commits itself (`penstock.sinks.delta.state`,
`penstock.sinks.delta.log`), so that a publish does not read the list of all files. A commit succeeds only as the
snapshot's next version, so everything read from the snapshot is still true then. deltalake creates tables, adds
columns, writes checkpoints, and reads files where they are needed. This module adds the checks that it lacks:
unsupported features, missing files, two processes creating the table at once.
"""

import errno
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe, Step
from penstock.sinks.checks import (
    ELSEWHERE,
    check_files,
    check_free,
    check_new_partitioning,
    check_partitioning,
    check_writable,
    is_own,
    make_ready,
)
from penstock.sinks.delta import log, statistics
from penstock.sinks.delta.features import check_features, check_removal
from penstock.sinks.delta.folder import LOG_FOLDER, check_name
from penstock.sinks.delta.log import ATTEMPT
from penstock.sinks.delta.state import TableState, read_state
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.parquet import check_partition_types, with_columns
from penstock.sinks.schema import additions, canonical
from penstock.sinks.sink import Append, LoggedCommit, LoggedFile, LogListing, Position, TableCommit, TableFile
from penstock.storage.files import Files
from penstock.storage.s3 import fault_of, refuse

_INTERVAL = re.compile(r"[1-9][0-9]{0,8}")
CHECKPOINT_INTERVAL = 100  # commits, unless the table has another one, as for deltalake
LOADS_MAX = 2  # reading a log during its cleanup can fail once
FILES_RESTATED_MAX = 10_000  # per commit
RESTATEMENTS_MAX = 1_000  # commits before columns are added

_Read = TypeVar("_Read")
_CLOCK = SystemClock()  # stateless
# Checkpoints are left to `LoadedDelta.write_checkpoint`: the library would delete commits before one is durable.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_KIND = "Delta table"  # in messages
_S3_REQUEST = re.compile(r"\bError performing\b")  # in delta-rs's messages about failed requests
_DENIED = re.compile(r"\b(403 Forbidden|AccessDenied)\b")  # S3's refusals in delta-rs's messages


class DeltaTableSink:
    """A Delta table at a location, and the position of one pipeline in it. A `Sink` and its `TableHistory`."""

    def __init__(self, root: Files, *, pipeline: str, partition_by: Sequence[str] | None = ()) -> None:
        """Name a table. With ``partition_by`` None, any partitioning is accepted: use it for reading only."""
        self._root = root
        self._app = f"{log.APPLICATIONS}{pipeline}"
        self._partition_by = None if partition_by is None else list(partition_by)

    @property
    def uri(self) -> str:
        return self._root.uri

    @property
    def root(self) -> Files:
        return self._root

    @property
    def history(self) -> "DeltaTableSink":
        return self

    @property
    def commit_log(self) -> "DeltaCommitLog":
        return DeltaCommitLog(self._root, self._app)

    def check_location(self) -> None:
        if f"{LOG_FOLDER}/" not in self._root.names():
            check_free(self._root, kind=_KIND, scheme="delta", own={f"{LOG_FOLDER}/"})

    def load(self) -> "LoadedDelta | None":
        """Return the newest snapshot, or None if there is no table.

        Raises `TableError` if the table cannot be written as requested: unsupported features, other partition columns,
        or a folder with other contents.
        """
        state = _newest(self._root)
        if state is None:
            check_free(self._root, kind=_KIND, scheme="delta", own={f"{LOG_FOLDER}/"})
            return None
        loaded = LoadedDelta(state, root=self._root, app=self._app)
        check_features(state.protocol, state.configuration, state.schema_json, where=self.uri)
        check_partitioning(loaded.partition_by, self._partition_by, table=self.uri)
        return loaded

    @property
    def retention_property(self) -> str:
        return "delta.logRetentionDuration"

    def load_version(self, version: int) -> "LoadedDelta":
        """Return the snapshot of a version. Raises `TableError` if it is no longer in the log."""
        try:
            state = read_state(self._root, version=version)
            if state is None:
                raise ValueError("there is no table")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TableError(
                f"Version {version} of the table {self.uri} cannot be read: {_first_line(error)}"
            ) from error
        return LoadedDelta(state, root=self._root, app=self._app)

    def versions(self) -> Sequence[int]:
        return log.versions(self._root)

    def commit_at(self, version: int) -> TableCommit | None:
        logged = log.read(self._root, version, app=self._app)
        return None if logged is None else logged.commit

    def commits(self) -> Iterator[TableCommit]:
        return log.commits(self._root, app=self._app)

    def replace_files(
        self, *, version: int, removed: Sequence[LoggedFile], added: Sequence[DataFile], now: float, engine: str
    ) -> int:
        indexed = self.load_version(version).indexed_columns
        return log.replace_files(
            self._root, version=version, removed=removed, added=added, indexed=indexed, now=now, engine=engine
        )

    def restate_files(self, *, version: int, files: Sequence[LoggedFile], now: float, engine: str) -> int:
        indexed = self.load_version(version).indexed_columns
        bounded = [file for file in files if statistics.encodes_bounds(file.rows, file.statistics, indexed)]
        if bounded:
            log.restate_files(self._root, version=version, files=bounded, indexed=indexed, now=now, engine=engine)
        return len(bounded)

    def ensure_schema(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns it lacks, in a separate commit.

        Columns that only the table has stay unchanged. Before columns are added, statistics of files with bounds are
        stated again: they must say that the new columns are null there. See `penstock.sinks.delta.statistics`.

        Raises:
            TableError: A column differs.
            UsageError: A partition column is not in the schema.
            PublishConflict: Another writer changed the table meanwhile.
        """
        loaded = self.load()
        if loaded is None:
            self._create(canonical(schema))
        elif additions(loaded.schema, schema, table=self.uri):
            self._add_columns(loaded, schema)

    def _add_columns(self, loaded: "LoadedDelta", schema: pa.Schema) -> None:
        """Add the columns as the version after one whose files with bounds are all restated."""
        restated: set[str] = set()
        for _ in range(RESTATEMENTS_MAX):
            added = additions(loaded.schema, schema, table=self.uri)
            files = [
                file
                for file in (loaded.logged_files() if added else ())
                if file.logged_path not in restated and is_own(file.path) and statistics.has_bounds(file.statistics)
            ][:FILES_RESTATED_MAX]
            if not files:
                if added:
                    loaded.add_columns(added)
                return
            loaded.restate_files(files, added)
            restated.update(file.logged_path for file in files)
            newer = self.load()
            if newer is None:
                break
            loaded = newer
        raise PublishConflict(f"{self.uri}: other writers kept adding files while columns were added")

    def _create(self, schema: pa.Schema) -> None:
        columns = self._partition_by or []
        check_new_partitioning(schema, columns, table=self.uri)
        with _committing(self.uri):
            make_ready(self._root)
            check_writable(self._root, log_folder=LOG_FOLDER)
            _create(self._root, schema, columns)


class DeltaCommitLog:
    """The log of a `DeltaTableSink`'s table. A `CommitLog`."""

    def __init__(self, root: Files, app: str) -> None:
        self._root = root
        self._app = app

    def listing(self, *, after: int) -> LogListing:
        return log.listing(self._root, after=after)

    def read(self, version: int) -> LoggedCommit | None:
        return log.read(self._root, version, app=self._app)

    def apply_again(self, *, version: int, of_version: int, paths: Collection[str], now: float) -> int:
        return log.apply_again(self._root, version=version, of_version=of_version, paths=paths, now=now)


class LoadedDelta:
    """One snapshot of a `DeltaTableSink`'s table. Its files are read when a method needs them."""

    def __init__(self, state: TableState, *, root: Files, app: str) -> None:
        self._state = state
        self._root = root
        self._app = app
        self.partition_by: Sequence[str] = state.partition_by

    @cached_property
    def _table(self) -> DeltaTable:
        """The library's snapshot. It reads the list of all files once, so only methods that need the list use it."""
        table = _open(self._root, self.version)
        if table is None:
            raise TableError(f"The Delta table {self._root.uri} was deleted while it was read.")
        return table

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def position(self) -> Position:
        transactions = self._state.transactions
        return Position(seq=transactions.get(self._app, 0), attempt_token=transactions.get(f"{self._app}{ATTEMPT}"))

    @property
    def schema(self) -> pa.Schema:
        return canonical(pa.schema(self._state.schema))

    @property
    def indexed_columns(self) -> Sequence[pa.Field]:
        """The columns that readers may use to skip files."""
        return statistics.indexed_columns(
            self.schema, partition_by=self.partition_by, configuration=self._state.configuration
        )

    @property
    def schema_document(self) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(self._state.schema_json)
        return document

    @property
    def root(self) -> Files:
        return self._root

    def rows(self) -> int | None:
        """Return the number of rows in this snapshot; None if the log lacks the count of some file."""
        counts = pa.table(self._table.get_add_actions(flatten=True))
        if not counts.num_rows:
            return 0
        if "num_records" not in counts.column_names:
            return None
        found = counts["num_records"].to_pylist()
        return None if None in found else sum(found)

    def dataset(self) -> Any:
        return self._table.to_pyarrow_dataset()

    def files(self) -> Sequence[TableFile]:
        """Return this snapshot's files. The log has escaped paths, relative to the root unless they are absolute."""
        found = pa.table(self._table.get_add_actions(flatten=True))
        actions = self._rows(found.select(["path", "size_bytes", *(f"partition.{name}" for name in self.partition_by)]))
        return [
            TableFile(
                path=unquote(action["path"]).removeprefix("file://"),
                size_bytes=action["size_bytes"],
                partition_values={name: action[f"partition.{name}"] for name in self.partition_by},
            )
            for action in actions
        ]

    def logged_files(self) -> Sequence[LoggedFile]:
        """Return the files below the root with all fields that a commit needs.

        Raises `TableError` for partition columns of a type that Penstock does not partition by.
        """
        return [file for file in self.files_to_search(()) if not file.unreadable]

    @property
    def field_ids(self) -> Mapping[int, str]:
        """Empty: without column mapping, which Penstock refuses, files have the table's names."""
        return {}

    def files_to_search(self, columns: Collection[str]) -> Sequence[LoggedFile]:  # noqa: ARG002 -- has all bounds
        """Return all files with all bounds that the log has; see `VersionedTable.files_to_search`."""
        schema = self.schema
        check_partition_types(schema, self.partition_by)
        actions = self._rows(statistics.with_raw_dates(pa.table(self._table.get_add_actions(flatten=False))))
        return [
            LoggedFile(
                logged_path=action["path"],
                path=unquote(action["path"]),
                unreadable=ELSEWHERE if re.match(r"/|[a-z0-9+.-]+:", action["path"]) else "",
                size_bytes=action["size_bytes"],
                rows=action["num_records"] or 0,
                modified_at=action["modification_time"] / 1000,
                partition_values={name: _logged(action["partition"][name]) for name in self.partition_by},
                statistics=statistics.logged(
                    least=action.get("min"), greatest=action.get("max"), nulls=action.get("null_count"), schema=schema
                ),
            )
            for action in actions
        ]

    def _rows(self, actions: pa.Table) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = actions.to_pylist()
        except OverflowError as error:
            raise TableError(
                f"The table {self._root.uri} has a partition of a date outside the years 1 to 9999, which cannot be "
                "read: delete its rows, or write them with another date."
            ) from error
        return found

    def check_removal(self) -> None:
        check_removal(self._state.configuration, where=self._root.uri)

    def vacuum(self, *, retention_hours: int | None, dry_run: bool) -> Sequence[str]:
        """Delete files that the log removed before the retention period; return their paths.

        The default is the table's own retention (a week). Files that the log never named are kept: a run may be writing
        them. Raises `TableError` for a retention below the table's.
        """
        try:
            found = self._table.vacuum(
                retention_hours=retention_hours, dry_run=dry_run, full=False, post_commithook_properties=_NO_HOOKS
            )
        except (DeltaError, OSError, ValueError) as error:
            raise TableError(
                f"The table {self._root.uri} cannot be vacuumed: {_first_line(error)}; keep old files for longer "
                f"(--retention-hours), or let the table say so (its property delta.deletedFileRetentionDuration)."
            ) from error
        return sorted(set(found))

    def append(self, append: Append) -> int:
        """Commit files and position as this snapshot's next version and return it; see `LoadedTable.append`."""
        check_writable(self._root, log_folder=LOG_FOLDER)
        check_files(self._root, append.files, partition_by=self.partition_by)
        positions = {self._app: append.seq, f"{self._app}{ATTEMPT}": attempt_token(append.attempt_id)}
        return log.append(
            self._root,
            append,
            version=self.version,
            transactions=positions,
            indexed=self.indexed_columns,
            now=_CLOCK.now(),
        )

    def is_checkpoint_due(self, version: int) -> bool:
        return version - self._state.checkpoint >= _checkpoint_interval(self._state.configuration)

    def write_checkpoint(self, version: int, *, probe: Probe) -> None:
        """See `CheckpointedTable`. Readers find it without the hint ``_last_checkpoint``, which is written after it."""
        probe(Step.CHECKPOINTING)
        try:
            table = DeltaTable(str(self._root), version=version, storage_options=dict(self._root.store_options()))
            table.create_checkpoint()
            # The library syncs nothing, and the commits that are deleted next may be needed without it.
            self._root.make_durable([f"{LOG_FOLDER}/{version:020}.checkpoint.parquet"])
        except Exception as error:  # whatever the library raises: the version is committed, and readable without it
            raise TableError(
                f"The checkpoint of version {version} of the table {self._root.uri} cannot be written: "
                f"{_first_line(error)}"
            ) from error
        probe(Step.CHECKPOINTED)
        if (self._state.configuration.get("delta.enableExpiredLogCleanup") or "true").lower() == "true":
            with suppress(Exception):  # whatever the library raises: left to the next checkpoint
                table.cleanup_metadata()

    def restate_files(self, files: Sequence[LoggedFile], added: Sequence[pa.Field]) -> None:
        """Commit that files have nulls in columns which the table does not have yet, as this snapshot's next version.

        Raises `PublishConflict` if another writer committed it.
        """
        check_writable(self._root, log_folder=LOG_FOLDER)
        restated = [replace(file, statistics=with_columns(file.rows, file.statistics, added)) for file in files]
        log.restate_files(
            self._root,
            version=self.version,
            files=restated,
            indexed=statistics.indexed_columns(
                pa.schema([*self.schema, *added]),
                partition_by=self.partition_by,
                configuration=self._state.configuration,
            ),
            now=_CLOCK.now(),
            engine=f"penstock {uuid.uuid4()}",
        )

    def add_columns(self, fields: Iterable[pa.Field]) -> None:
        """Add nullable columns as this snapshot's next version."""
        check_writable(self._root, log_folder=LOG_FOLDER)
        with _committing(self._root.uri):
            self._table.alter.add_columns(
                Schema.from_arrow(pa.schema(list(fields))).fields,
                commit_properties=_properties(),
                post_commithook_properties=_NO_HOOKS,
            )


def open_dataset(root: Files) -> Any:
    """Return the rows of a Delta table as a `pyarrow.dataset.Dataset`. Raises `TableError` if there is no table."""
    table = _open(root)
    if table is None:
        raise TableError(f"There is no Delta table in {root}.")
    return table.to_pyarrow_dataset()


def _checkpoint_interval(configuration: Mapping[str, str | None]) -> int:
    text = configuration.get("delta.checkpointInterval") or ""
    return int(text) if _INTERVAL.fullmatch(text) else CHECKPOINT_INTERVAL


def _properties() -> CommitProperties:
    """Return the properties of a commit without retries, which marks it as Penstock's."""
    return CommitProperties(custom_metadata={log.MARK: {}}, max_commit_retries=0)


def _create(root: Files, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Create the table as version 0 or not at all; succeed if another process created it.

    With retries, the second creator would change the first one's table as its version 1 (measured).
    """
    try:
        DeltaTable.create(
            str(root),
            Schema.from_arrow(schema),
            partition_by=list(partition_by),
            storage_options=dict(root.store_options()),
            commit_properties=_properties(),
        )
    except DeltaError:
        if _newest(root) is None:
            raise


def _newest(root: Files) -> TableState | None:
    """Return the state of the newest version; None if there is no table."""
    return _reading(root, lambda: read_state(root))


def _open(root: Files, version: int | None = None) -> DeltaTable | None:
    """Return the library's snapshot of the newest version, or of this one; None if there is no table."""
    options = dict(root.store_options())
    return _reading(root, lambda: DeltaTable(str(root), version=version, storage_options=options))


def _reading(root: Files, read: Callable[[], _Read]) -> _Read | None:
    """Return the result of ``read``, tried twice; None if there is no table. Raises `TableError` if it fails."""
    check_name(root)
    for tries_left in reversed(range(LOADS_MAX)):
        try:
            if root.is_local and f"{LOG_FOLDER}/" not in root.names():
                return None
            return read()
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError, KeyError, TypeError) as error:
            if tries_left:
                continue
            if isinstance(error, OSError) and _S3_REQUEST.search(str(error)):
                refuse(f"The Delta table {root.uri}", error)
            raise TableError(f"The Delta table {root.uri} cannot be read: {_first_line(error)}") from error
    raise AssertionError("unreachable")


@contextmanager
def _committing(where: str) -> Iterator[None]:
    """Translate the errors of a commit. One that may have succeeded becomes a conflict: load again and check."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        if _has_errno(error, errno.ENOSPC, errno.EDQUOT):
            raise TemporaryError(f"the disk of the table {where} is full") from error
        if _DENIED.search(str(error)):
            raise TableError(f"The table {where} cannot be written: {fault_of(error).text}.") from error
        if _has_errno(error, errno.EACCES, errno.EROFS):
            raise TableError(f"The table {where} cannot be written: {_first_line(error)}") from error
        raise PublishConflict(f"{where}: {_first_line(error)}") from error


def _has_errno(error: BaseException, *numbers: int) -> bool:
    """Return True if the error has one of these numbers, which delta-rs includes only in its text."""
    return any(getattr(error, "errno", None) == number or f"(os error {number})" in str(error) for number in numbers)


def _logged(value: Any) -> str | None:
    """Return a partition value as the log spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
