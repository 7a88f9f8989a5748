"""MySQL and MariaDB, by PyMySQL.

What writes reads what is committed (READ COMMITTED: fewest locks, and every change names what it expects to find);
`reading` is one snapshot. `rowcount` counts rows that changed: an insert that was ignored says 0, and so would a
compare-and-set that changes nothing, of which the ledger has none.

Text compares by its code points, trailing blanks included, whatever the database's own default is.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, Insert, QueuePool, Table, create_engine, event, func, select
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger.dialects import HURRIED_CONNECTIONS, READ_ONLY, DatabaseNow
from penstock.ledger.dialects.mysql_errors import explained, leaves_the_connection_useless
from penstock.ledger.dialects.mysql_rows import STATEMENT_CHARS_MAX, insert_in_parts, literal
from penstock.ledger.schema import session_metadata
from penstock.messaging.addresses import masked

CONNECTIONS_MAX = 8  # a worker has about four threads that speak to its ledger
POOL_TIMEOUT_SECONDS = 30.0
RECYCLE_SECONDS = 1800  # before a server's or a balancer's idle limit can come into it
CONNECT_TIMEOUT_SECONDS = 10
ANSWER_TIMEOUT_SECONDS = 60  # no statement of ours takes longer, but for a change of big tables
LOCK_WAIT_SECONDS = 10  # for a row; well below the time that an answer may take
MIGRATING_WAIT_SECONDS = 30
PACKET = "penstock_max_allowed_packet"  # of a connection: bytes
PACKET_MIN = 4 * STATEMENT_CHARS_MAX  # for a statement of many rows: a character has four bytes at most
PACKET_MARGIN = 64 * 1024  # for the rest of a statement, beside its long texts
LONG_TEXT_CHARS = 64 * 1024  # shorter ones fit any packet

# The server ends the session of a client that was frozen, or vanished without closing its connection, inside a
# transaction, and with the session its locks. MySQL has one limit for all idle sessions: connections that wait in the
# pool end by it as well, and the pool notices (pre-ping). MariaDB has a limit of its own for transactions; there the
# other limit only serves the lock of a migration, which is held outside a transaction.
IDLE_TRANSACTION_SECONDS = 60
IDLE_SESSION_SECONDS = 600

# NO PAD collations by code point: 'a' and 'a ' stay two. Their oldest servers are the oldest that will do.
MARIADB_MIN, MYSQL_MIN = (10, 6), (8, 0, 17)
MARIADB_COLLATION, MYSQL_COLLATION = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"

_DRIVERS = ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql")
_SETTINGS = {
    "time_zone": "'+00:00'",
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "innodb_lock_wait_timeout": LOCK_WAIT_SECONDS,
    "lock_wait_timeout": MIGRATING_WAIT_SECONDS,  # for a table that is being changed
}
_MYSQL_LIMITS = {"wait_timeout": IDLE_TRANSACTION_SECONDS}
_MARIADB_LIMITS = {"wait_timeout": IDLE_SESSION_SECONDS, "idle_transaction_timeout": IDLE_TRANSACTION_SECONDS}


@compiles(DatabaseNow, "mysql")
def _render_now(_element: DatabaseNow, _compiler: Any, **_: Any) -> str:
    # As the statement began. SYSDATE is this moment itself, and keeps every index from being used.
    return "(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) + 0e0)"


def table_options(dialect: sqlalchemy.Dialect) -> dict[str, str]:
    """How tables are made on the server that a connected dialect speaks to; for another database nothing."""
    if dialect.name not in ("mysql", "mariadb"):
        return {}
    collation = MARIADB_COLLATION if getattr(dialect, "is_mariadb", False) else MYSQL_COLLATION
    # Rows that no crash can tear, and keys as long as ours.
    options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": collation, "row_format": "DYNAMIC"}
    return {f"{dialect.name}_{option}": value for option, value in options.items()}


def session_settings(*, is_mariadb: bool) -> tuple[str, str]:
    """Return the statements that every new connection begins with."""
    limits = _MARIADB_LIMITS if is_mariadb else _MYSQL_LIMITS
    settings = ", ".join(f"{name} = {value}" for name, value in {**_SETTINGS, **limits}.items())
    return "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", f"SET SESSION {settings}"


def lock_name(database: str) -> str:
    """Who holds this lock may change the ledger's tables. Such names are the whole server's, and short."""
    return f"penstock-{hashlib.sha256(database.encode()).hexdigest()[:32]}"


class Mysql:
    """A server that a fleet shares."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:  # noqa: ARG002 - it has a clock
        _check(url)
        return self._engine(url, _timeouts(url), connections=CONNECTIONS_MAX, pool_seconds=POOL_TIMEOUT_SECONDS)

    def hurried_engine(self, url: URL, *, now: Callable[[], float] | None, answer_seconds: float) -> Engine:  # noqa: ARG002 - as above
        timeouts = {
            name: min(float(url.query.get(name, seconds)), answer_seconds)  # type: ignore[arg-type] # one value each
            for name, seconds in _ours().items()
        }
        return self._engine(
            url.difference_update_query(timeouts),
            timeouts,
            connections=HURRIED_CONNECTIONS,
            pool_seconds=answer_seconds,
        )

    def _engine(self, url: URL, timeouts: Mapping[str, float], *, connections: int, pool_seconds: float) -> Engine:
        engine = create_engine(
            url.set(drivername="mysql+pymysql"),  # finds out by itself which of the two servers answers
            paramstyle="format",  # as `insert_in_parts` knows them
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=pool_seconds,
            pool_recycle=RECYCLE_SECONDS,
            pool_pre_ping=True,
            connect_args={
                "charset": "utf8mb4",
                "client_flag": 0,  # not FOUND_ROWS, which SQLAlchemy would set
                **timeouts,
            },
        )
        event.listen(engine, "connect", _prepare(engine))
        event.listen(engine, "begin", _begin)
        event.listen(engine, "do_executemany", insert_in_parts)
        event.listen(engine, "before_cursor_execute", _check_packet)
        event.listen(engine, "handle_error", leaves_the_connection_useless)
        return engine

    def insert_or_ignore(self, table: Table) -> Insert:
        # INSERT IGNORE would ignore text that is too long and NULLs too, and cut them to what fits.
        column = next(iter(table.primary_key.columns))
        return insert(table).on_duplicate_key_update({column.name: column})

    def explain(self, error: DBAPIError, place: str) -> PenstockError | None:
        return explained(error, place)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        name = lock_name(str(connection.engine.url.database))
        held = connection.scalar(select(func.get_lock(name, MIGRATING_WAIT_SECONDS)))
        if held != 1:
            raise TemporaryError(
                f"the ledger {masked(connection.engine.url.render_as_string(hide_password=True))} is being upgraded by "
                f"another process for more than {MIGRATING_WAIT_SECONDS} s: wait for it and try again"
            )
        try:
            yield
            # The revision is a row, which changes of tables do not commit: whoever waits for the lock has to see it.
            connection.exec_driver_sql("COMMIT")
        finally:
            if not connection.invalidated:  # the server lets go of a lost connection's locks
                connection.scalar(select(func.release_lock(name)))


