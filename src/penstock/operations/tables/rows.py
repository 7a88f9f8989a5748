"""Show the rows of a table: Penstock's or another writer's, without Spark and without a ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.app.paths import TablePaths, recorded_format, table_paths
from penstock.config import load_settings
from penstock.errors import TableFolderTaken, UsageError
from penstock.pipeline.extra import require_tables
from penstock.sinks.registry import format_in, named_scheme, open_sink, split_address
from penstock.sinks.rows import first_rows
from penstock.sinks.sink import TableSnapshot
from penstock.storage.address import is_s3
from penstock.storage.files import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table. ``type`` is Delta's and Spark's: a name, or a document for nested types."""

    name: str
    type: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRows:
    """The first rows of a table's newest version. ``version`` None: the table does not exist."""

    table: str  # address
    format: str
    version: int | None
    total: int | None  # None: the table's log does not tell
    columns: Sequence[Column]  # the wanted ones
    rows: Sequence[Sequence[Any]]  # values of these columns


def paths_of(address: str, state: str | None) -> TablePaths:
    """Return the paths of a table at an address, of any writer.

    It has the format that the address or its data directory names, else the one whose log is there.
    """
    aws = load_settings().aws if is_s3(split_address(address)[1]) else None
    found = table_paths(address, state, aws=aws)
    if named_scheme(address) is not None:
        return found
    recorded = recorded_format(found)
    if recorded is not None:
        return replace(found, scheme=recorded)
    return replace(found, scheme=format_in(found.table) or found.scheme)


def rows_of(where: TablePaths, *, quarantine: bool, columns: Sequence[str], limit: int) -> ShownRows:
    """Return the first rows of a table, or of its quarantine table. No ``columns``: all of them.

    Raises `UsageError` if there is no table, or if it lacks a column, and `TableError` if it cannot be read.
    """
    root = where.quarantine if quarantine else where.table
    table = _loaded(where, root)
    if table is None:
        if quarantine and _loaded(where, where.table) is not None:  # no line was ever bad
            return ShownRows(table=str(root), format=where.scheme, version=None, total=0, columns=(), rows=())
        raise UsageError(
            f"There is no table at {where.table}: a pipeline creates its table with the first rows that it publishes."
        )
    known = [Column(name=field["name"], type=field["type"]) for field in table.schema_document["fields"]]
    wanted = _wanted(known, columns, table=str(root))
    return ShownRows(
        table=str(root),
        format=where.scheme,
        version=table.version,
        total=table.rows(),
        columns=wanted,
        rows=first_rows(table, columns=[column.name for column in wanted], limit=limit),
    )


def _wanted(known: Sequence[Column], names: Sequence[str], *, table: str) -> Sequence[Column]:
    by_name = {column.name: column for column in known}
    for name in names:
        if name not in by_name:
            raise UsageError(f"The table {table} has no column {name}; its columns: {', '.join(by_name)}.")
    return [by_name[name] for name in names] or known


def _loaded(where: TablePaths, root: Files) -> TableSnapshot | None:
    """Return the newest snapshot; None if there is no table. Raises `TableError` for a table in another format."""
    require_tables(where.scheme, work="Rows are read with libraries of the table's format")
    try:
        return open_sink(root, pipeline=where.pipeline, partition_by=None, scheme=where.scheme).load()
    except TableFolderTaken:  # the folder holds something else
        return None
