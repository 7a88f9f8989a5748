"""Which dead letters were to be sent back, when, and which were: the first word on each counts.

A replay is on record before it is sent and marked after, so one that is marked is never sent again, and its wait is the
one that was chosen first, whoever looks at the letter next. Times are epoch seconds by the database's clock, but for
``due_at``, which is the replayer's.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sqlalchemy import Connection, bindparam, delete, select, update

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.rows import AnyRow
from penstock.ledger.rules import storable
from penstock.ledger.schema import replays
from penstock.messaging.replays import Replay

AT_ONCE_MAX = 500  # ids in one statement

_THESE = replays.c.replay_id.in_(bindparam("these", expanding=True))
_LOOK = select(replays).where(_THESE)
_SENT = update(replays).values(sent_at=DatabaseNow()).where(_THESE, replays.c.sent_at.is_(None))
_OLD = (
    select(replays.c.replay_id)
    .where(
        replays.c.intended_at < DatabaseNow() - bindparam("older_than_seconds"),
        # What waits in a tier of longer retention than those of the replayer that forgets: it would wait anew.
        replays.c.due_at < DatabaseNow() - bindparam("older_than_seconds"),
    )
    .order_by(replays.c.intended_at)
    .limit(bindparam("rows_max"))
)
_FORGET = delete(replays).where(_THESE)


class Replays:
    """A `penstock.messaging.replays.ReplayLog` in the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(replays)

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        """Record the intent of those not on record yet; answers all as they stand on record, by replay id."""
        if not replays:
            return {}
        rows = [
            {
                "replay_id": one.replay_id,
                "letter_queue": storable(one.letter_queue),
                "letter_id": storable(one.letter_id),
                "queue": storable(one.queue),
                "count": one.count,
                "due_at": one.due_at,
            }
            for one in sorted(replays, key=lambda one: one.replay_id)  # one order, so that no two lock each other out
        ]
        add = self._add.values(intended_at=DatabaseNow())
        self._database.transact(lambda connection: connection.execute(add, rows))
        return self.find([one.replay_id for one in replays])

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        """Those of these that are on record, by replay id."""
        with self._database.reading() as connection:
            return {
                row.replay_id: _replay(row)
                for ids in _parts(replay_ids)
                for row in connection.execute(_LOOK, {"these": ids})
            }

    def sent(self, replay_ids: Sequence[str]) -> None:
        """They are in their queues again."""

        def mark(connection: Connection) -> None:
            for ids in _parts(sorted(replay_ids)):
                connection.execute(_SENT, {"these": ids})

        if replay_ids:
            self._database.transact(mark)

    def forget(self, *, older_than_seconds: float, limit: int) -> int:
        """Delete the oldest that were intended and due so long ago; answers how many. Their letters have to be gone."""

        def forget(connection: Connection) -> int:
            binds = {"older_than_seconds": older_than_seconds, "rows_max": limit}
            old = connection.scalars(_OLD, binds).all()
            return sum(connection.execute(_FORGET, {"these": ids}).rowcount for ids in _parts(sorted(old)))

        return self._database.transact(forget)


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    rest = iter(ids)
    while part := list(islice(rest, AT_ONCE_MAX)):
        yield part


def _replay(row: AnyRow) -> Replay:
    return Replay(
        replay_id=row.replay_id,
        letter_queue=row.letter_queue,
        letter_id=row.letter_id,
        queue=row.queue,
        count=row._mapping["count"],  # what a tuple calls so is something else
        due_at=row.due_at,
        sent=row.sent_at is not None,
    )
