"""Outbox and inbox in the user's transactions, on real databases: plain and async sessions, and connections."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.integration.transactions_scene import UserDatabase

from penstock import App, Message, Queue
from penstock.errors import ConfigurationError, UsageError

WAITS_SECONDS = 0.3  # long enough to see that a call waits
DEADLINE_SECONDS = 180.0


class Order(BaseModel):
    no: int


ORDERS = Queue("orders", Order)


@pytest.fixture
def engine(user_database: UserDatabase) -> Iterator[Engine]:
    with user_database.engine() as opened:
        yield opened


@pytest.fixture
def app() -> Iterator[App]:
    with App(broker="memory://") as opened:
        yield opened


def message(id: str = "m-1", **attributes: str) -> Message:
    return Message(id=id, body=b"", enqueued_at=0.0, attributes=attributes)


def take_effect(connection: Connection, no: int = 1) -> None:
    connection.execute(text("INSERT INTO effects (no, pid) VALUES (:no, 0)"), {"no": no})


# --- the outbox


def test_an_outbox_row_is_visible_after_the_commit_and_not_before(
    app: App, engine: Engine, user_database: UserDatabase
) -> None:
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders (no) VALUES (1)"))
        app.outbox(session).send(ORDERS, Order(no=1))
        if user_database.kind != "sqlite":  # readers outside may have to wait for the writer
            assert user_database.outbox_rows() == 0
    assert (user_database.orders(), user_database.outbox_rows()) == ({1}, 1)


def test_a_rollback_leaves_nothing(app: App, engine: Engine, user_database: UserDatabase) -> None:
    with Session(engine) as session, session.begin() as transaction:
        session.execute(text("INSERT INTO orders (no) VALUES (1)"))
        app.outbox(session).send(ORDERS, Order(no=1))
        app.inbox(session, message(), handler="ship")
        transaction.rollback()
    assert user_database.orders() == set()
    assert (user_database.outbox_rows(), user_database.inbox_rows()) == (0, 0)


def test_a_rolled_back_savepoint_removes_its_rows(app: App, engine: Engine, user_database: UserDatabase) -> None:
    with Session(engine) as session, session.begin():
        app.outbox(session).send(ORDERS, Order(no=1))
        nested = session.begin_nested()
        app.outbox(session).send(ORDERS, Order(no=2))
        nested.rollback()
    assert user_database.ask("SELECT count(*), min(body_bytes) FROM penstock_outbox") == [(1, len('{"no":1}'))]


def test_connections_and_scoped_sessions_are_accepted(app: App, engine: Engine, user_database: UserDatabase) -> None:
    with engine.begin() as connection:
        app.outbox(connection).send_many(ORDERS, [Order(no=1), Order(no=2)])
    scoped = scoped_session(sessionmaker(engine))
    app.outbox(scoped).send(ORDERS, Order(no=3))
    scoped.commit()
    scoped.remove()
    assert user_database.outbox_rows() == 3


def test_an_invalid_body_is_refused_in_the_senders_call(app: App, engine: Engine) -> None:
    with Session(engine) as session:
        outbox = app.outbox(session)
        with pytest.raises(UsageError, match="orders"):
            outbox.send(ORDERS, {"no": "many"})
        with pytest.raises(UsageError, match="1048577 bytes"):
            outbox.send("raw", b"x" * (1024 * 1024 + 1))
        with pytest.raises(UsageError, match="NUL"):
            outbox.send("raw", b"", group="a\0b")
        assert not session.in_transaction(), "nothing was written"


def test_any_content_of_a_message_is_sent_unchanged(app: App, engine: Engine, user_database: UserDatabase) -> None:
    body = bytes(range(256)) * 4096  # 1 MiB
    with engine.begin() as connection:
        app.outbox(connection).send("raw", body, group="Ünï\N{PILE OF POO}", attributes={"b": b"\0\xff", "t": "\0 é"})
    app.relay(user_database.url)
    assert relayed(app) == 1
    (found,) = app.broker.browse("raw", messages_max=9)
    assert (found.body, found.group) == (body, "Ünï\N{PILE OF POO}")
    assert (found.attributes["b"], found.attributes["t"]) == (b"\0\xff", "\0 é")


def test_a_delay_counts_from_the_send(app: App, engine: Engine, user_database: UserDatabase) -> None:
    with engine.begin() as connection:
        app.outbox(connection).send("raw", b"late", delay=3600)
        app.outbox(connection).send("raw", b"over", delay=3600)
        connection.execute(text("UPDATE penstock_outbox SET created_at = created_at - 3601 WHERE body_bytes = 4"))
        app.outbox(connection).send("raw", b"later", delay=3600)
    app.relay(user_database.url)
    assert relayed(app) == 3
    stats = app.broker.stats("raw")
    assert (stats.visible, stats.delayed) == (2, 1)


# --- the inbox


def test_a_message_is_new_once_per_handler(app: App, engine: Engine) -> None:
    def is_new(handler: str, found: Message) -> bool:
        with engine.begin() as connection:
            return app.inbox(connection, found, handler=handler)

    assert [is_new("ship", message()), is_new("ship", message()), is_new("bill", message())] == [True, False, True]
    assert [is_new("ship", message("m-2")), is_new("SHIP", message()), is_new("ship", message("M-1"))] == [True] * 3
    assert [is_new("ship", message("m-1 ")), is_new("shíp", message("é")), is_new("ship", message("e"))] == [True] * 3


def test_a_message_is_identified_by_its_outbox_id_then_by_its_deduplication_id(app: App, engine: Engine) -> None:
    def is_new(found: Message) -> bool:
        with engine.begin() as connection:
            return app.inbox(connection, found, handler="ship")

    outboxed = {"penstock-outbox-id": "o", "penstock-deduplication-id": "d"}
    assert [is_new(message("1", **outboxed)), is_new(message("2", **outboxed))] == [True, False]
    deduplicated = {"penstock-deduplication-id": "d"}
    assert [is_new(message("3", **deduplicated)), is_new(message("4", **deduplicated))] == [True, False]


def test_a_rollback_makes_the_message_new_again(app: App, engine: Engine) -> None:
    with Session(engine) as session:
        assert app.inbox(session, message(), handler="ship")
        session.rollback()
        assert app.inbox(session, message(), handler="ship")
        session.commit()
        assert not app.inbox(session, message(), handler="ship")


@pytest.mark.parametrize("commits", [True, False], ids=["the first commits", "the first rolls back"])
def test_a_concurrent_duplicate_waits_for_the_first(
    app: App, engine: Engine, user_database: UserDatabase, commits: bool
) -> None:
    started = threading.Event()

    def second() -> bool:
        with engine.begin() as connection:
            started.set()
            if is_new := app.inbox(connection, message(), handler="ship"):
                take_effect(connection)
            return is_new

    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as first:
            transaction = first.begin()
            assert app.inbox(first, message(), handler="ship")
            take_effect(first)
            second_result = pool.submit(second)
            assert started.wait(DEADLINE_SECONDS)
            assert is_waiting(second_result), "the second waits until the first ends"
            if commits:
                transaction.commit()
            else:
                transaction.rollback()
        assert second_result.result(DEADLINE_SECONDS) is not commits
    assert user_database.effects() == [1]


def test_concurrent_duplicates_take_effect_once_if_the_first_rolls_back(
    app: App, engine: Engine, user_database: UserDatabase
) -> None:
    barrier = threading.Barrier(5)

    def one() -> int:
        clashes = 0
        barrier.wait(DEADLINE_SECONDS)
        while True:
            try:
                with engine.begin() as connection:
                    if app.inbox(connection, message(), handler="ship"):
                        take_effect(connection)
                return clashes
            except DBAPIError:  # such as a deadlock: the handler fails, and its message is redelivered
                clashes += 1
                assert clashes < 50

    with ThreadPoolExecutor(4) as pool:
        with engine.connect() as first:
            transaction = first.begin()
            assert app.inbox(first, message(), handler="ship")
            results = [pool.submit(one) for _ in range(4)]
            barrier.wait(DEADLINE_SECONDS)
            assert is_waiting(results[0])
            transaction.rollback()
        for second_result in results:
            second_result.result(DEADLINE_SECONDS)
    assert (user_database.effects(), user_database.inbox_rows()) == ([1], 2)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_older_than_the_first_never_reports_the_message_as_new(
    app: App, user_database: UserDatabase, level: str
) -> None:
    if user_database.kind == "sqlite":
        pytest.skip("not applicable: SQLite has one level")
    with user_database.engine(isolation_level=level) as engine, engine.connect() as second:
        second.execute(text("SELECT count(*) FROM effects")).one()  # the snapshot is taken
        with engine.begin() as first:
            assert app.inbox(first, message(), handler="ship")
        if user_database.kind == "postgresql":
            with pytest.raises(DBAPIError, match="could not serialize access"):
                app.inbox(second, message(), handler="ship")
        else:
            assert app.inbox(second, message(), handler="ship") is False


def test_the_inbox_needs_a_message_and_its_handler(app: App, engine: Engine) -> None:
    with Session(engine) as session:
        with pytest.raises(UsageError, match="handler"):
            app.inbox(session, message())
        with pytest.raises(UsageError, match="not a str"):
            app.inbox(session, "m-1", handler="ship")  # type: ignore[call-overload] # the mistake


# --- async


def run(work: Callable[[AsyncSession], Coroutine[Any, Any, None]], database: UserDatabase) -> None:
    async def run_work() -> None:
        engine = database.async_engine()
        async with AsyncSession(engine) as session:
            await work(session)
        await engine.dispose()

    asyncio.run(run_work())


def test_async_sessions_send_and_record_like_plain_ones(app: App, user_database: UserDatabase) -> None:
    async def work(session: AsyncSession) -> None:
        async with session.begin():
            await session.execute(text("INSERT INTO orders (no) VALUES (1)"))
            id = await app.outbox(session).send(ORDERS, Order(no=1))
            assert len(bytes.fromhex(id)) == 16
            assert await app.outbox(session).send_many(ORDERS, [Order(no=2)])
            assert await app.inbox(session, message(), handler="ship")
        async with session.begin():
            assert not await app.inbox(session, message(), handler="ship")
            await app.outbox(await session.connection()).send(ORDERS, Order(no=3))
        await app.outbox(session).send(ORDERS, Order(no=4))
        await session.rollback()

    run(work, user_database)
    assert (user_database.orders(), user_database.outbox_rows(), user_database.inbox_rows()) == ({1}, 3, 2)


def test_a_result_that_was_not_awaited_cannot_be_used(app: App, user_database: UserDatabase) -> None:
    async def work(session: AsyncSession) -> None:
        with pytest.raises(UsageError, match="await"):
            bool(app.inbox(session, message(), handler="ship"))

    run(work, user_database)


# --- missing tables


def test_a_missing_table_is_a_configuration_error(app: App, user_database: UserDatabase) -> None:
    with user_database.engine() as engine:
        with engine.begin() as connection:
            for table in ("penstock_outbox", "penstock_inbox"):
                connection.execute(text(f"DROP TABLE {table}"))
        with Session(engine) as session, pytest.raises(ConfigurationError, match=r"penstock_outbox.*create_tables"):
            app.outbox(session).send(ORDERS, Order(no=1))
        with Session(engine) as session, pytest.raises(ConfigurationError, match=r"penstock_inbox.*create_tables"):
            app.inbox(session, message(), handler="ship")
    app.relay(user_database.url)
    with pytest.raises(ConfigurationError, match="penstock_outbox"):
        relayed(app)


def test_other_database_errors_are_raised_unchanged(app: App, user_database: UserDatabase) -> None:
    engine = create_engine("sqlite:////nowhere/at/all.db")
    with Session(engine) as session, pytest.raises(DBAPIError, match="unable to open"):
        app.outbox(session).send(ORDERS, Order(no=1))


def is_waiting(second_result: Future[Any]) -> bool:
    try:
        second_result.result(WAITS_SECONDS)
    except TimeoutError:
        return True
    return False


def relayed(app: App) -> int:
    """Send the waiting rows; return their number."""
    from penstock.app.relays import relay_once
    from penstock.events import ignore

    return relay_once(app, emit=ignore).sent
