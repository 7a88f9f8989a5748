"""MySQL and MariaDB, by PyMySQL.

In order: errors, inserts of many rows, and the dialect.

- Writes use READ COMMITTED: it takes the fewest locks, and every change names the state that it expects. `reading` is
  one snapshot. `rowcount` counts changed rows: an ignored insert returns 0, and so would a compare-and-set that changes
  no value, which the ledger never uses.
- Text compares by code points, trailing blanks included, whatever the database's default is.
- Errors are classified by the numbers in both servers' documentation.
- Many rows are inserted in statements of a few hundred kilobytes. PyMySQL combines rows only if every value is a
  parameter, and then spends most of its time escaping them one by one. With the driver's executemany or SQLAlchemy's
  insertmanyvalues, a claim of 10,000 objects costs 2.3 times the CPU (benchmarks/ledger_inserts.py; figures in
  docs/why/decisions/ledger-drivers.md). So `literal` writes the values; the fuzz test
  `test_rows_are_read_as_they_were_written` (tests/integration/test_ledger_inserts.py) checks it on real servers.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, Insert, QueuePool, Table, create_engine, event, func, select
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger.dialects import HEARTBEAT_CONNECTIONS, READ_ONLY, Clash, DatabaseNow, changes_tables
from penstock.ledger.schema import session_metadata
from penstock.messaging.addresses import masked

# The server rolled the whole transaction back: deadlock, row changed since the snapshot, or conflict in a cluster.
CLASHES = frozenset({1213, 1020, 3101})
LOCK_WAITS = frozenset({1205})
UNREACHABLE = frozenset(
    {1053, 1080, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2005, 2006, 2013, 2014, 2027, 2055, 4031}
)
READ_ONLY_SERVER = frozenset({1290, 1836})  # the old primary after a failover
TOO_MANY = frozenset({1040, 1135, 1203, 1226})
INTERRUPTED = frozenset({1028, 1317, 1969, 3024, 3169})
FULL = frozenset({1021, 1026, 1114, 3675})
OUT_OF_MEMORY = frozenset({1037, 1041, 1038, 1206})  # or no memory left for locks
DENIED = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1410, 1698, 4151})
NO_SUCH_DATABASE = frozenset({1049})
CLIENT_REFUSED = frozenset({1129, 1130, 1251, 2059, 2061})
OLD_BINLOG = frozenset({1665, 1598})
PACKET_TOO_LARGE = frozenset({1153, 2020})

GRANTS_TO_WORK = "SELECT, INSERT, UPDATE, DELETE and CREATE TEMPORARY TABLES"
GRANTS_TO_UPGRADE = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP and CREATE TEMPORARY TABLES"


def code_of(error: BaseException | None) -> int:
    """Return the error number of a driver's exception; 0 if it has none."""
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0


def explained(error: DBAPIError, address: str) -> PenstockError | None:
    """Translate an error; None for one that only a defect of Penstock can cause."""
    code = code_of(error.orig)
    if code in CLASHES:
        return Clash(f"the ledger {address} rolled back a transaction because of a conflict ({error.orig}): try again")
    return _temporary(error, code, address) or _for_a_person(error, code, address)


def leaves_the_connection_useless(context: ExceptionContext) -> None:
    """Treat a server that shuts down or turned read-only as disconnected, so that its connections leave the pool.

    So does a connection that fails the check before its use, whatever the error is. A SQLAlchemy hook.
    """
    if context.is_pre_ping or code_of(context.original_exception) in READ_ONLY_SERVER | {1053}:
        context.is_disconnect = True


def _temporary(error: DBAPIError, code: int, address: str) -> TemporaryError | None:
    cause = f"({error.orig})"
    if code in LOCK_WAITS:
        return TemporaryError(f"rows of the ledger {address} were kept locked by another process {cause}: try again")
    if code in READ_ONLY_SERVER:
        return TemporaryError(f"the server of the ledger {address} takes no writes now {cause}: try again")
    if code in UNREACHABLE or (code == 0 and isinstance(error, InterfaceError)) or error.connection_invalidated:
        return TemporaryError(f"the ledger {address} cannot be reached, or was lost {cause}: try again")
    if code in TOO_MANY:
        return TemporaryError(f"the server of the ledger {address} takes no more connections {cause}: try again")
    if code in INTERRUPTED:
        return TemporaryError(f"a statement on the ledger {address} was interrupted {cause}: try again")
    if code in FULL:
        return TemporaryError(f"the disk that holds the ledger {address} is full {cause}: make room and try again")
    if code in OUT_OF_MEMORY:
        return TemporaryError(f"the server of the ledger {address} is out of memory {cause}: try again")
    return None


