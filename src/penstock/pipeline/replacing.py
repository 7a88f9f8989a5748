"""Find the rows of objects in a table, and write the files that hold them again without these rows.

A batch may replace rows: it names objects, by the addresses in the column ``_object``, and every row of theirs that the
table had before leaves in the commit that shows the batch. Which files these are is known only then, since compactions
and other writers move rows. So a publish looks them up in the snapshot that it commits to. After a conflict it looks
again, and writes only the files again that the snapshot did not have before.

A file is read only if its bounds, in the table's log or in its footer, leave room for one of the addresses.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import PublishConflict, PublishHalted, TableError
from penstock.messaging.steps import Probe, Step, no_probe
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
from penstock.storage.files import Files

OBJECT = "_object"  # the column with the address of the object that a row is from


PLAN = "_replaced.json"  # in the folder of a replacement


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFile:
    """A file that leaves a snapshot, and the files with those of its rows that stay."""

    removed: LoggedFile
    added: Sequence[DataFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """How rows leave a snapshot."""

    files: Sequence[RewrittenFile] = ()
    folder: str = ""  # of the added files, relative to the table's root; empty if no file leaves
    fresh: Sequence[DataFile] = ()  # files with rows of a batch that is merged, see `penstock.pipeline.merging`

    @property
    def removed(self) -> Sequence[LoggedFile]:
        return [one.removed for one in self.files]

    @property
    def added(self) -> Sequence[DataFile]:
        return [file for one in self.files for file in one.added]


def load_replacement(root: Files, folder: str) -> Replacement | None:
    """Return the replacement whose files are in a folder; None if it is not there.

    Only `penstock.pipeline.overwritten` reads it, after the commit that named these files was overwritten. Raises
    `TableError` if it cannot be read.
    """
    path = f"{folder}/{PLAN}"
    try:
        stored = json.loads(root.read(path))
        fresh = [DataFile(**fields) for fields in stored.get("fresh", ())]
        return Replacement(folder=folder, files=[_decoded(one) for one in stored["files"]], fresh=fresh)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"The file {root}/{path} cannot be read ({error}); restore it.") from error


def _decoded(stored: Any) -> RewrittenFile:
    return RewrittenFile(
        removed=LoggedFile(**stored["removed"]), added=[DataFile(**fields) for fields in stored["added"]]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfObject:
    """The rows of one object in a snapshot, and the number of files that hold them."""

    rows: int
    files: int


def count_rows(sink: TableSink, table: VersionedTable, objects: Collection[str]) -> Mapping[str, RowsOfObject]:
    """Return the rows of each of these objects that has any. Reads only files that may hold some."""
    finder = RowReplacer(sink=sink, probe=no_probe, _without=sorted(set(objects)))
    rows: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for file in table.logged_files():
        found = finder.rows_in(file)
        rows += found
        files.update(found.keys())
    return {name: RowsOfObject(rows=rows[name], files=files[name]) for name in sorted(rows)}


@dataclass(slots=True, kw_only=True)
class RowReplacer:
    """Writes the files of one publish again. Used by one thread."""

    sink: TableSink
    probe: Probe
    _folder: str = field(default_factory=new_folder)
    # Files written so far, by the path of the file whose other rows they hold; the objects that they lack, in order.
    _written: dict[str, Sequence[DataFile]] = field(default_factory=dict)
    _without: Sequence[str] = ()
    _seq: int = 0

    def replacement(
        self, table: VersionedTable, objects: Collection[str], *, seq: int, keep: Collection[str] = ()
    ) -> Replacement:
        """Return how to take the rows of these objects out of a snapshot that does not show batch ``seq`` yet.

        ``keep`` are files of the batch. The snapshot may have some, if their commit was overwritten after another one
        had moved them.

        Raises:
            PublishConflict: Gc gave up what earlier calls wrote; the next call writes it again.
            PublishHalted: The rows of another writer's file cannot be written again.
        """
        if seq != self._seq:
            self._start(objects, seq)
        if not self._without or OBJECT not in table.schema.names:
            return Replacement()
        removed = [file for file in table.logged_files() if file.path not in keep and self._is_touched(file)]
        self._forget({file.path for file in removed})
        expected = stored_columns(table.schema, table.partition_by)
        for file in removed:
            if file.path not in self._written:
                self._written[file.path] = self._rewritten(file, expected)
        if not removed:
            return Replacement()
        files = [RewrittenFile(removed=file, added=self._written[file.path]) for file in removed]
        found = Replacement(files=files, folder=self._folder)
        if self.sink.commit_log is not None:  # other writers may overwrite the commit
            plan = {"files": [asdict(one) for one in files]}
            self.sink.root.write(f"{self._folder}/{PLAN}", json.dumps(plan, default=str).encode())
        self.probe(Step.REWRITTEN)
        if is_abandoned(self.sink.root, self._folder, [file.path for file in found.added]):
            self._start(objects, seq)
            raise PublishConflict(f"{self.sink.uri}: gc deleted the files written for this commit")
        return found

    def _start(self, objects: Collection[str], seq: int) -> None:
        self._folder, self._written = new_folder(), {}
        self._without, self._seq = sorted(set(objects)), seq

    def _forget(self, paths: Collection[str]) -> None:
        """Delete what was written for files that the snapshot no longer has.

        A commit that named them was of an earlier version, so it was refused.
        """
        for path in self._written.keys() - paths:
            self.sink.root.delete(file.path for file in self._written.pop(path))

    def _is_touched(self, file: LoggedFile) -> bool:
        """Return True if the file has a row of one of the objects."""
        if OBJECT in file.partition_values:
            return file.partition_values[OBJECT] in self._without
        if file.path in self._written:
            return True
        return any(pc.any(self._is_wanted(column)).as_py() for column in self._columns(file))

    def rows_in(self, file: LoggedFile) -> Counter[str]:
        """Return the number of rows in a file of each of the objects that has any there."""
        if OBJECT in file.partition_values:
            name = file.partition_values[OBJECT]
            return Counter({name: file.rows} if name is not None and name in self._without else {})
        found: Counter[str] = Counter()
        for column in self._columns(file):
            for counted in pc.value_counts(column.filter(self._is_wanted(column)).cast(pa.string())).to_pylist():
                found[counted["values"]] += counted["counts"]
        return found

    def _columns(self, file: LoggedFile) -> Iterator[pa.Array]:
        """Yield the addresses in those row groups of a file that may have one of the objects."""
        bounds = (file.statistics.get(name, {}).get(OBJECT) for name in ("minValues", "maxValues"))
        if not self._may_be_within(*bounds):
            return
        with self.sink.root.open_input(file.path) as opened, pq.ParquetFile(opened) as parquet:
            groups = [number for number in range(parquet.num_row_groups) if self._may_be_in(parquet, number)]
            for batch in parquet.iter_batches(row_groups=groups, columns=[OBJECT]) if groups else ():
                yield batch.column(0)

    def _may_be_in(self, parquet: pq.ParquetFile, number: int) -> bool:
        """Return False if no row of the row group is of one of the objects, by its statistics."""
        group = parquet.metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema == OBJECT:
                found = column.statistics
                has_bounds = found is not None and found.has_min_max
                return self._may_be_within(found.min, found.max) if has_bounds else True
        return False  # an old file, from before the table had this column

    def _may_be_within(self, least: str | None, greatest: str | None) -> bool:
        """Return True if one of the objects may be within the bounds; None: unknown."""
        start = 0 if least is None else bisect_left(self._without, least)
        return start < len(self._without) and (greatest is None or self._without[start] <= greatest)

    def _is_wanted(self, column: pa.Array) -> pa.Array:
        """Return for each row if it is of one of the objects. A null is not."""
        return pc.is_in(column.cast(pa.string()), value_set=pa.array(self._without, pa.string()), skip_nulls=True)

    def _rewritten(self, file: LoggedFile, expected: pa.Schema) -> Sequence[DataFile]:
        """Write the file's other rows into a new file, and return it; nothing if there are none."""
        if OBJECT in file.partition_values:
            return ()
        root, number = self.sink.root, len(self._written)
        path = f"{self._folder}/{name_after(file.path, number)}"
        try:
            kept = (
                batch.filter(pc.invert(self._is_wanted(batch.column(OBJECT))))
                for batch in read_batches(root, file.path, expected)
            )
            written = write_file(root, path, kept, expected)
        except OtherColumns:
            raise PublishHalted(
                f"The file {file.path} of the table {self.sink.uri} has rows that are to be replaced, and columns that "
                f"the table lacks: another writer made it. Write it again with the table's columns (OPTIMIZE)."
            ) from None
        found = list_files(root, self._folder, partition_by=(), schema=expected, written=[written])
        if not found:
            root.delete([path])
        return [replace(one, partition_values=file.partition_values) for one in found]
