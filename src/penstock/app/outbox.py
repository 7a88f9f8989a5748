"""Send inside the user's transaction: the objects that `App.outbox` returns, sync and async."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from penstock.handlers.durations import Duration
from penstock.messaging.message import NO_ATTRIBUTES, Outgoing
from penstock.messaging.schema import Queue
from penstock.transactions.outbox import ID_BYTES, Row, row_of, write, write_async
from penstock.transactions.sessions import call_after_commits, is_async

if TYPE_CHECKING:
    from penstock.transactions.sessions import AsyncSessions, SyncSession


class MessageOptions(TypedDict, total=False):
    """The options of one message; `App.send` describes them."""

    delay: Duration | None
    group: str | None
    deduplication_id: str | None
    attributes: Mapping[str, str | bytes]


class MakeMessage(Protocol):
    """The signature of `App.outgoing`."""

    def __call__(
        self,
        queue: Queue[Any] | str,
        body: Any,
        **options: Unpack[MessageOptions],
    ) -> Outgoing: ...


class Outbox:
    """Write messages to the outbox in one session or connection, which the caller owns and commits."""

    def __init__(self, session: "SyncSession", make: MakeMessage) -> None:
        self._session = session
        self._make = make

    def send(
        self,
        queue: Queue[Any] | str,
        body: Any,
        **options: Unpack[MessageOptions],
    ) -> str:
        """Write one message in the session's transaction; return its outbox id.

        The parameters are those of `App.send`. The row is inserted at once and committed or rolled back with the
        transaction. ``delay`` counts from this call.

        Raises:
            UsageError: If the body does not fit the queue's model, or no broker accepts the message.
            ConfigurationError: If the database has no outbox.
        """
        row = _row(queue, self._make(queue, body, **options))
        write(self._session, [row])
        return _id(row)

    def send_many(
        self,
        queue: Queue[Any] | str,
        bodies: Iterable[Any],
        *,
        delay: Duration | None = None,
        group: str | None = None,
        attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    ) -> list[str]:
        """Write many messages as `send` does, in one statement. If one does not fit, none is written."""
        rows = _rows(self._make, queue, bodies, delay=delay, group=group, attributes=attributes)
        write(self._session, rows)
        return [_id(row) for row in rows]


class AsyncOutbox:
    """Write messages to the outbox in one async session or connection, which the caller owns and commits."""

    def __init__(self, session: "AsyncSessions", make: MakeMessage) -> None:
        self._session = session
        self._make = make

    async def send(
        self,
        queue: Queue[Any] | str,
        body: Any,
        **options: Unpack[MessageOptions],
    ) -> str:
        """Write one message; see `Outbox.send`."""
        row = _row(queue, self._make(queue, body, **options))
        await write_async(self._session, [row])
        return _id(row)

    async def send_many(
        self,
        queue: Queue[Any] | str,
        bodies: Iterable[Any],
        *,
        delay: Duration | None = None,
        group: str | None = None,
        attributes: Mapping[str, str | bytes] = NO_ATTRIBUTES,
    ) -> list[str]:
        """Write many messages; see `Outbox.send_many`."""
        rows = _rows(self._make, queue, bodies, delay=delay, group=group, attributes=attributes)
        await write_async(self._session, rows)
        return [_id(row) for row in rows]


def open_outbox(
    session: "SyncSession | AsyncSessions", make: MakeMessage, *, on_commit: Callable[[object], None] | None
) -> Outbox | AsyncOutbox:
    """Return the outbox for a session or connection. ``on_commit`` is called after each of its commits."""
    if on_commit is not None:
        call_after_commits(session, on_commit)
    kind: Any = AsyncOutbox if is_async(session) else Outbox
    made: Outbox | AsyncOutbox = kind(session, make)
    return made


def _rows(make: MakeMessage, queue: Queue[Any] | str, bodies: Iterable[Any], **options: Any) -> Sequence[Row]:
    return [_row(queue, make(queue, body, **options)) for body in bodies]


def _row(queue: Queue[Any] | str, outgoing: Outgoing) -> Row:
    return row_of(queue if isinstance(queue, str) else queue.name, outgoing, secrets.token_bytes(ID_BYTES))


def _id(row: Row) -> str:
    outbox_id: bytes = row["outbox_id"]
    return outbox_id.hex()
