"""Where databases differ: opening them, their clock, insert-or-ignore, and what their errors mean.

One file a database. Everything else in this room is the same SQL for all of them. A row lock (FOR UPDATE) needs no
place here: SQLAlchemy leaves it out where a database, like SQLite, locks as a whole.
"""

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Double, Engine, Insert, Table
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.functions import FunctionElement

from penstock.errors import ConfigurationError, PenstockError


class DatabaseNow(FunctionElement[float]):
    """Epoch seconds by the database's clock at this moment: not at the start of the statement or the transaction."""

    type = Double()
    inherit_cache = True


class Dialect(Protocol):
    """What this room needs to know of one kind of database."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:
        """Connections that begin as `READ_ONLY` says, know `DatabaseNow` and have the tables of a session."""
        ...

    def insert_or_ignore(self, table: Table) -> Insert:
        """An insert that leaves an existing row of the same primary key alone."""
        ...

    def explain(self, error: DBAPIError, place: str) -> PenstockError | None:
        """What a database error means to us; None for one that only a defect of ours can cause."""
        ...


READ_ONLY = "penstock_read_only"  # the execution option of a transaction that writes nothing durable


def dialect_for(url: URL) -> Dialect:
    """The dialect of a URL. Raises `ConfigurationError` for a database that the ledger does not know."""
    if url.get_backend_name() == "sqlite":
        from penstock.ledger.dialects.sqlite import Sqlite

        return Sqlite()
    raise ConfigurationError(
        f"the ledger cannot use a {url.get_backend_name()} database: give it a sqlite:/// URL instead"
    )
