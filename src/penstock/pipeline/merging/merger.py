"""Merge one batch into a snapshot of its table, for the commit that shows the batch.

A publish compares the last rows per key of the batch with the rows of the table and with the deletes of earlier
batches. Then it rewrites files: those of the table without the rows that the batch replaces or deletes, and those of
the batch without the rows that are older than others. It needs no Spark, so any process can publish, also a repair. In
memory are keys and order of the batch's rows, and one row group of a file at a time (of several files in S3).

After a conflict the next call compares with the newer snapshot. It reuses the files that it wrote if the same rows
leave.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PublishConflict, PublishHalted, TableError
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.entries import Flags, KeyedRows, MergeEntries, keyed_rows, read_entries
from penstock.pipeline.merging.order import Rows, Signs, check_types, compare, content_names
from penstock.pipeline.merging.rows import RowFile, RowReader, row_file
from penstock.pipeline.replacing import Replacement, RewrittenFile, save_replacement
from penstock.pipeline.rewriting import (
    ForeignFile,
    RewritingFolder,
    StoredColumns,
    halted,
    in_parallel,
    is_abandoned,
    opened,
    read_batches,
    stored_columns,
)
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import LoggedFile, TableSink, VersionedTable

_HAS_ROWS = "has rows that are to be merged"
_MAY_HAVE_ROWS = "may have rows that are to be merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBatch:
    """A committed batch whose rows are merged."""

    attempt_id: str
    merge: Merge
    files: Sequence[DataFile]
    deletes: Sequence[DataFile]
    # Files with the deletes of earlier batches, folded or of single batches
    earlier: Sequence[DataFile] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCounts:
    """The effect of a merge on its table, in rows."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    left_out: int = 0  # older than a row or a delete of their key, or equal to one

    def __add__(self, other: "MergeCounts") -> "MergeCounts":
        return MergeCounts(**{name: count + getattr(other, name) for name, count in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """How the rows of a batch come into a snapshot: ``replacement.fresh`` are its own files."""

    replacement: Replacement
    counts: MergeCounts


@dataclass(slots=True, kw_only=True)
class RowMerger:
    """Merges the batches of one publish. Used by one thread."""

    sink: TableSink
    probe: Probe
    _folder: RewritingFolder | None = None
    _batch: MergeBatch | None = None  # that the folder is of
    _entries: MergeEntries | None = None
    _known_deleted: Flags | None = None  # entries for which an earlier batch has a later delete

    def merged(self, table: VersionedTable, batch: MergeBatch) -> MergedBatch:
        """Return how to merge a batch into a snapshot that does not show it yet.

        Raises:
            PublishConflict: Gc gave up what earlier calls wrote; the next call writes it again.
            PublishHalted: The table lacks a column of the merge, or a file of another writer cannot be written again.
                No new file is left behind.
        """
        try:
            check_types(table.schema, batch.merge.key, batch.merge.order_by)
        except TableError as error:
            raise PublishHalted(f"{self.sink.uri}: {error}") from error
        if self._folder is None or self._batch != batch:  # a ledger that failed over to a replica may reuse numbers
            self._start(batch)
            self._folder = RewritingFolder(root=self.sink.root)
        folder = self._folder
        reader = RowReader(root=self.sink.root, schema=table.schema, field_ids=table.field_ids)
        own = [row_file(file) for file in batch.files]
        try:
            if self._entries is None:
                self._entries = read_entries(reader, batch.merge, own, [row_file(file) for file in batch.deletes])
            entries = self._entries
            if self._known_deleted is None:
                self._known_deleted = _deleted_earlier(reader, batch, entries)
        except ForeignFile as error:
            raise PublishHalted(
                f"In the table {self.sink.uri}, a file of the attempt {batch.attempt_id}, or of deletes before it, "
                f"{error}; restore it from a backup."
            ) from error
        outcome = _MergeOutcome(
            reader=reader,
            merge=batch.merge,
            entries=entries,
            own=own,
            is_in=~self._known_deleted,
            content=content_names(table.schema, batch.merge.compared),
        )
        columns = stored_columns(table)
        search = _FileSearch(sink=self.sink, columns=columns, outcome=outcome)
        files = table.files_to_search(batch.merge.key)
        found = zip(files, in_parallel(self.sink.root, search.lost_rows, files), strict=True)
        gone = {file.path: (file, lost) for file, lost in found if len(lost)}
        with folder.trying():
            replacement = self._written_again(folder, columns, batch, gone, outcome)
            self.probe(Step.REWRITTEN)
            added = [file.path for file in (*replacement.added, *replacement.fresh)]
            if is_abandoned(self.sink.root, folder.path, [path for path in added if path.startswith(folder.path)]):
                self._start(None)
                raise PublishConflict(f"{self.sink.uri}: gc deleted the files written for this commit")
        return MergedBatch(replacement=replacement, counts=outcome.counts())

    def _start(self, batch: MergeBatch | None) -> None:
        self._batch, self._folder = batch, None
        self._entries = self._known_deleted = None

    def _written_again(
        self,
        folder: RewritingFolder,
        columns: StoredColumns,
        batch: MergeBatch,
        gone: Mapping[str, tuple[LoggedFile, Rows]],
        outcome: "_MergeOutcome",
    ) -> Replacement:
        folder.forget({*gone, *(file.path for file in batch.files)})
        files = [
            RewrittenFile(removed=file, added=self._without(folder, file, lost, columns))
            for file, lost in gone.values()
        ]
        fresh: list[DataFile] = []
        for number, file in enumerate(batch.files):
            lost = outcome.left_out(number)
            fresh += self._without(folder, file, lost, columns) if len(lost) else [file]
        found = Replacement(files=files, fresh=fresh, folder=folder.path)
        save_replacement(self.sink, found)
        return found

    def _without(
        self, folder: RewritingFolder, file: LoggedFile | DataFile, lost: Rows, columns: StoredColumns
    ) -> Sequence[DataFile]:
        """Write a file without some of its rows, and return what is left; nothing if there are none."""
        if len(lost) == file.rows:
            return ()
        kept = _kept(read_batches(self.sink.root, file.path, columns), lost)
        try:
            return folder.write(file, kept, columns, without=lost.tobytes())
        except ForeignFile as error:
            raise halted(self.sink.uri, file.path, _HAS_ROWS, str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileSearch:
    """Finds the rows of a table that leave it, file by file. Thread-safe."""

    sink: TableSink
    columns: StoredColumns
    outcome: "_MergeOutcome"

    def lost_rows(self, file: LoggedFile) -> Rows:
        """Return the numbers of the file's rows that leave the table.

        Raises `PublishHalted` if it has some, or may have some, and cannot be written again.
        """
        try:
            if file.unreadable and self.outcome.may_be_in(row_file(file)):
                raise ForeignFile(file.unreadable)
            lost = self.outcome.lost_rows(row_file(file))
            problem = ""
            if 0 < len(lost) != file.rows:
                with opened(self.sink.root, file.path, self.columns) as found:
                    problem = found.problem
        except ForeignFile as error:
            raise halted(self.sink.uri, file.path, _MAY_HAVE_ROWS, str(error)) from error
        if problem:
            raise halted(self.sink.uri, file.path, _HAS_ROWS, problem)
        return lost


@dataclass(slots=True, kw_only=True)
class _MergeOutcome:
    """The comparison of a batch with a snapshot. Several threads may compare files."""

    reader: RowReader
    merge: Merge
    entries: MergeEntries
    own: Sequence[RowFile]
    is_in: Flags  # entries that no delete of an earlier batch supersedes
    content: Sequence[str]
    _loses: Flags = field(init=False)  # entries for which the table has a later row
    _replaces: Flags = field(init=False)  # entries for which the table has an earlier row
    _deleted: int = 0
    _noting: threading.Lock = field(default_factory=threading.Lock)  # guards the three above

    def __post_init__(self) -> None:
        self._loses = np.zeros(len(self.entries), np.bool_)
        self._replaces = np.zeros(len(self.entries), np.bool_)

    def may_be_in(self, file: RowFile) -> bool:
        """Return False if the file has no row with a key of the batch, by what the log says."""
        return bool(len(self.entries)) and self.entries.range.may_hold(file)

    def lost_rows(self, file: RowFile) -> Rows:
        """Return the numbers of the file's rows that leave the table."""
        lost: list[Rows] = []
        if self.may_be_in(file):
            parts = keyed_rows(self.reader, file, self.merge, within=self.entries.range)
            lost = [self._lost_in(file, part) for part in parts]
        return np.concatenate(lost) if lost else np.array([], np.int64)

    def _lost_in(self, file: RowFile, part: KeyedRows) -> Rows:
        rows, which = matches(part, self.entries)
        in_use = self.is_in[which]
        rows, which = rows[in_use], which[in_use]
        signs = self._signs(file, part, rows, which)
        with self._noting:
            self._loses[which[signs >= 0]] = True
            self._replaces[which[signs < 0]] = True
            self._deleted += int(self.entries.deletes[which[signs < 0]].sum())
        return rows[signs < 0] + part.first

    def _signs(self, file: RowFile, part: KeyedRows, rows: Rows, which: Rows) -> Signs:
        """Compare rows of the table with the entries of their keys. A delete comes after a row of the same order."""
        signs = compare(*_both(part.order, rows, self.entries.order, which), len(rows))
        deletes = self.entries.deletes[which]
        signs[(signs == 0) & deletes] = -1
        tied = np.flatnonzero(signs == 0)
        if len(tied):
            there = np.zeros(len(tied), np.int64)
            one = self.reader.at([file], there, rows[tied] + part.first, self.content)
            ours = which[tied]
            other = self.reader.at(self.own, self.entries.file_of[ours], self.entries.row_of[ours], self.content)
            signs[tied] = compare(one, other, len(tied))
        return signs

    def left_out(self, number: int) -> Rows:
        """Return the numbers of the rows in a file of the batch that do not enter the table, in ascending order."""
        stays = (self.entries.file_of == number) & ~self.entries.deletes & self.is_in & ~self._loses
        is_out = np.ones(self.own[number].rows, np.bool_)
        is_out[self.entries.row_of[stays]] = False
        return np.flatnonzero(is_out).astype(np.int64)

    def counts(self) -> MergeCounts:
        stays = self.is_in & ~self._loses & ~self.entries.deletes
        return MergeCounts(
            inserted=int((stays & ~self._replaces).sum()),
            updated=int((stays & self._replaces).sum()),
            deleted=self._deleted,
            left_out=sum(file.rows for file in self.own) - int(stays.sum()),
        )


def matches(part: KeyedRows, entries: MergeEntries) -> tuple[Rows, Rows]:
    """Return the rows of a row group that have a key of the batch, and the entry of each."""
    found = pc.index_in(part.keys, value_set=entries.keys)
    rows = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
    return rows, found.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)


def _deleted_earlier(reader: RowReader, batch: MergeBatch, entries: MergeEntries) -> Flags:
    """Return a flag per entry: True for a row if a delete of an earlier batch is later, or equal in order."""
    found: Flags = np.zeros(len(entries), np.bool_)
    for file in map(row_file, batch.earlier if len(entries) else ()):
        if entries.range.may_hold(file):
            for part in keyed_rows(reader, file, batch.merge, within=entries.range):
                rows, which = matches(part, entries)
                signs = compare(*_both(part.order, rows, entries.order, which), len(rows))
                found[which[signs >= 0]] = True
    return found & ~entries.deletes


def _both(
    one: Sequence[pa.Array], rows: Rows, other: Sequence[pa.Array], which: Rows
) -> tuple[Sequence[pa.Array], Sequence[pa.Array]]:
    return [column.take(pa.array(rows)) for column in one], [column.take(pa.array(which)) for column in other]


def _kept(batches: Iterator[pa.RecordBatch], lost: Rows) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in batches:
        begin, end = np.searchsorted(lost, [first, first + batch.num_rows])
        stays = np.ones(batch.num_rows, np.bool_)
        stays[lost[begin:end] - first] = False
        yield batch.filter(pa.array(stays))
        first += batch.num_rows
