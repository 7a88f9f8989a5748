"""The switch of an SQLite file to WAL mode, while another process uses the file."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger import Ledger
from penstock.storage.sqlite import enter_wal
from penstock.testing import FakeClock


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0.0, isolation_level=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new.db"


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that is writing to the file, in which nothing is yet."""
    with closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, writer: sqlite3.Connection) -> list[float]:
    """The pauses between tries; in the second one the writer ends its transaction."""
    taken: list[float] = []

    def pause(seconds: float) -> None:
        taken.append(seconds)
        if len(taken) == 2:
            writer.execute("ROLLBACK")

    monkeypatch.setattr("tenacity.nap.time.sleep", pause)
    return taken


def open_ledger(path: Path) -> None:
    Ledger.open(path).close()


def open_queue(path: Path) -> None:
    SqliteBroker(path, holder="w", clock=FakeClock()).close()


def switch(path: Path) -> None:
    with closing(connect(path)) as connection:
        assert enter_wal(connection, wait_seconds=60) == "wal"


@pytest.mark.parametrize("use", [switch, open_ledger, open_queue])
def test_a_new_file_is_opened_while_another_process_writes_to_it(
    path: Path, pauses: list[float], use: Callable[[Path], None]
) -> None:
    use(path)
    assert len(pauses) == 2
    with closing(connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_stays_locked_raises_the_error_of_sqlite(path: Path, writer: sqlite3.Connection) -> None:
    with closing(connect(path)) as connection, pytest.raises(sqlite3.OperationalError, match="locked"):
        enter_wal(connection, wait_seconds=0.05)
    assert writer.in_transaction


def test_other_errors_are_raised_by_the_first_try(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("nothing but notes, and more of them than a header has bytes" * 10)
    monkeypatch.delattr("tenacity.nap.time.sleep")
    with closing(connect(path)) as connection, pytest.raises(sqlite3.DatabaseError, match="not a database"):
        enter_wal(connection, wait_seconds=60)


def test_a_file_in_memory_has_no_wal() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert enter_wal(connection, wait_seconds=1) == "memory"
