"""The methods of `App` that use the user's own database: outbox, inbox, and the relay from outbox to broker.

SQLAlchemy is imported on first use.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, overload

from penstock.errors import UsageError
from penstock.handlers.context import Context
from penstock.handlers.durations import Duration, seconds_of
from penstock.messaging.message import Message

if TYPE_CHECKING:
    from penstock.app.outbox import AsyncOutbox, MakeMessage, Outbox
    from penstock.transactions.relay import RelaySettings
    from penstock.transactions.sessions import AsyncSessions, Database, SyncSession
    from penstock.transactions.store import TransactionStore

EVERY_SECONDS = 1.0
LEASE_SECONDS = 30.0
LEASE_SECONDS_MIN = 1.0  # a shorter lease could expire before each claimed row is sent
INBOX_RETENTION = "14 days"  # the longest time that a message may wait in a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayDeclaration:
    """One database with an outbox to relay."""

    store: "TransactionStore"
    settings: "RelaySettings"


class InboxAnswer:
    """An awaitable bool: True if the message is new.

    Using it without ``await`` raises, instead of always being true.
    """

    def __init__(self, is_new: Awaitable[bool]) -> None:
        self._is_new = is_new

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._is_new.__await__()

    def __bool__(self) -> NoReturn:
        close = getattr(self._is_new, "close", None)
        if close is not None:
            close()
        raise UsageError("With an async session the inbox has to be awaited: `if not await app.inbox(...)`.")


class Transactional:
    """The outbox and inbox of an `App`, which inherits from it: messages and records commit with the user's writes."""

    outgoing_in_trace: "MakeMessage"  # provided by `App`, as are the next two
    name: str
    queue_name_of: Callable[[str], str | None]

    def __init__(self) -> None:
        super().__init__()
        self._relays: tuple[RelayDeclaration, ...] = ()  # written while the app is declared
        self._wakers: tuple[Callable[[], None], ...] = ()  # of relays running in this process; replaced as a whole

    @property
    def relays(self) -> Sequence[RelayDeclaration]:
        """The declared relays, in order of declaration."""
        return self._relays

    @overload
    def outbox(self, session: "SyncSession") -> "Outbox": ...

    @overload
    def outbox(self, session: "AsyncSessions") -> "AsyncOutbox": ...

    def outbox(self, session: "SyncSession | AsyncSessions") -> "Outbox | AsyncOutbox":
        """Return the outbox for a session or connection: ``app.outbox(session).send(orders, order)``.

        The relay sends the rows at least once after the commit.

        Args:
            session: A SQLAlchemy session or connection. With an async one, ``await`` each send.

        Returns:
            An `Outbox`, or an `AsyncOutbox` for an async session.
        """
        from penstock.app.outbox import open_outbox

        return open_outbox(session, self.outgoing_in_trace, on_commit=self._committed if self._wakers else None)

    @overload
    def inbox(self, session: "SyncSession", message: Message | Context, *, handler: str | None = None) -> bool: ...

    @overload
    def inbox(
        self, session: "AsyncSessions", message: Message | Context, *, handler: str | None = None
    ) -> Awaitable[bool]: ...

    def inbox(
        self, session: "SyncSession | AsyncSessions", message: Message | Context, *, handler: str | None = None
    ) -> bool | Awaitable[bool]:
        """Record in the session's transaction that a message takes effect here.

        If the result is False, the effect is already committed: return from the handler. The record names the app, the
        handler, and the handler's queue in this app. If a database error leaves the result unknown (a deadlock, a lock
        timeout), it is raised: do not catch it, so that the message is delivered again.

        Args:
            session: A SQLAlchemy session or connection. With an async one, ``await`` the result.
            message: The handler's context; or a message, such as an item's in a batch, together with ``handler``.
            handler: The name of the handler.

        Returns:
            True if the message is new.

        Raises:
            UsageError: If ``message`` is neither a context nor a message, or is a message without ``handler``.
            ConfigurationError: If the database has no inbox.
        """
        from penstock.transactions import inbox, sessions

        name, found = _handler_and_message(message, handler)
        recipient = inbox.Recipient(app=self.name, queue=self.queue_name_of(name), handler=name)
        writer: Any = session
        if sessions.is_async(session):
            return InboxAnswer(inbox.record_async(writer, recipient, found))
        return inbox.record(writer, recipient, found)

    def relay(
        self,
        database: "Database",
        *,
        every: Duration = EVERY_SECONDS,
        lease: Duration = LEASE_SECONDS,
        inbox_retention: Duration | None = INBOX_RETENTION,
    ) -> None:
        """Relay the outbox of a database. The app's workers and ``penstock admin outbox relay`` send its rows.

        Args:
            database: An engine with a synchronous driver, or its address.
            every: Poll interval of an idle relay, in seconds or as text.
            lease: Rows claimed by a relay that died become free after this time; at least a second.
            inbox_retention: Inbox records older than this are deleted periodically. None: never.

        Raises:
            UsageError: If the lease is too short, or the database is neither a synchronous engine nor its address.
        """
        from penstock.transactions import relay, sessions, store

        lease_seconds = seconds_of("lease", lease)
        if lease_seconds < LEASE_SECONDS_MIN:
            raise UsageError(f"A relay's lease={lease!r} is too short to send a message; give it at least one second.")
        settings = relay.RelaySettings(
            every_seconds=seconds_of("every", every),
            lease_seconds=lease_seconds,
            inbox_seconds=None if inbox_retention is None else seconds_of("inbox_retention", inbox_retention),
        )
        own = store.TransactionStore(sessions.engine_of(database), owned=isinstance(database, str))
        self._relays += (RelayDeclaration(store=own, settings=settings),)

    def wake_by(self, wakers: Sequence[Callable[[], None]]) -> None:
        """Set the functions to call after each commit."""
        self._wakers = tuple(wakers)

    def _committed(self, _session: object) -> None:
        for wake in self._wakers:
            wake()


def _handler_and_message(message: Message | Context, handler: str | None) -> tuple[str, Message]:
    if isinstance(message, Context):
        return handler or message.handler, message.message
    if not isinstance(message, Message):
        raise UsageError(f"The inbox records a handler's context or a message, not a {type(message).__name__}.")
    if not handler:
        raise UsageError("The inbox records in which handler a message takes effect: pass handler=... with a message.")
    return handler, message
