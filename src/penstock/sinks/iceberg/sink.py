"""The Iceberg sink: files and position in one commit, to the metadata that was checked.

The version of a table is its last sequence number. Each commit of Penstock adds one snapshot, also if it only adds
columns, so the version grows by 1 with each; snapshots of other writers count too. A commit of version n + 1 succeeds
only if no snapshot was added after n was read (`penstock.sinks.iceberg.snapshots`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial, reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem, LocalFileSystem
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Record

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.checks import (
    ELSEWHERE,
    check_files,
    check_free,
    check_new_partitioning,
    check_partitioning,
    check_writable,
    make_ready,
    mark_table,
)
from penstock.sinks.iceberg import columns as columns_of
from penstock.sinks.iceberg import log
from penstock.sinks.iceberg.choice import CatalogChoice, MetadataCatalog
from penstock.sinks.iceberg.columns import COLUMNS, NAME_MAPPING
from penstock.sinks.iceberg.features import check_features
from penstock.sinks.iceberg.file_io import TableFileIO, is_root, relative_path
from penstock.sinks.iceberg.filesystem import arrow_filesystem
from penstock.sinks.iceberg.folder import METADATA_FOLDER, StoredMetadata
from penstock.sinks.iceberg.partitioning import fields_of, new_spec
from penstock.sinks.iceberg.position import MOVED, encoded, position_in, positions, property_of
from penstock.sinks.iceberg.snapshots import (
    TOTAL_DELETES,
    TOTAL_ROWS,
    SnapshotMaker,
    is_live,
    live_files,
    manifests_of,
    version_of,
)
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.parquet import check_partition_types
from penstock.sinks.schema import additions, canonical
from penstock.sinks.sink import Append, LoggedFile, Position, TableCommit, TableFile
from penstock.storage.files import Files

_KIND = "Iceberg table"  # in messages
_LET_DELETER_REWRITE = "Let the writer that deleted them rewrite its files first"
_NEW_TABLE = {
    log.SNAPSHOTS_KEPT: str(log.SNAPSHOTS_KEPT_DEFAULT),
    "write.parquet.compression-codec": "zstd",
}


class IcebergTableSink:
    """An Iceberg table at a location, and the position of one pipeline in it. A `Sink` and its `TableHistory`."""

    def __init__(
        self,
        root: Files,
        *,
        pipeline: str,
        partition_by: Sequence[str] | None = (),
        catalog: CatalogName | None = None,
    ) -> None:
        """Name a table.

        Args:
            root: The table's location.
            pipeline: The pipeline whose position this sink reads and moves.
            partition_by: The partition columns; None: any partitioning is accepted, for reading only.
            catalog: The declared catalog; None: the one that the table remembers, else its folder.
        """
        self._root = root
        self._io = TableFileIO(root)
        self._pipeline = pipeline
        self._partition_by = None if partition_by is None else list(partition_by)  # as `partitions.declared` spells it
        self._choice = CatalogChoice(root, catalog)

    @property
    def uri(self) -> str:
        return self._root.uri

    @property
    def root(self) -> Files:
        return self._root

    @property
    def history(self) -> "IcebergTableSink":
        return self

    @property
    def commit_log(self) -> None:
        """None: a metadata file is created only if it does not exist, or committed by a catalog, and never replaced."""

    def check_location(self) -> None:
        if not self._choice.current().exists():
            self._check_free()

    def load(self) -> "LoadedIceberg | None":
        """Return the newest snapshot, or None if there is no table.

        Raises `TableError` if the table cannot be written as requested: unsupported features, other partition columns,
        another location in its metadata, or a folder with other contents.
        """
        table = self._load()
        if table is None:
            self._check_free()
            return None
        check_features(table.metadata, where=self.uri)
        check_partitioning(table.partition_by, self._partition_by, table=self.uri)
        return table

    @property
    def retention_property(self) -> str:
        return log.SNAPSHOTS_KEPT

    def load_version(self, version: int) -> "LoadedIceberg":
        """Return the snapshot of a version. Raises `TableError` if it has expired."""
        table = self._load()
        if table is not None:
            if version == table.version:
                return table
            snapshot = next((one for one in table.metadata.snapshots if one.sequence_number == version), None)
            if snapshot is not None:
                return table.at(snapshot)
        raise TableError(f"Version {version} of the table {self.uri} cannot be read: it has expired, or never existed.")

    def versions(self) -> Sequence[int]:
        return [commit.version for commit in self._chain()]

    def commit_at(self, version: int) -> TableCommit | None:
        return next((self._read(one) for one in self._chain() if one.version == version), None)

    def commits(self) -> Iterator[TableCommit]:
        return map(self._read, self._chain())

    def earlier_removals(self) -> Iterator[TableCommit]:
        stored = self._choice.current().load()
        return map(self._read, () if stored is None else log.earlier_removals(stored.metadata))

    def replace_files(
        self,
        *,
        version: int,
        removed: Sequence[LoggedFile],
        added: Sequence[DataFile],
        now: float,  # noqa: ARG002 -- snapshots must not go back in time, so they take the system's clock
        engine: str,
    ) -> int:
        table = self.load()
        if table is None or table.version != version:
            raise PublishConflict(f"{self.uri}: another writer committed after version {version}")
        return table.replace(removed=removed, added=added, engine=engine)

    def check_columns(self, schema: pa.Schema) -> None:
        columns_of.check_names(canonical(schema), table=self.uri)

    def ensure_schema(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns it lacks, in a separate commit.

        Columns that only the table has stay unchanged.

        Raises:
            TableError: A column differs.
            UsageError: A partition column is not in the schema.
            PublishConflict: Another writer changed the table meanwhile.
        """
        table = self.load()
        if table is None:
            self._create(canonical(schema))
        elif added := additions(table.schema, schema, table=self.uri):
            table.add_columns(added)

    def _create(self, schema: pa.Schema) -> None:
        columns = self._partition_by or []
        check_new_partitioning(schema, columns, table=self.uri)
        self.check_columns(schema)
        make_ready(self._root)
        check_writable(self._root, log_folder=METADATA_FOLDER)
        mark_table(self._root)
        made = columns_of.iceberg_schema(schema)
        metadata = new_table_metadata(
            location=str(self._root),
            schema=made,
            partition_spec=new_spec(columns, made),
            sort_order=UNSORTED_SORT_ORDER,
            properties={
                **_NEW_TABLE,
                COLUMNS: columns_of.columns_text(schema),
                NAME_MAPPING: columns_of.name_mapping(made, {}),
            },
        )
        catalog = self._choice.current()
        self._choice.remember(catalog)
        try:
            catalog.create(metadata)
        except PublishConflict:  # another process has just created it
            if self._load() is None:
                raise

    def _load(self) -> "LoadedIceberg | None":
        catalog = self._choice.current()
        stored = catalog.load()
        if stored is None:
            self._choice.unsettle()
            return None
        if not is_root(self._root, stored.metadata.location):
            raise TableError(
                f"The table {self.uri} was moved or copied: its metadata says that it is at "
                f"{stored.metadata.location}. Move it back there, or write its rows to a new table."
            )
        self._choice.settle(catalog)
        return LoadedIceberg(stored, catalog=catalog, root=self._root, pipeline=self._pipeline)

    def _check_free(self) -> None:
        own = {f"{METADATA_FOLDER}/"} if self._choice.owns_metadata() else ()
        check_free(self._root, kind=_KIND, scheme="iceberg", own=own)

    def _chain(self) -> Sequence[log.KnownCommit]:
        stored = self._choice.current().load()
        return () if stored is None else log.chain(stored.metadata)

    def _read(self, commit: log.KnownCommit) -> TableCommit:
        return log.read(commit, io=self._io, root=self._root, pipeline=self._pipeline)


