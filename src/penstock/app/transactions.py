"""The part of an `App` that stands in the user's own database: outbox, inbox, and the relay between it and the broker.

SQLAlchemy is loaded when one of these is first used.
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
    from penstock.transactions.inbox import Recipient
    from penstock.transactions.relay import RelaySettings
    from penstock.transactions.sessions import AsyncSessions, Database, SyncSession
    from penstock.transactions.store import TransactionStore

EVERY_SECONDS = 1.0
LEASE_SECONDS = 30.0
LEASE_SECONDS_MIN = 1.0  # with less a relay could be too late for each row that it claims, and send none
REMEMBERED = "14 days"  # as long as a message may wait in a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayDeclaration:
    """One database whose outbox is relayed."""

    store: "TransactionStore"
    settings: "RelaySettings"


class InboxAnswer:
    """Whether a message is new, to be awaited. Asking it without is a mistake that would let everything pass."""

    def __init__(self, answer: Awaitable[bool]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._answer.__await__()

    def __bool__(self) -> NoReturn:
        close = getattr(self._answer, "close", None)
        if close is not None:
            close()
        raise UsageError("With an async session the inbox has to be awaited: `if not await app.inbox(...)`.")


class Transactional:
    """Effects that are one commit with what the user writes."""

    outgoing_in_trace: "MakeMessage"  # this and the next two are the `App`'s
    name: str
    queue_name_of: Callable[[str], str | None]

    def __init__(self) -> None:
        self._relays: tuple[RelayDeclaration, ...] = ()  # written where the app is declared
        self._wakers: tuple[Callable[[], None], ...] = ()  # of relays at work here; replaced as a whole

    @property
    def relays(self) -> Sequence[RelayDeclaration]:
        """What was declared, in that order."""
        return self._relays

    @overload
    def outbox(self, session: "SyncSession") -> "Outbox": ...

    @overload
    def outbox(self, session: "AsyncSessions") -> "AsyncOutbox": ...

    def outbox(self, session: "SyncSession | AsyncSessions") -> "Outbox | AsyncOutbox":
        """Send in the transaction of this session or connection: ``app.outbox(session).send(orders, order)``.

        With an async one, ``await`` each send. Rows are sent by the relay once they are committed, at least once.
        """
        from penstock.app.outbox import AsyncOutbox, Outbox
        from penstock.transactions.sessions import is_async, tell_commits

        if self._wakers:
            tell_commits(session, self._committed)
        face: Any = AsyncOutbox if is_async(session) else Outbox
        made: Outbox | AsyncOutbox = face(session, self.outgoing_in_trace)
        return made

    @overload
    def inbox(self, session: "SyncSession", message: Message | Context, *, handler: str | None = None) -> bool: ...

    @overload
    def inbox(
        self, session: "AsyncSessions", message: Message | Context, *, handler: str | None = None
    ) -> Awaitable[bool]: ...

    def inbox(
        self, session: "SyncSession | AsyncSessions", message: Message | Context, *, handler: str | None = None
    ) -> bool | Awaitable[bool]:
        """Record in the session's transaction that the message takes effect here; answers whether it is new.

        False: its effect is committed already, so return. ``message`` is the context of a handler; or a message, such
        as an item's in a batch, and then ``handler`` names who works on it. With an async session, ``await`` it. The
        record names the app, the handler, and the queue that this app gave to the handler.

        Raises what the database raises where it cannot decide (a deadlock, a lock that lasts): let it pass, and the
        message comes again. Raises `ConfigurationError` where the database has no inbox.
        """
        from penstock.transactions.inbox import record, record_async
        from penstock.transactions.sessions import is_async

        name, found = _whose(message, handler)
        recipient = self._recipient(name)
        writer: Any = session
        return (
            InboxAnswer(record_async(writer, recipient, found))
            if is_async(session)
            else record(writer, recipient, found)
        )

    def relay(
        self,
        database: "Database",
        *,
        every: Duration = EVERY_SECONDS,
        lease: Duration = LEASE_SECONDS,
        inbox_retention: Duration | None = REMEMBERED,
    ) -> None:
        """Let the app's workers, and ``penstock outbox relay``, send what the outbox in this database holds.

        ``database`` is an engine with a plain driver, or its address. An idle relay looks ``every`` second or so. What
        a relay that died was sending is free after the ``lease``. What the inbox of the same database has held for
        longer than ``inbox_retention`` is deleted now and then; None: never.
        """
        from penstock.transactions.relay import RelaySettings
        from penstock.transactions.sessions import engine_of
        from penstock.transactions.store import TransactionStore

        lease_seconds = seconds_of("lease", lease)
        if lease_seconds < LEASE_SECONDS_MIN:
            raise UsageError(f"A relay's lease={lease!r} is too short to send anything in; give it a second at least.")
        settings = RelaySettings(
            every_seconds=seconds_of("every", every),
            lease_seconds=lease_seconds,
            inbox_seconds=None if inbox_retention is None else seconds_of("inbox_retention", inbox_retention),
        )
        store = TransactionStore(engine_of(database), owned=isinstance(database, str))
        self._relays += (RelayDeclaration(store=store, settings=settings),)

    def wake_by(self, wakers: Sequence[Callable[[], None]]) -> None:
        """Who is told of commits from now on."""
        self._wakers = tuple(wakers)

    def _recipient(self, handler: str) -> "Recipient":
        from penstock.transactions.inbox import Recipient

        return Recipient(app=self.name, queue=self.queue_name_of(handler), handler=handler)

    def _committed(self, _session: object) -> None:
        for wake in self._wakers:
            wake()


def _whose(message: Message | Context, handler: str | None) -> tuple[str, Message]:
    if isinstance(message, Context):
        return handler or message.handler, message.message
    if not isinstance(message, Message):
        raise UsageError(f"The inbox records a handler's context or a message, not a {type(message).__name__}.")
    if not handler:
        raise UsageError("The inbox records what took effect in which handler: give handler=... with a message.")
    return handler, message
