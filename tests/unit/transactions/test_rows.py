"""Outbox rows of messages and back, the identity of a message in the inbox, addresses of databases."""

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
def test_attributes_are_read_as_written(attributes: Mapping[str, str | bytes]) -> None:
    text = written_attributes(attributes)
    assert text is None or text.isascii()
    assert read_attributes(text) == attributes


def test_no_group_and_the_empty_group_are_different_streams() -> None:
    streams = [row_of("q", Outgoing(body=b"", group=group), b"i")["stream_id"] for group in (None, "", ":", "a")]
    assert len(set(streams)) == 4
    assert (
        row_of("q", Outgoing(body=b"", group="a"), b"i")["stream_id"]
        != row_of("q:a", Outgoing(body=b""), b"i")["stream_id"]
    )


def test_a_row_has_values_for_all_columns_without_a_default() -> None:
    row = row_of("q", Outgoing(body=b"x"), b"i")
    assert row.keys() <= {column.name for column in outbox.columns}
    missing = {column.name for column in outbox.columns if not column.nullable} - row.keys()
    assert missing == {"id", "created_at"}, "the database generates these"


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
def test_the_inbox_identity_prefers_the_outbox_id_then_the_deduplication_id(
    attributes: Mapping[str, str | bytes], identity: MessageIdentity
) -> None:
    assert identity_of(Message(id="m", body=b"", enqueued_at=0.0, attributes=attributes)) == identity


def test_a_deduplication_id_is_sent_as_an_attribute() -> None:
    with App(broker="memory://") as app:
        app.send("q", 1, deduplication_id="d", attributes={"a": "b"})
        app.send("q", 2)
        first, second = app.broker.browse("q", messages_max=9)
    assert first.attributes == {"a": "b", "penstock-deduplication-id": "d"}
    assert second.attributes == {}


@pytest.mark.parametrize("name", ["penstock-outbox-id", "penstock-deduplication-id"])
def test_identity_attributes_of_another_message_are_refused(name: str) -> None:
    """Otherwise the inbox would drop a message that a handler sends on, as a duplicate of the received one."""
    with App(broker="memory://") as app, pytest.raises(UsageError, match=f"{name} is reserved for Penstock"):
        app.send("next", 1, attributes={name: "o"})


@pytest.mark.parametrize("address", ["mysql://u:hidden", "postgresql://u:hidden@h:port/db", "hidden"])
def test_the_error_for_an_invalid_address_does_not_repeat_it(address: str) -> None:
    with pytest.raises(UsageError) as refusal:
        engine_of(address)
    assert "hidden" not in str(refusal.value)


def test_a_lease_too_short_for_a_send_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        App(broker="memory://").relay("sqlite://", lease=0.5)


def test_the_shown_address_of_a_database_has_no_secrets() -> None:
    address = "postgresql+psycopg://u:hidden@h/db?password=hidden"
    assert TransactionStore(engine_of(address)).address == "postgresql+psycopg://u:***@h/db?password=***"


def test_an_unknown_parameter_of_the_driver_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="does not take a parameter of the database's address"):
        TransactionStore(engine_of("mysql+pymysql://u@127.0.0.1:1/db?nonsense=1")).counts()


def test_only_an_existing_key_counts_as_done_before() -> None:
    """A row that the database refuses for another reason had no effect."""
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


def test_an_app_closes_only_engines_that_it_opened_itself(tmp_path: Path) -> None:
    given = create_engine(f"sqlite:///{tmp_path}/given.db")
    create_tables(given)
    with App(broker="memory://") as app:
        app.relay(given)
        app.relay(f"sqlite:///{tmp_path}/given.db")
        assert [relay.store.counts() for relay in app.relays] == [(0, 0)] * 2
        own = engine_of_store(app.relays[1].store)
        assert (pooled(given), pooled(own)) == (1, 1)
    assert (pooled(given), pooled(own)) == (1, 0)
    given.dispose()


def engine_of_store(store: TransactionStore) -> Engine:
    return store._engine


def pooled(engine: Engine) -> int:
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedin()


@pytest.mark.parametrize("database", ["no address", 5, "sqlite+aiosqlite://", "nonsense://x"])
def test_an_invalid_database_for_a_relay_is_refused_at_once(database: object) -> None:
    with pytest.raises(UsageError):
        engine_of(database)


def test_keys_are_short_enough_for_every_index() -> None:
    assert [column.name for column in inbox.primary_key] == ["inbox_id"]
    assert inbox.c.inbox_id.type.length == 16  # type: ignore[attr-defined] # an attribute of LargeBinary
