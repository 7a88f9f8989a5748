"""Make the snapshots of an Iceberg table, and the manifests that they list.

PyIceberg's own transactions refresh the table and commit again after a conflict, which would publish a batch to a
snapshot that was never checked. So snapshots are made here, and each is committed once, to the metadata that was read.

A snapshot's sequence number is the table's last one plus 1. The table's format and its catalogs refuse a snapshot whose
number is not higher than the last one that the table ever had, even if a rollback removed that one from the history.

Each append adds one manifest. `MERGED_MANIFESTS` manifests of one magnitude are merged into one of the next, so the
number of manifests, and the work per commit, grow with the logarithm of the number of files.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from penstock.sinks.iceberg.file_io import TableFileIO
from penstock.sinks.iceberg.folder import METADATA_FOLDER

MERGED_MANIFESTS = 32
_CODEC: AvroCompressionCodec = "deflate"

DELETED_FILES = "deleted-data-files"
TOTAL_ROWS = "total-records"
TOTAL_DELETES = "total-delete-files"

_TOTALS = (  # total, added, removed: the summary fields that the specification names
    ("total-data-files", "added-data-files", DELETED_FILES),
    (TOTAL_ROWS, "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    (TOTAL_DELETES, "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


@dataclass(slots=True, kw_only=True)
class SnapshotMaker:
    """Writes the files of one new snapshot. Used by one thread, once."""

    metadata: TableMetadata
    io: TableFileIO
    location: str  # of the table
    operation: Operation
    added: Sequence[DataFile] = ()
    removed: Collection[str] = ()  # locations of data files that leave the table
    summary: Mapping[str, str] = field(default_factory=dict)  # more fields
    schema_id: int | None = None  # None: the current one
    written: list[str] = field(default_factory=list)  # locations of the files that were written
    _unique: str = field(default_factory=lambda: str(uuid.uuid4()))

    def updates(self) -> Sequence[TableUpdate]:
        """Write the files, and return the updates that make the snapshot the newest one."""
        metadata = self.metadata
        parent, main = metadata.current_snapshot(), metadata.refs.get(MAIN_BRANCH)
        snapshot_id = metadata.new_snapshot_id()
        sequence_number = version_of(metadata) + 1
        manifests, gone = self._kept(parent, snapshot_id)
        if gone:
            manifests.append(self._manifest(snapshot_id, gone, ManifestEntryStatus.DELETED))
        if self.added:
            new = [ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file) for file in self.added]
            manifests.append(self._manifest(snapshot_id, new, ManifestEntryStatus.ADDED))
        manifest_list = self._path(f"snap-{snapshot_id}-0-{self._unique}.avro")
        with write_manifest_list(
            format_version=metadata.format_version,
            output_file=self.io.new_output(manifest_list),
            snapshot_id=snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=sequence_number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=sequence_number,
            timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
            manifest_list=manifest_list,
            summary=self._summary(parent, [entry.data_file for entry in gone]),
            schema_id=metadata.current_schema_id if self.schema_id is None else self.schema_id,
        )
        return [
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=snapshot_id,
                max_ref_age_ms=None if main is None else main.max_ref_age_ms,
                max_snapshot_age_ms=None if main is None else main.max_snapshot_age_ms,
                min_snapshots_to_keep=None if main is None else main.min_snapshots_to_keep,
            ),
        ]

    def _kept(self, parent: Snapshot | None, snapshot_id: int) -> tuple[list[ManifestFile], list[ManifestEntry]]:
        """Return the manifests that stay, some of them merged or written anew, and the entries of removed files."""
        found = [] if parent is None else [one for one in manifests_of(parent, self.io) if is_live(one)]
        gone: list[ManifestEntry] = []
        if self.removed:
            found, gone = self._without_removed(found, snapshot_id)
        return self._merged(found, snapshot_id), gone

    def _without_removed(
        self, found: Sequence[ManifestFile], snapshot_id: int
    ) -> tuple[list[ManifestFile], list[ManifestEntry]]:
        kept: list[ManifestFile] = []
        gone: list[ManifestEntry] = []
        for manifest in found:
            entries = live_entries(manifest, self.io) if manifest.content == ManifestContent.DATA else []
            staying = [entry for entry in entries if entry.data_file.file_path not in self.removed]
            if len(staying) == len(entries):
                kept.append(manifest)
                continue
            gone += [entry for entry in entries if entry.data_file.file_path in self.removed]
            if staying:
                kept.append(self._manifest(snapshot_id, staying, ManifestEntryStatus.EXISTING))
        return kept, gone

    def _merged(self, found: Sequence[ManifestFile], snapshot_id: int) -> list[ManifestFile]:
        by_magnitude: defaultdict[int, list[ManifestFile]] = defaultdict(list)
        for manifest in found:
            merges = manifest.content == ManifestContent.DATA
            merges = merges and manifest.partition_spec_id == self.metadata.default_spec_id
            by_magnitude[_magnitude(_live_files(manifest)) if merges else -1].append(manifest)
        kept = by_magnitude.pop(-1, [])
        for same in by_magnitude.values():
            if len(same) < MERGED_MANIFESTS:
                kept += same
                continue
            entries = [entry for manifest in same for entry in live_entries(manifest, self.io)]
            kept.append(self._manifest(snapshot_id, entries, ManifestEntryStatus.EXISTING))
        return kept

    def _manifest(
        self, snapshot_id: int, entries: Iterable[ManifestEntry], status: ManifestEntryStatus
    ) -> ManifestFile:
        path = self._path(f"{self._unique}-m{len(self.written)}.avro")
        with write_manifest(
            format_version=self.metadata.format_version,
            spec=self.metadata.spec(),
            schema=self.metadata.schema(),
            output_file=self.io.new_output(path),
            snapshot_id=snapshot_id,
            avro_compression=_CODEC,
        ) as writer:
            add: Callable[[ManifestEntry], object] = {
                ManifestEntryStatus.ADDED: writer.add,
                ManifestEntryStatus.EXISTING: writer.existing,
                ManifestEntryStatus.DELETED: writer.delete,
            }[status]
            for entry in entries:
                add(entry)
        return writer.to_manifest_file()

    def _path(self, name: str) -> str:
        path = f"{self.location}/{METADATA_FOLDER}/{name}"
        self.written.append(path)
        return path

    def _summary(self, parent: Snapshot | None, removed: Sequence[DataFile]) -> Summary:
        changes = {
            "added-data-files": len(self.added),
            "added-records": sum(file.record_count for file in self.added),
            "added-files-size": sum(file.file_size_in_bytes for file in self.added),
            DELETED_FILES: len(removed),
            "deleted-records": sum(file.record_count for file in removed),
            "removed-files-size": sum(file.file_size_in_bytes for file in removed),
        }
        fields = {name: str(count) for name, count in changes.items() if count}
        before = parent.summary if parent is not None else None
        for total, plus, minus in _TOTALS:
            had = "0" if parent is None else None if before is None else before.get(total)
            if had is not None:
                fields[total] = str(int(had) + changes.get(plus, 0) - changes.get(minus, 0))
        return Summary(self.operation, **fields, **self.summary)


def version_of(metadata: TableMetadata) -> int:
    """Return the table's last sequence number. A table of format version 1 has none, and is not written."""
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number


def manifests_of(snapshot: Snapshot, io: TableFileIO) -> Sequence[ManifestFile]:
    """Return the manifests of a snapshot. Not PyIceberg's cached ones: a process may read very many snapshots."""
    return list(read_manifest_list(io.new_input(snapshot.manifest_list)))


def live_entries(manifest: ManifestFile, io: TableFileIO) -> Sequence[ManifestEntry]:
    """Return the entries of files that are in the snapshot."""
    return manifest.fetch_manifest_entry(io, discard_deleted=True)


def live_files(snapshot: Snapshot | None, io: TableFileIO) -> Iterator[ManifestEntry]:
    """Yield the entries of a snapshot's data files."""
    for manifest in () if snapshot is None else manifests_of(snapshot, io):
        if manifest.content == ManifestContent.DATA and is_live(manifest):
            yield from live_entries(manifest, io)


def is_live(manifest: ManifestFile) -> bool:
    """Return True if the manifest names a file that is in the snapshot."""
    return manifest.has_added_files() or manifest.has_existing_files()


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _magnitude(files: int) -> int:
    magnitude = 0
    while files >= MERGED_MANIFESTS:
        files //= MERGED_MANIFESTS
        magnitude += 1
    return magnitude
