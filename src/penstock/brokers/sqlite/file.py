"""The queue file, in reading order:

- the statements and schema steps in sql/
- the schema version, and the upgrade of an older file step by step, each step in one transaction
- `QueueFile`: the connection, transactions and locks
- the translation of SQLite's errors
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.forks import EmbeddedFile
from penstock.storage.sqlite import TEMPORARY_CODES, enter_wal, primary_code

SCHEMA_VERSION = 3
_APPLICATION_ID = 0x50_53_54_4B  # "PSTK", as written by the first step
_WAL_BYTES_MAX = 64 * 1024 * 1024  # size of the log after a checkpoint; it can be larger in between


def statements() -> Mapping[str, str]:
    """Return the statements of sql/queue.sql by name."""
    named: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _text("queue.sql").splitlines():
        if line.startswith("-- name: "):
            lines = named.setdefault(line.removeprefix("-- name: ").strip(), [])
        elif not line.startswith("--"):
            lines.append(line)
    return {name: "\n".join(body).strip() for name, body in named.items()}


def schema_step(version: int) -> Iterator[str]:
    """Yield the statements that upgrade a file from the version before to this one; version 0 is an empty file.

    They run one at a time because `executescript` would commit the open transaction first.
    """
    statement = ""
    for line in _text(f"schema_{version}.sql").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the file's version, 0 if it is empty. Raise ConfigurationError if the file belongs to another program or
    is newer than this one.
    """
    version, application, tables = _at_one_moment(connection)
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != _APPLICATION_ID:
        raise ConfigurationError(f"{path} is a database of another program: name another file for the queues")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the queue file {path} has version {version}, this Penstock knows {SCHEMA_VERSION}: upgrade Penstock, or "
            "name another file"
        )
    return version


def bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of an empty file, or upgrade an older one. Several processes may do so at once.

    Workers that opened the file in its older version keep running, since steps only add columns. The values they do not
    write, such as how an attempt ended, are then unknown.
    """
    while (
        version := version_of(connection, path)
    ) < SCHEMA_VERSION:  # terminates: this or another process completes each step
        _step(connection, path, version)


class QueueFile:
    """One connection to the file, used by one thread at a time.

    SQLite allows one writer, so more connections gain nothing, and threads queue better at a Python lock than at
    SQLite's lock, which they would have to poll. Other processes synchronise through SQLite's lock. No connection is
    open while the process forks; the next use opens a new one.
    """

    def __init__(self, path: Path, *, busy_timeout_seconds: float) -> None:
        self.path = path
        self._busy_timeout_seconds = busy_timeout_seconds
        # Absolute: the process may change its working directory before it reopens the file
        self._path = path.absolute()
        self._lock = threading.Lock()
        self._synchronous = ""  # written under the lock, as is `_connection`
        self._connection: sqlite3.Connection | None = None  # None before the first use and after a fork
        self._closed = False  # written under the lock
        self._use = EmbeddedFile(f"the queue file {path}", path, self._disconnect)
        with self._use, self._translated():
            self.store_id = self._connect()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for single statements that only read."""
        with self._hold_lock(), self._translated():
            yield self._connection_or_raise()

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a write transaction, committed as a whole or rolled back.

        The write lock is taken at the start: SQLite refuses to upgrade a transaction from reading to writing once
        another writer has committed in between.

        ``durable`` waits for the disk (synchronous=FULL). Otherwise (NORMAL) a power loss may undo the last
        transactions, in order and each as a whole. A process crash undoes nothing in either mode.
        """
        with self._hold_lock(), self._translated():
            connection = self._connection_or_raise()
            self._set_synchronous(connection, "FULL" if durable else "NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may have ended it already
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection after any transaction in progress."""
        with self._use, self._lock:
            self._disconnect()
            self._closed = True
        self._use.close()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with self._use:
            if not self._lock.acquire(timeout=self._busy_timeout_seconds):
                raise TemporaryError(
                    f"the queue file {self.path} was busy in this process for {self._busy_timeout_seconds:g} s: try "
                    "again"
                )
            try:
                yield
            finally:
                self._lock.release()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def _connection_or_raise(self) -> sqlite3.Connection:
        if self._closed:
            raise TemporaryError(f"the queue file {self.path} was closed by this process: open it again")
        if self._connection is None and self._connect() != self.store_id:
            self._disconnect()
            raise ConfigurationError(f"the queue file {self.path} was replaced by another one: restart this process")
        assert self._connection is not None
        return self._connection

    def _connect(self) -> str:
        """Open the file and return the id of the store in it."""
        self._synchronous = ""
        self._connection = self._open()
        try:
            self._prepare(self._connection)
            return str(self._connection.execute("SELECT id FROM store").fetchone()[0])
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _set_synchronous(self, connection: sqlite3.Connection, synchronous: str) -> None:
        if self._synchronous != synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous

    def _open(self) -> sqlite3.Connection:
        if not self._path.parent.is_dir():
            raise ConfigurationError(f"the queue file {self.path} has no folder to be in: create {self.path.parent}")
        with self._translated():
            return sqlite3.connect(
                self._path,
                timeout=self._busy_timeout_seconds,
                isolation_level=None,  # transactions are begun and ended only here
                check_same_thread=False,  # the lock ensures one thread at a time
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA fullfsync = ON")  # macOS: a plain fsync leaves data in the drive's cache
        version_of(connection, self.path)  # before any write: the file may belong to another program
        self._use_wal(connection)
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
        connection.execute("PRAGMA secure_delete = OFF")  # overwriting deleted rows would double the writes
        bring_up_to_date(connection, self.path)

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        mode = enter_wal(connection, wait_seconds=self._busy_timeout_seconds)
        if mode != "wal":
            raise ConfigurationError(
                f"the queue file {self.path} is on a file system without shared memory (mode {mode}): put it on a "
                "local disk"
            )


def translate(error: sqlite3.Error, path: Path) -> PenstockError:
    """Return the Penstock error for an SQLite error: temporary, or a file that this process cannot use."""
    code = primary_code(error)
    if code in TEMPORARY_CODES:
        return TemporaryError(f"the queue file {path} cannot be used just now ({error}): try again")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return ConfigurationError(
            f"the queue file {path} is damaged, or not a queue file ({error}): move it away, or restore a copy"
        )
    return ConfigurationError(f"the queue file {path} cannot be used ({error}): check the path and its permissions")


def _text(name: str) -> str:
    return resources.files("penstock.brokers.sqlite").joinpath("sql", name).read_text(encoding="utf-8")


def _at_one_moment(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the file's version, its application id, and its number of tables and indexes, all from one snapshot.

    Read separately, they could contradict each other while another process creates the first tables.
    """
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = int(connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0])
    finally:
        if alone and connection.in_transaction:
            connection.execute("ROLLBACK")
    return version, application, tables


def _step(connection: sqlite3.Connection, path: Path, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version_of(connection, path) == version:  # else another process was faster
            for statement in schema_step(version + 1):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
