"""Isolate the differences between databases: connections, clock, insert-or-ignore, and classification of errors.

One file per database; all other SQL of this package is the same for all of them. Row locks (FOR UPDATE) need no code
here: SQLAlchemy omits them for databases that lock as a whole, like SQLite.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, Double, Engine, Insert, Table
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.functions import FunctionElement

from penstock.errors import ConfigurationError, PenstockError, TemporaryError


class DatabaseNow(FunctionElement[float]):
    """Epoch seconds of the database's clock at the start of the statement, not of its transaction.

    A statement that waited for a lock therefore sees an earlier time, so it never expires a lease too soon.
    """

    type = Double()
    inherit_cache = True


class Clash(TemporaryError):
    """The database rolled the transaction back because of a conflict: nothing of it is applied, and it may run again.

    Covers deadlocks and serialization failures, including those reported by COMMIT.
    """


class Dialect(Protocol):
    """Everything this package needs to know about one kind of database."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:
        """Create an engine whose connections honour `READ_ONLY`, know `DatabaseNow` and have the temporary tables."""
        ...

    def heartbeat_engine(self, url: URL, *, now: Callable[[], float] | None, response_seconds: float) -> Engine | None:
        """Return an engine with `HEARTBEAT_CONNECTIONS` connections whose waits are bounded by ``response_seconds``.

        Returns None if the database has only one connection.
        """
        ...

    def insert_or_ignore(self, table: Table) -> Insert:
        """Return an insert that leaves an existing row with the same primary key unchanged."""
        ...

    def explain(self, error: DBAPIError, address: str) -> PenstockError | None:
        """Translate a database error; None for one that only a defect of Penstock can cause.

        Returns a `Clash` only if the database is known to have rolled the transaction back.
        """
        ...

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """Block every other process that would migrate this database, for the duration of the block."""
        ...


HEARTBEAT_CONNECTIONS = 2  # a heartbeat extends the claims of handlers and of pipelines in parallel
READ_ONLY = "penstock_read_only"  # execution option of a transaction that writes nothing durable


def dialect_for(url: URL) -> Dialect:
    """Return the dialect of a URL.

    Raises `ConfigurationError` for an unsupported database and for an invalid port, which a driver may report only as a
    refused connection.
    """
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ConfigurationError(f"The ledger's address has the port {url.port}: write one from 1 to 65535")
    if url.get_backend_name() == "sqlite":
        from penstock.ledger.dialects.sqlite import Sqlite

        return Sqlite()
    if url.get_backend_name() in ("mysql", "mariadb"):
        from penstock.ledger.dialects.mysql import Mysql

        return Mysql()
    if url.get_backend_name() in ("postgresql", "postgres"):
        from penstock.ledger.dialects.postgresql import Postgresql

        return Postgresql()
    raise ConfigurationError(
        f"The ledger cannot use a {url.get_backend_name()} database: give it a sqlite:///, mysql:// or postgresql:// "
        "URL instead"
    )


def changes_tables(statement: str | None) -> bool:
    """Return True for a statement of a migration, which needs more rights than normal operation."""
    words = (statement or "").upper().split(maxsplit=2)
    return words[:1] in (["CREATE"], ["ALTER"], ["DROP"]) and words[1:2] != ["TEMPORARY"]
