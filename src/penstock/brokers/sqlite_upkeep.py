"""What time does to a queue in the file: leases and delays end, messages pass their retention, and some die of it."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.brokers import rules
from penstock.brokers.sqlite_rows import Row, decode_attributes, encode_attributes
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import Death, with_death

ROWS_MAX = 10_000  # looked after in one transaction, so that other writers come in between


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue as the file knows it."""

    id: int
    settings: QueueSettings
    ring_end: int


class Upkeep:
    """The statements that several duties of the broker share. Everything runs inside a transaction of the caller's."""

    def __init__(self, sql: Mapping[str, str], store_id: str) -> None:
        self._sql = sql
        self._store_id = store_id

    def queue(self, connection: sqlite3.Connection, name: str) -> QueueRow | None:
        row = connection.execute(self._sql["queue"], {"name": name}).fetchone()
        if row is None:
            return None
        id, name, dead_letter_queue, receives_max, retention_seconds, ring_end = row
        settings = QueueSettings(
            name=name,
            dead_letter_queue=dead_letter_queue,
            receives_max=receives_max,
            retention_seconds=retention_seconds,
        )
        return QueueRow(id=id, settings=settings, ring_end=ring_end)

    def ensure_queue(self, connection: sqlite3.Connection, name: str) -> QueueRow:
        """The queue, made on its first use."""
        found = self.queue(connection, name)
        if found is not None:
            return found
        self.write_settings(connection, "add_queue", QueueSettings(name=name))
        made = self.queue(connection, name)
        assert made is not None
        return made

    def write_settings(self, connection: sqlite3.Connection, statement: str, settings: QueueSettings) -> None:
        parameters = {
            "name": settings.name,
            "dead_letter_queue": rules.dead_letter_queue(settings),
            "receives_max": settings.receives_max,
            "retention_seconds": settings.retention_seconds,
        }
        connection.execute(self._sql[statement], parameters)

    def needed(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> bool:
        parameters = {"queue_id": queue.id, "now": now, "retention_seconds": queue.settings.retention_seconds}
        return bool(connection.execute(self._sql["anything_to_do"], parameters).fetchone()[0])

    def run(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> bool:
        """Do at most `ROWS_MAX` of each duty; answers whether nothing is left."""
        done = self._wake(connection, queue, now) < ROWS_MAX
        return done and self._expire(connection, queue, now) < ROWS_MAX

    def join_ring(self, connection: sqlite3.Connection, queue: QueueRow, groups: Iterable[str]) -> None:
        """Groups that have ready messages now and are not in the ring yet go to its end, in this order."""
        places = [(queue.id, group, queue.ring_end + n) for n, group in enumerate(dict.fromkeys(groups), start=1)]
        if places:
            connection.executemany(self._sql["join_ring"], places)
            self.set_ring_end(connection, queue, places[-1][2])

    def set_ring_end(self, connection: sqlite3.Connection, queue: QueueRow, ring_end: int) -> None:
        connection.execute(self._sql["set_ring_end"], {"queue_id": queue.id, "ring_end": ring_end})

    def bury(
        self,
        connection: sqlite3.Connection,
        queue: QueueRow,
        ids: Sequence[int],
        death: Callable[[Row], Death],
        now: float,
    ) -> None:
        """Move messages to the dead-letter queue: a new age, new attempts, the same id, body, group and attributes."""
        target = self.ensure_queue(connection, rules.dead_letter_queue(queue.settings))
        rows = connection.execute(self._sql["last_days"], {"ids": json.dumps(ids)}).fetchall()
        moves = [
            {
                "id": row[0],
                "queue_id": target.id,
                "now": now,
                "attributes": encode_attributes(with_death(decode_attributes(row[1]), death(row))),
            }
            for row in rows
        ]
        connection.executemany(self._sql["bury"], moves)

    def _wake(self, connection: sqlite3.Connection, queue: QueueRow, now: float) -> int:
        parameters = {"queue_id": queue.id, "now": now, "rows_max": ROWS_MAX}
        due = connection.execute(self._sql["due"], parameters).fetchall()
        if not due:
            return 0
        connection.execute(self._sql["wake"], {"ids": json.dumps([row[0] for row in due])})
        receives_max = queue.settings.receives_max
        exhausted = [id for id, _, attempts in due if receives_max is not None and attempts >= receives_max]
        if exhausted:
            self.bury(connection, queue, exhausted, lambda row: self._exhausted(queue, row, now), now)
        dead = set(exhausted)
        self.join_ring(connection, queue, [group for id, group, _ in due if id not in dead])
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
        if connection.execute(self._sql["is_dead_letter_queue"], {"name": queue.settings.name}).fetchone()[0]:
            connection.execute(self._sql["delete"], {"ids": json.dumps(ids)})
            connection.execute(self._sql["count_dropped"], {"queue_id": queue.id, "count": len(ids)})
        else:
            reason = rules.reason_expired(retention_seconds)
            self.bury(connection, queue, ids, lambda row: self._death(queue, row, reason, now), now)
        connection.execute(self._sql["tidy_ring"], {"queue_id": queue.id})
        return len(ids)

    def _exhausted(self, queue: QueueRow, row: Row, now: float) -> Death:
        return self._death(queue, row, rules.reason_exhausted(row[3]), now)

    def _death(self, queue: QueueRow, row: Row, reason: str, now: float) -> Death:
        id, _, enqueued_at, attempts, first_failed_at, last_failed_at, worker = row
        return Death(
            reason=reason,
            attempts=attempts,
            first_failed_at=first_failed_at,
            last_failed_at=now if last_failed_at is None else last_failed_at,
            worker=worker,
            queue=queue.settings.name,
            message_id=rules.message_id(self._store_id, id),
            enqueued_at=enqueued_at,
        )
