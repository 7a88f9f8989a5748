"""SQLite files: the code of an error, and WAL mode, in which readers never wait for the writer."""

import sqlite3

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

TEMPORARY_CODES = frozenset(  # a retry may succeed: space is freed, or another process ends its transaction
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_PROTOCOL,  # other processes kept opening and closing the file
    }
)
PAUSE_SECONDS = 0.01  # fixed instead of backoff: a try is cheap, and the total wait is bounded
_CODE_MASK = 0xFF  # the low byte of an extended result code is the primary code


def primary_code(error: BaseException | None) -> int:
    """Return SQLite's primary result code of an error; SQLITE_ERROR if the error has none."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & _CODE_MASK


def enter_wal(connection: sqlite3.Connection, *, wait_seconds: float) -> str:
    """Switch the file to WAL mode, and return its mode: "wal", or another one if its file system has no shared memory.

    The mode is stored in the file, so only the first connection changes it. The change needs exclusive access, for
    which SQLite does not wait when several processes open a new file at once; hence the retries. Raise
    `sqlite3.OperationalError` if the file is still locked after ``wait_seconds``.
    """
    retrying = Retrying(
        retry=retry_if_exception(lambda error: primary_code(error) == sqlite3.SQLITE_BUSY),
        stop=stop_after_delay(wait_seconds),
        wait=wait_fixed(PAUSE_SECONDS),
        reraise=True,
    )
    mode: str = retrying(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    return mode
