"""Queues in the file: settings, pauses, and the rotation of groups with ready messages; then rows to messages.

Everything runs inside the caller's transaction.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.brokers import shared
from penstock.brokers.shared import decode_attributes, decode_group
from penstock.messaging.broker import DEAD_LETTER_SUFFIX, QueueSettings, names_dead_letters
from penstock.messaging.death import AttemptRecord
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A row of the table of queues."""

    id: int
    settings: QueueSettings
    rotation_end: int
    paused: bool
    clock_at: float  # when a lease or delay last began; a clock behind this was set back


class SqliteQueues:
    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql

    def find(self, connection: sqlite3.Connection, name: str) -> QueueRow | None:
        row = connection.execute(self._sql["queue"], {"name": name}).fetchone()
        if row is None:
            return None
        id, name, dead_letter_queue, receives_max, retention_seconds, rotation_end, paused, clock_at = row
        settings = QueueSettings(
            name=name,
            # The file stores a name for every queue; the conventional one counts as not configured.
            dead_letter_queue=None if dead_letter_queue == f"{name}{DEAD_LETTER_SUFFIX}" else dead_letter_queue,
            receives_max=receives_max,
            retention_seconds=retention_seconds,
        )
        return QueueRow(id=id, settings=settings, rotation_end=rotation_end, paused=bool(paused), clock_at=clock_at)

    def ensure(self, connection: sqlite3.Connection, name: str) -> QueueRow:
        """Return the queue, created on first use."""
        found = self.find(connection, name)
        if found is not None:
            return found
        self._write(connection, "add_queue", QueueSettings(name=name))
        made = self.find(connection, name)
        assert made is not None
        return made

    def configure(self, connection: sqlite3.Connection, settings: QueueSettings) -> None:
        """Create the queue or replace its settings; a pause stays."""
        self._write(connection, "configure_queue", settings)

    def set_paused(self, connection: sqlite3.Connection, queue: QueueRow, paused: bool) -> None:
        connection.execute(self._sql["set_paused"], {"queue_id": queue.id, "paused": int(paused)})

    def settings(self, connection: sqlite3.Connection, name: str) -> QueueSettings:
        """Return the queue's settings, or the defaults if it does not exist."""
        found = self.find(connection, name)
        return QueueSettings(name=name) if found is None else found.settings

    def dead_letter_queue(self, connection: sqlite3.Connection, settings: QueueSettings) -> str:
        """Return the queue for dead letters of the queue with these settings."""
        return shared.dead_letter_queue(settings, is_dlq=self.is_dead_letter_queue(connection, settings.name))

    def is_dead_letter_queue(self, connection: sqlite3.Connection, name: str) -> bool:
        """Return True if any queue's dead letters go to this one."""
        if names_dead_letters(name):
            return True
        return bool(connection.execute(self._sql["is_dead_letter_queue"], {"name": name}).fetchone()[0])

    def join_rotation(self, connection: sqlite3.Connection, queue: QueueRow, groups: Iterable[str]) -> None:
        """Append to the rotation, in this order, the groups that now have ready messages and are not in it yet."""
        positions = [
            (queue.id, group, queue.rotation_end + n) for n, group in enumerate(dict.fromkeys(groups), start=1)
        ]
        if positions:
            connection.executemany(self._sql["join_ring"], positions)
            parameters = {"queue_id": queue.id, "ring_end": positions[-1][2]}
            connection.execute(self._sql["set_ring_end"], parameters)

    def rotate(self, connection: sqlite3.Connection, queue: QueueRow, groups: Iterable[str], now: float) -> None:
        """Move the groups just served to the end of the rotation; remove those without ready messages."""
        positions = [(position, queue.id, group) for position, group in enumerate(groups, start=queue.rotation_end + 1)]
        connection.executemany(self._sql["move_in_ring"], positions)
        names = json.dumps([group for _, _, group in positions])
        connection.execute(self._sql["leave_ring"], {"queue_id": queue.id, "groups": names})
        parameters = {"queue_id": queue.id, "ring_end": positions[-1][0], "now": now}
        connection.execute(self._sql["end_turn"], parameters)

    def set_clock(self, connection: sqlite3.Connection, names: Iterable[str], now: float) -> None:
        """Record the time at which leases of these queues began or were extended, or delays began."""
        connection.execute(self._sql["set_clock"], {"names": json.dumps(sorted(set(names))), "now": now})

    def _write(self, connection: sqlite3.Connection, statement: str, settings: QueueSettings) -> None:
        parameters = {
            "name": settings.name,
            "dead_letter_queue": shared.dead_letter_queue(settings),
            "receives_max": settings.receives_max,
            "retention_seconds": settings.retention_seconds,
        }
        connection.execute(self._sql[statement], parameters)


Row = tuple[Any, ...]


def message_of(store: str, row: Row) -> Message:
    """Return the message in a row that begins (id, body, enqueued_at, attributes, grp)."""
    seq, body, enqueued_at, attributes, group = row[:5]
    return Message(
        id=shared.message_id(store, seq),
        body=body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body,  # other programs may insert text
        enqueued_at=enqueued_at,
        attributes=decode_attributes(attributes),
        group=decode_group(group),
    )


def delivery_of(store: str, queue: str, row: Row, now: float) -> Delivery:
    """Return the delivery of a row of the statement `messages`, read before the row was leased."""
    receive_count, refunds = row[5:7]
    return Delivery(
        message=message_of(store, row),
        queue=queue,
        receipt=shared.receipt(store, shared.ReceiptHandle(seq=row[0], number=receive_count + 1)),
        attempt=receive_count + 1 - refunds,
        received_at=now,
        previous=_previous_of(row),
    )


def tries_of(text: str | None) -> Sequence[AttemptRecord]:
    """Return the attempts stored with a message, except those begun by an older program, whose start is unknown."""
    return [
        AttemptRecord(started_at=started_at, ended_at=ended_at, worker=worker, end=end, reason=reason)
        for started_at, ended_at, worker, end, reason in json.loads(text or "[]")
        if started_at is not None
    ]


def _previous_of(row: Row) -> PreviousAttempt | None:
    leased_at, ended_at, holder, ended, reason = row[7:12]
    if leased_at is None or ended is None:  # the first delivery, or one recorded by an older version
        return None
    return PreviousAttempt(started_at=leased_at, ended_at=ended_at, worker=holder, end=AttemptEnd(ended), reason=reason)
