"""Messages as rows, and rows as messages; the identity of a message in the inbox."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import QueuePool, StaticPool

from penstock.app.app import App
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.message import Message, Outgoing
from penstock.transactions import create_tables
from penstock.transactions.inbox import MessageIdentity, identity_of
from penstock.transactions.outbox import read_attributes, row_of, written_attributes
from penstock.transactions.sessions import engine_of
from penstock.transactions.store import TransactionStore
from penstock.transactions.tables import inbox, outbox


@pytest.mark.parametrize("attributes", [{}, {"a": "b"}, {"a": "é\0\ud800", "b": b"\xff\0", "c": ""}])
def test_attributes_come_out_as_they_went_in(attributes: Mapping[str, str | bytes]) -> None:
    text = written_attributes(attributes)
    assert text is None or text.isascii()
    assert read_attributes(text) == attributes


def test_no_group_and_the_empty_group_are_two_streams() -> None:
    streams = [row_of("q", Outgoing(body=b"", group=group), b"i")["stream_id"] for group in (None, "", ":", "a")]
    assert len(set(streams)) == 4
    assert (
        row_of("q", Outgoing(body=b"", group="a"), b"i")["stream_id"]
        != row_of("q:a", Outgoing(body=b""), b"i")["stream_id"]
    )


def test_a_row_fills_columns_that_there_are() -> None:
    row = row_of("q", Outgoing(body=b"x"), b"i")
    assert row.keys() <= {column.name for column in outbox.columns}
    missing = {column.name for column in outbox.columns if not column.nullable} - row.keys()
    assert missing == {"id", "created_at"}, "the database gives these"


@pytest.mark.parametrize(
    ("attributes", "identity"),
    [
        ({}, MessageIdentity("message", b"m")),
        ({"penstock-deduplication-id": "d"}, MessageIdentity("deduplication", b"d")),
        ({"penstock-deduplication-id": "d", "penstock-outbox-id": "o"}, MessageIdentity("outbox", b"o")),
        ({"penstock-outbox-id": b"\xff"}, MessageIdentity("outbox", b"\xff")),
        ({"penstock-outbox-id": ""}, MessageIdentity("message", b"m")),
    ],
)
def test_a_message_is_known_by_what_its_sender_said(
    attributes: Mapping[str, str | bytes], identity: MessageIdentity
) -> None:
    assert identity_of(Message(id="m", body=b"", enqueued_at=0.0, attributes=attributes)) == identity


def test_a_deduplication_id_travels_for_the_inbox() -> None:
    with App(broker="memory://") as app:
        app.send("q", 1, deduplication_id="d", attributes={"a": "b"})
        app.send("q", 2)
        first, second = app.broker.browse("q", messages_max=9)
    assert first.attributes == {"a": "b", "penstock-deduplication-id": "d"}
    assert second.attributes == {}


@pytest.mark.parametrize("name", ["penstock-outbox-id", "penstock-deduplication-id"])
def test_another_messages_identity_is_not_passed_on(name: str) -> None:
    """Else the inbox would take what a handler sends further for the message that it came from, and drop it."""
    with App(broker="memory://") as app, pytest.raises(UsageError, match=f"{name} is Penstock's own"):
        app.send("next", 1, attributes={name: "o"})


@pytest.mark.parametrize("address", ["mysql://u:hidden", "postgresql://u:hidden@h:port/db", "hidden"])
def test_an_address_that_cannot_be_read_is_not_said_again(address: str) -> None:
    with pytest.raises(UsageError) as refusal:
        engine_of(address)
    assert "hidden" not in str(refusal.value)


def test_a_lease_in_which_nothing_can_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        App(broker="memory://").relay("sqlite://", lease=0.5)


def test_what_is_said_of_a_database_holds_no_secrets() -> None:
    address = "postgresql+psycopg://u:hidden@h/db?password=hidden"
    assert TransactionStore(engine_of(address)).address == "postgresql+psycopg://u:***@h/db?password=***"


def test_a_parameter_that_the_driver_does_not_know_is_told_as_such() -> None:
    with pytest.raises(ConfigurationError, match="does not take a parameter of the database's address"):
        TransactionStore(engine_of("mysql+pymysql://u@127.0.0.1:1/db?nonsense=1")).counts()


def test_done_before_is_said_of_a_key_that_is_there_and_of_nothing_else() -> None:
    """A row that the database refuses for another reason took no effect."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE penstock_inbox"))
        connection.execute(
            text(
                "CREATE TABLE penstock_inbox (inbox_id BLOB PRIMARY KEY, message TEXT, done_at REAL, "
                "handler TEXT CHECK (handler NOT LIKE 'barred%'))"
            )
        )
    found = Message(id="m", body=b"", enqueued_at=0.0)
    with App(broker="memory://") as app, engine.begin() as connection:
        assert [app.inbox(connection, found, handler="ship") for _ in range(2)] == [True, False]
        with pytest.raises(IntegrityError):
            app.inbox(connection, found, handler="barred")


def test_an_app_gives_back_connections_that_it_opened_itself(tmp_path: Path) -> None:
    mine = create_engine(f"sqlite:///{tmp_path}/mine.db")
    create_tables(mine)
    with App(broker="memory://") as app:
        app.relay(mine)
        app.relay(f"sqlite:///{tmp_path}/mine.db")
        assert [relay.store.counts() for relay in app.relays] == [(0, 0)] * 2
        own = engine_of_store(app.relays[1].store)
        assert (pooled(mine), pooled(own)) == (1, 1)
    assert (pooled(mine), pooled(own)) == (1, 0)
    mine.dispose()


def engine_of_store(store: TransactionStore) -> Engine:
    return store._engine


def pooled(engine: Engine) -> int:
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedin()


@pytest.mark.parametrize("database", ["no address", 5, "sqlite+aiosqlite://", "nonsense://x"])
def test_what_is_no_database_for_a_relay_is_refused_at_once(database: object) -> None:
    with pytest.raises(UsageError):
        engine_of(database)


def test_keys_are_short_enough_for_every_index() -> None:
    assert [column.name for column in inbox.primary_key] == ["inbox_id"]
    assert inbox.c.inbox_id.type.length == 16  # type: ignore[attr-defined] # of a LargeBinary
