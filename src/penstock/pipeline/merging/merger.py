"""Merge one batch into a snapshot of its table, for the commit that shows the batch.

A publish compares the batch's last rows per key with the rows of the table and with the deletes of earlier batches, and
writes files again: those of the table without rows that the batch replaces or deletes, and those of the batch without
rows for which a later one is there. It needs no Spark, so that any process can publish, also a repair. In memory are
keys and order of the batch's rows and one row group of a file at a time.

After a conflict the next call compares with the newer snapshot. It keeps what it wrote for files that lose the same
rows there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PublishConflict, PublishHalted, TableError
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.entries import Flags, KeyedRows, MergeEntries, keyed_rows, read_entries
from penstock.pipeline.merging.order import Rows, Signs, check_types, compare, content_names
from penstock.pipeline.merging.rows import RowFile, RowReader
from penstock.pipeline.replacing import PLAN, Replacement, RewrittenFile
from penstock.pipeline.rewriting import (
    OtherColumns,
    is_abandoned,
    name_after,
    new_folder,
    read_batches,
    stored_columns,
    write_file,
)
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files
from penstock.sinks.sink import LoggedFile, TableSink, VersionedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBatch:
    """A committed batch whose rows are merged."""

    attempt_id: str
    merge: Merge
    files: Sequence[DataFile]
    deletes: Sequence[DataFile]
    # Files of deletes of earlier batches: folded ones, and those of single batches.
    earlier: Sequence[DataFile] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCounts:
    """The effect of a merge on its table, in rows."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    left_out: int = 0  # older than a row or a delete with their key, or equal to one

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
    _folder: str = field(default_factory=new_folder)
    _attempt_id: str = ""
    _entries: MergeEntries | None = None
    _known_deleted: Flags | None = None  # entries for which an earlier batch has a later delete
    # Files written so far, by the path of the file that they are made of, and the numbers of the rows that they lack.
    _written: dict[str, tuple[bytes, Sequence[DataFile]]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)  # of the files

    def merged(self, table: VersionedTable, batch: MergeBatch) -> MergedBatch:
        """Return how to merge a batch into a snapshot that does not show it yet.

        Raises:
            PublishConflict: Gc gave up what earlier calls wrote; the next call writes it again.
            PublishHalted: The table lacks a column of the merge, or a file of another writer cannot be written again.
        """
        try:
            check_types(table.schema, batch.merge.key, batch.merge.order_by)
        except TableError as error:
            raise PublishHalted(f"{self.sink.uri}: {error}") from error
        if batch.attempt_id != self._attempt_id:  # a ledger that failed over to a replica may reuse numbers
            self._start(batch.attempt_id)
        reader = RowReader(root=self.sink.root, schema=table.schema)
        own = [_row_file(file) for file in batch.files]
        if self._entries is None:
            self._entries = read_entries(reader, batch.merge, own, [_row_file(file) for file in batch.deletes])
        entries = self._entries
        if self._known_deleted is None:
            self._known_deleted = _deleted_earlier(reader, batch, entries)
        outcome = _MergeOutcome(
            reader=reader,
            merge=batch.merge,
            entries=entries,
            own=own,
            is_in=~self._known_deleted,
            content=content_names(table.schema, batch.merge.compared),
        )
        gone = {}
        for file in table.logged_files():
            lost = outcome.lost_rows(_row_file(file))
            if len(lost):
                gone[file.path] = (file, lost)
        replacement = self._written_again(table, batch, gone, outcome)
        self.probe(Step.REWRITTEN)
        if is_abandoned(self.sink.root, self._folder, self._paths(replacement)):
            self._start(batch.attempt_id)
            raise PublishConflict(f"{self.sink.uri}: gc deleted the files written for this commit")
        return MergedBatch(replacement=replacement, counts=outcome.counts())

    def _paths(self, replacement: Replacement) -> Sequence[str]:
        added = [*replacement.added, *replacement.fresh]
        return [file.path for file in added if file.path.startswith(f"{self._folder}/")]

    def _start(self, attempt_id: str) -> None:
        self._folder, self._written, self._attempt_id = new_folder(), {}, attempt_id
        self._entries = self._known_deleted = None

    def _written_again(
        self,
        table: VersionedTable,
        batch: MergeBatch,
        gone: Mapping[str, tuple[LoggedFile, Rows]],
        outcome: "_MergeOutcome",
    ) -> Replacement:
        expected = stored_columns(table.schema, table.partition_by)
        self._forget({*gone, *(file.path for file in batch.files)})
        files = [RewrittenFile(removed=file, added=self._without(file, lost, expected)) for file, lost in gone.values()]
        fresh: list[DataFile] = []
        for number, file in enumerate(batch.files):
            lost = outcome.left_out(number)
            fresh += self._without(file, lost, expected) if len(lost) else [file]
        found = Replacement(files=files, fresh=fresh, folder=self._folder)
        if self.sink.commit_log is not None:  # other writers may overwrite the commit
            plan = {"files": [asdict(one) for one in files], "fresh": [asdict(file) for file in fresh]}
            self.sink.root.write(f"{self._folder}/{PLAN}", json.dumps(plan, default=str).encode())
        return found

    def _forget(self, paths: set[str]) -> None:
        """Delete what was written for files that the snapshot no longer has: no commit named it."""
        for path in self._written.keys() - paths:
            self.sink.root.delete(file.path for file in self._written.pop(path)[1])

    def _without(self, file: LoggedFile | DataFile, lost: Rows, expected: pa.Schema) -> Sequence[DataFile]:
        """Write a file without some of its rows, and return what is left; nothing if there are none."""
        if len(lost) == file.rows:
            return ()
        digest = lost.tobytes()
        known = self._written.get(file.path)
        if known is not None and known[0] == digest:
            return known[1]
        root = self.sink.root
        path = f"{self._folder}/{name_after(file.path, next(self._numbers))}"
        try:
            written = write_file(root, path, _kept(read_batches(root, file.path, expected), lost), expected)
        except OtherColumns:
            raise PublishHalted(
                f"The file {file.path} of the table {self.sink.uri} has rows that are to be merged, and columns that "
                f"the table lacks: another writer made it. Write it again with the table's columns (OPTIMIZE)."
            ) from None
        found = list_files(root, self._folder, partition_by=(), schema=expected, written=[written])
        files = [replace(one, partition_values=file.partition_values) for one in found]
        if known is not None:
            root.delete(one.path for one in known[1])
        if not files:
            root.delete([path])
        self._written[file.path] = (digest, files)
        return files


