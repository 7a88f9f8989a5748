"""Helpers that make migrations repeatable after an interruption.

MySQL commits each statement that changes a table implicitly, so a process that dies midway leaves some changes applied
and the revision unchanged. Each helper therefore checks whether its change is already applied. PostgreSQL and SQLite
run a migration as one transaction, where the check costs nothing.

While PostgreSQL builds an index in a transaction, its table cannot be written. An index on a table that may be big
needs a migration of its own: ``CREATE INDEX CONCURRENTLY`` on a second connection in AUTOCOMMIT (from
``op.get_bind().engine``), after ``DROP INDEX CONCURRENTLY`` of an invalid index that an interrupted build left.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from penstock.ledger.dialects.mysql import table_options


def create_table(name: str, *columns: Any, **options: Any) -> None:
    """Create a table unless it exists."""
    if _is_postgresql():
        for column in columns:
            _compare_by_bytes(column)
        columns = (*columns, *_key_by_object(columns))
    op.create_table(name, *columns, **table_options(op.get_bind().dialect), **options, if_not_exists=True)


def create_index(name: str, table: str, columns: list[str], *, unique: bool = False, **options: Any) -> None:
    """Create an index unless it exists."""
    if name not in {index["name"] for index in _inspector().get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique, **options)


def drop_index(name: str, table: str) -> None:
    """Drop an index if it exists."""
    if name in {index["name"] for index in _inspector().get_indexes(table)}:
        op.drop_index(name, table)


def by_database(columns: list[str], *, postgresql: list[str]) -> list[str]:
    """Return the columns of an index; PostgreSQL may need another order."""
    return postgresql if _is_postgresql() else columns


def make_room(table: str, percent: int) -> None:
    """Keep a percentage of each page free on PostgreSQL, so that an updated row stays in its page.

    Useful only for tables whose usual updates change no indexed column.
    """
    if _is_postgresql():
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {100 - percent})")


def vacuum_early(table: str) -> None:
    """Make PostgreSQL vacuum after 5% of the rows changed: for big tables whose rows change a few times each."""
    if _is_postgresql():
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05)"
        )


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column unless it exists. Adding a nullable column is instant on every server."""
    if _is_postgresql():
        _compare_by_bytes(column)
    if column.name not in _columns(table):
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column if it exists."""
    if name in _columns(table):
        op.drop_column(table, name)


def has_column(table: str, name: str) -> bool:
    """Return True if a table has a column."""
    return name in _columns(table)


def has_rows(table: str) -> bool:
    """Return True if a table exists and has rows. An interrupted migration may have dropped it."""
    if not _inspector().has_table(table):
        return False
    one = sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)
    return op.get_bind().execute(one).first() is not None


def drop_table(name: str) -> None:
    """Drop a table if it exists."""
    op.drop_table(name, if_exists=True)


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _compare_by_bytes(column: object) -> None:
    """Give short text, which indexes hold, byte order on PostgreSQL.

    Language-aware order is slow, and a new version of the server's C library may change it under an index, which then
    no longer finds its rows.
    """
    if isinstance(column, sa.Column) and type(column.type) is sa.String:
        column.type = sa.String(column.type.length, collation="C")


def _key_by_object(columns: Sequence[object]) -> Sequence[sa.PrimaryKeyConstraint]:
    """Return a primary key that begins with the object's id.

    PostgreSQL's planner may ignore a set's ids if an index does not begin with them, and would read the whole pipeline.
    """
    key = [column.name for column in columns if isinstance(column, sa.Column) and column.primary_key]
    if key[:2] != ["pipeline", "object_id"]:
        return ()
    return (sa.PrimaryKeyConstraint("object_id", "pipeline", *key[2:]),)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in _inspector().get_columns(table)}


def _inspector() -> sa.Inspector:
    return sa.inspect(op.get_bind())
