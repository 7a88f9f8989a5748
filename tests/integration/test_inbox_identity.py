"""The identity of messages in an inbox: apps and queues that share it, with workers of an earlier version."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from tests.integration.test_transactions_writing import DEADLINE_SECONDS, is_waiting, message, take_effect
from tests.integration.transactions_scene import UserDatabase

from penstock import App, Message
from penstock.app.relays import forget_inbox
from penstock.dead_letters.operator import ReplayItem, ReplaySender
from penstock.dead_letters.reader import dead_letters_in
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import DEDUPLICATION_ATTRIBUTE, ORIGIN_ATTRIBUTE, Outgoing
from penstock.messaging.replay import NoLog
from penstock.messaging.settlement import DeadLetter

Record = Callable[[Connection, Message], bool]  # True if the message is new


@pytest.fixture
def engine(user_database: UserDatabase) -> Iterator[Engine]:
    with user_database.engine() as opened:
        yield opened


def app_named(name: str, queue: str = "orders") -> App:
    """Return an app with a handler ``ship``."""
    app = App(broker="memory://", name=name)
    app.handler(queue, name="ship")(lambda body: None)
    return app


def recorder(app: App) -> Record:
    return lambda connection, found: bool(app.inbox(connection, found, handler="ship"))


SHOP, DEPOT = recorder(app_named("shop")), recorder(app_named("depot"))


def record_as_before(connection: Connection, found: Message) -> bool:
    """Record a message as the version without app and queue did, statement for statement."""
    kind, value = "message", found.id
    if DEDUPLICATION_ATTRIBUTE in found.attributes:
        kind, value = "deduplication", str(found.attributes[DEDUPLICATION_ATTRIBUTE])
    key = hashlib.sha256(b"\0".join([b"ship", kind.encode(), value.encode()])).hexdigest()[:32]
    bytes_, insert, tail = {
        "sqlite": (f"x'{key}'", "INSERT", "ON CONFLICT (inbox_id) DO NOTHING"),
        "mysql": (f"x'{key}'", "INSERT IGNORE", ""),
        "postgresql": (f"decode('{key}', 'hex')", "INSERT", "ON CONFLICT (inbox_id) DO NOTHING"),
    }[connection.dialect.name]
    done = connection.execute(
        text(
            f"{insert} INTO penstock_inbox (inbox_id, handler, message, done_at) "
            f"VALUES ({bytes_}, 'ship', '{kind}:{value}', {_now(connection)}) {tail}"
        ).execution_options(preserve_rowcount=True)
    )
    return int(getattr(done, "rowcount", -1)) == 1


def _now(connection: Connection) -> str:
    return {"sqlite": "unixepoch()", "mysql": "UNIX_TIMESTAMP()"}.get(
        connection.dialect.name, "extract(epoch from now())"
    )


def record_in_transaction(engine: Engine, record: Record, found: Message | None = None) -> bool:
    with engine.begin() as connection:
        return record(connection, found or message())


def test_handlers_of_one_name_in_two_apps_have_separate_messages_in_an_inbox(engine: Engine) -> None:
    sent = message(**{DEDUPLICATION_ATTRIBUTE: "order-1"})
    assert [record_in_transaction(engine, record, sent) for record in (SHOP, DEPOT)] == [True, True]
    assert [record_in_transaction(engine, record, sent) for record in (SHOP, DEPOT)] == [False, False]


def test_two_queues_have_separate_messages_in_an_inbox(engine: Engine) -> None:
    records = [recorder(app_named("shop", queue)) for queue in ("orders", "returns")]
    assert [record_in_transaction(engine, record) for record in records] == [True, True]
    assert [record_in_transaction(engine, record) for record in records] == [False, False]


def test_a_queue_by_name_url_or_arn_has_one_effect(engine: Engine) -> None:
    arn, url = "arn:aws:sqs:eu-west-1:111122223333:orders", "https://sqs.eu-west-1.amazonaws.com/111122223333/orders"
    records = [recorder(app_named("shop", queue)) for queue in (url, "orders", arn)]
    assert [record_in_transaction(engine, record) for record in records] == [True, False, False]


def test_a_name_without_a_handler_is_shared_by_all_queues_of_the_app(engine: Engine) -> None:
    shop, depot = app_named("shop"), app_named("depot")

    def audit(app: App) -> Record:
        return lambda connection, found: bool(app.inbox(connection, found, handler="audit"))

    assert [record_in_transaction(engine, record) for record in (audit(shop), audit(shop), audit(depot))] == [
        True,
        False,
        True,
    ]


def test_messages_recorded_by_an_earlier_version_are_done(engine: Engine) -> None:
    assert record_in_transaction(engine, record_as_before)
    assert not record_in_transaction(engine, SHOP)


def test_messages_recorded_by_this_version_are_done_for_an_earlier_one(engine: Engine) -> None:
    assert record_in_transaction(engine, SHOP)
    assert not record_in_transaction(engine, record_as_before)
    assert record_in_transaction(engine, DEPOT)


def test_a_message_is_known_while_one_of_its_two_rows_remains(engine: Engine, user_database: UserDatabase) -> None:
    app = app_named("shop")
    app.relay(user_database.url)
    for expired in ("LIKE '% #%'", "NOT LIKE '% #%'"):
        found = message(f"m {expired[0]}")
        assert record_in_transaction(engine, recorder(app), found)
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE penstock_inbox SET done_at = 0 WHERE handler {expired}"))
        forget_inbox(app, older_than_seconds=60)
        assert not record_in_transaction(engine, recorder(app), found)


def test_a_message_is_known_after_the_other_apps_rows_expired(engine: Engine, user_database: UserDatabase) -> None:
    assert [record_in_transaction(engine, record) for record in (SHOP, DEPOT)] == [True, True]
    with engine.begin() as connection:  # both rows of the first app
        connection.execute(text("DELETE FROM penstock_inbox WHERE handler LIKE '% #%' OR handler LIKE '%of shop%'"))
    assert user_database.inbox_rows() == 1
    assert [record_in_transaction(engine, record) for record in (DEPOT, SHOP)] == [False, True]


def test_forgotten_rows_are_counted_as_messages(engine: Engine, user_database: UserDatabase) -> None:
    app = app_named("shop")
    app.relay(user_database.url)
    assert record_in_transaction(engine, recorder(app), message("a"))
    assert record_in_transaction(engine, record_as_before, message("b"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE penstock_inbox SET done_at = 0"))
    assert user_database.inbox_rows() == 3
    assert (forget_inbox(app, older_than_seconds=60), user_database.inbox_rows()) == (2, 0)


def test_inbox_rows_name_handler_app_and_queue(engine: Engine, user_database: UserDatabase) -> None:
    assert record_in_transaction(engine, SHOP)
    texts = [str(row[0]) for row in user_database.ask("SELECT handler FROM penstock_inbox ORDER BY length(handler)")]
    assert texts[0] == "ship of shop, queue orders"
    assert texts[1].startswith("ship #")


@pytest.mark.parametrize("commits", [True, False], ids=["the first commits", "the first rolls back"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(SHOP, SHOP), (record_as_before, SHOP), (SHOP, record_as_before)],
    ids=["both of this version", "the first of an earlier one", "the second of an earlier one"],
)
def test_a_concurrent_duplicate_waits_across_versions(
    engine: Engine, user_database: UserDatabase, first: Record, second: Record, commits: bool
) -> None:
    answers = together(engine, first, second, commits=commits)
    assert answers == (True, not commits)
    assert user_database.effects() == [1]


@pytest.mark.parametrize("commits", [True, False], ids=["the first commits", "the first rolls back"])
def test_a_concurrent_message_of_another_app_takes_effect_too(
    engine: Engine, user_database: UserDatabase, commits: bool
) -> None:
    assert together(engine, SHOP, DEPOT, commits=commits) == (True, True)
    assert user_database.effects() == [1] * (1 + commits)


def together(engine: Engine, first: Record, second: Record, *, commits: bool) -> tuple[bool, bool]:
    """Record in two transactions; the second begins before the first ends."""
    began = threading.Event()

    def record_second() -> bool:
        with engine.begin() as connection:
            began.set()
            if answer := second(connection, message()):
                take_effect(connection)
            return answer

    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as connection:
            transaction = connection.begin()
            answer = first(connection, message())
            take_effect(connection)
            later = pool.submit(record_second)
            assert began.wait(DEADLINE_SECONDS)
            assert is_waiting(later), "the second waits until the first ends"
            if commits:
                transaction.commit()
            else:
                transaction.rollback()
        return answer, later.result(DEADLINE_SECONDS)


def test_concurrent_workers_of_two_apps_and_two_versions_take_effect_once_per_app(
    engine: Engine, user_database: UserDatabase
) -> None:
    """Old and new workers of the one app, and the other app, on the same messages. Rows of the new version come first,
    as an earlier version records no app.
    """
    messages = [message(f"m-{no}") for no in range(8)]
    for found in messages[:4]:
        assert record_in_transaction(engine, SHOP, found)
    crowd: list[tuple[int, Record]] = [(1, SHOP), (1, SHOP), (1, record_as_before), (2, DEPOT), (2, DEPOT)]
    start = threading.Barrier(len(crowd))

    def work(no: int, record: Record) -> None:
        start.wait(DEADLINE_SECONDS)
        todo = messages if no == 1 else messages[:4]
        for found in todo:
            record_until_decided(engine, record, found, no)

    with ThreadPoolExecutor(len(crowd)) as pool:
        for done in [pool.submit(work, no, record) for no, record in crowd]:
            done.result(DEADLINE_SECONDS)
    assert user_database.effects() == [1] * 4 + [2] * 4


def record_until_decided(engine: Engine, record: Record, found: Message, no: int) -> None:
    for _ in range(50):
        try:
            with engine.begin() as connection:
                if record(connection, found):
                    take_effect(connection, no)
            return
        except DBAPIError as error:  # such as a deadlock: the handler fails, and its message is redelivered
            last: Any = error
    raise AssertionError(f"{found.id} was never decided: {last}")


def test_a_dead_letter_that_is_replayed_has_no_second_effect(engine: Engine) -> None:
    """The last attempt commits, and the response to its COMMIT is lost: the message is dead-lettered, and a person
    replays it.
    """
    broker = app_named("shop").broker
    broker.send("orders", [Outgoing(body=b"{}")])
    for is_new in (True, False, False):  # replayed twice
        (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=60.0)
        assert record_in_transaction(engine, SHOP, delivery.message) is is_new
        assert record_in_transaction(engine, DEPOT, delivery.message) is is_new
        assert not broker.settle([(delivery, DeadLetter(reason="the answer of COMMIT was lost"))])
        with dead_letters_in(broker, "orders-dlq") as dead_letters:
            items = [
                ReplayItem(dead_letter=dead_letter, queue="orders")
                for page in dead_letters.pages()
                for dead_letter in page
            ]
            assert len(ReplaySender(broker, NoLog(), clock=SystemClock()).send(dead_letters, items).ids) == 1


def test_a_message_forwarded_with_its_attributes_gets_its_own_identity() -> None:
    app = app_named("shop")
    sent = app.outgoing("orders", {}, attributes={ORIGIN_ATTRIBUTE: "m1", "tenant": "a"})
    assert ORIGIN_ATTRIBUTE not in sent.attributes
    assert sent.attributes["tenant"] == "a"
