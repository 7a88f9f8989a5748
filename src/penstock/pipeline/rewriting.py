"""Write rows of a table's files again, into new files that a later commit adds to the table.

A compaction writes merged files; a publish writes what is left of files of which a batch replaces rows. Each writes
into a folder of its own below ``compacted/``. No ledger knows these folders, so a writer that dies before its commit
leaves files that no version of the table names. Gc marks such a folder as given up and deletes it in a later pass; see
`penstock.pipeline.maintenance.leftovers`, which relies on this order: a writer loads the table, then checks
`is_abandoned`, then commits the version after the loaded one.

Files of other writers are read too. Their columns may have other names and types in the file: in an Iceberg table the
number of a column counts (`StoredColumns.field_ids`), Spark stores times as INT96, and integers may be stored in a
narrower or wider type. All other differences raise `ForeignFile`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types
from ulid import ULID

from penstock.errors import PublishHalted, TableError, TemporaryError
from penstock.pipeline.batch_record import COMPACTED_FOLDER
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import FooterNote, WrittenFile, list_files
from penstock.sinks.schema import same_type
from penstock.sinks.sink import LoggedFile, VersionedTable
from penstock.storage.files import Files

_ORDERED = re.compile(rf"{COMPACTED_FOLDER}/[^/]+/part-\d+(-by-[0-9a-f]{{12}}-\d+\.parquet)")
_FIELD_ID = b"PARQUET:field_id"  # Arrow's name for the number of a column in a file

MARK = "_given_up"  # if it exists in a folder, its files must not be committed

ROW_GROUP_BYTES = 64 << 20
BATCH_ROWS = 65_536
READS_AT_ONCE = 8  # parallel reads of files in S3; each holds some columns of one row group

Item = TypeVar("Item")
Result = TypeVar("Result")


class ForeignFile(Exception):
    """A file of another writer, whose rows cannot be written again. The text says why, with "it" as the subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumns:
    """The columns that the files of a table have, without those that only name their folders."""

    schema: pa.Schema
    partition_by: Collection[str] = ()  # other writers' files may have these too
    # Names by number. If a file numbers its columns, its own names for them do not count. Empty: names always count.
    field_ids: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A Parquet file that is open for reading."""

    parquet: pq.ParquetFile
    names: Mapping[str, str]  # names of columns in the file, by the table's names for them
    problem: str  # why its rows cannot be written again, as in `ForeignFile`; empty if they can


def new_folder() -> str:
    """Return the name of a new folder, relative to the table's root."""
    return f"{COMPACTED_FOLDER}/{ULID()}"


def is_ordered(path: str) -> bool:
    """Return True for a file whose rows have an order, which a compaction gave them."""
    return _ORDERED.fullmatch(path) is not None


def name_after(path: str, number: int) -> str:
    """Return the name of a new file with some of a file's rows. It keeps the mark of their order."""
    found = _ORDERED.fullmatch(path)
    return f"part-{number:05}{found[1] if found else '.parquet'}"


def is_abandoned(root: Files, folder: str, files: Collection[str]) -> bool:
    """Return True if gc has given up the folder with these files, which must then not be committed.

    The mark is checked before the files, because gc deletes it last.
    """
    return root.stat(f"{folder}/{MARK}") is not None or any(root.stat(file) is None for file in files)


def stored_columns(table: VersionedTable) -> StoredColumns:
    """Return the columns that the files of a table have."""
    kept = [field for field in table.schema if field.name not in table.partition_by]
    return StoredColumns(schema=pa.schema(kept), partition_by=table.partition_by, field_ids=table.field_ids)


def in_parallel(root: Files, work: Callable[[Item], Result], items: Iterable[Item]) -> Sequence[Result]:
    """Return the results for all items, in order; for files in S3, several at once."""
    if root.is_local:
        return [work(item) for item in items]
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="penstock-read") as pool:
        return list(pool.map(work, items))


