"""Compaction: merge small files of a table into larger ones while other processes publish to it.

Each commit replaces files by one with the same rows, on the snapshot in which they were found or on a later one that
still has them. So no rows are lost or doubled, whichever writer comes first. The table's position is not changed, and
the files below ``data/`` stay on disk until a vacuum, for readers of older versions.

If it dies before its commit, gc deletes its files; see `penstock.pipeline.maintenance.leftovers`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow import types
from ulid import ULID

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.messaging.wording import counted
from penstock.pipeline.maintenance.interruption import PassEnded, interruptible
from penstock.pipeline.maintenance.ordering import RowOrder
from penstock.pipeline.publish import wait_after_conflict
from penstock.pipeline.rewriting import (
    BATCH_ROWS,
    ForeignFile,
    StoredColumns,
    is_abandoned,
    is_ordered,
    new_folder,
    read_batches,
    stored_columns,
    write_file,
)
from penstock.sinks.checks import is_own
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import WrittenFile, list_files, read_statistics
from penstock.sinks.sink import LoggedFile, RestatingHistory, TableHistory, TableSink, VersionedTable
from penstock.storage.files import Files

TARGET_BYTES = 128 << 20
COMMIT_BYTES_MAX = 1 << 30  # total size of the files that one commit replaces
ORDERED_TARGETS = 4  # files of the target size whose rows are ordered together, in memory
RESTATED_MAX = 10_000  # files whose bounds one commit adds
CONFLICTS_MAX = 20  # in a row

Progress = Callable[[int, int], None]  # files done, files in total


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The result of a compaction or of a dry run."""

    uri: str
    table_version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int  # in a dry run the same as before: only writing shows it
    merged: int  # files that were replaced
    left: int  # small files left alone: with columns that the table lacks, or removed meanwhile
    restated: int = 0  # files left as they are, and given the bounds that they lacked in the table's log


