"""`create_tables`, called by several processes at once."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from tests.integration.transactions_scene import UserDatabase

from penstock.transactions import create_tables, metadata
from penstock.transactions.tables import INBOX, OUTBOX

DEADLINE_SECONDS = 180.0


@pytest.fixture
def empty_database(user_database: UserDatabase) -> UserDatabase:
    with user_database.engine() as engine:
        metadata.drop_all(engine)
    return user_database


def call_before_the_first_change(engine: Engine, call: Callable[[], None]) -> None:
    """Call ``call`` once, after the engine has read which tables there are and before it creates one."""
    calls = [call]

    def before(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
        if ("CREATE" in statement or "pg_advisory" in statement) and calls:
            calls.pop()()

    event.listen(engine, "before_cursor_execute", before)


def begin_transactions(engine: Engine) -> None:
    """Begin transactions as SQLAlchemy recommends for SQLite: the driver's own ones begin with the first change."""

    def connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def wait_for_a_waiting_session(engine: Engine) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    sessions = "pg_locks JOIN pg_stat_activity USING (pid)"
    waiting = text(f"SELECT count(*) FROM {sessions} WHERE NOT granted AND datname = current_database()")
    with engine.connect() as connection:
        while not connection.scalar(waiting):
            assert time.monotonic() < deadline, "no session waits"
            time.sleep(0.01)


def test_another_process_creates_the_tables_in_between(empty_database: UserDatabase) -> None:
    with empty_database.engine() as engine, empty_database.engine() as other:
        check_created_in_between(engine, other)
    assert empty_database.outbox_rows() == empty_database.inbox_rows() == 0


@pytest.mark.parametrize("user_database", ["sqlite"], indirect=True)
def test_another_process_creates_the_tables_beside_a_transaction_of_sqlite(empty_database: UserDatabase) -> None:
    with empty_database.engine() as engine, empty_database.engine() as other:
        begin_transactions(engine)
        check_created_in_between(engine, other)


def check_created_in_between(engine: Engine, other: Engine) -> None:
    """Create the tables with ``engine`` while ``other`` creates them first."""
    created: list[str] = []

    def create() -> None:
        create_tables(other)
        created.extend(inspect(other).get_table_names())

    call_before_the_first_change(engine, create)
    create_tables(engine)
    assert {OUTBOX, INBOX} <= set(created)
    assert {index["name"] for index in inspect(engine).get_indexes(INBOX)} == {"ix_penstock_inbox_done_at"}


def test_the_tables_of_an_uncommitted_transaction_are_waited_for(postgresql_url: str) -> None:
    engine = create_engine(make_url(postgresql_url).set(drivername="postgresql+psycopg"))
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            create_tables(first)
            second = pool.submit(create_tables, engine)
            wait_for_a_waiting_session(engine)
        second.result(DEADLINE_SECONDS)
    engine.dispose()


def test_processes_with_autocommit_create_the_tables_at_once(postgresql_url: str) -> None:
    url = make_url(postgresql_url).set(drivername="postgresql+psycopg")
    engines = [create_engine(url, isolation_level="AUTOCOMMIT") for _ in range(2)]
    metadata.drop_all(engines[0])
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[None]] = []

        def before(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
            if "CREATE" in statement and not others:
                others.append(pool.submit(create_tables, engines[1]))
                wait_for_a_waiting_session(engines[1])

        event.listen(engines[0], "before_cursor_execute", before)
        create_tables(engines[0])
        others[0].result(DEADLINE_SECONDS)
    assert {OUTBOX, INBOX} <= set(inspect(engines[0]).get_table_names())
    with engines[0].connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        assert raw.autocommit, "the engine keeps its own level"
    for engine in engines:
        engine.dispose()


def test_tables_are_looked_for_in_the_schema_in_which_they_are_created(postgresql_url: str) -> None:
    engine = create_engine(make_url(postgresql_url).set(drivername="postgresql+psycopg"))
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS app CASCADE"))
        connection.execute(text("CREATE SCHEMA app"))
    translated = engine.execution_options(schema_translate_map={None: "app"})
    create_tables(translated)
    assert {OUTBOX, INBOX} <= set(inspect(engine).get_table_names(schema="app"))

    created: list[str] = []
    call_before_the_first_change(engine, lambda: created.append("again"))
    create_tables(translated)
    assert not created
    engine.dispose()
