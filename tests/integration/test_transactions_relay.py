"""The relay on real databases: rows are deleted when the broker has them, in order, past refused rows, with concurrent
relays.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from tests.integration.fleet import wait_for
from tests.integration.transactions_scene import UserDatabase

from penstock import App, Message
from penstock.app.relays import relaying
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import ConfigurationError, TemporaryError, UnknownOutcome
from penstock.events import Event, OutboxRejected, OutboxSent, RelayFailed
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import OUTBOX_ID_ATTRIBUTE, Outgoing
from penstock.transactions.relay import QUEUE_PAUSE_SECONDS, Relay, RelayResult, RelaySettings
from penstock.transactions.store import TransactionStore

SETTINGS = RelaySettings(every_seconds=0.02, rows_max=10)


class RecordingBroker(MemoryBroker):
    """A broker that records sends, and fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[Outgoing]]] = []
        self.refused_queues: set[str] = set()
        self.refused_bodies: set[bytes] = set()
        self.errors: list[Exception] = []  # each for one call
        self._lock = threading.Lock()

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        with self._lock:
            if self.errors:
                raise self.errors.pop(0)
            if queue in self.refused_queues or any(one.body in self.refused_bodies for one in messages):
                raise ConfigurationError(f"the queue {queue!r} does not take it: mend that")
            self.calls.append((queue, list(messages)))
            return super().send(queue, messages)

    def bodies(self, queue: str) -> list[bytes]:
        return [one.body for name, messages in self.calls for one in messages if name == queue]


class StoppedClock(SystemClock):
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.time = 100.0

    def monotonic(self) -> float:
        return self.time


class Scene:
    """An app with an outbox, and relays of it."""

    def __init__(self, database: UserDatabase, engine: Engine) -> None:
        self.database = database
        self.engine = engine
        self.broker = RecordingBroker()
        self.app = App(broker=self.broker)
        self.events: list[Event] = []
        self.opened = ExitStack()

    def send(self, queue: str, *bodies: object, **options: Any) -> None:
        with self.engine.begin() as connection:
            self.app.outbox(connection).send_many(queue, bodies, **options)

    def relay(self, settings: RelaySettings = SETTINGS, *, clock: Clock | None = None) -> Relay:
        engine = create_engine(self.database.url)
        self.opened.callback(engine.dispose)
        return Relay(
            TransactionStore(engine),
            broker=lambda: self.broker,
            settings=settings,
            clock=clock or SystemClock(),
            random=random.Random(7).random,
            emit=self.events.append,
        )

    def has_sent(self, count: int) -> bool:
        return len(self.broker.bodies("orders")) == count

    def all_due(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("UPDATE penstock_outbox SET due_at = 0"))


@pytest.fixture
def scene(user_database: UserDatabase) -> Iterator[Scene]:
    with user_database.engine() as engine:
        opened_scene = Scene(user_database, engine)
        yield opened_scene
        opened_scene.opened.close()


def test_rows_are_sent_and_deleted(scene: Scene) -> None:
    scene.send("orders", 1, 2, 3, group="g", attributes={"a": "b"})
    scene.send("mails", "m")
    assert scene.relay().step() == RelayResult(claimed=4, sent=4)
    assert (scene.broker.bodies("orders"), scene.broker.bodies("mails")) == ([b"1", b"2", b"3"], [b"m"])
    assert scene.database.outbox_rows() == 0
    sent = scene.broker.calls[-1][1][0]
    assert (sent.group, sent.attributes["a"], sent.deduplication_id) == ("g", "b", sent.attributes[OUTBOX_ID_ATTRIBUTE])
    assert {event.queue for event in scene.events if isinstance(event, OutboxSent)} == {"orders", "mails"}
    assert scene.relay().step() == RelayResult()


def test_the_senders_deduplication_id_takes_precedence(scene: Scene) -> None:
    with scene.engine.begin() as connection:
        scene.app.outbox(connection).send("orders", 1, deduplication_id="d")
    scene.relay().step()
    assert scene.broker.calls[0][1][0].deduplication_id == "d"


def test_uncommitted_rows_are_not_sent(scene: Scene) -> None:
    with scene.engine.connect() as connection, connection.begin() as transaction:
        scene.app.outbox(connection).send("orders", 1)
        if scene.database.kind != "sqlite":  # there a relay would wait for the writer's end
            assert scene.relay().step() == RelayResult()
        transaction.rollback()
    assert scene.relay().step() == RelayResult()
    assert scene.broker.calls == []