def compact(
    sink: TableSink,
    *,
    target_bytes: int = TARGET_BYTES,
    order_by: Sequence[str] = (),
    dry_run: bool = False,
    clock: Clock,
    progress: Progress = lambda _done, _all: None,
    probe: Probe = no_probe,
    stopped: Callable[[], bool] = lambda: False,
) -> CompactionResult | None:
    """Merge files smaller than half the target, within their partition, up to the target. Return None without a table.

    With ``order_by``, the rows of all files that are not ordered by these columns yet are ordered and written again.
    Files in such an order are left alone, except small ones with the same order, which are merged like others.

    ``stopped`` is called before each commit's merge; True ends the compaction there.

    Raises `TableError` for a table with features that Penstock does not preserve, and for columns that it cannot be
    ordered by; `TemporaryError` if other writers keep committing first. Commits made until then stay.
    """
    history = sink.history
    if history is None:
        raise TableError(f"The table {sink.uri} keeps no earlier versions, so its files cannot be merged.")
    table = history.load()
    if table is None:
        return None
    order = RowOrder(tuple(order_by)) if order_by else None
    if order is not None:
        order.check(table.schema, table.partition_by, table=sink.uri)
    files = table.logged_files()
    bins = _bins(files, target_bytes, order)
    wanted = sum(len(one.files) for one in bins)
    merged, made, new_bytes, done, version = 0, 0, 0, 0, table.version
    for group in () if dry_run else _groups(bins):
        if stopped():
            break
        merge = _merge(sink, history, table, group, clock, probe)
        done += sum(len(one.files) for one in group)
        progress(done, wanted)
        if merge is not None:
            version, replaced, added = merge
            merged += len(replaced)
            made += len(added)
            new_bytes += sum(file.size_bytes for file in added) - sum(file.size_bytes for file in replaced)
    kept = [file for file in files if not any(file in one.files for one in bins)]
    restated = 0 if dry_run or stopped() else _restate(sink, history, table, kept, clock, stopped)
    if dry_run:
        merged, made = wanted, sum(one.files_after for one in bins)
    bytes_before = sum(file.size_bytes for file in files)
    return CompactionResult(
        uri=sink.uri,
        table_version=version,
        files_before=len(files),
        files_after=len(files) - merged + made,
        bytes_before=bytes_before,
        bytes_after=bytes_before + new_bytes,
        merged=merged,
        left=wanted - merged,
        restated=restated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MergeGroup:
    """Files of one partition that are merged into one, or into as many as the target size needs if it has an order."""

    files: Sequence[LoggedFile]
    files_after: int = 1
    order: RowOrder | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def partition_values(self) -> Mapping[str, str | None]:
        return self.files[0].partition_values


def _bins(files: Sequence[LoggedFile], target_bytes: int, order: RowOrder | None) -> list[_MergeGroup]:
    """Group files to be merged by partition, oldest first, up to the target size, or to some of it if ordered."""
    partitions: defaultdict[tuple[tuple[str, str | None], ...], list[LoggedFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: (file.modified_at, file.path)):
        if _is_wanted(file, target_bytes, order):
            partitions[tuple(file.partition_values.items())].append(file)
    bytes_max = target_bytes if order is None else ORDERED_TARGETS * target_bytes
    found: list[list[LoggedFile]] = []
    for wanted in partitions.values():
        found.append([])
        size_bytes = 0
        for file in wanted:
            if size_bytes + file.size_bytes > bytes_max:
                found.append([])
                size_bytes = 0
            found[-1].append(file)
            size_bytes += file.size_bytes
    return [_group(files, target_bytes, order) for files in found if _is_worthwhile(files, order)]


def _is_wanted(file: LoggedFile, target_bytes: int, order: RowOrder | None) -> bool:
    """Return True for small files, and for files that still need the order."""
    if order is not None and is_ordered(file.path):
        # sorted rows take less space, so a file of the target size may become smaller than it should be
        return order.mark not in file.path or file.size_bytes < target_bytes / 4
    return not is_ordered(file.path) and (order is not None or file.size_bytes < target_bytes / 2)


def _is_worthwhile(files: Sequence[LoggedFile], order: RowOrder | None) -> bool:
    """Return True if a merge makes fewer files, or orders rows. A single file needs no merging."""
    return len(files) > 1 or (order is not None and any(order.mark not in file.path for file in files))


def _group(files: Sequence[LoggedFile], target_bytes: int, order: RowOrder | None) -> _MergeGroup:
    size_bytes = sum(file.size_bytes for file in files)
    files_after = 1 if order is None else max(1, math.ceil(size_bytes / target_bytes))
    return _MergeGroup(files=files, files_after=files_after, order=order)


def _groups(bins: Sequence[_MergeGroup]) -> Iterator[Sequence[_MergeGroup]]:
    """Yield the merges to commit together."""
    group: list[_MergeGroup] = []
    for one in bins:
        if group and sum(other.size_bytes for other in group) + one.size_bytes > COMMIT_BYTES_MAX:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _merge(
    sink: TableSink,
    history: TableHistory,
    table: VersionedTable,
    group: Sequence[_MergeGroup],
    clock: Clock,
    probe: Probe,
) -> tuple[int, Sequence[LoggedFile], Sequence[DataFile]] | None:
    """Make one commit. Return its version, the replaced files and the new ones, or None if none could be merged."""
    columns = stored_columns(table)
    folder = new_folder()
    removed: list[LoggedFile] = []
    added: list[DataFile] = []
    for number, one in enumerate(group):
        written = _write(sink.root, one, f"{folder}/part-{number:05}", columns)
        if written is not None:
            found = list_files(sink.root, folder, partition_by=(), schema=columns.schema, written=written)
            _check_rows(sink.root, one, folder, found)
            added += (replace(file, partition_values=one.partition_values) for file in found)
            removed += one.files
    if not added:
        return None
    probe(Step.COMPACTED)
    version = _commit(sink, history, removed, added, folder=folder, clock=clock)
    if version is None:
        sink.root.delete(file.path for file in added)
        sink.root.prune(folder)
        return None
    probe(Step.COMPACTION_COMMITTED)
    return version, removed, added


def _check_rows(root: Files, merged: _MergeGroup, folder: str, found: Sequence[DataFile]) -> None:
    rows, written = [file.rows for file in merged.files], sum(file.rows for file in found)
    if all(rows) and sum(rows) != written:
        raise RuntimeError(
            f"{root}/{folder} has {counted(written, 'row')}, and the files it is made of have {sum(rows):,}"
        )


def _commit(
    sink: TableSink,
    history: TableHistory,
    removed: Sequence[LoggedFile],
    added: Sequence[DataFile],
    *,
    folder: str,
    clock: Clock,
) -> int | None:
    """Commit and return the version. Return None, with nothing committed, if another process removed one of the files
    first or gc has given this compaction up.

    The table must be loaded before looking for gc's mark: see the module docstring.
    """
    removed_paths, added_paths = {file.logged_path for file in removed}, {file.path for file in added}
    for conflicts in range(CONFLICTS_MAX + 1):
        table = history.load()
        named = {} if table is None else {file.logged_path: file.path for file in table.logged_files()}
        if table is not None and added_paths <= set(named.values()):
            return table.version  # an earlier commit succeeded, but its response was lost
        if table is None or not removed_paths <= named.keys() or is_abandoned(sink.root, folder, added_paths):
            return None
        try:
            return history.replace_files(
                version=table.version,
                removed=removed,
                added=added,
                now=clock.now(),
                engine=f"penstock {folder}",
            )
        except PublishConflict as conflict:
            if conflicts == CONFLICTS_MAX:
                raise TemporaryError(
                    f"{sink.uri}: {conflicts} compactions in a row met a conflict ({conflict}); try again later"
                ) from conflict
            wait_after_conflict(clock, conflicts + 1)
    raise AssertionError("unreachable")


def _restate(
    sink: TableSink,
    history: TableHistory,
    table: VersionedTable,
    files: Sequence[LoggedFile],
    clock: Clock,
    stopped: Callable[[], bool],
) -> int:
    """Commit the bounds of our files that lack them in the table's log, and return the number of these files.

    Files of earlier versions lack them. A file with bounds lacks those of a column that another writer added, which
    some readers then take for a column without nulls (see `penstock.sinks.delta.statistics`). A file that cannot have
    bounds is read again by each compaction, but only its footer. A conflict ends this: the next compaction does the
    rest.
    """
    if not isinstance(history, RestatingHistory):
        return 0
    stored = stored_columns(table).schema
    lacking = [file for file in files if is_own(file.path) and file.rows and _lacks_bounds(file, stored)]
    found: list[LoggedFile] = []
    with suppress(PassEnded):
        for file in interruptible(lacking, stopped):
            statistics = read_statistics(sink.root, file.path, stored)
            if statistics is not None:
                found.append(replace(file, statistics=statistics))
    restated = 0
    with suppress(PublishConflict):
        for start in range(0, len(found), RESTATED_MAX):
            chunk = {file.logged_path: file for file in found[start : start + RESTATED_MAX]}
            newest = history.load()
            there = {file.logged_path for file in newest.logged_files()} if newest is not None else set()
            if newest is None or newest.schema != table.schema:
                break
            restated += history.restate_files(
                version=newest.version,
                files=[file for path, file in chunk.items() if path in there],
                now=clock.now(),
                engine=f"penstock {ULID()}",
            )
    return restated


def _lacks_bounds(file: LoggedFile, stored: pa.Schema) -> bool:
    """Return True for a file without any bounds, or whose statistics do not know a column."""
    counted_nulls = file.statistics.get("nullCount", {})
    return not file.statistics.get("minValues") or any(
        field.name not in counted_nulls for field in stored if not types.is_nested(field.type)
    )


def _write(root: Files, merged: _MergeGroup, path: str, columns: StoredColumns) -> Sequence[WrittenFile] | None:
    """Write the rows of all files into new ones. Return None, and leave no file, if one cannot be written again."""
    expected = columns.schema
    batches = (batch for file in merged.files for batch in read_batches(root, file.path, columns))
    try:
        if merged.order is None:
            return [write_file(root, f"{path}.parquet", batches, expected)]
        rows = merged.order.sort(pa.Table.from_batches(batches, expected))
    except ForeignFile:
        return None
    count = max(1, math.ceil(rows.num_rows / merged.files_after))
    return [
        write_file(
            root,
            f"{path}-{merged.order.mark}-{number:05}.parquet",
            rows.slice(start, count).to_batches(BATCH_ROWS),
            expected,
        )
        for number, start in enumerate(range(0, rows.num_rows, count))
    ]
