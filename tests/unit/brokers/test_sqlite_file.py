"""Errors of an unusable queue file, and its behaviour under contention and on a full disk."""

import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqlite.file import SCHEMA_VERSION, statements
from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import QueueSettings
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack
from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0


def open_broker(path: Path, **fields: float) -> SqliteBroker:
    return SqliteBroker(path, holder="w", clock=FakeClock(), **fields)  # type: ignore[arg-type]  # numbers only


def rejection(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        open_broker(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sent_message_survives_reopening_the_file(tmp_path: Path) -> None:
    first = open_broker(tmp_path / "queue.db")
    (id,) = first.send("q", [Outgoing(body=b"a")])
    first.close()
    second = open_broker(tmp_path / "queue.db")
    (delivery,) = second.receive("q", messages_max=1, lease_seconds=1)
    assert delivery.message.id == id
    second.close()


def test_two_files_never_share_an_id_or_a_receipt(tmp_path: Path) -> None:
    one, other = open_broker(tmp_path / "1.db"), open_broker(tmp_path / "2.db")
    (id,) = one.send("q", [Outgoing(body=b"a")])
    assert other.send("q", [Outgoing(body=b"a")]) != [id]
    (ours,) = one.receive("q", messages_max=1, lease_seconds=1)
    (theirs,) = other.receive("q", messages_max=1, lease_seconds=1)
    (failure,) = one.settle([(theirs, Ack())])
    assert failure.lost
    assert not one.settle([(ours, Ack())])
    one.close()
    other.close()


def test_emptiness_costs_the_same_however_many_messages_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def count_step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connect = sqlite3.connect

    def connect_counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_progress_handler(count_step, 1)  # called for each instruction of SQLite's virtual machine
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_counted)
    broker = open_broker(tmp_path / "queue.db")
    costs = []
    for count in (10, 5_000):
        broker.send("q", [Outgoing(body=b"a")] * count)
        steps = 0
        assert not broker.is_empty("q")
        costs.append(steps)
    assert costs[0] == costs[1] > 0
    broker.close()


def test_new_settings_replace_the_stored_ones(tmp_path: Path) -> None:
    for dead_letter_queue in ("first", "second"):
        settings = QueueSettings(name="q", dead_letter_queue=dead_letter_queue, receives_max=1)
        broker = SqliteBroker(tmp_path / "queue.db", holder="w", clock=FakeClock(), queues=[settings])
        broker.send("q", [Outgoing(body=b"a")])
        assert len(broker.receive("q", messages_max=1, lease_seconds=0)) == 1
        assert not broker.receive("q", messages_max=1, lease_seconds=0)
        assert broker.stats(dead_letter_queue).visible == 1
        broker.close()


@pytest.mark.parametrize("bytes_", [b"hello, I am a text file\n" * 100, b"\x00" * 5_000], ids=["text", "zeros"])
def test_a_file_that_is_not_a_database_is_rejected_unchanged(tmp_path: Path, bytes_: bytes) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(bytes_)
    assert "not a queue file" in rejection(path)
    assert path.read_bytes() == bytes_


def test_a_database_of_another_program_is_rejected_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE objects (id INTEGER)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "another program" in rejection(path)
    assert path.read_bytes() == before


def test_a_file_with_a_newer_schema_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_broker(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert "upgrade Penstock" in rejection(path)


def test_a_file_damaged_after_its_first_page_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = open_broker(path)
    broker.send("q", [Outgoing(body=b"x" * 1_000) for _ in range(200)])
    broker.close()
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xa5" * (len(damaged) - 4096)  # page 1 stays intact
    path.write_bytes(damaged)
    assert "damaged" in rejection(path)


def test_the_error_for_a_missing_folder_asks_to_create_it(tmp_path: Path) -> None:
    assert "create" in rejection(tmp_path / "nowhere" / "queue.db")


def test_a_folder_as_queue_file_is_rejected(tmp_path: Path) -> None:
    assert "cannot be used" in rejection(tmp_path)


def test_a_send_to_a_file_that_stays_locked_raises_a_temporary_error(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = open_broker(path, busy_timeout_seconds=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TemporaryError, match="try again"):
        broker.send("q", [Outgoing(body=b"a")])
    assert broker.stats("q").visible == 0  # readers do not wait
    assert not broker.receive("q", messages_max=1, lease_seconds=1)  # nor does a receive from an empty queue
    other.execute("ROLLBACK")
    broker.send("q", [Outgoing(body=b"a")])
    assert broker.stats("q").visible == 1
    other.close()
    broker.close()


def test_receiving_from_a_paused_queue_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = open_broker(path, busy_timeout_seconds=0.05)
    broker.send("q", [Outgoing(body=b"a")])
    broker.pause("q")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not broker.receive("q", messages_max=1, lease_seconds=1)
    other.close()
    broker.close()


def test_a_pause_between_the_check_and_the_lease_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, other = open_broker(tmp_path / "queue.db"), open_broker(tmp_path / "queue.db")
    broker.send("q", [Outgoing(body=b"a")])
    transaction = broker._file.transaction

    def paused_first() -> AbstractContextManager[sqlite3.Connection]:
        other.pause("q")
        return transaction()

    monkeypatch.setattr(broker._file, "transaction", paused_first)
    assert not broker.receive("q", messages_max=1, lease_seconds=1)
    assert broker.stats("q").visible == 1
    other.close()
    broker.close()


def test_a_full_disk_fails_the_whole_send_until_there_is_space_again(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "queue.db")
    broker.send("q", [Outgoing(body=b"first")])
    with broker._file.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(TemporaryError, match="full"):
        broker.send("q", [Outgoing(body=b"x" * 1_000) for _ in range(100)])
    assert broker.stats("q").visible == 1
    (delivery,) = broker.receive("q", messages_max=5, lease_seconds=1)
    assert not broker.settle([(delivery, Ack())])
    with broker._file.reading() as connection:
        connection.execute("PRAGMA max_page_count = 100000")
    broker.send("q", [Outgoing(body=b"x" * 1_000) for _ in range(100)])
    assert broker.stats("q").visible == 100
    broker.close()


def test_an_error_in_a_transaction_rolls_all_of_it_back(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "queue.db")

    def interrupted() -> None:
        with broker._file.transaction() as connection:
            connection.execute("INSERT INTO store (id) VALUES ('x')")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    broker.send("q", [Outgoing(body=b"a")])
    with broker._file.reading() as connection:
        assert connection.execute("SELECT COUNT(*) FROM store").fetchone() == (1,)
    broker.close()


def test_only_sends_wait_for_the_disk(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "queue.db")

    def synchronous() -> int:
        with broker._file.reading() as connection:
            return int(connection.execute("PRAGMA synchronous").fetchone()[0])

    broker.send("q", [Outgoing(body=b"a")])
    assert synchronous() == 2  # FULL
    broker.receive("q", messages_max=1, lease_seconds=1)
    assert synchronous() == 1  # NORMAL
    broker.close()


def test_a_thread_that_waits_too_long_for_the_connection_gets_a_temporary_error(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "queue.db", busy_timeout_seconds=0.05)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with broker._file.reading():
            entered.set()
            leave.wait(DEADLINE_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(DEADLINE_SECONDS)
    with pytest.raises(TemporaryError, match="busy in this process"):
        broker.stats("q")
    leave.set()
    thread.join(DEADLINE_SECONDS)
    broker.close()


class WaitSignallingClock(SystemClock):
    """Sets `waiting` when a thread begins to wait."""

    def __init__(self) -> None:
        self.waiting = threading.Event()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waiting.set()
        return super().wait(event, seconds)


def test_a_send_wakes_a_receiver_of_its_process_long_before_the_next_poll(tmp_path: Path) -> None:
    clock = WaitSignallingClock()
    broker = SqliteBroker(tmp_path / "queue.db", holder="w", clock=clock, poll_seconds=600)
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(broker.receive, "q", messages_max=1, lease_seconds=1, wait_seconds=600)
        assert clock.waiting.wait(DEADLINE_SECONDS)
        broker.send("q", [Outgoing(body=b"a")])
        assert len(receiving.result(timeout=60)) == 1
    broker.close()


def test_every_statement_uses_an_index_or_is_small(tmp_path: Path) -> None:
    """A whole-table scan would make one queue pay for the length of all others."""
    broker = open_broker(tmp_path / "queue.db")
    broker.send("q", [Outgoing(body=b"a")])
    with broker._file.reading() as connection:
        for name, statement in statements().items():
            named = dict.fromkeys(re.findall(r":(\w+)", statement), 1) | dict.fromkeys(
                ("ids", "groups", "names"), "[1]"
            )
            parameters = [1] * statement.count("?") if "?" in statement else named
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            scans = [step for step in plan if step.startswith("SCAN messages") and name != "held_by"]
            assert scans == [], name
    broker.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "peek_waiting",
            [
                "SEARCH messages USING INDEX messages_ready (queue_id=? AND grp=? AND id>?)",
                "SEARCH messages USING INDEX messages_ready (queue_id=? AND grp>?)",
            ],
        ),
        (
            "peek_unready",
            [
                "SEARCH messages USING INDEX messages_waiting (queue_id=? AND visible_at=? AND state=? AND rowid>?)",
                "SEARCH messages USING INDEX messages_waiting (queue_id=? AND visible_at>?)",
            ],
        ),
        ("find", ["SEARCH messages USING INTEGER PRIMARY KEY (rowid=?)"]),
    ],
)
def test_a_page_of_messages_begins_at_its_position_and_sorts_nothing(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    broker = open_broker(tmp_path / "queue.db")
    parameters = dict.fromkeys(("queue_id", "state", "key", "id", "messages_max"), 1)
    with broker._file.reading() as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statements()[name]}", parameters)
        steps = [row[3] for row in rows]
    assert [step for step in steps if step not in ("MERGE (UNION ALL)", "LEFT", "RIGHT")] == expected
    broker.close()