@pytest.mark.parametrize("error", [TemporaryError("away"), UnknownOutcome("cut off")], ids=["away", "cut off"])
def test_an_unavailable_broker_loses_nothing_and_gets_the_same_ids_later(scene: Scene, error: Exception) -> None:
    scene.send("orders", 1, 2)
    scene.broker.errors = [error]
    relay = scene.relay()
    with pytest.raises(TemporaryError):
        relay.step()
    before = scene.database.ask("SELECT outbox_id FROM penstock_outbox ORDER BY id")
    assert scene.relay().step().sent == 2, "another relay need not wait for a lease"
    sent = [one.attributes[OUTBOX_ID_ATTRIBUTE] for one in scene.broker.calls[0][1]]
    assert sent == [bytes(id).hex() for (id,) in before]


def test_a_refused_row_records_its_reason_and_does_not_block_the_others(scene: Scene) -> None:
    scene.broker.refused_bodies = {b"2"}
    scene.send("orders", 1, 2, 3, group="g")
    relay = scene.relay()
    assert relay.step() == RelayResult(claimed=3, sent=2, refused=1)
    assert scene.broker.bodies("orders") == [b"1", b"3"]
    assert relay.step() == RelayResult(), "it waits"
    (event,) = [event for event in scene.events if isinstance(event, OutboxRejected)]
    assert (event.tries, "does not take it" in event.reason, event.delay_seconds > 0) == (1, True, True)
    (row,) = scene.relay()._store.waiting(limit=9)
    assert (row.tries, row.reason, row.due_in_seconds > 0) == (1, event.reason, True)
    scene.broker.refused_bodies = set()
    assert scene.relay().once().sent == 1
    assert scene.database.outbox_rows() == 0


def test_a_missing_queue_does_not_block_the_others(scene: Scene) -> None:
    scene.broker.refused_queues = {"missing"}
    scene.send("missing", *range(40))
    scene.send("orders", 1)
    relay = scene.relay()
    steps = [relay.step(), relay.step()]
    assert [step.refused for step in steps] == [3, 0], "three refusals in a row pause the queue"
    assert scene.broker.bodies("orders") == [b"1"]
    assert scene.database.outbox_rows() == 40
    scene.all_due()
    scene.broker.refused_queues = set()
    assert relay.step() == RelayResult(), "the queue is paused"
    while scene.relay().step().claimed:
        pass
    assert list(map(int, scene.broker.bodies("missing"))) == list(range(40))


def test_rows_behind_refused_ones_keep_their_order(scene: Scene) -> None:
    scene.broker.refused_queues = {"missing"}
    scene.send("missing", *range(10), group="g")
    relay = scene.relay()
    assert relay.step().refused == 3
    scene.broker.refused_queues = set()
    scene.send("missing", 10, group="g")
    assert relay.step() == RelayResult(), "later rows do not overtake rows that were never refused"
    assert scene.relay().step().sent == 8, "another relay does not know of the pause"
    assert list(map(int, scene.broker.bodies("missing"))) == list(range(3, 11))


def test_a_paused_queue_is_tried_again_after_its_pause(scene: Scene) -> None:
    scene.broker.refused_queues = {"missing"}
    scene.send("missing", *range(4))
    relay = scene.relay(clock=(clock := StoppedClock()))
    assert relay.step().refused == 3
    assert relay.step() == RelayResult()
    clock.time += QUEUE_PAUSE_SECONDS
    assert relay.step() == RelayResult(claimed=1, refused=1)


def test_once_tries_every_row_once(scene: Scene) -> None:
    scene.broker.refused_queues = {"missing"}
    scene.send("missing", *range(15))
    scene.send("orders", *range(25))
    relayed = scene.relay().once()
    assert (relayed.sent, relayed.refused) == (25, 15)


