"""The inbox: record processed messages in the transaction of their effect.

The row's unique key decides. While another transaction has inserted the same key, the insert waits for its end: if
it commits, the message is done; if it rolls back, the insert continues, and the message is new. If the database
cannot wait (lock timeout, deadlock, snapshot too old), it raises, and the state is unknown: the handler fails and
its message is redelivered. So a message is reported as done only after its effect is committed.

The key contains app, queue, handler and message. Keys of earlier versions contain only handler and message, and
their workers may still run. So each message is recorded under both keys, in one statement. The text of the row with
the earlier key ends with a digest of its owner, which is app and queue. If only the earlier key existed before, that
digest decides: with the digest of another owner the message is new; with our own, or with none (an earlier version
wrote the row), the message is done.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Insert, Select, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock.errors import TemporaryError
from penstock.messaging.broker import listed_name
from penstock.messaging.message import DEDUPLICATION_ATTRIBUTE, ORIGIN_ATTRIBUTE, OUTBOX_ID_ATTRIBUTE, Message
from penstock.transactions.outbox import ID_BYTES
from penstock.transactions.sessions import AsyncSessions, SyncSession, dialect_of, explained
from penstock.transactions.tables import ServerNow, inbox

_SHOWN_CHARS_MAX = 1_000
_KEY = [inbox.c.inbox_id]
_REFUSED = "\ufffd"  # replaces characters that databases reject in text
_EARLIER_KEY = re.compile(r" #([0-9a-f]{32})\Z")  # the end of the text in a row with the earlier key


class MessageIdentity(NamedTuple):
    """The identity of a message, equal in all its copies."""

    kind: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The handler in which a message takes effect. ``queue`` is None for a name that the app gave to no handler."""

    app: str
    queue: str | None
    handler: str


def identity_of(message: Message) -> MessageIdentity:
    """Return the outbox's id, else the sender's deduplication id, else the broker's message id.

    A replayed message keeps the message id of its first delivery. A broker assigns a new message id to each send, so a
    message that was sent twice has two.
    """
    for kind, name in (("outbox", OUTBOX_ID_ATTRIBUTE), ("deduplication", DEDUPLICATION_ATTRIBUTE)):
        value = message.attributes.get(name)
        if value:
            return MessageIdentity(kind, _bytes(value))
    return MessageIdentity("message", _bytes(message.attributes.get(ORIGIN_ATTRIBUTE) or message.id))


def record(session: SyncSession, recipient: Recipient, message: Message) -> bool:
    """Return True if the message is new to its recipient. Other transactions with its key wait until this one ends."""
    entry = _InboxRows(recipient, identity_of(message))
    with explained():
        count = _inserted(session.execute(entry.insertion(dialect_of(session))))
        if count != 1:
            return count == 2
        return entry.belongs_to_another(session.execute(entry.earlier_row()).scalar())


async def record_async(session: AsyncSessions, recipient: Recipient, message: Message) -> bool:
    """Work like `record`, for async sessions."""
    entry = _InboxRows(recipient, identity_of(message))
    with explained():
        count = _inserted(await session.execute(entry.insertion(dialect_of(session))))
        if count != 1:
            return count == 2
        return entry.belongs_to_another((await session.execute(entry.earlier_row())).scalar())


def count_messages(handlers: Sequence[str]) -> int:
    """Return how many messages are recorded by the rows with these texts: most messages have two rows."""
    return sum(_EARLIER_KEY.search(handler) is None for handler in handlers)


def _inserted(result: object) -> int:
    """Return how many rows were inserted. Raise RuntimeError if the driver does not report it: the state is unknown."""
    count: object = getattr(result, "rowcount", None)
    if not isinstance(count, int) or count not in (0, 1, 2):
        raise RuntimeError(
            f"the driver reports {count!r} rows inserted into {inbox.name}, and only 0 to 2 are possible: use another "
            "driver"
        )
    return count


class _InboxRows:
    """The two rows of one message and its recipient, under the current and the earlier key."""

    def __init__(self, recipient: Recipient, identity: MessageIdentity) -> None:
        self._recipient = recipient
        self._identity = identity
        # The name, URL and ARN of an SQS queue give one owner. The row with the earlier key has a digest of the
        # spelling, as the previous version wrote it: both versions recognise each other's messages if they spell the
        # queue alike.
        self._owner = _digest(_bytes(recipient.app), _bytes(listed_name(recipient.queue or "")))
        self._owner_as_spelled = _digest(_bytes(recipient.app), _bytes(recipient.queue or ""))
        self._earlier_key = _digest(_bytes(recipient.handler), identity.kind.encode("ascii"), identity.value)

    def insertion(self, dialect: str) -> Insert:
        """Return the statement that inserts the missing ones of the two rows.

        The row under the earlier key is last: once a transaction has met it, and on MySQL holds the gap before it,
        the transaction waits for nothing more here.
        """
        rows = [self._row(), self._earlier()]
        statement: Insert
        if dialect == "postgresql":
            statement = postgresql.insert(inbox).values(rows).on_conflict_do_nothing(index_elements=_KEY)
        elif dialect == "sqlite":
            statement = sqlite.insert(inbox).values(rows).on_conflict_do_nothing(index_elements=_KEY)
        else:
            # The only error that IGNORE can hide for this row is a duplicate key: the table has no other constraint. ON
            # DUPLICATE KEY UPDATE does not work: with found rows counted, as SQLAlchemy requests, it returns 1 as well.
            statement = insert(inbox).values(rows).prefix_with("IGNORE")
        return statement.execution_options(preserve_rowcount=True)  # SQLAlchemy does not keep it for inserts otherwise

    def earlier_row(self) -> Select[Any]:
        """Return the query for the row under the earlier key. It locks, because MySQL's snapshot may be older."""
        query = select(inbox.c.handler).where(inbox.c.inbox_id == self._earlier_key)
        return query.with_for_update(read=True)

    def belongs_to_another(self, handler: str | None) -> bool:
        """Return True if the row under the earlier key records another owner's message.

        ``handler`` is the row's text.
        """
        if handler is None:  # the row existed when the insert was skipped
            raise TemporaryError(f"a row of {inbox.name} was deleted while it was read")
        marked = _EARLIER_KEY.search(handler)
        return marked is not None and marked[1] not in (self._owner.hex(), self._owner_as_spelled.hex())

    def _row(self) -> Mapping[str, Any]:
        app, queue, handler = self._recipient.app, self._recipient.queue, self._recipient.handler
        key = _digest(self._owner, self._earlier_key)
        described = f"{handler} of {app}" if queue is None else f"{handler} of {app}, queue {queue}"
        return self._values(key, _shown(_bytes(described)))

    def _earlier(self) -> Mapping[str, Any]:
        shown = _shown(_bytes(self._recipient.handler))
        return self._values(self._earlier_key, f"{shown} #{self._owner_as_spelled.hex()}")

    def _values(self, key: bytes, handler: str) -> Mapping[str, Any]:
        message = f"{self._identity.kind}:{_shown(self._identity.value)}"
        return {"inbox_id": key, "handler": handler, "message": message, "done_at": ServerNow()}


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()[:ID_BYTES]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace").replace("\0", _REFUSED)[:_SHOWN_CHARS_MAX]
