"""Upkeep of a queue in the file: end leases and delays, expire messages, and dead-letter on the broker's decision.

Everything runs inside the caller's transaction.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.brokers import shared
from penstock.brokers.shared import decode_attributes, encode_attributes
from penstock.brokers.sqlite.queues import QueueRow, Row, SqliteQueues, tries_of
from penstock.messaging.death import Death, with_death
from penstock.messaging.message import UNREADABLE_ATTRIBUTE, Attributes

ROWS_MAX = 10_000  # of each kind per transaction, so that other writers get their turn


class SqliteUpkeep:
    def __init__(self, sql: Mapping[str, str], store_id: str, queues: SqliteQueues) -> None:
        self._sql = sql
        self._store_id = store_id
        self._queues = queues

    def needed(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> bool:
        parameters = {"queue_id": queue.id, "now": now, "retention_seconds": queue.settings.retention_seconds}
        due = connection.execute(self._sql["anything_to_do"], parameters).fetchone()[0]
        return bool(due) or _clock_went_back(queue, now)

    def run(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> bool:
        """Handle at most `ROWS_MAX` rows of each kind; return True if nothing is left.

        ``now`` must have been read inside this transaction.
        """
        if _clock_went_back(queue, now):
            for statement in ("shorten_leases", "shorten_delays"):
                connection.execute(self._sql[statement], {"queue_id": queue.id, "now": now})
            self._queues.set_clock(connection, [queue.settings.name], now)
        done = self._make_visible(connection, queue, now) < ROWS_MAX
        return done and self._expire(connection, queue, now) < ROWS_MAX

    def release_holder(self, connection: sqlite3.Connection, holder: str, now: float) -> int:
        """End all leases of a worker that is proven dead; return how many."""
        ids = [row[0] for row in connection.execute(self._sql["held_by"], {"holder": holder})]
        connection.execute(self._sql["release_dead"], {"ids": json.dumps(ids), "now": now})
        self.reset_ages(connection, ids)
        return len(ids)

    def reset_ages(self, connection: sqlite3.Connection, ids: Sequence[int]) -> None:
        """Restart the age of every message that reached another `shared.RESET_EVERY` unsuccessful deliveries.

        Call it after deliveries of these messages ended unsuccessfully.
        """
        connection.execute(self._sql["reset_ages"], {"ids": json.dumps(ids)})

    def move_to_dlq(
        self,
        connection: sqlite3.Connection,
        queue: QueueRow,
        ids: Sequence[int],
        attributes: Callable[[Attributes, Row], Attributes],
        now: float,
    ) -> None:
        """Move messages to the dead-letter queue: new age and attempts; same id, body and group.

        ``attributes`` returns the dead-lettered message's attributes, given the message's own and its row of the
        statement `last_days`.
        """
        target = self._queues.ensure(connection, self._queues.dead_letter_queue(connection, queue.settings))
        rows = connection.execute(self._sql["last_days"], {"ids": json.dumps(ids)}).fetchall()
        moves = [
            {
                "id": row[0],
                "queue_id": target.id,
                "now": now,
                "attributes": encode_attributes(attributes(decode_attributes(row[1]), row)),
            }
            for row in rows
        ]
        connection.executemany(self._sql["bury"], moves)
        self._queues.set_clock(connection, [target.settings.name], now)

    def dead_letter_by_broker(
        self,
        connection: sqlite3.Connection,
        queue: QueueRow,
        ids: Sequence[int],
        reason: Callable[[Row], str],
        now: float,
    ) -> None:
        """Dead-letter messages on the broker's own decision."""

        def attributes(before: Attributes, row: Row) -> Attributes:
            death = self._death(queue, row, reason(row), now)
            return with_death(before, replace(death, poison=UNREADABLE_ATTRIBUTE in before))

        self.move_to_dlq(connection, queue, ids, attributes, now)

    def _make_visible(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> int:
        parameters = {"queue_id": queue.id, "now": now, "rows_max": ROWS_MAX}
        due = connection.execute(self._sql["due"], parameters).fetchall()
        if not due:
            return 0
        visible = [row[0] for row in due]
        connection.execute(self._sql["wake"], {"ids": json.dumps(visible)})
        self.reset_ages(connection, visible)
        receives_max = queue.settings.receives_max
        exhausted = [id for id, _, attempts in due if receives_max is not None and attempts >= receives_max]
        if exhausted:
            self.dead_letter_by_broker(connection, queue, exhausted, lambda row: shared.reason_exhausted(row[3]), now)
        dead = set(exhausted)
        self._queues.join_rotation(connection, queue, [group for id, group, _ in due if id not in dead])
        return len(due)

    def _expire(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> int:
        retention_seconds = queue.settings.retention_seconds
        parameters = {
            "queue_id": queue.id,
            "now": now,
            "retention_seconds": retention_seconds,
            "rows_max": ROWS_MAX,
        }
        ids = [row[0] for row in connection.execute(self._sql["expired"], parameters)]
        if not ids:
            return 0
        if self._queues.is_dead_letter_queue(connection, queue.settings.name):
            connection.execute(self._sql["delete"], {"ids": json.dumps(ids)})
            connection.execute(self._sql["count_dropped"], {"queue_id": queue.id, "count": len(ids)})
        else:
            reason = shared.reason_expired(retention_seconds)
            self.dead_letter_by_broker(connection, queue, ids, lambda _: reason, now)
        connection.execute(self._sql["tidy_ring"], {"queue_id": queue.id})
        return len(ids)

    def _death(self, queue: QueueRow, row: Row, reason: str, now: float) -> Death:
        id, _, enqueued_at, attempts, first_failed_at, last_failed_at, worker, tries = row
        return Death(
            reason=reason,
            attempts=attempts,
            first_failed_at=first_failed_at,
            last_failed_at=now if last_failed_at is None else last_failed_at,
            worker=worker,
            queue=queue.settings.name,
            message_id=shared.message_id(self._store_id, id),
            enqueued_at=enqueued_at,
            tries=tuple(tries_of(tries)),
        )


def _clock_went_back(queue: QueueRow, now: float) -> bool:
    return now < queue.clock_at - shared.CLOCK_BACK_SECONDS