@dataclass(slots=True, kw_only=True)
class _MergeOutcome:
    """The comparison of a batch with a snapshot. Used by one thread."""

    reader: RowReader
    merge: Merge
    entries: MergeEntries
    own: Sequence[RowFile]
    is_in: Flags  # entries that no later delete has made void
    content: Sequence[str]
    _loses: Flags = field(init=False)  # entries for which the table has a later row
    _replaces: Flags = field(init=False)  # entries for which the table has an earlier row
    _deleted: int = 0

    def __post_init__(self) -> None:
        self._loses = np.zeros(len(self.entries), np.bool_)
        self._replaces = np.zeros(len(self.entries), np.bool_)

    def lost_rows(self, file: RowFile) -> Rows:
        """Return the numbers of the file's rows that leave the table."""
        lost: list[Rows] = []
        if len(self.entries) and self.entries.range.may_hold(file):
            parts = keyed_rows(self.reader, file, self.merge, within=self.entries.range)
            lost = [self._lost_in(file, part) for part in parts]
        return np.concatenate(lost) if lost else np.array([], np.int64)

    def _lost_in(self, file: RowFile, part: KeyedRows) -> Rows:
        rows, which = matches(part, self.entries)
        in_use = self.is_in[which]
        rows, which = rows[in_use], which[in_use]
        signs = self._signs(file, part, rows, which)
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
        """Return the numbers of the rows of a file of the batch that do not come into the table, in ascending order."""
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
    """Return for each entry if an earlier batch has a delete that is not before it."""
    found: Flags = np.zeros(len(entries), np.bool_)
    for file in map(_row_file, batch.earlier if len(entries) else ()):
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


def _row_file(file: DataFile | LoggedFile) -> RowFile:
    return RowFile(path=file.path, rows=file.rows, partition_values=file.partition_values, statistics=file.statistics)
