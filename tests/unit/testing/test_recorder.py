"""Messages sent by a handler under test are recorded and do not leave the test."""

import asyncio
import threading
from pathlib import Path

import pytest

from penstock import App, Handlers, Message
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import UsageError
from penstock.testing import TestWorker, perform


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(broker=f"sqlite:///{tmp_path}/queue.db", ledger=f"sqlite:///{tmp_path}/ledger.db")


def test_messages_sent_by_a_handler_are_recorded_and_not_sent(app: App, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")

    @app.handler("a")
    def pass_on(message: Message) -> None:
        app.send("b", {"n": 1}, delay=60, group="blue", deduplication_id="one", attributes={"trace": "t"})
        app.send_many("c", [b"\xff", "text"])
        app.announce("d", str(tmp_path / "in"))

    performed = perform(app, pass_on, b"x")
    assert performed.acked
    assert [one.queue for one in performed.sent] == ["b", "c", "c", "d"]
    first = performed.sent[0]
    assert (first.body, first.group, first.deduplication_id, first.delay_seconds) == ({"n": 1}, "blue", "one", 60.0)
    assert first.attributes["trace"] == "t"
    assert performed.sent[1].body == b"\xff"
    assert not (tmp_path / "queue.db").exists(), "the app's own broker was never opened"
    assert perform(app, pass_on, b"x").sent[0].id, "a second call starts empty and drops no duplicate of the first"


def test_sends_of_threads_async_functions_and_other_apps_are_recorded(app: App) -> None:
    group, broker = Handlers(), MemoryBroker()
    other = App(broker=broker)

    @group.handler("a")
    async def pass_on(message: Message) -> None:
        await app.send_async("b", 1)
        thread = threading.Thread(target=other.send, args=("c", 2))
        thread.start()
        await asyncio.to_thread(thread.join)

    assert [(one.queue, one.body) for one in perform(group, pass_on, b"x").sent] == [("b", 1), ("c", 2)]
    assert broker.queue_names() == []
    other.send("c", 3)
    assert broker.stats("c").visible == 1, "after the call each app uses its own broker again"


def test_an_app_created_by_the_handler_sends_to_the_recorder(app: App, tmp_path: Path) -> None:
    created: list[App] = []

    @app.handler("a")
    def pass_on(message: Message) -> None:
        created.append(App(broker=f"sqlite:///{tmp_path}/real.db"))
        created[0].send("charges", 1)

    assert [one.queue for one in perform(app, pass_on, b"x").sent] == ["charges"]
    assert not (tmp_path / "real.db").exists()
    created[0].send("charges", 2)
    assert created[0].broker.stats("charges").visible == 1, "after the call it uses its own broker"
    created[0].close()


def test_an_app_created_in_a_test_worker_sends_to_the_workers_queues(app: App, tmp_path: Path) -> None:
    created: list[App] = []

    @app.handler("a")
    def pass_on(message: Message) -> None:
        created.append(App(broker=f"sqlite:///{tmp_path}/real.db", ledger=f"sqlite:///{tmp_path}/real-ledger.db"))
        created[0].send("charges", 1)
        created[0].ledger.pipelines()

    with TestWorker(app) as worker:
        worker.send("a", 1)
        worker.run_until_empty()
        assert [one.body for one in worker.sent("charges")] == [1]
    assert not list(tmp_path.iterdir())
    assert created[0].stand_in is None


def test_a_handler_that_raises_leaves_the_app_unchanged(app: App) -> None:
    @app.handler("a")
    def fail(message: Message) -> None:
        app.send("b", 1)
        raise RuntimeError("no")

    assert [one.queue for one in perform(app, fail, b"x").sent] == ["b"]
    assert app.stand_in is None


def test_the_ledger_is_refused_in_perform(app: App, tmp_path: Path) -> None:
    @app.handler("a")
    def read_ledger(message: Message) -> None:
        app.ledger.works()

    assert isinstance(perform(app, read_ledger, b"x").error, UsageError)
    assert not (tmp_path / "ledger.db").exists()


def test_a_test_worker_records_sent_messages_that_are_already_processed(app: App) -> None:
    @app.handler("a")
    def pass_on(message: Message) -> None:
        app.send("b", {"from": message.body.decode()})

    @app.handler("b")
    def end(message: Message) -> None:
        pass

    with TestWorker(app) as worker:
        worker.send("a", b"x")
        worker.run_until_empty()
        assert [one.body for one in worker.sent("b")] == [{"from": "x"}]
        performed = perform(app, pass_on, b"y")
        assert [one.body for one in performed.sent] == [{"from": "y"}]
        assert len(worker.waiting("b")) == 1, "inside a worker, the message is also sent to the worker's queue"
