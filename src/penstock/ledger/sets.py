"""Hand a set of objects to the database once, instead of naming thousands of keys in every statement.

Statements then say ``object_id IN (SELECT object_id FROM wanted)``. A plain join would leave the order to the planner,
and SQLite's, knowing no sizes, reads every object of the pipeline to find a few (measured).
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, delete, insert, select

from penstock.ledger.schema import leaving, objects, wanted

_EMPTY = {table: delete(table) for table in (wanted, leaving)}
_FILL = {table: insert(table) for table in (wanted, leaving)}


def fill(connection: Connection, table: Table, rows: Collection[dict[str, Any]]) -> None:
    """Make these rows the table's only ones. Every row names the same columns."""
    connection.execute(_EMPTY[table])
    if rows:
        connection.execute(_FILL[table], list(rows))


def ids_wanted(connection: Connection, object_ids: Collection[bytes]) -> None:
    """Make these ids the wanted ones."""
    fill(connection, wanted, [{"object_id": object_id} for object_id in set(object_ids)])


def is_wanted() -> ColumnElement[bool]:
    """Of the pipeline bound as ``in_pipeline``, and in ``wanted``."""
    in_set: Select[Any] = select(wanted.c.object_id)
    return (objects.c.pipeline == bindparam("in_pipeline")) & objects.c.object_id.in_(in_set)
