"""What every migration is made with, so that one that was interrupted can be run again.

MySQL commits each statement that changes a table by itself: a process that dies in the middle leaves some of them
done and the revision unchanged. So each step looks first whether it is there. PostgreSQL and SQLite take a migration as
one transaction, where looking costs nothing.

While PostgreSQL builds an index in a transaction, nobody can write to its table. An index on a table that may be big is
therefore made by a migration of its own, by ``CREATE INDEX CONCURRENTLY`` on a second connection in AUTOCOMMIT (from
``op.get_bind().engine``), after ``DROP INDEX CONCURRENTLY`` of an invalid one that an interrupted build left.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from penstock.ledger.dialects.mysql import table_options


def create_table(name: str, *columns: Any, **options: Any) -> None:
    """Create a table unless it is there."""
    if _is_postgresql():
        for column in columns:
            _compare_by_bytes(column)
        columns = (*columns, *_key_by_object(columns))
    op.create_table(name, *columns, **table_options(op.get_bind().dialect), **options, if_not_exists=True)


def create_index(name: str, table: str, columns: list[str], *, unique: bool = False, **options: Any) -> None:
    """Create an index unless it is there."""
    if name not in {index["name"] for index in _inspector().get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique, **options)


def drop_index(name: str, table: str) -> None:
    """Drop an index if it is there."""
    if name in {index["name"] for index in _inspector().get_indexes(table)}:
        op.drop_index(name, table)


def by_database(columns: list[str], *, postgresql: list[str]) -> list[str]:
    """The columns of an index that one database needs in another order."""
    return postgresql if _is_postgresql() else columns


def leave_room(table: str, percent: int) -> None:
    """Let PostgreSQL keep so much of each page free: a row that is often changed then stays where its indexes say.

    Only for tables whose usual change touches no indexed column; others find no use for the room."""
    if _is_postgresql():
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {100 - percent})")


def vacuum_early(table: str) -> None:
    """Let PostgreSQL clean up a big table whose rows change a few times each once one in twenty has changed."""
    if _is_postgresql():
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05)"
        )


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column unless it is there. One that may be NULL takes no server any time."""
    if _is_postgresql():
        _compare_by_bytes(column)
    if column.name not in _columns(table):
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column if it is there."""
    if name in _columns(table):
        op.drop_column(table, name)


def has_column(table: str, name: str) -> bool:
    """Return True if a table has a column."""
    return name in _columns(table)


def has_rows(table: str) -> bool:
    """Whether there is anything in a table; nothing is where one that was interrupted has dropped it."""
    if not _inspector().has_table(table):
        return False
    one = sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)
    return op.get_bind().execute(one).first() is not None


def drop_table(name: str) -> None:
    """Drop a table if it is there."""
    op.drop_table(name, if_exists=True)


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _compare_by_bytes(column: object) -> None:
    """Short text, which indexes hold, in the order of its bytes: the order of a language is slow, and a new version of
    the server's C library may change it under an index, which then no longer finds its rows."""
    if isinstance(column, sa.Column) and type(column.type) is sa.String:
        column.type = sa.String(column.type.length, collation="C")


def _key_by_object(columns: Sequence[object]) -> Sequence[sa.PrimaryKeyConstraint]:
    """The object's id first: PostgreSQL's planner may leave a set's ids out where they are not what an index begins
    with, and would then read the whole pipeline."""
    key = [column.name for column in columns if isinstance(column, sa.Column) and column.primary_key]
    if key[:2] != ["pipeline", "object_id"]:
        return ()
    return (sa.PrimaryKeyConstraint("object_id", "pipeline", *key[2:]),)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in _inspector().get_columns(table)}


def _inspector() -> sa.Inspector:
    return sa.inspect(op.get_bind())
