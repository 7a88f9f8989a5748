"""The one place where a transaction begins and ends, and where a database error becomes one of ours.

A ledger's address as people write it -> a database URL.
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

# A connection that is lost is told by an error of ours. SQLAlchemy logs it too, with a traceback, which without any
# handler Python prints; who configured logging reads it as before.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())

SQLITE = "sqlite"  # as SQLAlchemy names the dialect
CLASHES_MAX = 10  # in a row, before somebody hears of it
CLASH_BASE_SECONDS = 0.01
CLASH_CAP_SECONDS = 1.0

Answer = TypeVar("Answer")


class OutcomeUnknown(TemporaryError):
    """COMMIT was sent and its answer did not come: the transaction is there, or it is not. Look before going on."""


def _nothing() -> None:
    pass


class Database:
    """An engine, its dialect and its transactions. Any thread may use it."""

    def __init__(
        self, engine: Engine, dialect: Dialect, *, hurried_engine: Callable[[float], Engine | None] | None = None
    ) -> None:
        """``hurried_engine`` makes the engine behind `hurried`; None: that is this database."""
        self.engine = engine
        self._hurried_engine = hurried_engine
        self._hurried: dict[float, Database] = {}  # under the lock; by how long they wait for an answer
        self._lock = threading.Lock()
        self.dialect = dialect
        self.place = _place(engine.url)  # as errors name it
        self._reader = engine.execution_options(**{READ_ONLY: True})
        self._use = _use_of(engine, self.place)
        self._until_no_clash = Retrying(
            retry=retry_if_exception_type(Clash),
            stop=stop_after_attempt(CLASHES_MAX),
            wait=wait_random_exponential(multiplier=CLASH_BASE_SECONDS, max=CLASH_CAP_SECONDS),
            reraise=True,
        )
        renew_in_copies(self)

    def begin_in_copy(self) -> None:
        """Leave the connections to the parent process. A file's connections were closed before the fork."""
        self._lock = threading.Lock()
        if self.engine.dialect.name != SQLITE:
            leave_to_parent(self.engine.pool)
            self.engine.dispose(close=False)

    def hurried(self, answer_seconds: float | None) -> "Database":
        """Return this database as a heartbeat needs it: on connections of its own, with each wait bounded by
        ``answer_seconds``. None: this one."""
        if answer_seconds is None or self._hurried_engine is None:
            return self
        with self._lock:
            if answer_seconds not in self._hurried:
                engine = self._hurried_engine(answer_seconds)
                self._hurried[answer_seconds] = self if engine is None else Database(engine, self.dialect)
            return self._hurried[answer_seconds]

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent look; whatever it writes to session tables is thrown away."""
        with self._explained(), self._use, self._reader.connect() as connection:
            connection.begin()  # rolled back when the connection is given back
            yield connection

    def transact(self, work: Callable[[Connection], Answer], *, before_commit: Callable[[], None] = _nothing) -> Answer:
        """Do the work in a transaction, and again from its beginning where the database threw it away for a clash.

        So the work changes nothing but the database. Raises as `writing` does.
        """

        def once() -> Answer:
            with self.writing(before_commit=before_commit) as connection:
                return work(connection)

        return self._until_no_clash.copy()(once)

    @contextmanager
    def writing(self, *, before_commit: Callable[[], None] = _nothing) -> Iterator[Connection]:
        """One transaction: all of it, or nothing on any error.

        Raises `Clash` when it has to be run again, `OutcomeUnknown` when COMMIT itself failed, `TemporaryError` and
        `ConfigurationError` as the dialect explains a database error.
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
                if isinstance(explained := self.dialect.explain(error, self.place), Clash):
                    raise explained from error
                raise OutcomeUnknown(f"the ledger {self.place} did not confirm a commit ({error.orig})") from error

    def close(self) -> None:
        with self._lock:
            hurried = [each for each in self._hurried.values() if each is not self]
        for each in (self, *hurried):
            with each._use:
                each.engine.dispose()
            if isinstance(each._use, EmbeddedFile):
                each._use.close()

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


def _use_of(engine: Engine, place: str) -> AbstractContextManager[None]:
    """Return the context of each transaction. It keeps forks away from files; connections to servers need none."""
    if engine.dialect.name != SQLITE:
        return nullcontext()
    in_memory = is_in_memory(engine.url)
    # Closing the connection of a database in memory would lose it.
    return EmbeddedFile(
        f"the ledger {place}", None if in_memory else Path(place), _nothing if in_memory else engine.dispose
    )


def _place(url: URL) -> str:
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
    """The database URL. Raises `ConfigurationError` for text that is none, without saying it again."""
    if isinstance(url, Path):
        return URL.create("sqlite", database=str(url))
    if url.startswith(_SQLITE_FILE):  # a path is taken as it is, question marks and all
        return URL.create("sqlite", database=url.removeprefix(_SQLITE_FILE))
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # what was written may hold a password, and is not said again
        raise ConfigurationError(
            "the ledger's address is not a database URL: write one like sqlite:///folder/ledger.db"
        ) from None
    if _spills(parsed):  # the end of a password, which every error would name as a part of the host or database
        raise ConfigurationError(
            "the ledger's address cannot be taken apart: percent-encode the password in it (@ is %40, / is %2F)"
        )
    return _with_password(parsed)


def _spills(url: URL) -> bool:
    """Whether an @ is left where none can be: a / or an @ in a password ends it too early."""
    return any("@" in (part or "") for part in (url.host, url.database))


def _with_password(url: URL) -> URL:
    """Drivers take a password among the parameters as well: it goes where it is hidden, and where others find it."""
    names = _PASSWORDS.get(url.get_backend_name(), ())
    given = next((url.query[name] for name in names if name in url.query), None)
    if given is None or url.username is None:  # which SQLAlchemy would not write down
        return url
    return url.set(password=given if isinstance(given, str) else given[-1]).difference_update_query(names)
