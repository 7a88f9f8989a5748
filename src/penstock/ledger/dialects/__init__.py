"""Where databases differ: opening them, their clock, insert-or-ignore, and what their errors mean.

One file a database. Everything else in this room is the same SQL for all of them. A row lock (FOR UPDATE) needs no
place here: SQLAlchemy leaves it out where a database, like SQLite, locks as a whole.
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
    """Epoch seconds by the database's clock as the statement begins: never as its transaction did, maybe long ago.

    One that waited for a lock thus tells an earlier time, which takes no lease away from anybody.
    """

    type = Double()
    inherit_cache = True


class Clash(TemporaryError):
    """The database threw the transaction away, because another stood in its way: nothing of it is there, and running it
    again is right. Deadlocks and serialization failures, also where COMMIT answers with one."""


class Dialect(Protocol):
    """What this room needs to know of one kind of database."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:
        """Connections that begin as `READ_ONLY` says, know `DatabaseNow` and have the tables of a session."""
        ...

    def hurried_engine(self, url: URL, *, now: Callable[[], float] | None, answer_seconds: float) -> Engine | None:
        """Return an engine with `HURRIED_CONNECTIONS` connections, each wait of which is bounded by ``answer_seconds``;
        None if the database has no more than one connection."""
        ...

    def insert_or_ignore(self, table: Table) -> Insert:
        """An insert that leaves an existing row of the same primary key alone."""
        ...

    def explain(self, error: DBAPIError, place: str) -> PenstockError | None:
        """What a database error means to us; None for one that only a defect of ours can cause. A `Clash` is said only
        of a transaction that the database is known to have rolled back."""
        ...

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """Hold off every other process that would migrate this database, for as long as the block lasts."""
        ...


HURRIED_CONNECTIONS = 2  # a heartbeat extends the claims of handlers and those of pipelines at the same time
READ_ONLY = "penstock_read_only"  # the execution option of a transaction that writes nothing durable


def dialect_for(url: URL) -> Dialect:
    """The dialect of a URL. Raises `ConfigurationError` for a database that the ledger does not know, and for a port
    that is none, of which a driver might only say that nobody answers there."""
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ConfigurationError(f"the ledger's address has the port {url.port}: write one from 1 to 65535")
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
        f"the ledger cannot use a {url.get_backend_name()} database: give it a sqlite:///, mysql:// or postgresql:// "
        "URL instead"
    )


def changes_tables(statement: str | None) -> bool:
    """Whether a statement is one of a migration, for which other rights are needed than for work."""
    words = (statement or "").upper().split(maxsplit=2)
    return words[:1] in (["CREATE"], ["ALTER"], ["DROP"]) and words[1:2] != ["TEMPORARY"]