def test_rows_of_a_dead_relay_are_free_when_its_lease_ends(scene: Scene) -> None:
    scene.send("orders", 1, 2)
    dead = scene.relay()._store.claim(b"x" * 16, lease_seconds=60.0, rows_max=10, bytes_max=10**6)
    assert len(dead) == 2
    scene.send("orders", 3)
    assert scene.relay().step() == RelayResult(), "the third has to wait for the first two"
    with scene.engine.begin() as connection:
        connection.execute(
            text("UPDATE penstock_outbox SET claimed_until = claimed_until - 61 WHERE claim_id IS NOT NULL")
        )
    assert scene.relay().step().sent == 3
    assert scene.broker.bodies("orders") == [b"1", b"2", b"3"]
    scene.relay()._store.delete(b"x" * 16, [row.id for row in dead])  # the dead one resumes, and its claim has no rows


def test_a_late_relay_deletes_no_row_that_another_holds(scene: Scene) -> None:
    scene.send("orders", 1)
    store = scene.relay()._store
    (row,) = store.claim(b"a" * 16, lease_seconds=0.0, rows_max=10, bytes_max=10**6)
    assert len(store.claim(b"b" * 16, lease_seconds=60.0, rows_max=10, bytes_max=10**6)) == 1
    store.delete(b"a" * 16, [row.id])
    store.release(b"a" * 16)
    assert scene.database.outbox_rows() == 1
    assert scene.relay().step() == RelayResult()


def test_a_batch_is_limited_in_bytes_but_accepts_one_row_of_any_size(scene: Scene) -> None:
    scene.send("orders", b"a" * 1000, b"b" * 10, b"c" * 10)
    relay = scene.relay(RelaySettings(bytes_max=500))
    assert [relay.step().claimed, relay.step().claimed] == [1, 2]


def test_several_relays_send_each_row_once_and_each_group_in_order(scene: Scene) -> None:
    groups, rows = 5, 40
    for no in range(rows):
        for group in range(groups):
            scene.send("orders", no, group=str(group))
    relays = [scene.relay() for _ in range(3)]
    threads = [threading.Thread(target=relay.run, daemon=True) for relay in relays]
    for thread in threads:
        thread.start()
    wait_for(lambda: scene.database.outbox_rows() == 0, "everything is sent")
    for relay in relays:
        relay.end()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    by_group: dict[str | None, list[int]] = defaultdict(list)
    for _, messages in scene.broker.calls:
        for one in messages:
            by_group[one.group].append(int(one.body))
    assert by_group == {str(group): list(range(rows)) for group in range(groups)}


def test_a_relay_that_cannot_reach_its_database_backs_off_and_continues(scene: Scene) -> None:
    with scene.engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_outbox RENAME TO away"))
    relay = scene.relay()
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    wait_for(lambda: any(isinstance(event, RelayFailed) for event in scene.events), "the failure is emitted")
    with scene.engine.begin() as connection:
        connection.execute(text("ALTER TABLE away RENAME TO penstock_outbox"))
    scene.send("orders", 1)
    wait_for(lambda: scene.broker.bodies("orders") == [b"1"], "it is sent")
    relay.end()
    thread.join(60)
    assert not thread.is_alive()


def test_an_idle_relay_is_woken_by_a_commit_in_its_process(scene: Scene) -> None:
    scene.app.relay(scene.database.url, every=3600)
    with (
        relaying(scene.app, emit=scene.events.append, clock=SystemClock(), random=lambda: 0.5),
        Session(scene.engine) as session,
    ):
        for no in range(3):  # the first may be found by the poll at the start
            scene.app.outbox(session).send("orders", no)
            session.commit()
            wait_for(partial(scene.has_sent, no + 1), "it is sent")


def test_the_relay_deletes_old_inbox_records(scene: Scene) -> None:
    with scene.engine.begin() as connection:
        for no in range(3):
            assert scene.app.inbox(connection, Message(id=str(no), body=b"", enqueued_at=0.0), handler="ship")
        connection.execute(text("UPDATE penstock_inbox SET done_at = done_at - 100 WHERE message <> 'message:0'"))
    scene.relay(RelaySettings(inbox_seconds=None)).step()
    assert scene.database.inbox_rows() == 6
    scene.relay(RelaySettings(inbox_seconds=50.0)).step()
    assert scene.database.ask("SELECT message FROM penstock_inbox") == [("message:0",)] * 2


def test_created_at_is_the_databases_time(scene: Scene) -> None:
    before = time.time()
    scene.send("orders", 1)
    ((created_at,),) = scene.database.ask("SELECT created_at FROM penstock_outbox")
    assert before - 1 <= created_at <= time.time() + 1
