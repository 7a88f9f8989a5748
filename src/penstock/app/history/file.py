"""The file of the history: opened for each use, created with permissions for its owner only, set aside if broken.

A connection lives for one transaction, so several processes may use the file and none keeps it open. A broken file
never ends the process that uses it: see `HistoryBroken` and `HistoryUnusable`.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from penstock.storage.sqlite import primary_code

HISTORY_FILE = "history.db"
ASIDE_MAX = 3  # files set aside, then a person has to look at them
BUSY_SECONDS = 2.0  # for the other writer
_APPLICATION_ID = 0x50_53_48_49  # "PSHI"
_VERSION = 1
_JOURNAL = "-journal"  # SQLite appends it to the name
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_VERSION}",
    """CREATE TABLE series (
        id INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL, name BLOB NOT NULL, seen_at REAL NOT NULL,
        UNIQUE (kind, name)
    )""",
    "CREATE TABLE points (key INTEGER PRIMARY KEY, packed BLOB NOT NULL)",
)
_BROKEN = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH}


class HistoryUnusable(Exception):
    """The file cannot be used now; the message says why."""


class HistoryBroken(Exception):
    """The file is damaged or belongs to another program; the message says which."""


def has_folder(path: Path) -> bool:
    """Return True if the folder for the file exists. Raises `HistoryUnusable`."""
    with _translated(path):
        return path.parent.is_dir()


@contextmanager
def transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection in one transaction, and create the file if it is missing.

    Raises `HistoryBroken` and `HistoryUnusable`.
    """
    with _translated(path):
        _create(path)
        with closing(_connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = PERSIST")  # no file is created and deleted for each slot
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                _check(connection, path)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Yield a connection that reads one state of the file; None if there is no file yet.

    Raises as `transaction` does.
    """
    with _translated(path):
        if not path.is_file():
            yield None
            return
        with closing(_connect(path)) as connection:
            connection.execute("BEGIN")
            yield connection if _version(connection, path) else None


def identity_of(path: Path) -> int | None:
    """Return a number that tells this file from one that takes its name later; None if there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def set_aside(path: Path, identity: int | None) -> Path | None:
    """Rename a broken file; return its new path, or None if another process did that already.

    ``identity`` is that of the file which was found to be broken. Raises `HistoryUnusable` if that is not possible.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HistoryUnusable(f"the history file {path} is broken and cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # so that of several processes only one renames this very file
        if not os.fstat(descriptor).st_ino == path.stat().st_ino == identity:
            return None
        return _renamed(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HistoryUnusable(f"the broken history file {path} cannot be renamed: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _renamed(path: Path) -> Path:
    earlier = [one for one in path.parent.glob(f"{path.name}.aside-*") if not one.name.endswith(_JOURNAL)]
    if len(earlier) >= ASIDE_MAX:
        raise HistoryUnusable(
            f"the history file {path} is broken, and {ASIDE_MAX} broken ones are beside it already: delete "
            f"{path.name}.aside-*"
        )
    aside = path.with_name(f"{path.name}.aside-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    journal = path.with_name(path.name + _JOURNAL)
    if journal.exists():  # renamed first: once the broken file is away, a journal may belong to a new one
        journal.rename(aside.with_name(aside.name + _JOURNAL))
    path.rename(aside)
    return aside


def _create(path: Path) -> None:
    """Create an empty file that only its owner can read: names of queues and their load concern no other user."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file. Raises `HistoryBroken` and `HistoryUnusable`."""
    if _version(connection, path) == 0:
        for statement in _SCHEMA:
            connection.execute(statement)


def _version(connection: sqlite3.Connection, path: Path) -> int:
    application, version, tables = (
        int(connection.execute(query).fetchone()[0])
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT COUNT(*) FROM sqlite_master")
    )
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != _APPLICATION_ID:
        raise HistoryBroken(f"{path} is a database of another program")
    if version > _VERSION:
        raise HistoryUnusable(f"the history file {path} was written by a newer Penstock: upgrade this one")
    return version


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = primary_code(error)
        if code in _BROKEN:
            raise HistoryBroken(f"the history file {path} is damaged: {error}") from error
        raise HistoryUnusable(f"the history file {path} cannot be used: {error}") from error
    except OSError as error:
        raise HistoryUnusable(f"the history file {path} cannot be used: {error.strerror}") from error
