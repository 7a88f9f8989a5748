"""SQLite: one file, or memory for tests and simulations.

A writing transaction begins IMMEDIATE: one that reads first and writes later fails, however long it waits, once another
has written. WAL lets readers and the writer work in parallel; synchronous FULL makes commits survive a power cut.
SQLite has no server, so its clock is the host's; `now` replaces it in simulations. `holder_of` finds the process that
holds the write lock of a file in WAL mode, on Linux.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Insert, QueuePool, Table, create_engine, event
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger.dialects import HEARTBEAT_CONNECTIONS, READ_ONLY, DatabaseNow
from penstock.ledger.schema import session_metadata
from penstock.storage.sqlite import TEMPORARY_CODES, enter_wal, primary_code

WRITE_LOCK_BYTE = 120  # in the -shm file: WAL_WRITE_LOCK, see "The WAL-Index File Format" of SQLite
_LOCKS = Path("/proc/locks")


def holder_of(database: str) -> str | None:
    """Describe the process that holds the file's write lock; None if it cannot be found."""
    try:
        inode = Path(f"{database}-shm").stat().st_ino
        lines = _LOCKS.read_text().splitlines()
    except OSError:  # not Linux, or the file is deleted
        return None
    for line in lines:
        words = line.replace("->", "").split()
        if len(words) >= 8 and words[1] == "POSIX" and words[3] == "WRITE" and words[5].endswith(f":{inode}"):
            end = float("inf") if words[7] == "EOF" else int(words[7])
            if int(words[6]) <= WRITE_LOCK_BYTE <= end and int(words[4]) not in (os.getpid(), 0, -1):
                return _described(int(words[4]))
    return None


def _described(pid: int) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/comm").read_text().strip()  # not the command line, which may hold secrets
    except (OSError, IndexError):
        return f"process {pid}"
    stopped = f", which is stopped: continue it with kill -CONT {pid}, or end it" if state in "Tt" else ""
    return f"process {pid} ({command}){stopped}"


BUSY_TIMEOUT_SECONDS = 30.0
CONNECTIONS_MAX = 8  # a worker has about four threads that use its ledger
VERSION_MIN = (3, 33)  # for UPDATE ... FROM

_SESSION_TABLES = [
    str(CreateTable(table).compile(dialect=sqlite_dialect())) for table in session_metadata.sorted_tables
]


@compiles(DatabaseNow, "sqlite")
def _render_now(_element: DatabaseNow, _compiler: Any, **_: Any) -> str:
    return "penstock_now()"


class Sqlite:
    """The dialect of SQLite, the embedded database."""

    def create_engine(self, url: URL, *, now: Callable[[], float] | None) -> Engine:
        if sqlite3.sqlite_version_info < VERSION_MIN:
            wants = ".".join(map(str, VERSION_MIN))
            raise ConfigurationError(
                f"This Python has SQLite {sqlite3.sqlite_version}, the ledger needs {wants}: use a newer Python"
            )
        connections = 1 if is_in_memory(url) else CONNECTIONS_MAX
        return self._engine(url, now=now, connections=connections, busy_seconds=BUSY_TIMEOUT_SECONDS)

    def heartbeat_engine(self, url: URL, *, now: Callable[[], float] | None, response_seconds: float) -> Engine | None:
        if is_in_memory(url):
            return None
        seconds = min(response_seconds, BUSY_TIMEOUT_SECONDS)
        return self._engine(url, now=now, connections=HEARTBEAT_CONNECTIONS, busy_seconds=seconds)

    def _engine(self, url: URL, *, now: Callable[[], float] | None, connections: int, busy_seconds: float) -> Engine:
        in_memory = is_in_memory(url)
        engine = create_engine(
            url,
            # An in-memory database exists only in its single connection, which threads share in turns.
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=busy_seconds,
            connect_args={
                "timeout": busy_seconds,
                "isolation_level": None,  # the driver starts no transactions of its own; `_begin` does
                "check_same_thread": False,
            },
        )
        event.listen(engine, "connect", _prepare(now or time.time, in_memory=in_memory, busy_seconds=busy_seconds))
        event.listen(engine, "begin", _begin)
        return engine

    def insert_or_ignore(self, table: Table) -> Insert:
        return insert(table).on_conflict_do_nothing()

    def explain(self, error: DBAPIError, address: str) -> PenstockError | None:
        code = primary_code(error.orig)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            holder = holder_of(address)
            if holder is not None:
                return TemporaryError(f"the ledger {address} was kept locked, now by {holder}; try again")
            return TemporaryError(f"the ledger {address} was kept locked by another process: try again")
        if code == sqlite3.SQLITE_FULL:
            return TemporaryError(f"the disk that holds the ledger {address} is full: make room and try again")
        if code in TEMPORARY_CODES:
            return TemporaryError(f"the ledger {address} could not be read or written ({error.orig}): try again")
        if code == sqlite3.SQLITE_NOTADB:
            return ConfigurationError(f"{address} is not a ledger: name another file, or move this one away")
        if code == sqlite3.SQLITE_CORRUPT:
            return ConfigurationError(f"The ledger {address} is damaged ({error.orig}): restore it from a backup")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return ConfigurationError(
                f"The ledger {address} cannot be opened for writing ({error.orig}): check its folder and permissions"
            )
        return None

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:  # noqa: ARG002 - the protocol's
        return nullcontext()  # the transaction began IMMEDIATE, so it blocks all others


def is_in_memory(url: URL) -> bool:
    """Return True if an SQLite URL names an in-memory database."""
    return url.database in (None, "", ":memory:")


def _prepare(
    now: Callable[[], float], *, in_memory: bool, busy_seconds: float
) -> Callable[[sqlite3.Connection, object], None]:
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.create_function("penstock_now", 0, now)
        if not in_memory:
            enter_wal(connection, wait_seconds=busy_seconds)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        for statement in _SESSION_TABLES:
            connection.execute(statement)

    return prepare


def _begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
