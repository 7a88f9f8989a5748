"""The database of a relay: the user's engine, or one of our own at an address."""

from typing import TypeAlias

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from penstock.errors import ConfigurationError, UsageError
from penstock.transactions.sessions import is_async_engine

Database: TypeAlias = Engine | str  # what `engine_of` takes
KNOWN = ("sqlite", "mysql", "mariadb", "postgresql")


def engine_of(database: object) -> Engine:
    """Nothing is connected yet. Raises `UsageError` for what is no engine and no address of one."""
    if is_async_engine(database):
        raise UsageError(
            "A relay is a thread and needs a plain engine: give app.relay one with a driver that is not async "
            "(psycopg is both), or its address as text."
        )
    if isinstance(database, str):
        database = _opened(database)
    if not isinstance(database, Engine):
        raise UsageError(f"A relay needs an Engine of SQLAlchemy, or its address as text; {database!r} is neither.")
    if database.dialect.name not in KNOWN:
        raise UsageError(f"An outbox can be in SQLite, MySQL, MariaDB and PostgreSQL, not in {database.dialect.name}.")
    if database.dialect.is_async:
        raise UsageError("A relay is a thread and needs a driver that is not async; give it another address.")
    return database


def _opened(address: str) -> Engine:
    try:
        return create_engine(address, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise UsageError(f"The address of an outbox's database cannot be read: {error}.") from error
    except (ArgumentError, ValueError) as error:  # what was written may hold a password, and is not said again
        raise UsageError(
            "The address of an outbox's database cannot be read: write one like postgresql+psycopg://USER@HOST/DATABASE."
        ) from error
    except ImportError as error:
        raise ConfigurationError(f"The driver of an outbox's database is missing: {error}; install it.") from error
