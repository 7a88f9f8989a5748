"""Checks that the sinks of all table formats share: locations, partition columns, and the files of an append.

A format's sink calls them, so that all formats refuse the same mistakes in the same words.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from penstock.errors import PublishHalted, TableError, TableFolderTaken, TemporaryError, UsageError
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import check_partition_types
from penstock.sinks.partitions import resolve
from penstock.sinks.registry import LOG_FOLDERS, SINKS, TABLE_MARK, address_in, format_in
from penstock.storage.files import Files

CHECKS_AT_ONCE = 16  # parallel checks of files in S3
ELSEWHERE = "lies outside the table's folder"  # `LoggedFile.unreadable` of a file that another writer put there
_OWN_FOLDERS = frozenset({"data/", "compacted/", "_penstock/"})  # folders that Penstock creates beside a log


def check_free(root: Files, *, kind: str, scheme: str | None = None, own: Collection[str] = ()) -> None:
    """Raise `TableFolderTaken` for a folder with other contents: readers of Parquet would mix them with the table.

    Raises `TableError` for a table in another format: its files would belong to two tables.

    Args:
        root: The table's location.
        kind: The format for people: "Delta table".
        scheme: The format, if it is registered: a table in it is no table in another format.
        own: More folders that the format creates there.
    """
    if root.is_local and Path(str(root)).is_file():
        raise TableError(f"The table {root} is a file; give the folder that is to hold the table.")
    try:
        names = root.names()
    except (TableError, TemporaryError) as error:
        if not root.is_local:
            raise
        raise TableError(f"The folder {root} cannot be read ({error}); give another one.") from error
    others = [
        name
        for name in names
        if name not in _OWN_FOLDERS and name not in own and (name in LOG_FOLDERS or not name.startswith((".", "_")))
    ]
    if others:
        found = format_in(root, names)
        if found not in (None, scheme):  # the same one: it is in another catalog, for example
            raise TableError(
                f"The folder {root} holds a table in the format {found} and no {kind}; write "
                f"{address_in(found, str(root))} ({SINKS[found].declaration} in an app), or give another folder."
            )
        raise TableFolderTaken(
            f"The folder {root} is no {kind} and not empty (it holds {others[0].rstrip('/')}); give an empty or a "
            f"new folder."
        )


def is_own(path: str) -> bool:
    """Return True for the path of a data file that Penstock wrote, relative to its table's root."""
    return path.startswith(tuple(_OWN_FOLDERS))


def make_ready(root: Files) -> None:
    """Create a local folder; S3 needs none."""
    if root.is_local:
        Path(str(root)).mkdir(parents=True, exist_ok=True)


def check_writable(root: Files, *, log_folder: str) -> None:
    """Raise `TableError` if the log, or the folder for a new one, is not writable. S3 shows that only on writing."""
    if not root.is_local:
        return
    log = Path(str(root)) / log_folder
    folder = log if log.exists() else log.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TableError(f"The table {root.uri} cannot be written: no permission for {folder}.")


def mark_table(root: Files) -> None:
    """Mark the folder as a table, so that no source above it reads its files as objects. Call it before creating one.

    `penstock.objects.scanner.TABLE_FOLDERS` recognizes the mark, and a Delta table without one.
    """
    root.write_new(TABLE_MARK, b"Penstock does not read the files of this table as source objects.\n")


def check_partitioning(columns: Sequence[str], wanted: Sequence[str] | None, *, table: str) -> None:
    """Raise `TableError` if a table has other partition columns than ``wanted``. None: any are accepted."""
    if wanted is not None and list(columns) != list(wanted):
        advice = f"--partition-by '{', '.join(columns)}'" if columns else "no --partition-by"
        raise TableError(
            f"The table {table} is partitioned by {_listed(columns)} and not by {_listed(wanted)}; ask for the same "
            f"columns in the same order ({advice}), or write to another table."
        )


def check_new_partitioning(schema: pa.Schema, partition_by: Sequence[str], *, table: str) -> None:
    """Check the partition columns of a new table.

    Raises:
        UsageError: A partition column is not in the schema.
        TableError: A partition column has a type that is not safe as a folder name.
    """
    for field in resolve(partition_by, schema.names):
        if field.source not in schema.names:
            raise UsageError(
                f"The partition column {field.source} is not among the columns of the table {table}: "
                f"{', '.join(schema.names)}."
            )
    check_partition_types(schema, partition_by)


def check_files(root: Files, files: Iterable[DataFile], *, partition_by: Sequence[str]) -> None:
    """Raise `PublishHalted` unless all files are as committed: a table that names a missing file is unreadable."""
    with ThreadPoolExecutor(1 if root.is_local else CHECKS_AT_ONCE) as pool:
        list(pool.map(lambda file: _check_file(root, file, partition_by), files))


def _check_file(root: Files, file: DataFile, partition_by: Sequence[str]) -> None:
    path = f"{root}/{file.path}"
    found = root.stat(file.path)
    if found is None:
        raise PublishHalted(
            f"The file {path} of a committed batch does not exist, so the batch cannot be published; restore it, "
            f"or the table and its state from one backup."
        )
    if found.size_bytes != file.size_bytes:
        raise PublishHalted(
            f"The file {path} of a committed batch has {found.size_bytes} bytes and should have "
            f"{file.size_bytes}, so the batch cannot be published; restore it from a backup."
        )
    if set(file.partition_values) != set(partition_by):
        raise PublishHalted(
            f"The file {path} of a committed batch is partitioned by {_listed(file.partition_values)} and its "
            f"table by {_listed(partition_by)}, so it cannot be published; the table was made anew otherwise."
        )


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(columns) or "nothing"
