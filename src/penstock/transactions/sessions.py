"""Handle SQLAlchemy's sessions, connections and engines, sync and async, and convert their errors.

SQLAlchemy's async part needs greenlet, which users of sync sessions may not have. So this module looks it up among
the imported modules and never imports it; the owner of an async session has imported it.

`engine_of` returns the engine of a relay: the user's own, or a new one for an address.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session, scoped_session

from penstock.errors import ConfigurationError, UsageError
from penstock.transactions.tables import INBOX, OUTBOX, outbox

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session


SyncSession: TypeAlias = Session | scoped_session[Any] | Connection
AsyncSessions: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection"

Database: TypeAlias = Engine | str  # accepted by `engine_of`
KNOWN = ("sqlite", "mysql", "mariadb", "postgresql")

_ASYNC = "sqlalchemy.ext.asyncio"
_MISSING_MYSQL = 1146
_MISSING_POSTGRESQL = "42P01"


def is_async(session: object) -> "TypeGuard[AsyncSessions]":
    """Return True if the session's methods have to be awaited."""
    return _is(session, "AsyncSession", "AsyncConnection", "async_scoped_session")


def is_async_engine(database: object) -> "TypeGuard[AsyncEngine]":
    """Return True if the engine's connections have to be awaited."""
    return _is(database, "AsyncEngine")


def dialect_of(session: "SyncSession | AsyncSessions") -> str:
    """Return SQLAlchemy's name of the database."""
    untyped: Any = session
    is_connection = isinstance(session, Connection) or _is(session, "AsyncConnection")
    name: str = (untyped if is_connection else untyped.get_bind(clause=outbox)).dialect.name
    return name


@contextmanager
def explained() -> Iterator[None]:
    """Convert the error of a missing table to `ConfigurationError`; pass all other database errors on to the user."""
    try:
        yield
    except DBAPIError as error:
        table = missing_table(error)
        if table is None:
            raise
        raise ConfigurationError(
            f"The database has no table {table}: create it with penstock.transactions.create_tables(engine), or add "
            "penstock.transactions.metadata to your migrations, as docs/use/transactions.md shows."
        ) from error


def missing_table(error: DBAPIError) -> str | None:
    """Return which of the two tables the database lacks, by its name; None for any other error."""
    original = error.orig
    text = str(original)
    code = original.args[0] if original is not None and original.args else None
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if not (code == _MISSING_MYSQL or state == _MISSING_POSTGRESQL or "no such table" in text):
        return None
    return next((table for table in (OUTBOX, INBOX) if table in text), None)


def sync_session_of(session: object) -> Session | None:
    """Return the session that reports its commits; None for a connection."""
    scoped = isinstance(session, scoped_session) or _is(session, "async_scoped_session")
    found: Any = session() if scoped and callable(session) else session
    if _is(found, "AsyncSession"):
        sync_session: Session = found.sync_session
        return sync_session
    return found if isinstance(found, Session) else None


def call_after_commits(session: object, call: Callable[[Session], None]) -> None:
    """Call ``call`` once after each commit of this session from now on, even if registered again.

    A connection reports no commits.
    """
    found = sync_session_of(session)
    if found is not None and not event.contains(found, "after_commit", call):
        event.listen(found, "after_commit", call)


def engine_of(database: object) -> Engine:
    """Return an unconnected engine. Raises `UsageError` if ``database`` is neither an engine nor its address."""
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


def _is(candidate: object, *kinds: str) -> bool:
    """Return True for an instance of one of these classes of `sqlalchemy.ext.asyncio`."""
    module = sys.modules.get(_ASYNC)
    return module is not None and isinstance(candidate, tuple(getattr(module, kind) for kind in kinds))


def _opened(address: str) -> Engine:
    try:
        return create_engine(address, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise UsageError(f"The address of an outbox's database cannot be read: {error}.") from error
    except (ArgumentError, ValueError) as error:  # not repeated: it may contain a password
        raise UsageError(
            "The address of an outbox's database cannot be read: write one like postgresql+psycopg://USER@HOST/DATABASE."
        ) from error
    except ImportError as error:
        raise ConfigurationError(f"The driver of an outbox's database is missing: {error}; install it.") from error
