"""Whose message it is that took effect: apps and queues that share an inbox, beside workers of an earlier version."""

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

Ask = Callable[[Connection, Message], bool]  # whether the message is new


@pytest.fixture
def engine(user_database: UserDatabase) -> Iterator[Engine]:
    with user_database.engine() as made:
        yield made


def named(name: str, queue: str = "orders") -> App:
    """An app with a handler ``ship``."""
    app = App(broker="memory://", name=name)
    app.handler(queue, name="ship")(lambda body: None)
    return app


def asking(app: App) -> Ask:
    return lambda connection, found: bool(app.inbox(connection, found, handler="ship"))


SHOP, DEPOT = asking(named("shop")), asking(named("depot"))


def earlier(connection: Connection, found: Message) -> bool:
    """Do as the workers of the version before app and queue were known did, statement for statement."""
    kind, value = "message", found.id
    if DEDUPLICATION_ATTRIBUTE in found.attributes:
        kind, value = "deduplication", str(found.attributes[DEDUPLICATION_ATTRIBUTE])
    key = hashlib.sha256(b"\0".join([b"ship", kind.encode(), value.encode()])).hexdigest()[:32]
    bytes_, verb, tail = {
        "sqlite": (f"x'{key}'", "INSERT", "ON CONFLICT (inbox_id) DO NOTHING"),
        "mysql": (f"x'{key}'", "INSERT IGNORE", ""),
        "postgresql": (f"decode('{key}', 'hex')", "INSERT", "ON CONFLICT (inbox_id) DO NOTHING"),
    }[connection.dialect.name]
    done = connection.execute(
        text(
            f"{verb} INTO penstock_inbox (inbox_id, handler, message, done_at) "
            f"VALUES ({bytes_}, 'ship', '{kind}:{value}', {_now(connection)}) {tail}"
        ).execution_options(preserve_rowcount=True)
    )
    return int(getattr(done, "rowcount", -1)) == 1


def _now(connection: Connection) -> str:
    return {"sqlite": "unixepoch()", "mysql": "UNIX_TIMESTAMP()"}.get(
        connection.dialect.name, "extract(epoch from now())"
    )


def new(engine: Engine, ask: Ask, found: Message | None = None) -> bool:
    with engine.begin() as connection:
        return ask(connection, found or message())


def test_two_apps_with_a_handler_of_one_name_share_an_inbox_and_no_message(engine: Engine) -> None:
    sent = message(**{DEDUPLICATION_ATTRIBUTE: "order-1"})
    assert [new(engine, ask, sent) for ask in (SHOP, DEPOT)] == [True, True]
    assert [new(engine, ask, sent) for ask in (SHOP, DEPOT)] == [False, False]


def test_two_queues_share_an_inbox_and_no_message(engine: Engine) -> None:
    asks = [asking(named("shop", queue)) for queue in ("orders", "returns")]
    assert [new(engine, ask) for ask in asks] == [True, True]
    assert [new(engine, ask) for ask in asks] == [False, False]


def test_one_queue_spelled_in_three_ways_has_one_effect(engine: Engine) -> None:
    arn, url = "arn:aws:sqs:eu-west-1:111122223333:orders", "https://sqs.eu-west-1.amazonaws.com/111122223333/orders"
    asks = [asking(named("shop", queue)) for queue in (url, "orders", arn)]
    assert [new(engine, ask) for ask in asks] == [True, False, False]


def test_a_name_that_is_no_handlers_is_one_in_all_queues_of_the_app(engine: Engine) -> None:
    shop, depot = named("shop"), named("depot")

    def audit(app: App) -> Ask:
        return lambda connection, found: bool(app.inbox(connection, found, handler="audit"))

    assert [new(engine, ask) for ask in (audit(shop), audit(shop), audit(depot))] == [True, False, True]


def test_messages_recorded_by_an_earlier_version_are_done(engine: Engine) -> None:
    assert new(engine, earlier)
    assert not new(engine, SHOP)


def test_what_this_version_recorded_is_done_for_an_earlier_one(engine: Engine) -> None:
    assert new(engine, SHOP)
    assert not new(engine, earlier)
    assert new(engine, DEPOT)


def test_a_memory_of_which_a_half_has_expired_still_knows_the_message(
    engine: Engine, user_database: UserDatabase
) -> None:
    app = named("shop")
    app.relay(user_database.url)
    for expired in ("LIKE '% #%'", "NOT LIKE '% #%'"):
        found = message(f"m {expired[0]}")
        assert new(engine, asking(app), found)
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE penstock_inbox SET done_at = 0 WHERE handler {expired}"))
        forget_inbox(app, older_than_seconds=60)
        assert not new(engine, asking(app), found)


def test_the_neighbours_row_may_expire_first(engine: Engine, user_database: UserDatabase) -> None:
    assert [new(engine, ask) for ask in (SHOP, DEPOT)] == [True, True]
    with engine.begin() as connection:  # both rows of the app that was first
        connection.execute(text("DELETE FROM penstock_inbox WHERE handler LIKE '% #%' OR handler LIKE '%of shop%'"))
    assert user_database.inbox_rows() == 1
    assert [new(engine, ask) for ask in (DEPOT, SHOP)] == [False, True]


