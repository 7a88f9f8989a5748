"""The database operations of the relay: claim rows, delete sent rows, release the others, clean up the inbox.

Each operation is a short transaction of its own, and none is open during a call to the broker, so that no user's
insert waits for the network. A claim is a lease by the database's clock: the rows of a dead relay are free when it
expires.

`takeable` and `unbroken` choose the rows to claim; they are pure functions. Order is kept within a stream, which is
a queue and a group. So no row is claimed while another relay holds an earlier row of its stream, or has just held
it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, RowMapping, and_, delete, false, func, not_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql import ColumnElement

from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.addresses import masked
from penstock.messaging.forks import EmbeddedFile, leave_to_parent, renew_in_copies
from penstock.messaging.message import OUTBOX_ID_ATTRIBUTE, Outgoing
from penstock.transactions.inbox import count_messages
from penstock.transactions.outbox import digest, read_attributes
from penstock.transactions.sessions import explained
from penstock.transactions.tables import ServerNow, inbox, outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRow:
    """A due row as read by a poll."""

    id: int
    stream_id: bytes
    body_bytes: int
    claimed: bool  # by another relay


def takeable(rows: Iterable[DueRow], *, rows_max: int, bytes_max: int) -> Sequence[DueRow]:
    """Return the rows, ordered by id, that may be claimed: at least one if any is free, whatever its size."""
    taken: list[DueRow] = []
    busy: set[bytes] = set()
    size = 0
    for row in rows:
        if row.claimed:
            busy.add(row.stream_id)
        elif row.stream_id not in busy:
            size += row.body_bytes
            if len(taken) == rows_max or (taken and size > bytes_max):
                break
            taken.append(row)
    return taken


def unbroken(wanted: Iterable[DueRow], got: Set[int]) -> Sequence[int]:
    """Return the ids of the locked rows, up to the first missing one of each stream."""
    claimable: list[int] = []
    broken: set[bytes] = set()
    for row in wanted:
        if row.id not in got:
            broken.add(row.stream_id)
        elif row.stream_id not in broken:
            claimable.append(row.id)
    return claimable


POLL_ROWS = 1_000  # rows per poll, so that a relay finds free rows behind those that others hold
FORGET_ROWS = 1_000  # deleted per transaction
SQLITE = "sqlite"
IN_MEMORY = ":memory:"

_claimed = outbox.c.claimed_until > ServerNow()
_due = outbox.c.due_at <= ServerNow()
# SQLite locks the whole file, and only for writers. A transaction that has read before it writes may be refused without
# a wait. So a transaction that reads first starts with an empty write.
_LOCK_SQLITE = update(outbox).where(false()).values(tries=outbox.c.tries)
_POLL = (
    select(outbox.c.id, outbox.c.stream_id, outbox.c.body_bytes, _claimed.label("claimed"))
    .where(_due)
    .order_by(outbox.c.id)
    .limit(POLL_ROWS)
)
_FREE = {"claim_id": None, "claimed_until": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRow:
    """A row that this relay has claimed."""

    id: int
    outbox_id: str  # hexadecimal
    queue: str
    outgoing: Outgoing
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """A row as shown to users. Times are epoch seconds by the database's clock."""

    id: int
    outbox_id: str
    queue: str
    group: str | None
    body_bytes: int
    created_at: float
    age_seconds: float
    sending: bool  # a relay has claimed it
    tries: int
    due_in_seconds: float  # 0: at the next poll of a relay
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenRows:
    """The rows of an inbox that one transaction deleted."""

    messages: int  # messages that the rows recorded
    is_all: bool  # True if no older rows remain


