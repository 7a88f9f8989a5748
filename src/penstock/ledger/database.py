"""The one place where a transaction begins and ends, and where a database error becomes one of ours."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.errors import TemporaryError
from penstock.ledger.dialects import READ_ONLY, Dialect


class OutcomeUnknown(TemporaryError):
    """COMMIT was sent and its answer did not come: the transaction is there, or it is not. Look before going on."""


def _nothing() -> None:
    pass


class Database:
    """An engine, its dialect and its transactions. Any thread may use it."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self.engine = engine
        self.dialect = dialect
        self.place = _place(engine.url)  # as errors name it
        self._reader = engine.execution_options(**{READ_ONLY: True})

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent look; whatever it writes to session tables is thrown away."""
        with self._explained(), self._reader.connect() as connection:
            connection.begin()  # rolled back when the connection is given back
            yield connection

    @contextmanager
    def writing(self, *, before_commit: Callable[[], None] = _nothing) -> Iterator[Connection]:
        """One transaction: all of it, or nothing on any error.

        Raises `OutcomeUnknown` when COMMIT itself failed, `TemporaryError` and `ConfigurationError` as the dialect
        explains a database error.
        """
        with self._explained(), self.engine.connect() as connection:
            transaction = connection.begin()
            try:
                yield connection
                before_commit()
            except BaseException:
                transaction.rollback()
                raise
            try:
                transaction.commit()
            except DBAPIError as error:
                raise OutcomeUnknown(f"the ledger {self.place} did not confirm a commit ({error.orig})") from error

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            explained = self.dialect.explain(error, self.place)
            if explained is None:
                raise
            raise explained from error
        except PoolTimeout as error:
            raise TemporaryError(f"every connection to the ledger {self.place} is in use: try again") from error


def _place(url: URL) -> str:
    if url.host:
        return url.render_as_string(hide_password=True)
    return url.database or "in memory"
