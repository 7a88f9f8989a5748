"""The history of an Iceberg table: its snapshots, and the ones that may expire.

A snapshot is a commit; its sequence number is the version. The history goes from the newest snapshot back to its
parent, and so on, up to the first that has expired. Version 0 is the creation, which has no snapshot.

A table's metadata lists its snapshots, and every commit writes that list again. So each append also expires the oldest
appends beyond a number (the table property `SNAPSHOTS_KEPT`, which Penstock sets for tables that it creates). That
deletes no file. Snapshots that removed files are kept until a vacuum, which finds the removed files in them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate

from penstock.errors import TableError
from penstock.messaging.clock import SystemClock
from penstock.sinks.iceberg.file_io import TableFileIO, relative_path
from penstock.sinks.iceberg.folder import METADATA_FOLDER
from penstock.sinks.iceberg.partitioning import fields_of
from penstock.sinks.iceberg.position import MOVED, position_in, property_of
from penstock.sinks.iceberg.snapshots import DELETED_FILES, live_entries, manifests_of, version_of
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import REPLACES_ROWS, Position, TableCommit
from penstock.storage.files import Files

SNAPSHOTS_KEPT = "penstock.snapshots-kept"
SNAPSHOTS_KEPT_DEFAULT = 100
SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
_SNAPSHOT_AGE_MS_DEFAULT = 5 * 86_400_000  # Iceberg's default

_CLOCK = SystemClock()  # stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCommit:
    """One version in the history. Without a snapshot it is the table's creation."""

    version: int
    metadata: TableMetadata
    snapshot: Snapshot | None


