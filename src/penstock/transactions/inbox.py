"""The inbox: which messages took effect here, recorded in the transaction of the effect itself.

The row's key is what decides, by the database's own rules. While another transaction holds the same key, the insert
waits for its end: committed, it is there, and the answer is no; rolled back, the insert goes on, and the answer is yes.
A database that cannot wait (a lock that lasts too long, a deadlock, a snapshot that is too old) raises, and nothing is
known then: the handler fails and its message comes again. So "done before" is only ever said of what is committed.
"""

import hashlib
from typing import NamedTuple

from sqlalchemy import Insert, insert
from sqlalchemy.dialects import postgresql, sqlite

from penstock.messaging.message import DEDUPLICATION_ATTRIBUTE, OUTBOX_ID_ATTRIBUTE, Message
from penstock.transactions.clock import Now
from penstock.transactions.outbox import ID_BYTES
from penstock.transactions.sessions import AsyncSessions, SyncSession, dialect_of, explained
from penstock.transactions.tables import inbox

_SHOWN_CHARS_MAX = 1_000
_KEY = [inbox.c.inbox_id]
_REFUSED = "\ufffd"  # for what databases do not take in a text for people


class Identity(NamedTuple):
    """What is the same in two messages that are one thing."""

    kind: str
    value: bytes


def identity_of(message: Message) -> Identity:
    """The outbox's id, else the sender's deduplication id, else the broker's message id.

    The last is of one sending: who sends one thing twice gives it two.
    """
    for kind, name in (("outbox", OUTBOX_ID_ATTRIBUTE), ("deduplication", DEDUPLICATION_ATTRIBUTE)):
        value = message.attributes.get(name)
        if value:
            return Identity(kind, _bytes(value))
    return Identity("message", _bytes(message.id))


def record(session: SyncSession, handler: str, message: Message) -> bool:
    """Whether the message is new to the handler; from here to the commit it is this transaction's."""
    with explained():
        result = session.execute(_statement(dialect_of(session), handler, identity_of(message)))
    return _was_inserted(result)


async def record_async(session: AsyncSessions, handler: str, message: Message) -> bool:
    """As `record`."""
    with explained():
        result = await session.execute(_statement(dialect_of(session), handler, identity_of(message)))
    return _was_inserted(result)


def _was_inserted(result: object) -> bool:
    """Raises RuntimeError where the driver does not tell: that must be taken neither for new nor for done."""
    count: object = getattr(result, "rowcount", None)
    if count not in (0, 1):
        raise RuntimeError(f"the driver says that {count!r} rows were inserted into {inbox.name}: it cannot be used")
    return count == 1


def _statement(dialect: str, handler: str, identity: Identity) -> Insert:
    values = {
        "inbox_id": _key(handler, identity),
        "handler": _shown(_bytes(handler)),
        "message": f"{identity.kind}:{_shown(identity.value)}",
        "done_at": Now(),
    }
    statement: Insert
    if dialect == "postgresql":
        statement = postgresql.insert(inbox).values(values).on_conflict_do_nothing(index_elements=_KEY)
    elif dialect == "sqlite":
        statement = sqlite.insert(inbox).values(values).on_conflict_do_nothing(index_elements=_KEY)
    else:
        # Of what IGNORE swallows only a key that is there can meet this row: the table has no other condition. ON
        # DUPLICATE KEY UPDATE would not do: where found rows are counted, as SQLAlchemy asks, it answers 1 as well.
        statement = insert(inbox).values(values).prefix_with("IGNORE")
    return statement.execution_options(preserve_rowcount=True)  # of an insert nobody else asks for it


def _key(handler: str, identity: Identity) -> bytes:
    parts = (_bytes(handler), identity.kind.encode("ascii"), identity.value)
    return hashlib.sha256(b"\0".join(parts)).digest()[:ID_BYTES]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace").replace("\0", _REFUSED)[:_SHOWN_CHARS_MAX]
