"""Bring a ledger's tables up to date, by Alembic.

The newest revision stands here too, so that opening an up-to-date ledger is one SELECT and needs no Alembic.
"""

from typing import TYPE_CHECKING

from sqlalchemy import Connection, String, column, inspect, select, table

from penstock.errors import ConfigurationError
from penstock.ledger.database import Database
from penstock.ledger.schema import VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0004"
SCRIPTS = "penstock.ledger:migrations"

_VERSION = select(column("version_num", String)).select_from(table(VERSION_TABLE))


def migrate(database: Database) -> None:
    """Create the tables or upgrade them; one process does, others wait.

    Raises `ConfigurationError` on a ledger of a newer Penstock, and on a database whose tables are somebody else's.
    """
    with database.reading() as connection:
        if _revision(connection) == HEAD:
            return
    with database.writing() as connection, database.dialect.migrating(connection):
        revision = _revision(connection)
        if revision == HEAD:
            return
        if revision is None:
            _refuse_foreign_tables(connection, database.place)
        elif revision not in _known_revisions():
            raise ConfigurationError(
                f"the ledger {database.place} was written by a newer Penstock (revision {revision}): upgrade Penstock"
            )
        upgrade(connection)


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to a revision in the transaction of this connection."""
    from alembic import command

    command.upgrade(_configuration(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Run the migrations back to a revision; ``base`` removes every table."""
    from alembic import command

    command.downgrade(_configuration(connection), revision)


def _configuration(connection: Connection | None = None) -> "Config":
    from alembic.config import Config

    configuration = Config()  # no file: nothing of the working directory is read
    configuration.set_main_option("script_location", SCRIPTS)
    configuration.attributes["connection"] = connection
    return configuration


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.execute(_VERSION).one_or_none()
    return None if row is None else str(row.version_num)


def _refuse_foreign_tables(connection: Connection, place: str) -> None:
    foreign = metadata.tables.keys() & set(inspect(connection).get_table_names())
    if foreign:
        raise ConfigurationError(
            f"{place} has a table {min(foreign)} that is no ledger's: name another database, or move that table away"
        )


def _known_revisions() -> frozenset[str]:
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_configuration())
    return frozenset(script.revision for script in scripts.walk_revisions())