class TransactionStore:
    """The outbox and inbox of one database. Owned by the declaration of a relay; any thread may use it."""

    def __init__(self, engine: Engine, *, owned: bool = False) -> None:
        """``owned``: no other code uses the engine, so that `close` may dispose of its connections."""
        self._owned = owned
        self.address = masked(engine.url.render_as_string(hide_password=True))  # for errors
        self._on_sqlite = engine.dialect.name == SQLITE
        # This level takes no gap locks, which would block users' inserts, and each query sees the latest rows.
        self._engine = engine if self._on_sqlite else engine.execution_options(isolation_level="READ COMMITTED")
        # A user's engine is not closed at forks: it has other connections, which the user closes.
        self._use: AbstractContextManager[None] = nullcontext()
        if owned and self._on_sqlite and engine.url.database not in (None, "", IN_MEMORY):
            path = Path(str(engine.url.database))
            self._use = EmbeddedFile(f"the outbox's database {path}", path, engine.dispose)
        renew_in_copies(self)

    def begin_in_copy(self) -> None:
        """Leave the connections to the parent process. A file's connections were closed before the fork."""
        if self._owned and not self._on_sqlite:
            leave_to_parent(self._engine.pool)
            self._engine.dispose(close=False)

    def claim(
        self,
        claim_id: bytes,
        *,
        lease_seconds: float,
        rows_max: int,
        bytes_max: int,
        paused: Collection[str] = (),
    ) -> Sequence[ClaimedRow]:
        """Claim the oldest due and free rows and return them by id. Rows of ``paused`` queues are left out."""
        poll = _POLL.where(outbox.c.queue_id.not_in([digest(queue) for queue in paused])) if paused else _POLL
        with self._transaction() as connection:
            if self._on_sqlite:
                connection.execute(_LOCK_SQLITE)
            due = [DueRow(**row) for row in connection.execute(poll).mappings()]
            wanted = takeable(due, rows_max=rows_max, bytes_max=bytes_max)
            if not wanted:
                return ()
            free = and_(outbox.c.id.in_([row.id for row in wanted]), not_(_claimed))
            got = connection.execute(select(outbox.c.id).where(free).with_for_update(skip_locked=True)).scalars()
            claimable = unbroken(wanted, frozenset(got))
            if not claimable:
                return ()
            # If the engine autocommits, the row locks are already released.
            still_free = and_(outbox.c.id.in_(claimable), not_(_claimed))
            connection.execute(
                update(outbox).where(still_free).values(claim_id=claim_id, claimed_until=ServerNow() + lease_seconds)
            )
            left = (outbox.c.created_at + outbox.c.delay_seconds - ServerNow()).label("delay_left")
            mine = select(outbox, left).where(_held(claim_id, claimable)).order_by(outbox.c.id)
            rows = connection.execute(mine).mappings()
            return [_claimed_row(row) for row in rows]

    def delete(self, claim_id: bytes, ids: Sequence[int]) -> None:
        """Delete sent rows, except those that another relay has claimed by now."""
        with self._transaction() as connection:
            connection.execute(delete(outbox).where(_held(claim_id, ids)))

    def release(self, claim_id: bytes) -> None:
        """Release all rows still held under this claim."""
        with self._transaction() as connection:
            connection.execute(update(outbox).where(outbox.c.claim_id == claim_id).values(**_FREE))

    def refuse(self, claim_id: bytes, id: int, *, reason: str, wait_seconds: float) -> None:
        """Put aside a row that the broker rejected, with the reason, until the wait is over."""
        values = {**_FREE, "due_at": ServerNow() + wait_seconds, "tries": outbox.c.tries + 1, "reason": reason}
        with self._transaction() as connection:
            connection.execute(update(outbox).where(_held(claim_id, [id])).values(values))

    def hasten(self) -> None:
        """Make all waiting rows due now."""
        with self._transaction() as connection:
            connection.execute(update(outbox).where(not_(_due)).values(due_at=0.0))

    def counts(self) -> tuple[int, int]:
        """Return the number of rows in the outbox, and the number of those that the broker rejected."""
        with self._transaction() as connection:
            rows, refused = connection.execute(
                select(func.count(), func.count(outbox.c.reason)).select_from(outbox)
            ).one()
            return rows, refused

    def waiting(self, *, limit: int) -> Sequence[WaitingRow]:
        """Return up to ``limit`` rows of the outbox, oldest first."""
        columns = [column for column in outbox.c if column.name not in ("body", "attributes")]
        query = select(*columns, ServerNow().label("now")).order_by(outbox.c.id).limit(limit)
        with self._transaction() as connection:
            return [_waiting(row) for row in connection.execute(query).mappings()]

    def forget(self, older_than_seconds: float) -> ForgottenRows:
        """Delete up to `FORGET_ROWS` rows of the inbox that are older than ``older_than_seconds``."""
        is_old = inbox.c.done_at < ServerNow() - older_than_seconds
        old = select(inbox.c.inbox_id, inbox.c.handler).where(is_old).limit(FORGET_ROWS)
        with self._transaction() as connection:
            rows = connection.execute(old).all()
            if rows:
                connection.execute(delete(inbox).where(inbox.c.inbox_id.in_([row.inbox_id for row in rows])))
        return ForgottenRows(messages=count_messages([row.handler for row in rows]), is_all=len(rows) < FORGET_ROWS)

    def close(self) -> None:
        """Close the connections unless the engine is the user's. The store can be used again."""
        if self._owned:
            self._engine.dispose()
        if isinstance(self._use, EmbeddedFile):
            self._use.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Open a transaction. Raises `ConfigurationError` if a table is missing, else `TemporaryError`."""
        try:
            with explained(), self._use, self._connected() as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise TemporaryError(f"the database {self.address} of the outbox failed: {error.orig}") from error
        except PoolTimeout as error:
            raise TemporaryError(f"all connections to the database {self.address} are in use") from error

    def _connected(self) -> Connection:
        try:
            return self._engine.connect()
        except TypeError as error:  # parameters of the address are passed to the driver as arguments
            raise ConfigurationError(
                f"the driver does not take a parameter of the database's address {self.address}: {error}"
            ) from error


def _held(claim_id: bytes, ids: Sequence[int]) -> ColumnElement[bool]:
    return and_(outbox.c.id.in_(ids), outbox.c.claim_id == claim_id)


def _claimed_row(row: RowMapping) -> ClaimedRow:
    outbox_id = bytes(row["outbox_id"]).hex()
    outgoing = Outgoing(
        body=bytes(row["body"]),
        attributes={**read_attributes(row["attributes"]), OUTBOX_ID_ATTRIBUTE: outbox_id},
        group=row["message_group"],
        # The broker drops a duplicate within its window; after that the inbox recognises the attribute.
        deduplication_id=row["deduplication_id"] or outbox_id,
        delay_seconds=max(0.0, row["delay_left"]) if row["delay_seconds"] else 0.0,
    )
    return ClaimedRow(id=row["id"], outbox_id=outbox_id, queue=row["queue"], outgoing=outgoing, tries=row["tries"])


def _waiting(row: RowMapping) -> WaitingRow:
    now = row["now"]
    return WaitingRow(
        id=row["id"],
        outbox_id=bytes(row["outbox_id"]).hex(),
        queue=row["queue"],
        group=row["message_group"],
        body_bytes=row["body_bytes"],
        created_at=row["created_at"],
        age_seconds=max(0.0, now - row["created_at"]),
        sending=row["claimed_until"] > now,
        tries=row["tries"],
        due_in_seconds=max(0.0, row["due_at"] - now),
        reason=row["reason"],
    )
