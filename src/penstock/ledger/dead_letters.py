"""Record replays of dead-lettered messages, and operators' actions on queues.

`Replays`: a replay is recorded before it is sent and marked afterwards, so a marked one is never sent again. The first
record wins, so a replay keeps the delay that was chosen first. Times are epoch seconds of the database's clock; only
``due_at`` is by the replayer's clock.

`Audits`: replays, purges and exports are recorded before they start and completed afterwards. An entry without an
outcome is still in progress or was killed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from json import dumps, loads
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update
from ulid import ULID

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.rows import AnyRow
from penstock.ledger.rules import storable
from penstock.ledger.schema import audit, replays
from penstock.messaging.replay import Replay

AT_ONCE_MAX = 500  # ids per statement

_THESE = replays.c.replay_id.in_(bindparam("these", expanding=True))
_FIND = select(replays).where(_THESE)
_SENT = update(replays).values(sent_at=DatabaseNow()).where(_THESE, replays.c.sent_at.is_(None))
_OLD = (
    select(replays.c.replay_id)
    .where(
        replays.c.intended_at < DatabaseNow() - bindparam("older_than_seconds"),
        # Keeps replays that wait in a queue with a longer retention than this replayer's: unrecorded, they would wait
        # anew.
        replays.c.due_at < DatabaseNow() - bindparam("older_than_seconds"),
    )
    .order_by(replays.c.intended_at)
    .limit(bindparam("rows_max"))
)
_FORGET = delete(replays).where(_THESE)


class Replays:
    """A `penstock.messaging.replay.ReplayLog` in the ledger. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(replays)

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        """Record the replays that are not recorded yet; return all of them as recorded, by replay id."""
        if not replays:
            return {}
        rows = [
            {
                "replay_id": replay.replay_id,
                "letter_queue": storable(replay.dead_letter_queue),
                "letter_id": storable(replay.dead_letter_id),
                "queue": storable(replay.queue),
                "count": replay.count,
                "due_at": replay.due_at,
            }
            for replay in sorted(
                replays, key=lambda replay: replay.replay_id
            )  # one order, so that two calls cannot deadlock
        ]
        add = self._add.values(intended_at=DatabaseNow())
        self._database.transact(lambda connection: connection.execute(add, rows))
        return self.find([replay.replay_id for replay in replays])

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        """Return the recorded ones of these replays, by replay id."""
        with self._database.reading() as connection:
            return {
                row.replay_id: _replay(row)
                for ids in _chunks(replay_ids)
                for row in connection.execute(_FIND, {"these": ids})
            }

    def mark_sent(self, replay_ids: Sequence[str]) -> None:
        """Mark replays as sent to their queues."""

        def mark(connection: Connection) -> None:
            for ids in _chunks(sorted(replay_ids)):
                connection.execute(_SENT, {"these": ids})

        if replay_ids:
            self._database.transact(mark)

    def forget(self, *, older_than_seconds: float, limit: int) -> int:
        """Delete up to ``limit`` replays that were recorded and due longer ago than given; return their count.

        Their dead-lettered messages must be deleted already.
        """

        def forget(connection: Connection) -> int:
            binds = {"older_than_seconds": older_than_seconds, "rows_max": limit}
            old = connection.scalars(_OLD, binds).all()
            return sum(connection.execute(_FORGET, {"these": ids}).rowcount for ids in _chunks(sorted(old)))

        return self._database.transact(forget)


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    remaining = iter(ids)
    while chunk := list(islice(remaining, AT_ONCE_MAX)):
        yield chunk


def _replay(row: AnyRow) -> Replay:
    return Replay(
        replay_id=row.replay_id,
        dead_letter_queue=row.letter_queue,
        dead_letter_id=row.letter_id,
        queue=row.queue,
        count=row._mapping["count"],  # `row.count` is the tuple's method
        due_at=row.due_at,
        sent=row.sent_at is not None,
    )


DETAILS_BYTES_MAX = 60_000  # MySQL stores up to 65,535 bytes in this column
ENTRIES_MAX = 64  # items kept of a list if the details are too long
TEXT_CHARACTERS_MAX = 500

_ONE = audit.c.id == bindparam("of_id")
_END = (
    update(audit)
    .values(messages=bindparam("so_many"), outcome=bindparam("how"), ended_at=DatabaseNow())
    .where(_ONE, audit.c.outcome.is_(None))
)
_LATEST = select(audit).order_by(audit.c.id.desc())
_ACTIONS = select(audit.c.action).distinct()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One audit entry. Times are epoch seconds of the database's clock."""

    id: str
    action: str
    queue: str
    who: str
    details: Mapping[str, Any]  # the request: filters, limits
    messages: int  # number of messages affected
    outcome: str | None  # done, interrupted or failed; None: not ended
    began_at: float
    ended_at: float | None


class Audits:
    """The audit log. Entries are never deleted, and never changed after their end. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(audit)

    def begin(self, action: str, *, queue: str, who: str, details: Mapping[str, Any]) -> str:
        """Record an action that is about to start; return the entry's id."""
        entry = str(ULID())
        row = {
            "id": entry,
            "action": action,
            "queue": storable(queue),
            "who": storable(who),
            "details": storable(_fitting_json(details)),
            "messages": 0,
        }
        add = self._add.values(began_at=DatabaseNow())
        self._database.transact(lambda connection: connection.execute(add, row))
        return entry

    def end(self, entry: str, *, messages: int, outcome: str) -> None:
        """Record the result of an action; an entry that has ended stays unchanged."""
        binds = {"of_id": entry, "so_many": messages, "how": outcome}
        self._database.transact(lambda connection: connection.execute(_END, binds))

    def latest(
        self,
        *,
        limit: int,
        before: str | None = None,
        who_contains: str | None = None,
        queue_contains: str | None = None,
        action: str | None = None,
    ) -> Sequence[AuditRow]:
        """Return the newest entries first; ``before`` is the last id of the previous page.

        Upper and lower case are the same for ``who_contains`` and ``queue_contains``.
        """
        query = _LATEST.limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        if who_contains is not None:
            query = query.where(audit.c.who.icontains(storable(who_contains), autoescape=True))
        if queue_contains is not None:
            query = query.where(audit.c.queue.icontains(storable(queue_contains), autoescape=True))
        if action is not None:
            query = query.where(audit.c.action == storable(action))
        with self._database.reading() as connection:
            return [_row(row) for row in connection.execute(query)]

    def actions(self) -> Sequence[str]:
        """Return the names of all actions in the log, sorted."""
        with self._database.reading() as connection:
            return sorted(connection.scalars(_ACTIONS))


def _fitting_json(details: Mapping[str, Any]) -> str:
    """Return JSON that fits the column. Long lists are cut to their first items and a count of the rest."""
    text, items_max = dumps(details), ENTRIES_MAX
    while len(text) > DETAILS_BYTES_MAX and items_max:
        text = dumps(_beginning(details, items_max))
        items_max //= 2
    return text


def _beginning(value: Any, items_max: int) -> Any:
    if isinstance(value, str):
        return value[:TEXT_CHARACTERS_MAX]
    if isinstance(value, Mapping):
        return {name: _beginning(item, items_max) for name, item in value.items()}
    if isinstance(value, list) and len(value) > items_max:
        return [*(_beginning(item, items_max) for item in value[:items_max]), f"and {len(value) - items_max:,} more"]
    return value


def _row(row: AnyRow) -> AuditRow:
    fields = dict(row._mapping)
    return AuditRow(**{**fields, "details": loads(fields["details"])})