def chain(metadata: TableMetadata) -> Sequence[KnownCommit]:
    """Return the commits that are still known, newest first, up to the first gap."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: list[KnownCommit] = []
    snapshot = metadata.current_snapshot()
    expected = None if snapshot is None else snapshot.sequence_number
    while snapshot is not None and snapshot.sequence_number == expected:
        found.append(KnownCommit(version=expected or 0, metadata=metadata, snapshot=snapshot))
        expected = (expected or 0) - 1
        snapshot = by_id.get(snapshot.parent_snapshot_id or 0)
    if expected == 0 or (not found and version_of(metadata) == 0):
        found.append(KnownCommit(version=0, metadata=metadata, snapshot=None))
    return found


def earlier_removals(metadata: TableMetadata) -> Sequence[KnownCommit]:
    """Return the commits before the first gap in the history that removed files, newest first; see `surplus`."""
    first = min((commit.version for commit in chain(metadata)), default=0)
    return [
        KnownCommit(version=one.sequence_number or 0, metadata=metadata, snapshot=one)
        for one in sorted(metadata.snapshots, key=lambda one: -(one.sequence_number or 0))
        if (one.sequence_number or 0) < first and DELETED_FILES in _fields(one)
    ]


def read(commit: KnownCommit, *, io: TableFileIO, root: Files, pipeline: str) -> TableCommit:
    """Return what a commit did. Raises `TableError` if its manifests cannot be read."""
    snapshot = commit.snapshot
    if snapshot is None:
        return TableCommit(version=commit.version, committed_at=None, position=None, added=(), operation="CREATE")
    try:
        changes = list(_changes(snapshot, io))
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise TableError(
            f"Version {commit.version} of the Iceberg table {root.uri} cannot be read ({error})."
        ) from error
    operation = Operation.OVERWRITE if snapshot.summary is None else snapshot.summary.operation
    removed = [_path(root, file) for status, file in changes if status is ManifestEntryStatus.DELETED]
    merges = operation is Operation.REPLACE
    replaces_rows = operation is Operation.OVERWRITE and MOVED in _fields(snapshot)
    return TableCommit(
        version=commit.version,
        committed_at=snapshot.timestamp_ms / 1000,
        position=_moved(snapshot, pipeline),
        added=[
            _data_file(file, commit.metadata, snapshot, root)
            for status, file in changes
            if status is ManifestEntryStatus.ADDED
        ],
        removed=() if merges else removed,
        merged=removed if merges else (),
        operation=REPLACES_ROWS if replaces_rows else operation.value.upper(),
    )


def position_at(metadata: TableMetadata, snapshot: Snapshot, pipeline: str) -> Position | None:
    """Return a pipeline's position in an earlier snapshot: other writers' snapshots do not repeat it."""
    by_id = {one.snapshot_id: one for one in metadata.snapshots}
    older: Snapshot | None = snapshot
    while older is not None:
        if found := position_in(_fields(older), pipeline):
            return found
        older = by_id.get(older.parent_snapshot_id or 0)
    return None


def surplus(metadata: TableMetadata) -> Sequence[int]:
    """Return the snapshots that the next append expires."""
    try:
        kept = max(1, int(metadata.properties[SNAPSHOTS_KEPT]))
    except (KeyError, ValueError):
        return ()
    if len(metadata.snapshots) < kept:
        return ()
    protected = _protected(metadata)
    appends = sorted(
        (one for one in metadata.snapshots if DELETED_FILES not in _fields(one)),
        key=lambda one: one.sequence_number or 0,
    )
    return [one.snapshot_id for one in appends[: max(0, len(appends) + 1 - kept)] if one.snapshot_id not in protected]


def expire(snapshot_ids: Sequence[int]) -> RemoveSnapshotsUpdate:
    """Return the update that forgets these snapshots."""
    return RemoveSnapshotsUpdate(snapshot_ids=list(snapshot_ids))


def retention_seconds(metadata: TableMetadata) -> float:
    """Return the table's own retention of snapshots. Raises `TableError` for a property that is no number."""
    text = metadata.properties.get(SNAPSHOT_AGE, str(_SNAPSHOT_AGE_MS_DEFAULT))
    try:
        return int(text) / 1000
    except ValueError as error:
        raise TableError(
            f"The property {SNAPSHOT_AGE} of the table at {metadata.location} is {text!r}, which is no number of "
            "milliseconds; correct it."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The snapshots and files that a vacuum removes. Paths are relative to the root."""

    snapshot_ids: Sequence[int]
    data_files: Sequence[str]
    metadata_files: Sequence[str]

    @property
    def is_empty(self) -> bool:
        return not (self.snapshot_ids or self.data_files or self.metadata_files)


def find_expired(
    metadata: TableMetadata, *, io: TableFileIO, root: Files, seconds: float, is_unused: Callable[[str], bool]
) -> Expiry:
    """Return the snapshots older than this, the data files that left the table in them, and unused metadata.

    ``is_unused`` returns True for a path of an old version of the table's metadata that its catalog does not need.
    """
    cutoff = _CLOCK.now() - seconds
    protected = _protected(metadata)
    expired = [
        one for one in metadata.snapshots if one.timestamp_ms / 1000 < cutoff and one.snapshot_id not in protected
    ]
    leaving = [one for one in metadata.snapshots if one.timestamp_ms / 1000 < cutoff and DELETED_FILES in _fields(one)]
    kept = [one for one in metadata.snapshots if one not in expired]
    listed = {one.manifest_list: manifests_of(one, io) for one in kept}
    used = {*listed, *(manifest.manifest_path for manifests in listed.values() for manifest in manifests)}
    used = {location.rpartition("/")[2] for location in used}  # unique; other writers may name the folder otherwise
    gone = {
        file.file_path for one in leaving for status, file in _changes(one, io) if status is ManifestEntryStatus.DELETED
    }
    if gone:
        gone -= _live_paths(listed, io)
    return Expiry(
        snapshot_ids=[one.snapshot_id for one in expired],
        data_files=[path for location in gone if (path := relative_path(root, location)) is not None],
        metadata_files=[
            file.path
            for file in root.list(METADATA_FOLDER)
            if file.modified_at < cutoff
            and (_is_unnamed(file.path, used) if file.path.endswith(".avro") else is_unused(file.path))
        ],
    )


def _is_unnamed(path: str, used: Collection[str]) -> bool:
    return path.rpartition("/")[2] not in used


def _live_paths(listed: Mapping[str, Sequence[ManifestFile]], io: TableFileIO) -> set[str]:
    manifests = {manifest.manifest_path: manifest for some in listed.values() for manifest in some}
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        if manifest.content == ManifestContent.DATA
        for entry in live_entries(manifest, io)
    }


def _changes(snapshot: Snapshot, io: TableFileIO) -> Iterator[tuple[ManifestEntryStatus, IcebergFile]]:
    for manifest in manifests_of(snapshot, io):
        if manifest.content != ManifestContent.DATA or manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        if not (manifest.has_added_files() or manifest.deleted_files_count != 0):
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
            if entry.snapshot_id == snapshot.snapshot_id and entry.status is not ManifestEntryStatus.EXISTING:
                yield entry.status, entry.data_file


def _protected(metadata: TableMetadata) -> set[int]:
    """Return the snapshots that branches and tags name, and the ancestors of branches other than the main one."""
    by_id = {one.snapshot_id: one for one in metadata.snapshots}
    found = set()
    for name, ref in metadata.refs.items():
        snapshot = by_id.get(ref.snapshot_id)
        while snapshot is not None:
            found.add(snapshot.snapshot_id)
            snapshot = None if name == MAIN_BRANCH else by_id.get(snapshot.parent_snapshot_id or 0)
    return found


def _moved(snapshot: Snapshot, pipeline: str) -> Position | None:
    fields = _fields(snapshot)
    return position_in(fields, pipeline) if fields.get(MOVED) == property_of(pipeline) else None


def _fields(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _path(root: Files, file: IcebergFile) -> str:
    return relative_path(root, file.file_path) or file.file_path


def _data_file(file: IcebergFile, metadata: TableMetadata, snapshot: Snapshot, root: Files) -> DataFile:
    fields = fields_of(metadata.specs()[file.spec_id], metadata.schema())
    return DataFile(
        path=_path(root, file),
        size_bytes=file.file_size_in_bytes,
        rows=file.record_count,
        modified_at=snapshot.timestamp_ms / 1000,
        partition_values={field.text: field.text_of(file.partition[number]) for number, field in enumerate(fields)},
    )
