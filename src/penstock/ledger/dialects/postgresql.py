"""PostgreSQL, by psycopg 3.

In order: errors, inserts of many rows, and the dialect.

- Writes use READ COMMITTED: a statement waits for rows that others hold and then sees their new state, and every change
  names the state that it expects. `reading` is one snapshot that may write to temporary tables only.
- Statements are not prepared: a cached plan was made for other sizes of the temporary tables, which no statistics know,
  and could read a whole pipeline to find a few objects. For the same reason joins of the big tables use only indexes.
- The server limits the duration of statements, lock waits and idle transactions; the client limits the server's
  silence.
- Temporary tables and settings belong to a connection, so a pooler must pool sessions, not transactions.
- Errors are classified by code, or by text if connecting failed, which has no code.
- Many rows are inserted in one statement. psycopg's executemany makes the server run the INSERT once per row. With one
  array per column, expanded by `unnest`, the rows take a fraction of the time and keep their order: a claim of 10,000
  objects takes 3.9 times as long with the driver's executemany and 3.3 times with SQLAlchemy's insertmanyvalues
  (benchmarks/ledger_inserts.py). The arrays are binary parameters (%b), never part of the statement: as text, an array
  of ten thousand ids takes a quarter of a second. The fuzz test is `test_rows_are_read_as_they_were_written`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection, Double, Engine, Insert, QueuePool, Table, create_engine, event
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import ExceptionContext, ExecutionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.compiler import SQLCompiler

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger.dialects import HEARTBEAT_CONNECTIONS, READ_ONLY, Clash, DatabaseNow, changes_tables
from penstock.ledger.schema import session_metadata

READ_ONLY_SERVER = "25006"  # a standby, or the old primary after a failover
CLASHES = ("40001", "40P01")  # serialization failure, deadlock
FAILED_BEFORE = "25P02"  # the transaction had already failed

# By code, or by its first two characters, the class.
_TEMPORARY = {
    "55P03": "kept a lock too long in another transaction: try again",
    "57014": "took too long over a statement: try again, and look at what else keeps the server busy",
    "57P01": "is being shut down: try again",
    "57P02": "crashed: try again",
    "57P03": "does not take connections now: try again",
    "57P05": "closed a connection that was idle too long: try again",
    READ_ONLY_SERVER: "takes no changes now, as after a failover: try again; if it stays so, name the primary",
    "25P03": "closed a transaction that was idle too long: try again",
    "25P04": "closed a transaction that took too long: try again",
    "53100": "has a full disk: make room and try again",
    "53300": "has too many connections: try again, and raise max_connections or run fewer workers",
    "53": "is out of resources: try again",
    "08": "lost the connection: try again",
    "58": "could not read or write a file: try again",
}
_WRONG = {
    "28": "refuses the login: put the right user and password into the URL, and see pg_hba.conf",
    "3D000": "has no such database: create it, or name another in the URL",
    "3F000": "has no schema that tables could be made in: give the role one in its search_path",
    "0A000": "cannot do what the ledger needs: use a PostgreSQL that is supported",
    "22P05": "does not keep text in UTF8: create the database with ENCODING 'UTF8'",
}
_NO_RIGHT = "42501"
_RIGHTS_TO_WORK = (
    "refuses a right: the role needs CONNECT and TEMPORARY on the database, USAGE of its schema, and SELECT, INSERT, "
    "UPDATE and DELETE on the ledger's tables"
)
_RIGHTS_TO_UPGRADE = (
    "refuses a right: the role that creates or upgrades the tables needs CREATE in its schema, and to own them"
)
# English messages of libpq and the server when connecting fails.
_WRONG_PATTERNS: Sequence[tuple[str, str]] = (
    (r"password authentication failed|no password supplied|authentication failed|role .* does not exist", _WRONG["28"]),
    (r"no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in", _WRONG["28"]),
    (r"permission denied for database|permission denied to create temporary tables", _RIGHTS_TO_WORK),
    (r"database .* does not exist", _WRONG["3D000"]),
    (
        "invalid connection option|invalid .* value|invalid port|invalid integer value|bad value for",
        "cannot be connected to as the URL says: correct its options",
    ),
    (
        "SSL was required|certificate verify failed|root certificate file|sslmode",
        "cannot be connected to by TLS as the URL says: correct its ssl options",
    ),
)
_MISSING_TABLE, _TABLE_IS_THERE = "42P01", "42P07"
_SESSION_TABLE = re.compile(rf'relation "({"|".join(session_metadata.tables)})"')


def leaves_the_connection_useless(context: ExceptionContext) -> None:
    """Treat a server that turned read-only as disconnected, so that its connections leave the pool.

    So does a connection that fails the check before its use, whatever the error is: one that broke in the middle of an
    exchange may still count as busy, and then psycopg rejects the call. A SQLAlchemy hook.
    """
    if context.is_pre_ping or getattr(context.original_exception, "sqlstate", None) == READ_ONLY_SERVER:
        context.is_disconnect = True


def explained(error: DBAPIError, address: str) -> PenstockError | None:
    """Translate an error; see `penstock.ledger.dialects.Dialect.explain`."""
    code = getattr(error.orig, "sqlstate", None)
    cause = str(error.orig).strip()
    if code is None:
        return _explained_text(error, cause, address)
    if code in CLASHES:
        return Clash(f"the ledger {address} rolled back a transaction because of a conflict ({cause}): try again")
    if code == FAILED_BEFORE and error.statement is None:  # an error without a statement is one of COMMIT
        return Clash(f"the ledger {address} had rolled the transaction back before it was committed: try again")
    if code in (_MISSING_TABLE, _TABLE_IS_THERE) and _SESSION_TABLE.search(cause):
        return ConfigurationError(
            f"The ledger {address} is behind a pooler that changes servers between transactions: let PgBouncer pool "
            "sessions for it (pool_mode = session), or name the server itself"
        )
    if code == _NO_RIGHT:
        right = _RIGHTS_TO_UPGRADE if changes_tables(error.statement) else _RIGHTS_TO_WORK
        return ConfigurationError(f"The ledger {address} {right} ({cause})")
    if (explanation := _TEMPORARY.get(code) or _TEMPORARY.get(code[:2])) is not None:
        return TemporaryError(f"the ledger {address} {explanation} ({cause})")
    if (explanation := _WRONG.get(code) or _WRONG.get(code[:2])) is not None:
        return ConfigurationError(f"The ledger {address} {explanation} ({cause})")
    return None


def _explained_text(error: DBAPIError, cause: str, address: str) -> PenstockError | None:
    """Translate an error without a code: connecting failed, the connection broke, or psycopg rejected the call."""
    kind = type(error.orig).__name__
    if kind in ("DataError", "NotSupportedError", "InterfaceError"):
        return None
    for pattern, explanation in _WRONG_PATTERNS:
        if re.search(pattern, cause):
            return ConfigurationError(f"The ledger {address} {explanation} ({cause})")
    if kind == "ProgrammingError":
        return None
    return TemporaryError(f"the ledger {address} cannot be reached ({cause}): try again")


_INSERT = re.compile(r"(INSERT INTO [^%]*) VALUES \((.*?)\)( ON CONFLICT [^%]*)?", re.DOTALL)
_PARAMETER = re.compile(r"%\((\w+)\)s(?:::(?:DOUBLE PRECISION|\w+))?")


def insert_as_arrays(
    cursor: Any, statement: str, rows: Sequence[Mapping[str, Any]], context: ExecutionContext | None
) -> bool:
    """Run an INSERT of many rows; return False for other statements, which the driver runs. A SQLAlchemy hook."""
    parts = _INSERT.fullmatch(statement)
    compiled = context.compiled if context is not None else None
    if parts is None or not isinstance(compiled, SQLCompiler):
        return False
    types = {name: compiled.binds[name].type for name in rows[0]}
    columns = {name: [row[name] for row in rows] for name in types}
    for name, type_ in types.items():
        if isinstance(type_, Double):  # psycopg accepts no array that mixes integers and floats
            columns[name] = [None if value is None else float(value) for value in columns[name]]
    arrays = ", ".join(f"%({name})b::{type_.compile(dialect=compiled.dialect)}[]" for name, type_ in types.items())
    head, values, tail = parts[1], _PARAMETER.sub(r'given."\1"', parts[2]), parts[3] or ""
    names = ", ".join(f'"{name}"' for name in types)
    cursor.execute(f"{head} SELECT {values} FROM unnest({arrays}) AS given({names}){tail}", columns)
    return True


CONNECTIONS_MAX = 8  # a worker has about four threads that use its ledger
POOL_TIMEOUT_SECONDS = 30.0
RECYCLE_SECONDS = 1800  # shorter than the idle limit of servers and load balancers
MIGRATING_WAIT_SECONDS = 600  # for another process that migrates; big tables take long
VERSION_MIN = 12

_DRIVERS = ("postgresql", "postgres", "postgresql+psycopg")
_CONNECTING = {  # unless the URL sets them
    "connect_timeout": 10,
    "fallback_application_name": "penstock",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_SETTINGS = {  # in milliseconds
    "lock_timeout": 30_000,
    "statement_timeout": 60_000,  # below the client's limit, `SILENCE_SECONDS`
    "idle_in_transaction_session_timeout": 60_000,  # a frozen process must not hold its locks forever
}
_WAITS = frozenset({"lock_timeout", "statement_timeout"})
CONNECT_SECONDS_MIN = 2  # libpq accepts no less
_PLANNER = {  # the planner can only guess the sizes of temporary tables, so joins use an index, row by row
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",  # if there is an index
    "random_page_cost": "1.1",
    "jit": "off",
}
_MIGRATION_LOCK = 0x70656E73746F636B  # key of an advisory lock: "penstock" in ASCII


@compiles(DatabaseNow, "postgresql")
def _render_now(_element: DatabaseNow, _compiler: Any, **_: Any) -> str:
    # Time at the start of the statement. clock_timestamp is not constant in a statement, so no index could be used.
    return "extract(epoch FROM statement_timestamp())::float8"


class Postgresql:
    """The dialect of PostgreSQL, for fleets of workers that share a server."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:  # noqa: ARG002 - it has a clock
        return self._engine(url, connections=CONNECTIONS_MAX, pool_seconds=POOL_TIMEOUT_SECONDS, response_seconds=None)

    def heartbeat_engine(self, url: URL, *, now: Callable[[], float] | None, response_seconds: float) -> Engine:  # noqa: ARG002 - as above
        return self._engine(
            url, connections=HEARTBEAT_CONNECTIONS, pool_seconds=response_seconds, response_seconds=response_seconds
        )

    def _engine(self, url: URL, *, connections: int, pool_seconds: float, response_seconds: float | None) -> Engine:
        if url.drivername not in _DRIVERS:
            raise ConfigurationError(
                f"The ledger speaks to PostgreSQL through psycopg, not {url.drivername}: begin its URL with postgresql://"
            )
        if not url.database and not {"dbname", "service"} & url.query.keys():
            raise ConfigurationError(
                "The ledger's address names no database: write postgresql://user@host/database, and create it "
                "there first"
            )
        try:
            from penstock.ledger.dialects.postgresql_connection import BoundedConnection
        except ImportError as error:
            raise ConfigurationError(
                f"The ledger is in PostgreSQL, and psycopg cannot be used here ({error}): "
                "run pip install 'penstock[postgresql]'"
            ) from error
        secrets = {name: url.query[name] for name in ("password", "sslpassword") if name in url.query}
        engine = create_engine(
            # error messages show the URL, so it holds no secret
            url.set(drivername="postgresql+psycopg").difference_update_query(secrets),
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=pool_seconds,
            pool_recycle=RECYCLE_SECONDS,
            pool_pre_ping=True,
            use_native_hstore=False,
            connect_args={
                **{name: value for name, value in _CONNECTING.items() if name not in url.query},
                "prepare_threshold": None,
                **secrets,
            },
        )

        tables = [str(CreateTable(table).compile(engine)) for table in session_metadata.sorted_tables]

        def connect(_dialect: object, _record: object, arguments: Any, named: Any) -> BoundedConnection:
            if response_seconds is None:
                return BoundedConnection.connect(*arguments, **named)
            connecting_seconds = max(CONNECT_SECONDS_MIN, math.ceil(response_seconds))
            named["connect_timeout"] = min(int(named.get("connect_timeout", connecting_seconds)), connecting_seconds)
            connection = BoundedConnection.connect(*arguments, **named)
            connection.silence_seconds = min(connection.silence_seconds, response_seconds)
            return connection

        event.listen(engine, "do_connect", connect)
        event.listen(engine, "connect", partial(_prepare, tables, _bounded(response_seconds)))
        event.listen(engine, "begin", _begin)
        event.listen(engine, "rollback", _end_reading)
        event.listen(engine, "do_executemany", insert_as_arrays)
        event.listen(engine, "handle_error", leaves_the_connection_useless)
        return engine

    def insert_or_ignore(self, table: Table) -> Insert:
        return insert(table).on_conflict_do_nothing()

    def explain(self, error: DBAPIError, address: str) -> PenstockError | None:
        return explained(error, address)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        """Hold an advisory lock that the server releases with the transaction.

        The migration itself has no time limit. Only its waits for locks are limited, because other transactions queue
        up behind it.
        """
        driver: Any = connection.connection.driver_connection
        driver.silence_seconds = math.inf
        try:
            _set(connection, lock_timeout=MIGRATING_WAIT_SECONDS * 1000, statement_timeout=0)
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            _set(connection, lock_timeout=_SETTINGS["lock_timeout"], idle_in_transaction_session_timeout=0)
            yield
        finally:
            del driver.silence_seconds  # restores the class's limit


