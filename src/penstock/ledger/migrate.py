"""Bring a ledger's tables up to date, by Alembic.

The newest revision stands here too, so that opening an up-to-date ledger is one SELECT and needs no Alembic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection, String, column, inspect, select, table
from sqlalchemy.exc import DBAPIError

from penstock.errors import ConfigurationError
from penstock.ledger.database import Database
from penstock.ledger.schema import VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0008"
BASE = "base"  # Alembic's word for no tables at all
SCRIPTS = "penstock.ledger:migrations"

_VERSION = select(column("version_num", String)).select_from(table(VERSION_TABLE))


def migrate(database: Database) -> None:
    """Create the tables or upgrade them; one process does, others wait.

    Raises `ConfigurationError` on a ledger of a newer Penstock, and on a database whose tables are somebody else's.
    """
    with database.reading() as connection:
        if revision_of(connection) == HEAD:
            return
    with revised(), database.writing() as connection, database.dialect.migrating(connection):
        check_tables(connection, database.place)
        if revision_of(connection) != HEAD:
            upgrade(connection)


@contextmanager
def revised() -> Iterator[None]:
    """Say of tables that could not be changed who can change them. Only around the change itself: whoever could not
    look at the tables knows nothing of them."""
    try:
        yield
    except ConfigurationError as error:
        if not isinstance(error.__cause__, DBAPIError):
            raise
        raise ConfigurationError(
            f"{error}; the tables of this ledger are not those of revision {HEAD}, which this Penstock works with: let "
            "`penstock ledger upgrade` be run by a user who may change tables"
        ) from error


def check_tables(connection: Connection, place: str) -> None:
    """Raise `ConfigurationError` for tables that are not ours, or a newer Penstock's."""
    revision = revision_of(connection)
    if revision is None:
        _refuse_foreign_tables(connection, place)
    elif revision != HEAD and revision not in known_revisions():
        raise ConfigurationError(
            f"the ledger {place} was written by a newer Penstock (revision {revision}): upgrade Penstock"
        )


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
    configuration.attributes["revision_before"] = None if connection is None else revision_of(connection)
    return configuration


def revision_of(connection: Connection) -> str | None:
    """What the tables are now; None where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.execute(_VERSION).one_or_none()
    return None if row is None else str(row.version_num)


def _refuse_foreign_tables(connection: Connection, place: str) -> None:
    names = set(inspect(connection).get_table_names())
    foreign = metadata.tables.keys() & names
    if foreign and VERSION_TABLE not in names:  # where that one is, a first migration was broken off after it
        raise ConfigurationError(
            f"{place} has a table {min(foreign)} that is no ledger's: name another database, or move that table away"
        )


def known_revisions() -> frozenset[str]:
    """All that this Penstock knows."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_configuration())
    return frozenset(script.revision for script in scripts.walk_revisions())
