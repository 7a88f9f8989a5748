"""Convert messages to rows of the outbox, and insert the rows in the user's transaction."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import insert

from penstock.errors import UsageError
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Outgoing
from penstock.messaging.schema import BODY_BYTES_MAX
from penstock.transactions.sessions import AsyncSessions, SyncSession, explained
from penstock.transactions.tables import ServerNow, outbox

ID_BYTES = 16
_INSERT = insert(outbox).values(created_at=ServerNow())

Row = Mapping[str, Any]  # values of the table's columns


def row_of(queue: str, outgoing: Outgoing, outbox_id: bytes) -> Row:
    """Return the message as a row. Raises `UsageError` if no broker or database can accept it."""
    if len(outgoing.body) > BODY_BYTES_MAX:
        raise UsageError(
            f"A body for the queue {queue} has {len(outgoing.body)} bytes; brokers accept at most {BODY_BYTES_MAX}: "
            "store it elsewhere, and send a reference to it."
        )
    for subject, text in (("queue", queue), ("group", outgoing.group), ("deduplication_id", outgoing.deduplication_id)):
        _check_text(subject, text)
    return {
        "outbox_id": outbox_id,
        "queue_id": digest(queue),
        # Messages without a group form their own stream; the colon distinguishes it from the stream of the empty group.
        "stream_id": digest(queue, "" if outgoing.group is None else f":{outgoing.group}"),
        "queue": queue,
        "message_group": outgoing.group,
        "deduplication_id": outgoing.deduplication_id,
        "attributes": written_attributes(outgoing.attributes),
        "body": bytes(outgoing.body),
        "body_bytes": len(outgoing.body),
        "delay_seconds": outgoing.delay_seconds,
        "due_at": 0.0,
        "claimed_until": 0.0,
        "tries": 0,
    }


def write(session: SyncSession, rows: Sequence[Row]) -> None:
    """Insert the rows at once and in order, before anything that the session has not flushed yet."""
    if rows:
        with explained():
            session.execute(_INSERT, [dict(row) for row in rows])


async def write_async(session: AsyncSessions, rows: Sequence[Row]) -> None:
    """Work like `write`, for async sessions."""
    if rows:
        with explained():
            await session.execute(_INSERT, [dict(row) for row in rows])


def digest(*parts: str) -> bytes:
    """Return a digest of the texts for an index."""
    return hashlib.sha256("\0".join(parts).encode("utf-8")).digest()[:ID_BYTES]


def written_attributes(attributes: Attributes) -> str | None:
    """Return the attributes as ASCII JSON. A binary value is a list of one base64 text, unlike any text value."""
    if not attributes:
        return None
    return json.dumps(
        {
            name: value if isinstance(value, str) else [base64.b64encode(value).decode("ascii")]
            for name, value in attributes.items()
        }
    )


def read_attributes(text: str | None) -> Attributes:
    """Return the attributes that `written_attributes` encoded."""
    if text is None:
        return NO_ATTRIBUTES
    fields: Mapping[str, str | list[str]] = json.loads(text)
    return MappingProxyType(
        {name: value if isinstance(value, str) else base64.b64decode(value[0]) for name, value in fields.items()}
    )


def _check_text(subject: str, text: str | None) -> None:
    if text is None:
        return
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(
            f"{subject}={text!r} contains a character that databases reject: NUL, or half of a surrogate pair."
        )