def _set(connection: Connection, **settings: int) -> None:
    """Change settings for this transaction."""
    for name, value in settings.items():
        connection.exec_driver_sql(f"SET LOCAL {name} = {value}")


def _bounded(response_seconds: float | None) -> dict[str, int]:
    """Return the settings of a session whose statements take up to ``response_seconds``."""
    if response_seconds is None:
        return _SETTINGS
    most = max(1, int(response_seconds * 1000))
    return {
        name: min(milliseconds, most) if name in _WAITS else milliseconds for name, milliseconds in _SETTINGS.items()
    }


def _prepare(tables: Sequence[str], limits: Mapping[str, int], connection: Any, _: object) -> None:
    """Check the server, then apply a connection's settings and create its temporary tables in one round trip."""
    version, encoding = connection.info.server_version, connection.info.parameter_status("server_encoding")
    if version < VERSION_MIN * 10_000:
        raise ConfigurationError(
            f"The ledger's server is PostgreSQL {version // 10_000}, the ledger needs {VERSION_MIN}: use a newer server"
        )
    if encoding != "UTF8":
        raise ConfigurationError(
            f"The ledger's database keeps text as {encoding}: create one with ENCODING 'UTF8', and name it in the URL"
        )
    settings = [f"SET {name} = '{value}'" for name, value in {**limits, **_PLANNER}.items()]
    connection.execute(";".join([*settings, *tables]))
    connection.commit()


def _begin(connection: Connection) -> None:
    from psycopg import IsolationLevel

    driver: Any = connection.connection.driver_connection
    reads = connection.get_execution_options().get(READ_ONLY, False)
    driver.isolation_level = IsolationLevel.REPEATABLE_READ if reads else IsolationLevel.READ_COMMITTED
    driver.read_only = reads


def _end_reading(connection: Connection) -> None:
    """Commit a read-only transaction: only a commit empties the temporary tables, and a rollback leaves dead rows."""
    from psycopg import Error

    if connection.get_execution_options().get(READ_ONLY, False) and not connection.invalidated:
        driver: Any = connection.connection.driver_connection
        with suppress(Error):  # the results have already been read
            driver.commit()