def _for_a_person(error: DBAPIError, code: int, address: str) -> ConfigurationError | None:
    cause = f"({error.orig})"
    if code in DENIED:
        grants = GRANTS_TO_UPGRADE if changes_tables(error.statement) else GRANTS_TO_WORK
        return ConfigurationError(
            f"The server refuses the user of the ledger {address} {cause}: check name and password, and grant {grants} "
            "on that database"
        )
    if code in NO_SUCH_DATABASE:
        return ConfigurationError(f"There is no database for the ledger {address} {cause}: create it, or name another")
    if code in CLIENT_REFUSED:
        return ConfigurationError(f"The server of the ledger {address} does not accept this host or client {cause}")
    if code in OLD_BINLOG:
        return ConfigurationError(
            f"The server of the ledger {address} keeps a binary log of statements {cause}: set binlog_format to ROW"
        )
    if code in PACKET_TOO_LARGE:
        return ConfigurationError(
            f"The server of the ledger {address} takes no statement of that size {cause}: raise max_allowed_packet to "
            "64M"
        )
    return None


STATEMENT_CHARS_MAX = 512 * 1024  # fits even the smallest max_allowed_packet in use, 4 MB

_INSERT = re.compile(r"(INSERT INTO .*? VALUES )(\(.*\))( ON DUPLICATE KEY UPDATE .*)?", re.DOTALL)
_ESCAPES = str.maketrans({"\0": "\\0", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z", '"': '\\"', "'": "\\'"})


def insert_in_chunks(cursor: Any, statement: str, parameters: Sequence[tuple[Any, ...]], _context: object) -> bool:
    """Run an INSERT of many rows; return False for other statements, which the driver runs. A SQLAlchemy hook."""
    parts = _INSERT.fullmatch(statement)
    if parts is None:
        return False
    head, row, tail = parts[1] % (), parts[2], (parts[3] or "") % ()
    columns = [list(map(literal, column)) for column in zip(*parameters, strict=True)]
    changed = 0
    for rows in _bounded(map(row.__mod__, zip(*columns, strict=True))):
        changed += cursor.execute(f"{head}{','.join(rows)}{tail}")
    cursor.rowcount = changed
    return True


def literal(value: object) -> str:
    """Return a value as an SQL literal, for sessions without NO_BACKSLASH_ESCAPES."""
    return _LITERALS[type(value)](value)


def _text(value: str) -> str:
    return f"'{value.translate(_ESCAPES)}'"


def _float(value: float) -> str:
    if value - value != 0.0:
        raise ValueError(f"{value} is not a number that MySQL can store")
    written = repr(value)
    return written if "e" in written else f"{written}e0"  # without an exponent it would be a DECIMAL


_LITERALS: Mapping[type, Callable[[Any], str]] = {
    bytes: lambda value: f"X'{value.hex()}'",
    str: _text,
    int: str,
    bool: lambda value: str(int(value)),
    float: _float,
    type(None): lambda _: "NULL",
}


def _bounded(rows: Iterator[str]) -> Iterator[list[str]]:
    """Yield as many rows as fit one statement, and at least one."""
    part: list[str] = []
    chars = 0
    for row in rows:
        if part and chars + len(row) > STATEMENT_CHARS_MAX:
            yield part
            part, chars = [], 0
        part.append(row)
        chars += len(row) + 1
    if part:
        yield part


CONNECTIONS_MAX = 8  # a worker has about four threads that use its ledger
POOL_TIMEOUT_SECONDS = 30.0
RECYCLE_SECONDS = 1800  # shorter than the idle limit of servers and load balancers
CONNECT_TIMEOUT_SECONDS = 10
RESPONSE_SECONDS_MAX = 60  # longer than any statement except a change of big tables
LOCK_WAIT_SECONDS = 10  # for a row; well below ANSWER_TIMEOUT_SECONDS
MIGRATING_WAIT_SECONDS = 30
PACKET = "penstock_max_allowed_packet"  # key in `connection.info`: max_allowed_packet in bytes
PACKET_MIN = 4 * STATEMENT_CHARS_MAX  # for a statement of many rows; a character has up to four bytes
PACKET_MARGIN = 64 * 1024  # for the rest of a statement with long texts
LONG_TEXT_CHARS = 64 * 1024  # shorter texts fit any packet

# Make the server end the session, and release the locks, of a client that froze or vanished inside a transaction
# without closing its connection. MySQL has a single limit for all idle sessions, so it also closes connections waiting
# in the pool, which the pool detects (pre-ping). MariaDB has a separate limit for transactions; there the general limit
# only releases the lock of a migration, which is held outside a transaction.
IDLE_TRANSACTION_SECONDS = 60
IDLE_SESSION_SECONDS = 600

# NO PAD collations by code point: 'a' and 'a ' differ. The oldest supported servers are the first that have them.
MARIADB_MIN, MYSQL_MIN = (10, 6), (8, 0, 17)
MARIADB_COLLATION, MYSQL_COLLATION = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"

_DRIVERS = ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql")
_SETTINGS = {
    "time_zone": "'+00:00'",
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "innodb_lock_wait_timeout": LOCK_WAIT_SECONDS,
    "lock_wait_timeout": MIGRATING_WAIT_SECONDS,  # for a table that is being altered
}
_MYSQL_LIMITS = {"wait_timeout": IDLE_TRANSACTION_SECONDS}
_MARIADB_LIMITS = {"wait_timeout": IDLE_SESSION_SECONDS, "idle_transaction_timeout": IDLE_TRANSACTION_SECONDS}


@compiles(DatabaseNow, "mysql")
def _render_now(_element: DatabaseNow, _compiler: Any, **_: Any) -> str:
    # Time at the start of the statement. SYSDATE is not constant in a statement, so no index could be used.
    return "(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) + 0e0)"


def table_options(dialect: sqlalchemy.Dialect) -> dict[str, str]:
    """Return the table options for the server of a connected dialect; empty for other databases."""
    if dialect.name not in ("mysql", "mariadb"):
        return {}
    collation = MARIADB_COLLATION if getattr(dialect, "is_mariadb", False) else MYSQL_COLLATION
    # Crash-safe rows, and index entries long enough for our keys.
    options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": collation, "row_format": "DYNAMIC"}
    return {f"{dialect.name}_{option}": value for option, value in options.items()}


def session_settings(*, is_mariadb: bool) -> tuple[str, str]:
    """Return the statements that every new connection runs first."""
    limits = _MARIADB_LIMITS if is_mariadb else _MYSQL_LIMITS
    settings = ", ".join(f"{name} = {value}" for name, value in {**_SETTINGS, **limits}.items())
    return "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", f"SET SESSION {settings}"


def lock_name(database: str) -> str:
    """Return the name of the lock for migrations. Lock names are server-wide and limited in length."""
    return f"penstock-{hashlib.sha256(database.encode()).hexdigest()[:32]}"


class Mysql:
    """The dialect of MySQL and MariaDB, for fleets of workers that share a server."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:  # noqa: ARG002 - it has a clock
        _check(url)
        return self._engine(url, _timeouts(url), connections=CONNECTIONS_MAX, pool_seconds=POOL_TIMEOUT_SECONDS)

    def heartbeat_engine(self, url: URL, *, now: Callable[[], float] | None, response_seconds: float) -> Engine:  # noqa: ARG002 - as above
        timeouts = {
            name: min(float(url.query.get(name, seconds)), response_seconds)  # type: ignore[arg-type] # one value each
            for name, seconds in _ours().items()
        }
        return self._engine(
            url.difference_update_query(timeouts),
            timeouts,
            connections=HEARTBEAT_CONNECTIONS,
            pool_seconds=response_seconds,
        )

    def _engine(self, url: URL, timeouts: Mapping[str, float], *, connections: int, pool_seconds: float) -> Engine:
        engine = create_engine(
            url.set(drivername="mysql+pymysql"),  # SQLAlchemy detects whether the server is MySQL or MariaDB
            paramstyle="format",  # the style that `insert_in_chunks` expects
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=pool_seconds,
            pool_recycle=RECYCLE_SECONDS,
            pool_pre_ping=True,
            connect_args={
                "charset": "utf8mb4",
                "client_flag": 0,  # without FOUND_ROWS, which SQLAlchemy would set
                **timeouts,
            },
        )
        event.listen(engine, "connect", _prepare(engine))
        event.listen(engine, "begin", _begin)
        event.listen(engine, "do_executemany", insert_in_chunks)
        event.listen(engine, "before_cursor_execute", _check_packet)
        event.listen(engine, "handle_error", leaves_the_connection_useless)
        return engine

    def insert_or_ignore(self, table: Table) -> Insert:
        # INSERT IGNORE would also accept NULLs and text that is too long, and change them to fit.
        column = next(iter(table.primary_key.columns))
        return insert(table).on_duplicate_key_update({column.name: column})

    def explain(self, error: DBAPIError, address: str) -> PenstockError | None:
        return explained(error, address)

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
            # The revision is a row, which DDL does not commit: the next process that gets the lock must see it.
            connection.exec_driver_sql("COMMIT")
        finally:
            if not connection.invalidated:  # the server releases a lost connection's locks
                connection.scalar(select(func.release_lock(name)))


def _check(url: URL) -> None:
    if url.drivername not in _DRIVERS:
        raise ConfigurationError(
            f"The ledger speaks to MySQL and MariaDB through PyMySQL, not {url.get_driver_name()}: write mysql:// "
            f"instead of {url.drivername}://"
        )
    if not url.database:
        raise ConfigurationError(
            "The ledger's address names no database: write mysql://user@host/database, and create it there first"
        )
    if find_spec("pymysql") is None:
        raise ConfigurationError(
            "The ledger is in MySQL or MariaDB, and the package pymysql cannot be found here: run pip install "
            "'penstock[mysql]'"
        )


def _timeouts(url: URL) -> dict[str, int]:
    """Return our timeouts that the URL does not set."""
    return {name: seconds for name, seconds in _ours().items() if name not in url.query}


def _ours() -> dict[str, int]:
    return {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "read_timeout": RESPONSE_SECONDS_MAX,
        "write_timeout": RESPONSE_SECONDS_MAX,
    }


def _prepare(engine: Engine) -> Callable[[Any, object], None]:
    """Return a hook that prepares new connections. The engine knows the server's version when it runs."""

    def prepare(connection: Any, record: Any) -> None:
        dialect: Any = engine.dialect
        _refuse_old(dialect)
        connection.autocommit(True)  # no statement here needs a transaction
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            record.info[PACKET] = packet = int(cursor.fetchone()[0])
            if packet < PACKET_MIN:
                raise ConfigurationError(
                    f"The ledger's server takes statements of {packet:,} bytes at most, and the ledger needs "
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
        raise ConfigurationError(f"The ledger's server is {name} {is_}, the ledger needs {needs}: upgrade the server")


def _check_packet(
    connection: Connection, _cursor: object, _statement: str, parameters: Any, _context: object, _many: bool
) -> None:
    """Refuse a statement that exceeds the server's packet limit, and report the size that it needs.

    The server would close the connection instead, which looks like a network error: the batch would be retried forever.
    """
    values = parameters.values() if isinstance(parameters, dict) else parameters
    texts = [value for value in values if isinstance(value, str) and len(value) > LONG_TEXT_CHARS]
    if not texts:
        return
    size, most = sum(len(literal(text).encode()) for text in texts) + PACKET_MARGIN, connection.info[PACKET]
    if size > most:
        raise ConfigurationError(
            f"The ledger has to write a statement of {size:,} bytes (the list of a batch's files, if it has many), and "
            f"its server takes {most:,} at most: set max_allowed_packet there to a value above {size:,}, or write "
            "fewer files a batch (fewer objects, fewer partitions)"
        )


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(READ_ONLY, False):
        # For the next transaction only. READ ONLY is not used: on MariaDB it would forbid writes to temporary tables
        # too.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
