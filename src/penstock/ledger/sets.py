"""Hand a set of objects to the database once, instead of naming thousands of keys in every statement.

A statement that needs only the ids says ``object_id IN (SELECT object_id FROM wanted)``, one that needs more joins the
set and says `among` as well: SQLite's planner, knowing no sizes, would read every object of the pipeline to find a few
(measured). Others leave it out, since MySQL cannot name a temporary table twice in one statement.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Connection, Select, Table, bindparam, delete, insert, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

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


class among(ColumnElement[bool]):  # noqa: N801 - reads as an operator
    """True of every row that was joined with the set by this column; tells SQLite to begin with the set."""

    type = Boolean()
    inherit_cache = True
    _traverse_internals = [("hint", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - what SQLAlchemy's caches go by

    def __init__(self, column: ColumnElement[bytes], *, of: Select[Any]) -> None:
        self.hint = column.in_(of)

    def self_group(self, against: object = None) -> "among":  # noqa: ARG002 - SQLAlchemy's signature
        return self  # a condition as it is: nothing to compare with 1


@compiles(among)
def _leave_out(element: among, compiler: SQLCompiler, **_: Any) -> str:
    return "1 = 1"


@compiles(among, "sqlite")
def _spell_out(element: among, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.hint, **options))


def is_wanted() -> ColumnElement[bool]:
    """Of the pipeline bound as ``in_pipeline``, and in ``wanted``."""
    in_set: Select[Any] = select(wanted.c.object_id)
    return (objects.c.pipeline == bindparam("in_pipeline")) & objects.c.object_id.in_(in_set)
