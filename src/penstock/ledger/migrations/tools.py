"""What every migration is made with, so that one that was interrupted can be run again.

MySQL commits each statement that changes a table by itself: a process that dies in the middle leaves some of them
done and the revision unchanged. So each step looks first whether it is there. PostgreSQL and SQLite take a migration as
one transaction, where looking costs nothing.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from penstock.ledger.dialects.mysql import table_options


def create_table(name: str, *columns: Any, **options: Any) -> None:
    """Create a table unless it is there."""
    op.create_table(name, *columns, **table_options(op.get_bind().dialect), **options, if_not_exists=True)


def create_index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    """Create an index unless it is there."""
    if name not in {index["name"] for index in _inspector().get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column unless it is there. One that may be NULL takes no server any time."""
    if column.name not in _columns(table):
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column if it is there."""
    if name in _columns(table):
        op.drop_column(table, name)


def drop_table(name: str) -> None:
    """Drop a table if it is there."""
    op.drop_table(name, if_exists=True)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in _inspector().get_columns(table)}


def _inspector() -> sa.Inspector:
    return sa.inspect(op.get_bind())