def test_what_is_forgotten_is_counted_in_messages(engine: Engine, user_database: UserDatabase) -> None:
    app = named("shop")
    app.relay(user_database.url)
    assert new(engine, asking(app), message("a"))
    assert new(engine, earlier, message("b"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE penstock_inbox SET done_at = 0"))
    assert user_database.inbox_rows() == 3
    assert (forget_inbox(app, older_than_seconds=60), user_database.inbox_rows()) == (2, 0)


def test_people_can_read_whose_message_it_was(engine: Engine, user_database: UserDatabase) -> None:
    assert new(engine, SHOP)
    texts = [str(row[0]) for row in user_database.ask("SELECT handler FROM penstock_inbox ORDER BY length(handler)")]
    assert texts[0] == "ship of shop, queue orders"
    assert texts[1].startswith("ship #")


@pytest.mark.parametrize("commits", [True, False], ids=["the first commits", "the first rolls back"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(SHOP, SHOP), (earlier, SHOP), (SHOP, earlier)],
    ids=["both of this version", "the first of an earlier one", "the second of an earlier one"],
)
def test_a_duplicate_at_the_same_time_waits_across_versions(
    engine: Engine, user_database: UserDatabase, first: Ask, second: Ask, commits: bool
) -> None:
    answers = together(engine, first, second, commits=commits)
    assert answers == (True, not commits)
    assert user_database.effects() == [1]


@pytest.mark.parametrize("commits", [True, False], ids=["the first commits", "the first rolls back"])
def test_the_message_of_another_app_at_the_same_time_takes_effect_too(
    engine: Engine, user_database: UserDatabase, commits: bool
) -> None:
    assert together(engine, SHOP, DEPOT, commits=commits) == (True, True)
    assert user_database.effects() == [1] * (1 + commits)


def together(engine: Engine, first: Ask, second: Ask, *, commits: bool) -> tuple[bool, bool]:
    """Ask in two transactions, of which the second begins before the first ends."""
    began = threading.Event()

    def ask_second() -> bool:
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
            later = pool.submit(ask_second)
            assert began.wait(DEADLINE_SECONDS)
            assert is_waiting(later), "nothing can be known before the first has ended"
            if commits:
                transaction.commit()
            else:
                transaction.rollback()
        return answer, later.result(DEADLINE_SECONDS)


def test_a_crowd_of_two_apps_and_two_versions_takes_effect_once_for_each_app(
    engine: Engine, user_database: UserDatabase
) -> None:
    """Old and new workers of the one app, and the other app, on the same messages; the new app's rows come first, as
    an earlier version says nothing of its app."""
    messages = [message(f"m-{no}") for no in range(8)]
    for found in messages[:4]:
        assert new(engine, SHOP, found)
    crowd: list[tuple[int, Ask]] = [(1, SHOP), (1, SHOP), (1, earlier), (2, DEPOT), (2, DEPOT)]
    start = threading.Barrier(len(crowd))

    def work(no: int, ask: Ask) -> None:
        start.wait(DEADLINE_SECONDS)
        todo = messages if no == 1 else messages[:4]
        for found in todo:
            until_decided(engine, ask, found, no)

    with ThreadPoolExecutor(len(crowd)) as pool:
        for done in [pool.submit(work, no, ask) for no, ask in crowd]:
            done.result(DEADLINE_SECONDS)
    assert user_database.effects() == [1] * 4 + [2] * 4


def until_decided(engine: Engine, ask: Ask, found: Message, no: int) -> None:
    for _ in range(50):
        try:
            with engine.begin() as connection:
                if ask(connection, found):
                    take_effect(connection, no)
            return
        except DBAPIError as error:  # a deadlock, for one: the handler fails, and its message comes again
            last: Any = error
    raise AssertionError(f"{found.id} was never decided: {last}")


def test_a_dead_letter_that_is_replayed_has_no_second_effect(engine: Engine) -> None:
    """The last attempt commits, and loses the answer of its COMMIT: the message dies, and a person replays it."""
    broker = named("shop").broker
    broker.send("orders", [Outgoing(body=b"{}")])
    for is_new in (True, False, False):  # replayed twice
        (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=60.0)
        assert new(engine, SHOP, delivery.message) is is_new
        assert new(engine, DEPOT, delivery.message) is is_new
        assert not broker.settle([(delivery, DeadLetter(reason="the answer of COMMIT was lost"))])
        with dead_letters_in(broker, "orders-dlq") as dead_letters:
            items = [
                ReplayItem(dead_letter=dead_letter, queue="orders")
                for page in dead_letters.pages()
                for dead_letter in page
            ]
            assert len(ReplaySender(broker, NoLog(), clock=SystemClock()).send(dead_letters, items).ids) == 1


def test_what_is_sent_further_with_all_attributes_is_a_message_of_its_own() -> None:
    app = named("shop")
    sent = app.outgoing("orders", {}, attributes={ORIGIN_ATTRIBUTE: "m1", "tenant": "a"})
    assert ORIGIN_ATTRIBUTE not in sent.attributes
    assert sent.attributes["tenant"] == "a"