def _check(url: URL) -> None:
    if url.drivername not in _DRIVERS:
        raise ConfigurationError(
            f"the ledger speaks to MySQL and MariaDB through PyMySQL, not {url.get_driver_name()}: write mysql:// "
            f"instead of {url.drivername}://"
        )
    if not url.database:
        raise ConfigurationError(
            "the ledger's address names no database: write mysql://user@host/database, and create it there first"
        )
    if find_spec("pymysql") is None:
        raise ConfigurationError(
            "the ledger is in MySQL or MariaDB, and the package pymysql cannot be found here: run pip install "
            "'penstock[mysql]'"
        )


def _timeouts(url: URL) -> dict[str, int]:
    """Ours, where the URL has none of its own."""
    return {name: seconds for name, seconds in _ours().items() if name not in url.query}


def _ours() -> dict[str, int]:
    return {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "read_timeout": ANSWER_TIMEOUT_SECONDS,
        "write_timeout": ANSWER_TIMEOUT_SECONDS,
    }


def _prepare(engine: Engine) -> Callable[[Any, object], None]:
    """Make a new connection ours. The engine knows its server by then."""

    def prepare(connection: Any, record: Any) -> None:
        dialect: Any = engine.dialect
        _refuse_old(dialect)
        connection.autocommit(True)  # nothing here is part of a transaction
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            record.info[PACKET] = packet = int(cursor.fetchone()[0])
            if packet < PACKET_MIN:
                raise ConfigurationError(
                    f"the ledger's server takes statements of {packet:,} bytes at most, and the ledger needs "
                    f"{PACKET_MIN:,}: set max_allowed_packet to 64M there"
                )
            for statement in (*session_settings(is_mariadb=dialect.is_mariadb), *_session_tables(dialect)):
                cursor.execute(statement)
        connection.autocommit(False)

    return prepare


def _session_tables(dialect: sqlalchemy.Dialect) -> list[str]:
    options = " ".join(f"{name.partition('_')[2].upper()}={value}" for name, value in table_options(dialect).items())
    return [f"{CreateTable(table).compile(dialect=dialect)} {options}" for table in session_metadata.sorted_tables]


def _refuse_old(dialect: Any) -> None:
    name, wants = ("MariaDB", MARIADB_MIN) if dialect.is_mariadb else ("MySQL", MYSQL_MIN)
    if dialect.server_version_info < wants:
        is_, needs = (".".join(map(str, version)) for version in (dialect.server_version_info, wants))
        raise ConfigurationError(f"the ledger's server is {name} {is_}, the ledger needs {needs}: upgrade the server")


def _check_packet(
    connection: Connection, _cursor: object, _statement: str, parameters: Any, _context: object, _many: bool
) -> None:
    """Refuse a statement that the server would not take, with the size that it needs.

    The server answers such a statement by closing the connection, which looks like a network that failed: the batch
    would be run again and again.
    """
    values = parameters.values() if isinstance(parameters, dict) else parameters
    texts = [one for one in values if isinstance(one, str) and len(one) > LONG_TEXT_CHARS]
    if not texts:
        return
    size, most = sum(len(literal(one).encode()) for one in texts) + PACKET_MARGIN, connection.info[PACKET]
    if size > most:
        raise ConfigurationError(
            f"the ledger has to write a statement of {size:,} bytes (the list of a batch's files, if it has many), and "
            f"its server takes {most:,} at most: set max_allowed_packet there to a value above {size:,}, or write "
            "fewer files a batch (fewer objects, fewer partitions)"
        )


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(READ_ONLY, False):
        # Of the transaction that the next statement begins. MariaDB's READ ONLY takes the session's tables as well.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
