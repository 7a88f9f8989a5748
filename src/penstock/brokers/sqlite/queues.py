"""The queues in the file: their settings, their pauses, and the ring of groups that have ready messages.

Everything runs inside a transaction of the caller's.

Between the rows of the queue file and messages.
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
    """A queue as the file knows it."""

    id: int
    settings: QueueSettings
    ring_end: int
    paused: bool
    clock_at: float  # when a lease or a delay was last given: the clock was there already


class SqliteQueues:
    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql

    def find(self, connection: sqlite3.Connection, name: str) -> QueueRow | None:
        row = connection.execute(self._sql["queue"], {"name": name}).fetchone()
        if row is None:
            return None
        id, name, dead_letter_queue, receives_max, retention_seconds, ring_end, paused, clock_at = row
        settings = QueueSettings(
            name=name,
            # The file names one for each queue; what follows from the name alone nobody told it.
            dead_letter_queue=None if dead_letter_queue == f"{name}{DEAD_LETTER_SUFFIX}" else dead_letter_queue,
            receives_max=receives_max,
            retention_seconds=retention_seconds,
        )
        return QueueRow(id=id, settings=settings, ring_end=ring_end, paused=bool(paused), clock_at=clock_at)

    def ensure(self, connection: sqlite3.Connection, name: str) -> QueueRow:
        """The queue, made on its first use."""
        found = self.find(connection, name)
        if found is not None:
            return found
        self._write(connection, "add_queue", QueueSettings(name=name))
        made = self.find(connection, name)
        assert made is not None
        return made

    def configure(self, connection: sqlite3.Connection, settings: QueueSettings) -> None:
        """Make the queue, or give it these settings from now on; a pause stays."""
        self._write(connection, "configure_queue", settings)

    def set_paused(self, connection: sqlite3.Connection, queue: QueueRow, paused: bool) -> None:
        connection.execute(self._sql["set_paused"], {"queue_id": queue.id, "paused": int(paused)})

    def settings(self, connection: sqlite3.Connection, name: str) -> QueueSettings:
        """What the queue was told, or what it would be made with."""
        found = self.find(connection, name)
        return QueueSettings(name=name) if found is None else found.settings

    def dead_letter_queue(self, connection: sqlite3.Connection, settings: QueueSettings) -> str:
        """Where the queue's dead letters go."""
        return shared.dead_letter_queue(settings, holds_dead=self.is_dead_letter_queue(connection, settings.name))

    def is_dead_letter_queue(self, connection: sqlite3.Connection, name: str) -> bool:
        """Whether the dead letters of any queue come here."""
        if names_dead_letters(name):
            return True
        return bool(connection.execute(self._sql["is_dead_letter_queue"], {"name": name}).fetchone()[0])

    def join_ring(self, connection: sqlite3.Connection, queue: QueueRow, groups: Iterable[str]) -> None:
        """Groups that have ready messages now and are not in the ring yet go to its end, in this order."""
        places = [(queue.id, group, queue.ring_end + n) for n, group in enumerate(dict.fromkeys(groups), start=1)]
        if places:
            connection.executemany(self._sql["join_ring"], places)
            parameters = {"queue_id": queue.id, "ring_end": places[-1][2]}
            connection.execute(self._sql["set_ring_end"], parameters)

    def turn_ring(self, connection: sqlite3.Connection, queue: QueueRow, groups: Iterable[str], now: float) -> None:
        """The groups just served go to the end, or leave when nothing of theirs is ready."""
        places = [(place, queue.id, group) for place, group in enumerate(groups, start=queue.ring_end + 1)]
        connection.executemany(self._sql["move_in_ring"], places)
        names = json.dumps([group for _, _, group in places])
        connection.execute(self._sql["leave_ring"], {"queue_id": queue.id, "groups": names})
        parameters = {"queue_id": queue.id, "ring_end": places[-1][0], "now": now}
        connection.execute(self._sql["end_turn"], parameters)

    def set_clock(self, connection: sqlite3.Connection, names: Iterable[str], now: float) -> None:
        """Leases of these queues were given or extended just now, or delays began."""
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
    """Of (id, body, enqueued_at, attributes, grp, ...)."""
    seq, body, enqueued_at, attributes, group = row[:5]
    return Message(
        id=shared.message_id(store, seq),
        body=body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body,  # other programs may insert text
        enqueued_at=enqueued_at,
        attributes=decode_attributes(attributes),
        group=decode_group(group),
    )


def delivery_of(store: str, queue: str, row: Row, now: float) -> Delivery:
    """Of a row of the statement `messages`, as it was before this hand-over."""
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
    """What the statements wrote of a message's attempts. Of those that an older program began the times are not
    known."""
    return [
        AttemptRecord(started_at=started_at, ended_at=ended_at, worker=worker, end=end, reason=reason)
        for started_at, ended_at, worker, end, reason in json.loads(text or "[]")
        if started_at is not None
    ]


def _previous_of(row: Row) -> PreviousAttempt | None:
    leased_at, ended_at, holder, ended, reason = row[7:12]
    if leased_at is None or ended is None:  # the first hand-over, or one of a file's older version
        return None
    return PreviousAttempt(started_at=leased_at, ended_at=ended_at, worker=holder, end=AttemptEnd(ended), reason=reason)
