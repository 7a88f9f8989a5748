"""Migration of queue files of an older version: in place, by one of the processes that open them, and atomic.

`queue_version_1.sql` was written by the program of that version and is never regenerated.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqlite.file import SCHEMA_VERSION, schema_step, version_of
from penstock.errors import TemporaryError
from penstock.messaging.death import death_of, set_aside_reason
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0
DUMP = Path(__file__).with_name("queue_version_1.sql")
SOURCE = Path(__file__).parents[3] / "src"
WRITTEN_AFTER_SECONDS = 30.0
LEASED_RECEIPT = "q4b162bb14171562c-3-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "queue.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(DUMP.read_text())
    connection.close()
    assert version(path) == 1
    return path


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    clock.advance(WRITTEN_AFTER_SECONDS)
    return clock


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    connection.close()
    return found


def schema(path: Path) -> list[str]:
    """Return the columns of every table, and the indexes."""
    connection = sqlite3.connect(path)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = [str((name, row[1:])) for name in names for row in connection.execute(f"PRAGMA table_info({name})")]
    indexes = [str(row) for row in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index'")]
    connection.close()
    return sorted(columns + indexes)


def receive(broker: SqliteBroker, queue: str = "q") -> Sequence[Delivery]:
    return broker.receive(queue, messages_max=10, lease_seconds=60)


def test_messages_states_and_settings_are_kept(path: Path, clock: FakeClock) -> None:
    broker = SqliteBroker(path, holder="new", clock=clock)
    assert version(path) == SCHEMA_VERSION
    assert list(broker.queue_names()) == ["graves", "q"]
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight, stats.delayed) == (1, 1, 2)
    assert not broker.paused("q")
    (ready,) = receive(broker)
    assert (ready.message.body, ready.attempt, ready.previous) == (b"ready", 1, None)
    (dead,) = receive(broker, "graves")  # the DLQ of the old settings
    death = death_of(dead.message.attributes)
    assert death is not None
    assert (dead.message.body, dead.attempt, death.attempts, death.exception) == (b"dead", 1, 2, "ValueError: x")
    assert not broker.settle([(ready, Ack()), (dead, Ack())])
    (id,) = broker.send("q", [Outgoing(body=b"again", deduplication_id="once")])
    assert id == ready.message.id  # the deduplication window continues
    (id,) = broker.send("q", [Outgoing(body=b"new")])
    assert id.endswith("-000000000006")  # so do the ids
    broker.close()


def test_the_lease_of_an_old_worker_stays_valid_and_its_receipt_settles(path: Path, clock: FakeClock) -> None:
    broker = SqliteBroker(path, holder="new", clock=clock)
    clock.advance(599)
    assert b"leased" not in [delivery.message.body for delivery in receive(broker)]
    message = Message(id="", body=b"leased", enqueued_at=0.0)
    leased = Delivery(message=message, queue="q", receipt=LEASED_RECEIPT, attempt=1, received_at=0.0)
    assert not broker.extend([leased], lease_seconds=10)
    assert not broker.settle([(leased, Ack())])
    broker.close()


def test_delays_attempts_and_the_dead_letter_limit_are_kept(path: Path, clock: FakeClock) -> None:
    broker = SqliteBroker(path, holder="new", clock=clock)
    (ready,) = receive(broker)
    broker.settle([(ready, Ack())])
    clock.advance(300)
    (failed,) = receive(broker)
    assert (failed.message.body, failed.attempt, failed.message.group) == (b"failed twice", 4, "a")
    assert dict(failed.message.attributes) == {"k": b"\x00\xff", "t": "text"}
    assert failed.previous is None  # the old version did not record it
    broker.settle([(failed, Release(reason="again"))])
    (failed,) = receive(broker)
    assert failed.attempt == 5  # the last one that the old settings allow
    assert failed.previous is not None
    broker.settle([(failed, Release())])
    assert not receive(broker)
    assert len(receive(broker, "graves")) == 2
    clock.advance(200)
    assert [delivery.message.body for delivery in receive(broker)] == [b"delayed"]
    broker.close()


def test_deliveries_by_the_old_version_count_towards_the_age_reset(path: Path, clock: FakeClock) -> None:
    """The message that failed twice had four ended deliveries, so the second one from now is its sixth.

    The dead-lettered message had none in its current queue.
    """
    broker = SqliteBroker(path, holder="new", clock=clock)
    (ready,) = receive(broker)
    broker.settle([(ready, Ack())])
    clock.advance(300)
    for expected in (330, 0):
        (failed,) = receive(broker)
        broker.settle([(failed, Release())])
        with broker._file.reading() as connection:
            (row,) = connection.execute("SELECT COALESCE(age_from, enqueued_at) FROM messages WHERE id = 1")
        assert clock.now() - row[0] == expected
    with broker._file.reading() as connection:
        assert connection.execute("SELECT unsuccessful FROM messages WHERE id = 2").fetchone() == (0,)
    broker.close()


def test_a_migrated_file_has_the_schema_of_a_new_one(path: Path, tmp_path: Path) -> None:
    for file in (path, tmp_path / "new.db"):
        SqliteBroker(file, holder="w").close()
    assert schema(path) == schema(tmp_path / "new.db")


@pytest.fixture
def path_of_version_2(path: Path) -> Path:
    """Return a file as version 2 left it, with a message that failed once under it and a leased one."""
    connection = sqlite3.connect(path)
    for statement in schema_step(2):
        connection.execute(statement)
    connection.execute(
        "UPDATE messages SET state = 1, visible_at = 1700000030, leased_at = 1700000010, ended = 'failed',"
        " ended_at = 1700000030, end_reason = 'before', holder = 'old-worker', unsuccessful = 1 WHERE id = 1"
    )
    connection.execute("UPDATE messages SET leased_at = 1700000030, lease_seconds = 600 WHERE id = 3")
    connection.execute("DELETE FROM messages WHERE id IN (4, 5)")
    connection.execute("DELETE FROM ring")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
    return path


def test_attempts_are_recorded_from_version_3_on(path_of_version_2: Path, clock: FakeClock) -> None:
    broker = SqliteBroker(path_of_version_2, holder="new", clock=clock)
    assert version(path_of_version_2) == SCHEMA_VERSION
    (failed,) = receive(broker)
    assert failed.previous is not None
    assert failed.previous.reason == "before"
    broker.settle([(failed, DeadLetter(reason="bad"))])
    clock.advance(600)
    (leased,) = receive(broker)  # leased under the old version, expired under the new one
    broker.settle([(leased, DeadLetter(reason="bad"))])
    deaths = {dead.message.body: death_of(dead.message.attributes) for dead in receive(broker, "graves")}
    tries = {body: [(each.worker, each.end) for each in death.tries] for body, death in deaths.items() if death}
    assert tries == {
        b"failed twice": [("new", "dead")],
        b"leased": [("old-worker", "expired"), ("new", "dead")],
        b"dead": [],
    }
    broker.close()


def test_a_lease_of_version_1_is_not_recorded_as_an_attempt(path: Path, clock: FakeClock) -> None:
    broker = SqliteBroker(path, holder="new", clock=clock)
    (ready,) = receive(broker)
    broker.settle([(ready, Ack())])
    clock.advance(600)
    leased = next(delivery for delivery in receive(broker) if delivery.message.body == b"leased")
    broker.settle([(leased, DeadLetter(reason="bad"))])
    dead = next(delivery for delivery in receive(broker, "graves") if delivery.message.body == b"leased")
    death = death_of(dead.message.attributes)
    assert death is not None
    assert [each.worker for each in death.tries] == ["new"]
    broker.close()


def test_dead_letters_of_an_old_file_move_to_the_final_dlq(path: Path, clock: FakeClock) -> None:
    """The file records graves-dlq for graves, as version 1 named every DLQ after its queue; graves is the DLQ of q."""
    broker = SqliteBroker(path, holder="new", clock=clock)
    assert (broker.dead_letter_queue("q"), broker.dead_letter_queue("graves")) == ("graves", "graves-dead")
    (dead,) = receive(broker, "graves")
    assert not broker.settle([(dead, DeadLetter(reason="nothing helps", set_aside=True))])
    (set_aside,) = receive(broker, "graves-dead")
    assert set_aside_reason(set_aside.message.attributes) == "nothing helps"
    broker.close()


def test_many_threads_open_an_old_file_at_once_and_one_migrates_it(path: Path, clock: FakeClock) -> None:
    start = threading.Barrier(6)

    def open_and_count(n: int) -> int:
        start.wait(DEADLINE_SECONDS)
        broker = SqliteBroker(path, holder=f"w{n}", clock=clock)
        stats = broker.stats("q")
        broker.close()
        return stats.visible + stats.in_flight + stats.delayed

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(open_and_count, range(6))) == [4] * 6
    assert version(path) == SCHEMA_VERSION


OPENER = """
import sys
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.testing import FakeClock
sys.stdin.read(1)  # so that all processes begin together
broker = SqliteBroker(sys.argv[1], holder="w", clock=FakeClock(start=1_700_000_030.0))
print(broker.stats("q").in_flight, broker.stats("graves").visible)
"""

DIES_IN_THE_MIDDLE = """
import os, sys
from penstock.brokers.sqlite import file as sqlite_schema
from penstock.brokers.sqlite.broker import SqliteBroker
step, count = sqlite_schema.schema_step, int(sys.argv[2])

