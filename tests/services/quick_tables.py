"""The tables of an empty ledger in SQLite, copied instead of migrated.

Running all migrations takes 0.09 s of CPU, which is most of a short test, and thousands of tests open a ledger of their
own. The first empty file or memory of a process is migrated; the others get its tables. Tests of migrations use the
fixture `migrations`, with which every ledger is migrated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from sqlalchemy import Connection

from penstock.ledger import migrate
from penstock.ledger.schema import VERSION_TABLE

_MIGRATE = migrate.upgrade
_HEAD = "head"
_STATEMENTS = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """The statements that create the tables, and the revision that they have."""

    statements: tuple[str, ...]
    revision: str


class QuickTables:
    """A replacement of `migrate.upgrade` that runs the migrations once."""

    def __init__(self) -> None:
        self._tables: _Tables | None = None

    def upgrade(self, connection: Connection, revision: str = _HEAD) -> None:
        if revision != _HEAD or connection.dialect.name != "sqlite" or _names(connection):
            _MIGRATE(connection, revision)
        elif self._tables is None:
            _MIGRATE(connection)
            self._tables = _recorded(connection)
        else:
            for statement in self._tables.statements:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES (?)", (self._tables.revision,))


@contextmanager
def quick_tables() -> Iterator[None]:
    """Copy the tables of ledgers that the block opens in this process."""
    with patch.object(migrate, "upgrade", QuickTables().upgrade):
        yield


@contextmanager
def every_migration() -> Iterator[None]:
    """Run the migrations in each ledger that the block opens in this process."""
    with patch.object(migrate, "upgrade", _MIGRATE):
        yield


def _names(connection: Connection) -> set[str]:
    return set(connection.exec_driver_sql(_NAMES).scalars())


def _recorded(connection: Connection) -> _Tables:
    filled = {name for name in _names(connection) if connection.exec_driver_sql(f"SELECT 1 FROM {name} LIMIT 1").all()}
    assert filled == {VERSION_TABLE}, f"migrations of an empty ledger write rows, which are not copied: {filled}"
    revision = migrate.revision_of(connection)
    assert revision is not None
    return _Tables(statements=tuple(connection.exec_driver_sql(_STATEMENTS).scalars()), revision=revision)
