"""The inbox: which messages took effect here, recorded in the transaction of the effect itself.

The row's key decides, by the database's own rules. While another transaction holds the same key, the insert waits for
its end: if it commits, the message is done; if it rolls back, the insert goes on, and the message is new. A database
that cannot wait (a lock that lasts too long, a deadlock, a snapshot that is too old) raises, and nothing is known then:
the handler fails and its message comes again. So only a message whose effect is committed is ever reported as done.

The key contains app, queue, handler and message. Earlier versions knew a message by its handler and itself alone, and
their workers may still run. So each message is recorded under both keys, in one statement; the row of the earlier key
ends with a digest of its owner, app and queue. Where only the earlier key was there before, that digest decides: with
the digest of another owner, the message is new to this one; with our own, or with none, which an earlier version wrote,
the message is done.
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
from penstock.transactions.clock import Now
from penstock.transactions.outbox import ID_BYTES
from penstock.transactions.sessions import AsyncSessions, SyncSession, dialect_of, explained
from penstock.transactions.tables import inbox

_SHOWN_CHARS_MAX = 1_000
_KEY = [inbox.c.inbox_id]
_REFUSED = "\ufffd"  # for what databases do not take in a text for people
_EARLIER_KEY = re.compile(r" #([0-9a-f]{32})\Z")  # how the text of a row under the earlier key ends


class Identity(NamedTuple):
    """What is the same in two messages that are one thing."""

    kind: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The handler that a message takes effect in. ``queue`` is None for a name that the app gave to no handler."""

    app: str
    queue: str | None
    handler: str


def identity_of(message: Message) -> Identity:
    """The outbox's id, else the sender's deduplication id, else the broker's message id, of a replayed message the one
    that it was first delivered under.

    The last is of one sending: who sends one thing twice gives it two.
    """
    for kind, name in (("outbox", OUTBOX_ID_ATTRIBUTE), ("deduplication", DEDUPLICATION_ATTRIBUTE)):
        value = message.attributes.get(name)
        if value:
            return Identity(kind, _bytes(value))
    return Identity("message", _bytes(message.attributes.get(ORIGIN_ATTRIBUTE) or message.id))


def record(session: SyncSession, recipient: Recipient, message: Message) -> bool:
    """Return True if the message is new to its recipient; from here to the commit it is this transaction's."""
    entry = _Entry(recipient, identity_of(message))
    with explained():
        count = _inserted(session.execute(entry.insertion(dialect_of(session))))
        if count != 1:
            return count == 2
        return entry.is_of_another(session.execute(entry.earlier_row()).scalar())


async def record_async(session: AsyncSessions, recipient: Recipient, message: Message) -> bool:
    """As `record`."""
    entry = _Entry(recipient, identity_of(message))
    with explained():
        count = _inserted(await session.execute(entry.insertion(dialect_of(session))))
        if count != 1:
            return count == 2
        return entry.is_of_another((await session.execute(entry.earlier_row())).scalar())


def count_messages(handlers: Sequence[str]) -> int:
    """Return how many messages the rows with these texts record: most of them have two rows."""
    return sum(_EARLIER_KEY.search(handler) is None for handler in handlers)


def _inserted(result: object) -> int:
    """Raise RuntimeError if the driver does not report the rows: that means neither new nor done."""
    count: object = getattr(result, "rowcount", None)
    if not isinstance(count, int) or count not in (0, 1, 2):
        raise RuntimeError(f"the driver says that {count!r} rows were inserted into {inbox.name}: it cannot be used")
    return count


class _Entry:
    """The two rows of one message and its recipient."""

    def __init__(self, recipient: Recipient, identity: Identity) -> None:
        self._recipient = recipient
        self._identity = identity
        # A queue on SQS is one however it is spelled. The row of the earlier key has the digest of the spelling, as the
        # version before wrote it: both versions know each other's messages where both spell the queue alike.
        self._owner = _digest(_bytes(recipient.app), _bytes(listed_name(recipient.queue or "")))
        self._owner_as_spelled = _digest(_bytes(recipient.app), _bytes(recipient.queue or ""))
        self._earlier_key = _digest(_bytes(recipient.handler), identity.kind.encode("ascii"), identity.value)

    def insertion(self, dialect: str) -> Insert:
        """Insert those of the two rows that are not there.

        The row under the earlier key goes last: after a transaction met it, and on MySQL holds the gap before it, the
        transaction waits for nothing more here.
        """
        rows = [self._row(), self._earlier()]
        statement: Insert
        if dialect == "postgresql":
            statement = postgresql.insert(inbox).values(rows).on_conflict_do_nothing(index_elements=_KEY)
        elif dialect == "sqlite":
            statement = sqlite.insert(inbox).values(rows).on_conflict_do_nothing(index_elements=_KEY)
        else:
            # Of what IGNORE swallows only a key that is there can meet this row: the table has no other condition. ON
            # DUPLICATE KEY UPDATE would not do: if found rows are counted, as SQLAlchemy asks, it returns 1 as well.
            statement = insert(inbox).values(rows).prefix_with("IGNORE")
        return statement.execution_options(preserve_rowcount=True)  # of an insert nobody else asks for it

    def earlier_row(self) -> Select[Any]:
        """Read the row under the earlier key, as committed: a snapshot of MySQL's may be older than the row."""
        query = select(inbox.c.handler).where(inbox.c.inbox_id == self._earlier_key)
        return query.with_for_update(read=True)

    def is_of_another(self, handler: str | None) -> bool:
        """Return True if the row under the earlier key has this text and records another owner's message."""
        if handler is None:  # neither the transaction that inserts nor another one's insert can explain that
            raise TemporaryError(f"a row of {inbox.name} was deleted while it was read")
        marked = _EARLIER_KEY.search(handler)
        return marked is not None and marked[1] not in (self._owner.hex(), self._owner_as_spelled.hex())

    def _row(self) -> Mapping[str, Any]:
        app, queue, handler = self._recipient.app, self._recipient.queue, self._recipient.handler
        key = _digest(self._owner, self._earlier_key)
        whose = f"{handler} of {app}" if queue is None else f"{handler} of {app}, queue {queue}"
        return self._values(key, _shown(_bytes(whose)))

    def _earlier(self) -> Mapping[str, Any]:
        shown = _shown(_bytes(self._recipient.handler))
        return self._values(self._earlier_key, f"{shown} #{self._owner_as_spelled.hex()}")

    def _values(self, key: bytes, handler: str) -> Mapping[str, Any]:
        message = f"{self._identity.kind}:{_shown(self._identity.value)}"
        return {"inbox_id": key, "handler": handler, "message": message, "done_at": Now()}


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()[:ID_BYTES]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace").replace("\0", _REFUSED)[:_SHOWN_CHARS_MAX]