def first_statements(version):
    for n, statement in enumerate(step(version)):
        if n == count:
            os._exit(9)
        yield statement
    os._exit(9)

sqlite_schema.schema_step = first_statements
SqliteBroker(sys.argv[1], holder="w")
"""


def run(script: str, *arguments: object) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def test_two_processes_open_an_old_file_at_once(path: Path) -> None:
    processes = [run(OPENER, path) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers == [b"1 1", b"1 1"]
    assert version(path) == SCHEMA_VERSION


@pytest.mark.parametrize("statements", [1, 9, len(list(schema_step(2)))])
def test_a_process_killed_during_the_migration_leaves_the_old_version(
    path: Path, clock: FakeClock, statements: int
) -> None:
    before = schema(path)
    process = run(DIES_IN_THE_MIDDLE, path, statements)
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert version(path) == 1
    assert schema(path) == before
    broker = SqliteBroker(path, holder="new", clock=clock)
    assert version(path) == SCHEMA_VERSION
    assert [delivery.message.body for delivery in receive(broker)] == [b"ready"]
    broker.close()


def test_a_file_whose_tables_are_being_created_is_not_rejected_as_foreign(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    created: list[bool] = []

    def create_tables(statement: str) -> None:
        """Create the tables between two of the queries of `version_of`, as another process may."""
        if "sqlite_master" in statement and not created:
            created.append(True)
            with contextlib.suppress(TemporaryError):  # it waits until `version_of` has made all its queries
                SqliteBroker(path, holder="w", busy_timeout_seconds=0.05).close()

    connection = sqlite3.connect(path, isolation_level=None)
    connection.set_trace_callback(create_tables)
    assert version_of(connection, path) == 0
    assert created
    connection.close()
    SqliteBroker(path, holder="w").close()
    assert version(path) == SCHEMA_VERSION
