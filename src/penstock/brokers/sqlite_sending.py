"""Putting messages into the queue file, each deduplication id once within its window."""

import sqlite3
from collections.abc import Mapping, Sequence

from penstock.brokers.attributes import encode_attributes, encode_group
from penstock.brokers.sqlite_queues import QueueRow, Queues
from penstock.brokers.sqlite_rows import Row
from penstock.messaging.message import Outgoing


class Sending:
    def __init__(self, sql: Mapping[str, str], queues: Queues, *, deduplication_window_seconds: float) -> None:
        self._sql = sql
        self._queues = queues
        self._deduplication_window_seconds = deduplication_window_seconds

    def insert(
        self, connection: sqlite3.Connection, queue: QueueRow, messages: Sequence[Outgoing], now: float
    ) -> list[int]:
        """Answers the row of each message, or that of the earlier message which it repeats."""
        next_seq = connection.execute(self._sql["last_id"]).fetchone()[0] + 1
        if any(message.deduplication_id is not None for message in messages):
            connection.execute(self._sql["forget_deduplications"], {"now": now})
        seqs: list[int] = []
        rows: list[Row] = []
        for outgoing in messages:
            seq = self._deduplicated(connection, queue, outgoing, next_seq, now)
            seqs.append(seq)
            if seq == next_seq:
                rows.append(_new_row(seq, queue, outgoing, now))
                next_seq += 1
        connection.executemany(self._sql["insert"], rows)
        if any(row[2] == 1 for row in rows):
            self._queues.set_clock(connection, [queue.settings.name], now)
        self._queues.join_ring(connection, queue, [row[5] for row in rows if row[2] == 0])
        return seqs

    def _deduplicated(
        self, connection: sqlite3.Connection, queue: QueueRow, outgoing: Outgoing, seq: int, now: float
    ) -> int:
        """``seq``, or that of the earlier message which this one repeats."""
        if outgoing.deduplication_id is None:
            return seq
        parameters = {"queue_id": queue.id, "deduplication_id": outgoing.deduplication_id}
        earlier = connection.execute(self._sql["deduplicated"], parameters).fetchone()
        if earlier is not None:
            return int(earlier[0])
        until = now + self._deduplication_window_seconds
        connection.execute(self._sql["remember_deduplication"], (queue.id, outgoing.deduplication_id, until, seq))
        return seq


def _new_row(seq: int, queue: QueueRow, outgoing: Outgoing, now: float) -> Row:
    """In the order of the statement `insert`."""
    return (
        seq,
        queue.id,
        0 if outgoing.delay_seconds == 0 else 1,
        now + outgoing.delay_seconds,
        now,
        encode_group(outgoing.group),
        encode_attributes(outgoing.attributes),
        bytes(outgoing.body),
    )
