"""A process that forks after it used the queue, the ledger or an outbox: both continue, or the copy is refused."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from tests.integration.forked import fork_unknown_to_python, forked_copy
from tests.integration.sqs_scene import Scene, scene
from tests.services.redis_server import RedisServer

from penstock import App
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger import Ledger
from penstock.messaging import forks
from penstock.messaging.message import Outgoing
from penstock.transactions import create_tables
from penstock.transactions.sessions import engine_of
from penstock.transactions.store import TransactionStore

__all__ = ["scene"]


def bodies(path: Path) -> list[str]:
    with closing(SqliteBroker(path, holder="reader")) as broker:
        return [message.body.decode() for message in broker.browse("q", messages_max=1_000)]


def open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    return [str(each.readlink()) for each in folder.iterdir() if each.is_symlink() and each.exists()]


def test_a_forked_child_continues_to_send_after_its_parent_closed_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = SqliteBroker(path, holder="parent")
    broker.send("q", [Outgoing(body=b"parent")])
    with forked_copy(lambda: broker.send("q", [Outgoing(body=b"copy")])) as copy:
        first = copy.ask()
        broker.close()
        with closing(SqliteBroker(path, holder="third")) as third:
            third.send("q", [Outgoing(body=b"third")])
        assert copy.ask() != first
    assert bodies(path) == ["parent", "copy", "third", "copy"]
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_copy_inherits_no_open_database_files(tmp_path: Path) -> None:
    app = App(name="shop", broker=f"sqlite:///{tmp_path}/queue.db", ledger=f"sqlite:///{tmp_path}/ledger.db")
    app.send("q", 1)
    app.ledger.ensure_pipeline("p")
    assert any("queue.db" in file for file in open_files())
    with forked_copy(lambda: [file for file in open_files() if str(tmp_path) in file]) as copy:
        assert copy.ask() == "[]"
    app.close()


def test_a_copy_continues_with_the_ledger_after_its_parent_closed_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path)
    ledger.database.for_heartbeats(1.0)
    ledger.ensure_pipeline("parent")
    names = iter(["first", "second"])
    with forked_copy(lambda: ledger.ensure_pipeline(next(names)).id) as copy:
        assert copy.ask() == "first"
        ledger.close()
        with closing(Ledger.open(path)) as third:
            third.ensure_pipeline("third")
        assert copy.ask() == "second"
    with closing(Ledger.open(path)) as reader:
        assert [row.id for row in reader.pipelines()] == ["first", "parent", "second", "third"]


def test_a_copy_continues_with_the_database_of_an_outbox(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(address)
    create_tables(engine)
    engine.dispose()
    store = TransactionStore(engine_of(address), owned=True)
    assert not store.claim(b"a", lease_seconds=1, rows_max=1, bytes_max=1)
    with forked_copy(lambda: [file for file in open_files() if "shop.db" in file]) as copy:
        assert copy.ask() == "[]"
    with forked_copy(lambda: list(store.claim(b"b", lease_seconds=1, rows_max=1, bytes_max=1))) as copy:
        assert copy.ask() == "[]"
    store.close()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_copy_opens_its_own_connections_to_a_ledger_server(kind: str, request: pytest.FixtureRequest) -> None:
    ledger = Ledger.open(request.getfixturevalue(f"{kind}_url"))
    ledger.ensure_pipeline("parent")
    with forked_copy(lambda: [row.id for row in ledger.pipelines()]) as copy:
        for _ in range(3):
            assert copy.ask() == str([row.id for row in ledger.pipelines()]) == "['parent']"
    assert [row.id for row in ledger.pipelines()] == ["parent"]  # the copy's end closed no connection of the parent
    ledger.close()


def test_every_message_is_sent_once_if_a_process_forks_while_its_threads_send(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = SqliteBroker(path, holder="parent")
    done = threading.Event()
    sent: list[int] = []

    def send() -> None:
        while not done.is_set():
            broker.send("q", [Outgoing(body=b"parent")])
            sent.append(1)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        with forked_copy(lambda: broker.send("q", [Outgoing(body=b"copy")])[0][:1]) as copy:
            assert copy.ask() == "q"
    done.set()
    for thread in threads:
        thread.join()
    broker.close()
    with closing(SqliteBroker(path, holder="reader")) as reader:
        found = [message.body for message in reader.browse("q", messages_max=1_000_000)]
    assert (found.count(b"copy"), found.count(b"parent")) == (10, len(sent))


@pytest.mark.parametrize("reopened", [False, True], ids=["the inherited one", "one that the copy opens"])
def test_a_copy_forked_during_a_transaction_cannot_use_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reopened: bool
) -> None:
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.05)
    path = tmp_path / "queue.db"
    broker = SqliteBroker(path, holder="parent")
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with broker._file.transaction():
            inside.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)

    def send() -> object:
        return (SqliteBroker(path, holder="copy") if reopened else broker).send("q", [Outgoing(body=b"copy")])

    with forked_copy(send) as copy:
        assert copy.ask().startswith(f"ConfigurationError: the queue file {path} was in use while this process was")
    go_on.set()
    thread.join()
    broker.send("q", [Outgoing(body=b"parent")])
    broker.close()
    assert bodies(path) == ["parent"]


@pytest.mark.parametrize("reopened", [False, True], ids=["the inherited one", "one that the copy opens"])
def test_a_copy_forked_in_c_cannot_use_an_open_file(tmp_path: Path, reopened: bool) -> None:
    broker = SqliteBroker(tmp_path / "queue.db", holder="parent")

    def send() -> object:
        opened = SqliteBroker(tmp_path / "queue.db", holder="copy") if reopened else broker
        return opened.send("q", [Outgoing(body=b"copy")])

    with forked_copy(send, fork=fork_unknown_to_python) as copy:
        assert copy.ask().startswith("ConfigurationError: the queue file")
        assert copy.ask().startswith("ConfigurationError: the queue file")
    broker.send("q", [Outgoing(body=b"parent")])
    broker.close()
    assert bodies(tmp_path / "queue.db") == ["parent"]


def test_a_copy_forked_in_c_can_open_files_that_were_closed_before(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    closed = SqliteBroker(path, holder="parent")
    closed.send("q", [Outgoing(body=b"parent")])
    closed.close()
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.close()

    def both() -> object:
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}").close()
        return SqliteBroker(path, holder="copy").send("q", [Outgoing(body=b"copy")])[0][:1]

    with forked_copy(both, fork=fork_unknown_to_python) as copy:
        assert copy.ask() == "q"
    assert bodies(path) == ["parent", "copy"]


def test_both_processes_find_relative_files_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app = App(name="shop", broker="sqlite:///queue.db", ledger="sqlite:///ledger.db")
    app.send("q", "before")
    app.ledger.ensure_pipeline("p")

    def work_as_daemon() -> object:
        os.chdir("elsewhere")
        app.send("q", "copy")
        return app.ledger.ensure_pipeline("q").id

    with forked_copy(work_as_daemon) as copy:
        assert copy.ask() == "q"
    monkeypatch.chdir(tmp_path / "elsewhere")
    app.send("q", "after")
    app.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert bodies(tmp_path / "queue.db") == ["before", "copy", "after"]


def test_a_queue_file_replaced_after_a_fork_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    broker = SqliteBroker(path, holder="parent")

    def replace_and_send() -> object:
        path.unlink()
        return broker.send("q", [Outgoing(body=b"copy")])

    with forked_copy(replace_and_send) as copy:
        assert copy.ask().startswith(f"ConfigurationError: the queue file {path} was replaced by another one")
    broker.close()


# --- servers, and threads


def send_async_too(app: App) -> Callable[[], object]:
    def send() -> object:
        app.send("q", "copy")
        asyncio.run(app.send_async("q", "copy, async"))
        return app.worker

    return send


def assert_both_send(app: App, read_all: Callable[[App], list[str]]) -> None:
    app.send("q", "parent")
    asyncio.run(app.send_async("q", "parent, async"))
    with forked_copy(send_async_too(app)) as copy:
        assert copy.ask().partition("-")[0] == app.worker.partition("-")[0]  # the host: the copy returned no error
        app.send("q", "parent")
        assert copy.ask() != app.worker
        app.send("q", "parent")
    assert sorted(read_all(app)) == ["copy"] * 2 + ["copy, async"] * 2 + ["parent"] * 3 + ["parent, async"]
    app.close()


def browsed(app: App) -> list[str]:
    return [message.body.decode() for message in app.broker.browse("q", messages_max=100)]


def received(app: App) -> list[str]:
    found: list[str] = []
    while got := app.broker.receive("q", messages_max=10, lease_seconds=60, wait_seconds=1):
        found += [delivery.message.body.decode() for delivery in got]
    return found


def test_an_app_of_the_embedded_queue_works_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    assert_both_send(App(name="shop", broker=f"sqlite:///{tmp_path}/queue.db"), browsed)


def test_an_app_of_redis_works_on_both_sides_of_a_fork(redis_server: RedisServer) -> None:
    assert_both_send(App(name="shop", broker=redis_server.url), browsed)


def test_an_app_of_sqs_works_on_both_sides_of_a_fork(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in scene.server.environment.items():
        monkeypatch.setenv(name, value)
    scene.broker()
    assert_both_send(App.from_config(name="shop", broker="sqs://"), received)


def test_a_copy_cannot_use_a_redis_broker_opened_by_its_parent(redis_server: RedisServer) -> None:
    with closing(RedisStreamsBroker(redis_server.url, holder="w")) as broker:
        broker.send("q", [Outgoing(body=b"parent")])
        with forked_copy(lambda: broker.send("q", [Outgoing(body=b"copy")])) as copy:
            assert copy.ask().startswith("UsageError: this view of the Redis broker was opened before")
        assert broker.stats("q").visible == 1


def test_a_copy_cannot_use_an_sqs_broker_opened_by_its_parent(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", [Outgoing(body=b"parent")])
    for work in (
        lambda: broker.send("q", [Outgoing(body=b"copy")]),
        lambda: broker.receive("q", messages_max=1, lease_seconds=1),
        lambda: broker.stats("q"),
    ):
        with forked_copy(work) as copy:
            assert copy.ask().startswith("UsageError: this view of the SQS broker was opened before")
