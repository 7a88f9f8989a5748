"""The two tables in the user's database, and the database's clock.

Ids are bytes, so that no collation treats two of them as equal. Text columns are for people only, and on MySQL keep
every character. No key exceeds the index limit of any supported database.

Leases and delays of rows use the database's clock (`ServerNow`), because hosts' clocks differ.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.functions import FunctionElement

OUTBOX = "penstock_outbox"
INBOX = "penstock_inbox"
_CREATION_LOCK = 0x706E73746F626F78  # key of an advisory lock of PostgreSQL: "pnstobox" in ASCII
_INDEX_EXISTS = 1061  # MySQL's error number

_MYSQL = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin", "row_format": "DYNAMIC"}
_OPTIONS: dict[str, Any] = {
    f"{name}_{option}": value for name in ("mysql", "mariadb") for option, value in _MYSQL.items()
}


class _Hexadecimal:
    """Sends bytes to MySQL as hexadecimal text.

    PyMySQL itself does the same, but aiomysql with PyMySQL 1.2.3 and later cannot send bytes at all
    (https://github.com/aio-libs/aiomysql/issues/1080).
    """

    def bind_expression(self, bindvalue: Any) -> Any:
        return func.unhex(bindvalue)

    def bind_processor(self, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        return lambda value: None if value is None else bytes(value).hex()


class _Binary(_Hexadecimal, mysql.BINARY):
    cache_ok = True


class _Longblob(_Hexadecimal, mysql.LONGBLOB):
    cache_ok = True


_DIGEST = LargeBinary(16).with_variant(_Binary(16), "mysql", "mariadb")
_TEXT = Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
_BODY = LargeBinary().with_variant(_Longblob(), "mysql", "mariadb")

metadata = MetaData()

outbox = Table(  # one row per message to be sent; deleted once the broker has accepted it
    OUTBOX,
    metadata,
    # In insertion order. Numbers are never reused, so that no row is mistaken for one already sent.
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("outbox_id", _DIGEST, nullable=False),  # the message's identity, the same for every send
    Column("queue_id", _DIGEST, nullable=False),  # digest of the queue's name
    Column("stream_id", _DIGEST, nullable=False),  # digest of queue and group, within which order is kept
    Column("queue", _TEXT, nullable=False),
    Column("message_group", _TEXT),
    Column("deduplication_id", _TEXT),
    Column("attributes", _TEXT),  # JSON
    Column("body", _BODY, nullable=False),
    Column("body_bytes", Integer, nullable=False),
    Column("delay_seconds", Double, nullable=False),  # from created_at
    Column("created_at", Double, nullable=False),  # times: epoch seconds, the database's clock
    Column("due_at", Double, nullable=False),  # earliest next send, after the broker rejected the row
    Column("claim_id", _DIGEST),  # of the relay that is sending it
    Column("claimed_until", Double, nullable=False),
    Column("tries", Integer, nullable=False),  # number of rejections
    Column("reason", _TEXT),  # the broker's reason for the last rejection
    sqlite_autoincrement=True,
    **_OPTIONS,
)

inbox = Table(  # two rows per message processed by a handler: see `inbox`
    INBOX,
    metadata,
    # A digest of app, queue, handler and message; in the second row, of handler and message.
    Column("inbox_id", _DIGEST, primary_key=True),
    Column("handler", _TEXT, nullable=False),  # for people; in the second row it ends with a digest of app and queue
    Column("message", _TEXT, nullable=False),  # for people
    Column("done_at", Double, nullable=False),
    Index("ix_penstock_inbox_done_at", "done_at"),
    **_OPTIONS,
)


def create_tables(bind: Engine | Connection) -> None:
    """Create the missing tables, for users without migrations.

    It may be called again, and by several processes at once.
    """
    with _transaction(bind) as connection:
        missing = [table for table in metadata.sorted_tables if not _has_table(connection, table)]
    if missing:  # creating needs rights that a worker may lack
        # In SQLite, a transaction that has read cannot write once another one has written: begin a new one.
        with _transaction(bind) as connection:
            _create(connection, missing)


def _has_table(connection: Connection, table: Table) -> bool:
    """Return True if the table exists in the schema that statements on this connection name it in."""
    return inspect(connection).has_table(table.name, schema=connection.schema_for_object(table))


def _create(connection: Connection, tables: Iterable[Table]) -> None:
    """Create the tables that another process has not created in the meantime."""
    if connection.dialect.name == "postgresql":  # its IF NOT EXISTS fails if the other one has not committed
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
    for table in tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            _create_index(connection, index)


def _create_index(connection: Connection, index: Index) -> None:
    is_mysql = connection.dialect.name in ("mysql", "mariadb")
    try:
        connection.execute(CreateIndex(index, if_not_exists=not is_mysql))  # MySQL has none for indexes
    except DBAPIError as error:
        if not is_mysql or error.orig is None or error.orig.args[:1] != (_INDEX_EXISTS,):
            raise


def _transaction(bind: Engine | Connection) -> AbstractContextManager[Connection]:
    if not isinstance(bind, Engine):
        return nullcontext(bind)
    if bind.dialect.name == "postgresql":  # also for an engine with AUTOCOMMIT, where the lock would end at once
        bind = bind.execution_options(isolation_level="READ COMMITTED")
    return bind.begin()


class ServerNow(FunctionElement[float]):
    """Epoch seconds by the database's clock, at execution of the statement."""

    type = Double()
    inherit_cache = True


@compiles(ServerNow, "sqlite")
def _sqlite(_element: ServerNow, _compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"  # the host's clock: SQLite has no server


@compiles(ServerNow, "mysql")
@compiles(ServerNow, "mariadb")
def _mysql(_element: ServerNow, _compiler: Any, **_: Any) -> str:
    # Not UNIX_TIMESTAMP of a local time, which is ambiguous in the hour repeated at the end of daylight saving time.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) / 1e6)"


@compiles(ServerNow, "postgresql")
def _postgresql(_element: ServerNow, _compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
