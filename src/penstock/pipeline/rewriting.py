"""Write rows of a table's files again, into new files that a later commit adds to the table.

A compaction writes merged files; a publish writes what is left of files of which a batch replaces rows. Each writes
into a folder of its own below ``compacted/``. No ledger knows these folders, so a writer that dies before its commit
leaves files that no version of the table names. Gc marks such a folder as given up and deletes it in a later pass; see
`penstock.pipeline.maintenance.leftovers`, which relies on this order: a writer loads the table, then checks
`is_abandoned`, then commits the version after the loaded one.
"""

import re
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from ulid import ULID

from penstock.errors import TableError, TemporaryError
from penstock.pipeline.batch_record import COMPACTED_FOLDER
from penstock.sinks.parquet import FooterNote, WrittenFile
from penstock.sinks.schema import same_type
from penstock.storage.files import Files

_ORDERED = re.compile(rf"{COMPACTED_FOLDER}/[^/]+/part-\d+(-by-[0-9a-f]{{12}}-\d+\.parquet)")

MARK = "_given_up"  # if it exists in a folder, its files must not be committed

ROW_GROUP_BYTES = 64 << 20
BATCH_ROWS = 65_536


class OtherColumns(Exception):
    """A file of another writer has columns that the table does not know, so its rows cannot be preserved."""


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


def stored_columns(schema: pa.Schema, partition_by: Collection[str]) -> pa.Schema:
    """Return the columns that the files of a table have."""
    return pa.schema([field for field in schema if field.name not in partition_by])


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


def read_batches(root: Files, path: str, expected: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with these columns. Columns that were added to the table later are null.

    Raises `OtherColumns` if the file has a column that is not among them.
    """
    with root.open_input(path) as opened, pq.ParquetFile(opened) as file:
        if not _fits(file.schema_arrow, expected):
            raise OtherColumns
        for batch in file.iter_batches(BATCH_ROWS):
            columns = [
                batch.column(field.name).cast(field.type) if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in expected
            ]  # fmt: skip
            yield pa.RecordBatch.from_arrays(columns, schema=expected)


def _fits(written: pa.Schema, expected: pa.Schema) -> bool:
    """Return True if all these columns are the table's, each once. Columns added to the table later may be absent."""
    if len(set(written.names)) != len(written.names):
        return False
    try:
        return all(
            field.name in expected.names and same_type(field.type, expected.field(field.name).type) for field in written
        )
    except TableError:
        return False
