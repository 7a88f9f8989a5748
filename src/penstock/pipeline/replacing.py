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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from penstock.errors import PublishConflict, TableError
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.rewriting import (
    ForeignFile,
    OpenedFile,
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
from penstock.sinks.sink import LoggedFile, Position, TableSink, VersionedTable
from penstock.storage.files import Files

OBJECT = "_object"  # the column with the address of the object that a row is from
PLAN = "_replaced.json"  # in the folder of a replacement
_SURE_CHARACTERS = 12  # of an address: no writer cuts bounds shorter
_HAS_ROWS = "has rows that are to be replaced"
_MAY_HAVE_ROWS = "may have rows that are to be replaced"


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


def has_addresses(columns: pa.Schema) -> bool:
    """Return True if rows with these columns have the addresses of their objects. A transform may change them."""
    if OBJECT not in columns.names:
        return False
    kind = columns.field(OBJECT).type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def may_be_of(files: Iterable[DataFile], addresses: Collection[str]) -> bool:
    """Return False if the rows of these files certainly have other addresses than these.

    Then a transform has changed the addresses, for example to the names of files, and rows cannot be found by them
    later. Only the first characters are compared, because writers may cut bounds.
    """
    first, last = min(addresses)[:_SURE_CHARACTERS], max(addresses)
    begins = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    known = {None, *addresses}
    for file in files:
        if OBJECT in file.partition_values:
            if file.partition_values[OBJECT] not in known:
                return False
        elif any(
            not file.statistics[name][OBJECT].startswith(begins)
            for name in ("minValues", "maxValues")
            if file.statistics.get(name, {}).get(OBJECT) is not None
        ):
            return False
    return True


def save_replacement(sink: TableSink, replacement: Replacement) -> None:
    """Write the plan of a replacement beside its files, if other writers may overwrite the commit."""
    if sink.commit_log is None or not replacement.folder:
        return
    plan = {
        "files": [asdict(one) for one in replacement.files],
        "fresh": [asdict(file) for file in replacement.fresh],
    }
    sink.root.write(f"{replacement.folder}/{PLAN}", json.dumps(plan, default=str).encode())


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
    """Return the rows of each of these objects that has any. Reads only files that may hold some.

    Raises `PublishHalted` for a file of another writer whose rows cannot be written again.
    """
    finder = _RowFinder(sink=sink, columns=stored_columns(table), wanted=sorted(set(objects)))
    rows: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for found in in_parallel(sink.root, finder.rows_in, table.files_to_search([OBJECT])):
        rows += found
        files.update(found.keys())
    return {name: RowsOfObject(rows=rows[name], files=files[name]) for name in sorted(rows)}


@dataclass(slots=True, kw_only=True)
class RowReplacer:
    """Writes the files of one publish again. Used by one thread."""

    sink: TableSink
    probe: Probe
    _folder: RewritingFolder | None = None
    _of: tuple[Position, Sequence[str]] | None = None  # the batch that the folder is of, and its objects in order

    def replacement(
        self, table: VersionedTable, objects: Collection[str], *, of: Position, keep: Collection[str] = ()
    ) -> Replacement:
        """Return how to take the rows of these objects out of a snapshot that does not show the batch ``of`` yet.

        ``keep`` are files of the batch. The snapshot may have some, if their commit was overwritten after another one
        had moved them.

        Raises:
            PublishConflict: Gc gave up what earlier calls wrote; the next call writes it again.
            PublishHalted: The rows of another writer's file cannot be written again. No new file is left behind.
        """
        wanted = sorted(set(objects))
        if self._folder is None or self._of != (of, wanted):
            self._folder, self._of = RewritingFolder(root=self.sink.root), (of, wanted)
        if not wanted or not has_addresses(table.schema):
            return Replacement()
        folder, columns = self._folder, stored_columns(table)
        with folder.trying():
            finder = _RowFinder(sink=self.sink, columns=columns, wanted=wanted)
            searched = [file for file in table.files_to_search([OBJECT]) if file.path not in keep]
            touched = in_parallel(self.sink.root, lambda file: folder.has(file.path) or finder.is_in(file), searched)
            removed = [file for file, is_touched in zip(searched, touched, strict=True) if is_touched]
            folder.forget({file.path for file in removed})
            files = [RewrittenFile(removed=file, added=finder.rest_of(file, folder)) for file in removed]
            if not removed:
                return Replacement()
            found = Replacement(files=files, folder=folder.path)
            save_replacement(self.sink, found)
            self.probe(Step.REWRITTEN)
            if is_abandoned(self.sink.root, folder.path, [file.path for file in found.added]):
                self._folder = None
                raise PublishConflict(f"{self.sink.uri}: gc deleted the files written for this commit")
            return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowFinder:
    """Finds the rows of objects in files. Thread-safe."""

    sink: TableSink
    columns: StoredColumns
    wanted: Sequence[str]  # addresses, in order

    def is_in(self, file: LoggedFile) -> bool:
        """Return True if the file has a row of one of the objects.

        Raises `PublishHalted` if it has one, or may have one, and cannot be written again.
        """
        if OBJECT in file.partition_values:
            return file.partition_values[OBJECT] in self.wanted
        return next(self._found(file), None) is not None

    def rows_in(self, file: LoggedFile) -> Counter[str]:
        """Return the number of rows in a file of each of the objects that has any there. Raises as `is_in` does."""
        if OBJECT in file.partition_values:
            name = file.partition_values[OBJECT]
            return Counter({name: file.rows} if name is not None and name in self.wanted else {})
        found: Counter[str] = Counter()
        for addresses in self._found(file):
            for counted in pc.value_counts(addresses).to_pylist():
                found[counted["values"]] += counted["counts"]
        return found

    def rest_of(self, file: LoggedFile, folder: RewritingFolder) -> Sequence[DataFile]:
        """Write the file's other rows into a new file, and return it; nothing if there are none."""
        if OBJECT in file.partition_values:
            return ()
        kept = (
            batch.filter(pc.invert(self._is_wanted(batch.column(OBJECT))))
            for batch in read_batches(self.sink.root, file.path, self.columns)
        )
        try:
            return folder.write(file, kept, self.columns)
        except ForeignFile as error:
            raise halted(self.sink.uri, file.path, _HAS_ROWS, str(error)) from error

    def _found(self, file: LoggedFile) -> Iterator[pa.Array]:
        """Yield the addresses of rows that are of the objects."""
        logged = (file.statistics.get(name, {}).get(OBJECT) for name in ("minValues", "maxValues"))
        if not self._may_be_within(*logged):
            return
        if file.unreadable:
            raise halted(self.sink.uri, file.logged_path, _MAY_HAVE_ROWS, file.unreadable)
        try:
            with opened(self.sink.root, file.path, self.columns) as found:
                for addresses in self._addresses(found):
                    if found.problem:
                        raise halted(self.sink.uri, file.path, _HAS_ROWS, found.problem)
                    yield addresses
        except ForeignFile as error:
            raise halted(self.sink.uri, file.path, _MAY_HAVE_ROWS, str(error)) from error

    def _addresses(self, file: OpenedFile) -> Iterator[pa.Array]:
        name = file.names.get(OBJECT)
        if name is None:  # an old file, from before the table had this column
            return
        parquet = file.parquet
        groups = [number for number in range(parquet.num_row_groups) if self._may_be_in(parquet, number, name)]
        for batch in parquet.iter_batches(row_groups=groups, columns=[name]) if groups else ():
            addresses = batch.column(0).cast(pa.string())
            wanted = addresses.filter(self._is_wanted(addresses))
            if len(wanted):
                yield wanted

    def _may_be_in(self, parquet: pq.ParquetFile, number: int, name: str) -> bool:
        """Return False if no row of the row group is of one of the objects, by its statistics."""
        group = parquet.metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema == name:
                found = column.statistics
                return found is None or not found.has_min_max or self._may_be_within(*_bounds(found))
        return True

    def _may_be_within(self, least: str | None, greatest: str | None) -> bool:
        """Return True if one of the objects may be within the bounds; None: unknown."""
        start = 0 if least is None else bisect_left(self.wanted, least)
        return start < len(self.wanted) and (greatest is None or self.wanted[start] <= greatest)

    def _is_wanted(self, column: pa.Array) -> pa.Array:
        """Return True for each row of one of the objects. A null is of none."""
        return pc.is_in(column, value_set=pa.array(self.wanted, pa.string()), skip_nulls=True)


def _bounds(statistics: Any) -> tuple[str | None, str | None]:
    """Return the bounds of texts in a row group; None if they are no texts."""
    try:
        least, greatest = statistics.min, statistics.max
    except ValueError:  # cut within a character
        return None, None
    return (least, greatest) if isinstance(least, str) and isinstance(greatest, str) else (None, None)
