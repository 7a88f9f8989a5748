"""Write the tables of an empty ledger in SQLite to a file, from which `penstock.ledger.migrate` creates new ledgers.

    python -m scripts.ledger_tables

Run it after adding a migration.
"""

from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from sqlalchemy import Connection

from penstock.ledger import Ledger, migrate, migrations
from penstock.ledger.schema import VERSION_TABLE

FILE = Path(migrations.__path__[0]) / migrate.TABLES_FILE
_STATEMENTS = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"


def tables() -> str:
    """Return the statements that create the tables that all migrations create in an empty database."""
    with patch.object(migrate, "create", run_migrations):
        ledger = Ledger.open("sqlite://")
    with closing(ledger), ledger.database.reading() as connection:
        names = list(connection.exec_driver_sql(_NAMES).scalars())
        filled = [name for name in names if connection.exec_driver_sql(f"SELECT 1 FROM {name} LIMIT 1").first()]
        if filled != [VERSION_TABLE]:
            raise SystemExit(f"Migrations of an empty ledger write rows, which would be missing: {filled}")
        return migrate.SEPARATOR.join(connection.exec_driver_sql(_STATEMENTS).scalars())


def run_migrations(connection: Connection) -> None:
    """Create the tables in an empty database by running all migrations, in place of `migrate.create`."""
    migrate.upgrade(connection, migrate.newest_revision())


if __name__ == "__main__":
    FILE.write_text(tables(), encoding="utf-8")
