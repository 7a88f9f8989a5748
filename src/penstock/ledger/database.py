"""Connect to the ledger's database.

`Database` begins and ends every transaction and turns database errors into Penstock's. `parsed_url` turns the ledger's
address, as users write it, into a database URL.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger.dialects import READ_ONLY, Clash, Dialect
from penstock.ledger.dialects.sqlite import is_in_memory
from penstock.messaging.addresses import masked
from penstock.messaging.forks import EmbeddedFile, leave_to_parent, renew_in_copies

# An error of ours already reports a lost connection. SQLAlchemy logs it too, with a traceback, and without a handler
# Python prints that to stderr. Applications that configure logging still receive it.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())

SQLITE = "sqlite"  # SQLAlchemy's name of the dialect
CLASHES_MAX = 10  # consecutive attempts of one transaction before the error is raised
CLASH_BASE_SECONDS = 0.01
CLASH_CAP_SECONDS = 1.0

Result = TypeVar("Result")


class OutcomeUnknown(TemporaryError):
    """COMMIT was sent and no reply arrived: the transaction may or may not be applied. Check before continuing."""


def _nothing() -> None:
    pass


class Database:
    """An engine, its dialect and its transactions. Thread-safe."""

    def __init__(
        self, engine: Engine, dialect: Dialect, *, heartbeat_engine: Callable[[float], Engine | None] | None = None
    ) -> None:
        """Wrap an engine. ``heartbeat_engine`` creates the engine behind `for_heartbeats`.

        Without it, or if it returns None, `for_heartbeats` returns this database.
        """
        self.engine = engine
        self._heartbeat_engine = heartbeat_engine
        self._for_heartbeats: dict[float, Database] = {}  # guarded by the lock; by response_seconds
        self._lock = threading.Lock()
        self.dialect = dialect
        self.address = _address_of(engine.url)  # name in error messages
        self._reader = engine.execution_options(**{READ_ONLY: True})
        self._use = _use_of(engine, self.address)
        self._until_no_clash = Retrying(
            retry=retry_if_exception_type(Clash),
            stop=stop_after_attempt(CLASHES_MAX),
            wait=wait_random_exponential(multiplier=CLASH_BASE_SECONDS, max=CLASH_CAP_SECONDS),
            reraise=True,
        )
        renew_in_copies(self)

    def begin_in_copy(self) -> None:
        """Leave the connections to the parent process after a fork. Those to a file were closed before the fork."""
        self._lock = threading.Lock()
        if self.engine.dialect.name != SQLITE:
            leave_to_parent(self.engine.pool)
            self.engine.dispose(close=False)

    def for_heartbeats(self, response_seconds: float | None) -> "Database":
        """Return this database for heartbeats: separate connections, and each wait bounded by ``response_seconds``.

        Returns this database if ``response_seconds`` is None.
        """
        if response_seconds is None or self._heartbeat_engine is None:
            return self
        with self._lock:
            if response_seconds not in self._for_heartbeats:
                engine = self._heartbeat_engine(response_seconds)
                self._for_heartbeats[response_seconds] = self if engine is None else Database(engine, self.dialect)
            return self._for_heartbeats[response_seconds]

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open one consistent read-only transaction; writes to temporary tables are discarded."""
        with self._explained(), self._use, self._reader.connect() as connection:
            connection.begin()  # rolled back when the connection returns to the pool
            yield connection

    def transact(self, work: Callable[[Connection], Result], *, before_commit: Callable[[], None] = _nothing) -> Result:
        """Run the work in a transaction; run it again from the start if the database aborted it because of a clash.

        The work must therefore have no effects outside the database. Raises the errors of `writing`.
        """

        def once() -> Result:
            with self.writing(before_commit=before_commit) as connection:
                return work(connection)

        return self._until_no_clash.copy()(once)

    @contextmanager
    def writing(self, *, before_commit: Callable[[], None] = _nothing) -> Iterator[Connection]:
        """Open one transaction, which is rolled back on any error.

        Raises `Clash` if it must be run again, `OutcomeUnknown` if COMMIT itself failed, and `TemporaryError` or
        `ConfigurationError` as the dialect classifies a database error.
        """
        with self._explained(), self._use, self.engine.connect() as connection:
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
                if isinstance(explained := self.dialect.explain(error, self.address), Clash):
                    raise explained from error
                raise OutcomeUnknown(f"the ledger {self.address} did not confirm a commit ({error.orig})") from error

    def close(self) -> None:
        with self._lock:
            for_heartbeats = [database for database in self._for_heartbeats.values() if database is not self]
        for database in (self, *for_heartbeats):
            with database._use:
                database.engine.dispose()
            if isinstance(database._use, EmbeddedFile):
                database._use.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            explained = self.dialect.explain(error, self.address)
            if explained is None:
                raise
            raise explained from error
        except PoolTimeout as error:
            raise TemporaryError(f"all connections to the ledger {self.address} are in use: try again") from error


def _use_of(engine: Engine, address: str) -> AbstractContextManager[None]:
    """Return the context of each transaction. It keeps forks away from files; server connections need none."""
    if engine.dialect.name != SQLITE:
        return nullcontext()
    in_memory = is_in_memory(engine.url)
    # Closing the connection of an in-memory database would lose the data.
    return EmbeddedFile(
        f"the ledger {address}", None if in_memory else Path(address), _nothing if in_memory else engine.dispose
    )


def _address_of(url: URL) -> str:
    if url.host:  # parameters may be secrets too
        return masked(url.render_as_string(hide_password=True))
    return url.database or "in memory"


_SQLITE_FILE = "sqlite:///"
_PASSWORDS = {
    "mysql": ("passwd", "password"),
    "mariadb": ("passwd", "password"),
    "postgresql": ("password",),
    "postgres": ("password",),
}


def parsed_url(url: str | Path) -> URL:
    """Parse a database URL. Raises `ConfigurationError` for invalid text, without repeating it."""
    if isinstance(url, Path):
        return URL.create("sqlite", database=str(url))
    if url.startswith(_SQLITE_FILE):  # a path is taken literally, question marks included
        return URL.create("sqlite", database=url.removeprefix(_SQLITE_FILE))
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the text may hold a password, so the error does not repeat it
        raise ConfigurationError(
            "The ledger's address is not a database URL: write one such as sqlite:///folder/ledger.db"
        ) from None
    if _spills(parsed):  # The rest of a password would appear in every error as part of the host or database.
        raise ConfigurationError(
            "The ledger's address cannot be parsed: percent-encode the password in it (@ is %40, / is %2F)"
        )
    return _with_password(parsed)


def _spills(url: URL) -> bool:
    """Return True if the host or database contains an @: a / or @ in the password ended it too early."""
    return any("@" in (part or "") for part in (url.host, url.database))


def _with_password(url: URL) -> URL:
    """Move a password from the parameters, where drivers accept it too, to its own field, which is masked in logs."""
    names = _PASSWORDS.get(url.get_backend_name(), ())
    given = next((url.query[name] for name in names if name in url.query), None)
    if given is None or url.username is None:  # SQLAlchemy drops a password without a user name
        return url
    return url.set(password=given if isinstance(given, str) else given[-1]).difference_update_query(names)