def halted(table: str, path: str, wants: str, reason: str) -> PublishHalted:
    """Return the error for a file whose rows a publish must write again and cannot. ``wants`` says what for."""
    return PublishHalted(
        f"The file {path} of the table {table} {wants}, but it {reason}. Another writer made it: write it again as "
        f"Parquet, in the table's folder and with the table's columns (OPTIMIZE)."
    )


@dataclass(slots=True, kw_only=True)
class RewritingFolder:
    """The folder of one commit, and what was written there. Used by one thread.

    After a conflict the same object serves the next try. A commit whose outcome is unknown may still succeed, so files
    that an earlier try offered are only deleted if a later version of the table proves that it failed (`forget`).
    """

    root: Files
    path: str = field(default_factory=new_folder)
    # By the path of a rewritten file: which of its rows were left out, and the new files.
    _written: dict[str, tuple[bytes, Sequence[DataFile]]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)  # of the new files; none is used twice
    _new: dict[str, str] = field(default_factory=dict)  # written in this try: new path, and that of the rewritten file

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Delete the files that are written in the block if it raises an error."""
        self._new = {}
        try:
            yield
        except Exception:
            for source in self._new.values():
                self._written.pop(source, None)
            self._delete(self._new)
            raise

    def has(self, path: str) -> bool:
        """Return True if an earlier try wrote the rows of this file that stay."""
        return path in self._written

    def write(
        self,
        file: LoggedFile | DataFile,
        rows: Iterable[pa.RecordBatch],
        columns: StoredColumns,
        *,
        without: bytes = b"",
    ) -> Sequence[DataFile]:
        """Write the rows of a file that stay into a new file, and return it; nothing if no row stays.

        ``without`` identifies the rows that are left out: if an earlier try left out the same ones, its file is used.
        """
        known = self._written.get(file.path)
        if known is not None and known[0] == without:
            return known[1]
        path = f"{self.path}/{name_after(file.path, next(self._numbers))}"
        self._new[path] = file.path
        written = write_file(self.root, path, rows, columns.schema)
        listed = list_files(self.root, self.path, partition_by=(), schema=columns.schema, written=[written])
        if not listed:
            self.root.delete([path])
        found = [replace(one, partition_values=file.partition_values) for one in listed]
        if known is not None:
            self.root.delete(one.path for one in known[1])
        self._written[file.path] = (without, found)
        return found

    def forget(self, present: Collection[str]) -> None:
        """Delete what was written for files that a newer snapshot no longer has.

        A commit that named them was of an earlier version, so it was refused.
        """
        for path in self._written.keys() - set(present):
            self.root.delete(file.path for file in self._written.pop(path)[1])

    def _delete(self, paths: Collection[str]) -> None:
        with suppress(TableError, TemporaryError):  # gc deletes them then; the first error counts
            self.root.delete(paths)
            self.root.prune(self.path)


def write_file(root: Files, path: str, batches: Iterable[pa.RecordBatch], expected: pa.Schema) -> WrittenFile:
    """Write rows with these columns into a new file. Raises `TemporaryError` if the file is not there afterwards."""
    rows = 0
    with root.open_output(path) as output, pq.ParquetWriter(output, expected, compression="zstd") as writer:
        note = FooterNote(expected)
        for group in _row_groups(batches):
            writer.write_table(group)
            note.add(group)
            rows += group.num_rows
        note.write(writer)
    info = root.stat(path)
    if info is None:
        raise TemporaryError(f"{root}/{path} was written and is not there")
    return WrittenFile(path=path, rows=rows, size_bytes=info.size_bytes)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(one.nbytes for one in pending) >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


@contextmanager
def opened(root: Files, path: str, columns: StoredColumns) -> Iterator[OpenedFile]:
    """Open a file of a table. Raises `ForeignFile` if it, or what the block reads of it, cannot be read as Parquet."""
    try:
        # by default Spark's INT96 becomes nanoseconds, which cannot hold all times
        with root.open_input(path) as file, pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as parquet:
            names = _names(parquet.schema_arrow, columns)
            yield OpenedFile(parquet=parquet, names=names, problem=_problem(parquet, names, columns))
    except pa.ArrowException as error:
        if isinstance(error, (MemoryError, pa.ArrowCancelled)):
            raise
        reason = str(error).strip().split("\n", 1)[0]
        raise ForeignFile(f"cannot be read: {reason}") from error


def read_batches(root: Files, path: str, columns: StoredColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with these columns. Columns that were added to the table later are null.

    Raises `ForeignFile` if the file has a column that is not among them, or one of another type.
    """
    with opened(root, path, columns) as file:
        if file.problem:
            raise ForeignFile(file.problem)
        for batch in file.parquet.iter_batches(BATCH_ROWS):
            arrays = [
                batch.column(file.names[field.name]).cast(field.type) if field.name in file.names
                else pa.nulls(batch.num_rows, field.type)
                for field in columns.schema
            ]  # fmt: skip
            yield pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def _names(written: pa.Schema, columns: StoredColumns) -> Mapping[str, str]:
    """Return the names of columns in a file, by the table's names for them. Unknown columns are left out."""
    numbers = {field.name: _number(field) for field in written} if columns.field_ids else {}
    if any(number is not None for number in numbers.values()):
        found = {columns.field_ids.get(-1 if number is None else number): name for name, number in numbers.items()}
        return {table_name: name for table_name, name in found.items() if table_name is not None}
    known = {*columns.schema.names, *columns.partition_by}
    return {name: name for name in written.names if name in known}