class LoadedIceberg:
    """One snapshot of an `IcebergTableSink`'s table."""

    def __init__(
        self,
        stored: StoredMetadata,
        *,
        catalog: MetadataCatalog,
        root: Files,
        pipeline: str,
        older: Snapshot | None = None,
    ) -> None:
        """``older`` is the snapshot of an earlier version, None the newest one."""
        self._stored = stored
        self._catalog = catalog
        self._root = root
        self._pipeline = pipeline
        self._older = older
        self._committed: StoredMetadata | None = None  # the last commit to this snapshot
        self.metadata: TableMetadata = stored.metadata
        self._snapshot = older or self.metadata.current_snapshot()
        self._spec = self.metadata.spec()
        self._fields = fields_of(self._spec, self._columns)
        self.partition_by: Sequence[str] = tuple(field.text for field in self._fields)

    def at(self, snapshot: Snapshot) -> "LoadedIceberg":
        """Return an earlier snapshot of the table."""
        return LoadedIceberg(
            self._stored, catalog=self._catalog, root=self._root, pipeline=self._pipeline, older=snapshot
        )

    @property
    def version(self) -> int:
        if self._older is not None:
            return self._older.sequence_number or 0
        return version_of(self.metadata)

    @property
    def position(self) -> Position:
        found = None if self._older is not None else position_in(self.metadata.properties, self._pipeline)
        if found is None and self._snapshot is not None:  # or another program removed the property
            found = log.position_at(self.metadata, self._snapshot, self._pipeline)
        return found or Position(seq=0, attempt_token=None)

    @cached_property
    def schema(self) -> pa.Schema:
        return columns_of.arrow_schema(self._columns, self.metadata.properties, table=self._root.uri)

    @property
    def schema_document(self) -> Mapping[str, Any]:
        return columns_of.document(self.schema)

    @property
    def root(self) -> Files:
        return self._root

    def rows(self) -> int | None:
        """Return the number of rows in this snapshot; None if other writers did not count them, or deleted some."""
        if self._snapshot is None:
            return 0
        summary = self._snapshot.summary
        count = None if summary is None else summary.get(TOTAL_ROWS)
        return None if count is None or self._has_deletes() else int(count)

    def dataset(self) -> Any:
        """Return the rows as a `pyarrow.dataset.Dataset`.

        Raises `TableError` if other writers deleted rows or renamed columns, which a dataset would not show.
        """
        self.check_readable()
        form = ds.ParquetFileFormat()
        system: FileSystem = LocalFileSystem() if self._root.is_local else arrow_filesystem(self._root)
        base = f"{self._root}/" if self._root.is_local else ""
        fragments = [
            form.make_fragment(f"{base}{file.path}", system, partition_expression=self._condition(file))
            for file in self.files()
        ]
        return ds.FileSystemDataset(fragments, self.schema, form, system)

    def check_readable(self) -> None:
        self._check_plain("Read it with PyIceberg")
        if columns_of.has_renamed_columns(self._columns, self.metadata.properties):
            raise TableError(
                f"Columns of the table {self._root.uri} were renamed, and its older files have the names from before. "
                "Read it with PyIceberg."
            )

    def files(self) -> Sequence[TableFile]:
        return [
            TableFile(
                path=relative_path(self._root, file.file_path) or file.file_path,
                size_bytes=file.file_size_in_bytes,
                partition_values={
                    field.text: field.typed(file.partition[number]) for number, field in enumerate(self._fields)
                },
            )
            for file in self._data_files()
        ]

    def logged_files(self) -> Sequence[LoggedFile]:
        """Return the files below the root that are Parquet, with all fields that a commit needs.

        Raises `TableError` for partition columns of a type that Penstock does not partition by, and for a table with
        deleted rows: they would come back in merged files.
        """
        return [file for file in self.files_to_search(()) if not file.unreadable]

    @property
    def field_ids(self) -> Mapping[int, str]:
        return {field.field_id: field.name for field in self._columns.fields}

    def files_to_search(self, columns: Collection[str]) -> Sequence[LoggedFile]:
        """Return all files; see `VersionedTable.files_to_search`. Raises as `logged_files` does."""
        check_partition_types(self.schema, self.partition_by)
        self._check_plain(_LET_DELETER_REWRITE)
        times = {one.snapshot_id: one.timestamp_ms / 1000 for one in self.metadata.snapshots}
        searched = [field for field in self._columns.fields if field.name in columns]
        found = []
        for entry in live_files(self._snapshot, self._catalog.io):
            file = entry.data_file
            path = relative_path(self._root, file.file_path)
            unreadable = ELSEWHERE if path is None else ""
            if file.file_format != FileFormat.PARQUET:
                unreadable = f"is in the format {file.file_format.value} and not in Parquet"
            found.append(
                LoggedFile(
                    logged_path=file.file_path,
                    path=file.file_path if path is None else path,
                    unreadable=unreadable,
                    size_bytes=file.file_size_in_bytes,
                    rows=file.record_count,
                    modified_at=times.get(entry.snapshot_id or 0, 0.0),
                    partition_values={
                        field.text: field.text_of(file.partition[number]) for number, field in enumerate(self._fields)
                    },
                    statistics=columns_of.bounds(file.lower_bounds, file.upper_bounds, searched),
                )
            )
        return found

    def vacuum(self, *, retention_hours: int | None, dry_run: bool) -> Sequence[str]:
        """Delete files that left the table before the retention period, and return the paths of data files.

        Older snapshots expire, together with their metadata. The default is the table's own retention
        (``history.expire.max-snapshot-age-ms``, 5 days). Files that no snapshot ever named are kept: a run may be
        writing them. Raises `TableError` for a retention below the table's.
        """
        least = log.retention_seconds(self.metadata)
        if retention_hours is not None and retention_hours * 3_600 < least:
            raise TableError(
                f"The table {self._root.uri} cannot be vacuumed with a retention of {retention_hours} hours: its own "
                f"is {least / 3_600:g}; keep old files for longer (--retention-hours), or let the table say so (its "
                f"property {log.SNAPSHOT_AGE})."
            )
        seconds = least if retention_hours is None else retention_hours * 3_600.0
        expiry = log.find_expired(
            self.metadata,
            io=self._catalog.io,
            root=self._root,
            seconds=seconds,
            is_unused=partial(self._catalog.is_unused, self._stored),
        )
        if not dry_run and not expiry.is_empty:
            # The empty snapshot takes the next version, so a commit that began before the search cannot succeed later,
            # when files that it relies on are deleted.
            empty = SnapshotMaker(**self._base(), operation=Operation.REPLACE)
            version = self._commit(empty, expired=expiry.snapshot_ids)
            self.write_checkpoint(version, probe=no_probe)  # older metadata still names these files
            self._root.delete([*expiry.data_files, *expiry.metadata_files])
        return sorted(expiry.data_files)

    def append(self, append: Append) -> int:
        """Commit files and position as this table's next version and return it; see `LoadedTable.append`."""
        check_writable(self._root, log_folder=METADATA_FOLDER)
        check_files(self._root, append.files, partition_by=self.partition_by)
        if append.replaced:
            self._check_plain(_LET_DELETER_REWRITE)
        position = Position(seq=append.seq, attempt_token=attempt_token(append.attempt_id))
        moved = property_of(self._pipeline)
        changed = {moved: encoded(position, self._pipeline)}
        maker = SnapshotMaker(
            **self._base(),
            operation=Operation.OVERWRITE if append.replaced else Operation.APPEND,
            added=[self._iceberg_file(file) for file in append.files],
            removed={file.logged_path for file in append.replaced},
            summary={MOVED: moved, **positions(self.metadata.properties), **changed},
        )
        return self._commit(maker, properties=changed, expired=log.surplus(self.metadata))

    def is_checkpoint_due(self, version: int) -> bool:  # noqa: ARG002 -- each commit moves the hint
        return self._committed is not None

    def write_checkpoint(self, version: int, *, probe: Probe) -> None:  # noqa: ARG002 -- the last commit's
        """See `CheckpointedTable`: move the hint of the newest version, and delete the metadata of old ones."""
        if self._committed is not None:
            probe(Step.CHECKPOINTING)
            self._catalog.write_hint(self._committed)
            probe(Step.CHECKPOINTED)
            self._catalog.delete_old_metadata(self._stored, self._committed)

    def replace(self, *, removed: Sequence[LoggedFile], added: Sequence[DataFile], engine: str) -> int:
        """Commit files with the same rows as the removed ones as the next version, and return it."""
        self._check_plain(_LET_DELETER_REWRITE)
        maker = SnapshotMaker(
            **self._base(),
            operation=Operation.REPLACE,
            added=[self._iceberg_file(file) for file in added],
            removed={file.logged_path for file in removed},
            summary={"penstock.engine": engine, **positions(self.metadata.properties)},
        )
        return self._commit_with_checkpoint(maker)

    def add_columns(self, fields: Iterable[pa.Field]) -> None:
        """Add nullable columns as the next version."""
        check_writable(self._root, log_folder=METADATA_FOLDER)
        added = list(fields)
        self._check_added(added)
        schema = columns_of.widened(
            self._columns,
            added,
            last_column_id=self.metadata.last_column_id,
            schema_id=max(one.schema_id for one in self.metadata.schemas) + 1,
        )
        properties = {
            COLUMNS: columns_of.columns_text(pa.schema([*self.schema, *added])),
            NAME_MAPPING: columns_of.name_mapping(schema, self.metadata.properties),
        }
        maker = SnapshotMaker(
            **self._base(),
            operation=Operation.APPEND,
            summary=positions(self.metadata.properties),
            schema_id=schema.schema_id,
        )
        self._commit_with_checkpoint(
            maker,
            before=[AddSchemaUpdate(schema_=schema), SetCurrentSchemaUpdate(schema_id=-1)],
            properties=properties,
        )

    def _check_added(self, fields: Sequence[pa.Field]) -> None:
        """Raise `TableError` for a name that files have for another column, or that is a part of another column."""
        columns_of.check_names(pa.schema([*self.schema, *fields]), table=self._root.uri)
        for field in fields:
            other = columns_of.renamed_to(field.name, self._columns, self.metadata.properties)
            if other is not None:
                raise TableError(
                    f"The column {field.name} of the table {self._root.uri} was renamed to {other} by another writer, "
                    f"and batches have it as {field.name}: files name their columns, so readers would mix the two. "
                    f"Rename {other} back to {field.name}, and publishing continues."
                )

    @property
    def _columns(self) -> Schema:
        if self._older is not None and self._older.schema_id is not None:
            found = self.metadata.schema_by_id(self._older.schema_id)
            if found is not None:
                return found
        return self.metadata.schema()

    def _base(self) -> dict[str, Any]:
        return {"metadata": self.metadata, "io": self._catalog.io, "location": self.metadata.location}

    def _commit_with_checkpoint(self, maker: SnapshotMaker, **changes: Any) -> int:
        """Make a commit that is no publish; see `_commit`."""
        version = self._commit(maker, **changes)
        with suppress(TableError, TemporaryError):  # the next publish does the same, and reports a failure
            self.write_checkpoint(version, probe=no_probe)
        return version

    def _commit(
        self,
        maker: SnapshotMaker,
        *,
        before: Sequence[TableUpdate] = (),
        properties: Mapping[str, str] | None = None,
        expired: Sequence[int] = (),
    ) -> int:
        """Commit the snapshot and return its version. Raises `PublishConflict` as `LoadedTable.append` does."""
        changed = {NAME_MAPPING: columns_of.name_mapping(self._columns, self.metadata.properties), **(properties or {})}
        changed = {name: value for name, value in changed.items() if self.metadata.properties.get(name) != value}
        updates = [*before, *maker.updates()]
        if changed:
            updates.append(SetPropertiesUpdate(updates=changed))
        if expired:
            updates.append(log.expire(expired))
        self._committed = self._catalog.commit(self._stored, self._requirements(), updates)
        return version_of(self.metadata) + 1

    def _requirements(self) -> Sequence[TableRequirement]:
        current = self.metadata.current_snapshot()
        return [
            AssertTableUUID(uuid=self.metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None if current is None else current.snapshot_id),
            AssertCurrentSchemaId(current_schema_id=self.metadata.current_schema_id),
            AssertLastAssignedFieldId(last_assigned_field_id=self.metadata.last_column_id),
            AssertDefaultSpecId(default_spec_id=self.metadata.default_spec_id),
        ]

    def _iceberg_file(self, file: DataFile) -> IcebergFile:
        partition = [field.value_of(file.partition_values[field.text]) for field in self._fields]
        made = IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.metadata.location}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            **columns_of.metrics(file.statistics, self._columns, rows=file.rows),
        )
        made.spec_id = self._spec.spec_id
        return made

    def _data_files(self) -> Iterator[IcebergFile]:
        return (entry.data_file for entry in live_files(self._snapshot, self._catalog.io))

    def _has_deletes(self) -> bool:
        """Return True if other writers deleted single rows. Not all of them count the files with deletes."""
        if self._snapshot is None:
            return False
        count = None if self._snapshot.summary is None else self._snapshot.summary.get(TOTAL_DELETES)
        if count is not None:
            return count != "0"
        manifests = manifests_of(self._snapshot, self._catalog.io)
        return any(one.content == ManifestContent.DELETES and is_live(one) for one in manifests)

    def _check_plain(self, remedy: str) -> None:
        if self._has_deletes():
            raise TableError(f"Another writer deleted single rows of the table {self._root.uri}. {remedy}.")

    def _condition(self, file: TableFile) -> ds.Expression:
        """Return the condition that all rows of a file meet: the dataset takes partition columns from it."""
        each = (
            ds.field(name).is_null() if value is None else ds.field(name) == pa.scalar(value, self._arrow(name))
            for name, value in file.partition_values.items()
            if name in self.schema.names
        )
        return reduce(and_, each, ds.scalar(True))

    def _arrow(self, name: str) -> pa.DataType:
        return self.schema.field(name).type