def _number(field: pa.Field) -> int | None:
    number = int((field.metadata or {}).get(_FIELD_ID, -1))
    return number if number >= 0 else None


def _problem(parquet: pq.ParquetFile, names: Mapping[str, str], columns: StoredColumns) -> str:
    """Return why the rows of a file cannot have these columns; empty if they can."""
    written = parquet.schema_arrow
    if len(set(written.names)) != len(written.names):
        return "has two columns with one name"
    if unknown := [name for name in written.names if name not in names.values()]:
        return f"has columns that the table lacks: {', '.join(unknown)}"
    times = {column.path for column in parquet.schema if column.physical_type == "INT96"}
    for name, stored in names.items():
        if name in columns.schema.names:
            have, want = written.field(stored).type, columns.schema.field(name).type
            is_int96 = any(path == stored or path.startswith(f"{stored}.") for path in times)
            if not _fits(have, want, is_int96=is_int96):
                return f"has the column {name} as {have}, and the table has it as {want}"
    return ""


def _fits(have: pa.DataType, want: pa.DataType, *, is_int96: bool) -> bool:
    """Return True if a safe cast turns the type in a file into the table's."""
    if types.is_struct(want):
        return types.is_struct(have) and _all_fit(list(have), list(want), is_int96=is_int96)
    if types.is_map(want):
        if not types.is_map(have):
            return False
        pairs = [[pa.field("key", one.key_type), pa.field("value", one.item_type)] for one in (have, want)]
        return _all_fit(*pairs, is_int96=is_int96)
    if types.is_list(want) and (types.is_list(have) or types.is_large_list(have)):
        return _fits(have.value_type, want.value_type, is_int96=is_int96)
    if is_int96 and types.is_timestamp(have) and types.is_timestamp(want):  # INT96 is UTC without saying so
        return True
    if types.is_signed_integer(have) and types.is_signed_integer(want):
        return True
    if types.is_decimal(have) and types.is_decimal(want):
        return bool(have.scale == want.scale and have.precision <= want.precision)
    if types.is_float32(have) and types.is_float64(want):
        return True
    try:
        return same_type(have, want)
    except TableError:
        return False


def _all_fit(have: Sequence[pa.Field], want: Sequence[pa.Field], *, is_int96: bool) -> bool:
    return [one.name for one in have] == [one.name for one in want] and all(
        _fits(one.type, other.type, is_int96=is_int96) for one, other in zip(have, want, strict=True)
    )
