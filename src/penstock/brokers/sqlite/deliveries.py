"""Deliveries from the queue file.

- `SqliteLeases`: lease ready messages, extend leases, and reject stale receipt handles
- `SqliteSettler`: ack, release and dead-letter
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from penstock.brokers import shared
from penstock.brokers.capabilities import EMBEDDED
from penstock.brokers.sqlite.queues import QueueRow, Row, SqliteQueues, delivery_of, tries_of
from penstock.brokers.sqlite.upkeep import SqliteUpkeep
from penstock.messaging.death import buried
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE, Attributes, Message
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

_BODY_BYTES_MAX = EMBEDDED.body_bytes_max


class SqliteLeases:
    """Lease messages and verify their holders. Every method runs inside the caller's transaction."""

    def __init__(
        self, sql: Mapping[str, str], store_id: str, holder: str, queues: SqliteQueues, upkeep: SqliteUpkeep
    ) -> None:
        self._sql = sql
        self._store_id = store_id
        self._holder = holder
        self._queues = queues
        self._upkeep = upkeep

    def lease(
        self, connection: sqlite3.Connection, name: str, messages_max: int, lease_seconds: float, now: float
    ) -> Sequence[Delivery]:
        """Lease ready messages, the groups in rotation. Messages that no handler can process are dead-lettered."""
        count = max(0, min(messages_max, EMBEDDED.receive_max))
        while True:  # terminates: every round but the last dead-letters a message
            # Read again: the rotation has moved, and the queue may have been paused
            queue = self._queues.ensure(connection, name)
            picked = [] if queue.paused else shared.interleave(self._heads(connection, queue, count), count)
            if not picked:
                return ()
            # Not RETURNING: its order is undefined, and SQLite before 3.35 (shipped with Python 3.11) lacks it.
            ids = json.dumps([seq for _, seq in picked])
            rows: dict[int, Row] = {row[0]: row for row in connection.execute(self._sql["messages"], {"ids": ids})}
            found = {seq: delivery_of(self._store_id, name, row, now) for seq, row in rows.items()}
            buried = self._bury_unfit(connection, queue, found, now)
            if buried:
                ids = json.dumps([seq for seq in rows if seq not in buried])
            parameters = {"ids": ids, "now": now, "lease_seconds": lease_seconds, "holder": self._holder}
            connection.execute(self._sql["lease"], parameters)
            self._queues.rotate(connection, queue, dict.fromkeys(group for group, _ in picked), now)
            if len(buried) < len(picked):
                return [found[seq] for _, seq in picked if seq not in buried]

    def find_leased(self, connection: sqlite3.Connection, deliveries: Iterable[Delivery], now: float) -> dict[str, int]:
        """Return the row ids, by receipt handle, of the deliveries that are still leased. This is the fence."""
        handles = {delivery.receipt: shared.parse_receipt(self._store_id, delivery.receipt) for delivery in deliveries}
        ids = json.dumps([handle.seq for handle in handles.values() if handle is not None])
        leased: Mapping[int, int] = dict(connection.execute(self._sql["leased"], {"ids": ids, "now": now}).fetchall())
        return {
            receipt: handle.seq
            for receipt, handle in handles.items()
            if handle is not None and leased.get(handle.seq) == handle.number
        }

    def extend(
        self, connection: sqlite3.Connection, deliveries: Sequence[Delivery], lease_seconds: float, now: float
    ) -> Sequence[Delivery]:
        """Extend the leases; return the deliveries with a lost lease."""
        leased = self.find_leased(connection, deliveries, now)
        parameters = {"ids": json.dumps(list(leased.values())), "now": now, "lease_seconds": lease_seconds}
        connection.execute(self._sql["extend"], parameters)
        names = {delivery.queue for delivery in deliveries if delivery.receipt in leased}
        self._queues.set_clock(connection, names, now)
        return [delivery for delivery in deliveries if delivery.receipt not in leased]

    def _heads(self, connection: sqlite3.Connection, queue: QueueRow, count: int) -> Iterable[tuple[str, list[int]]]:
        """Return the oldest ready messages of the next groups, ``count`` in total if that many are ready.

        The statement takes an equal quota from each group. While some groups have fewer, the quota doubles until the
        others fill ``count``.
        """
        parameters = {"queue_id": queue.id, "groups_max": count}
        heads: dict[str, list[int]] = {row[0]: [] for row in connection.execute(self._sql["next_groups"], parameters)}
        quota = -(-count // len(heads)) if heads else 0
        while heads:
            heads = {group: [] for group in heads}
            for group, seq in connection.execute(self._sql["heads"], {**parameters, "quota": quota}):
                heads[group].append(seq)
            if sum(map(len, heads.values())) >= count or all(len(seqs) < quota for seqs in heads.values()):
                break
            quota *= 2
        return heads.items()

    def _bury_unfit(
        self, connection: sqlite3.Connection, queue: QueueRow, found: Mapping[int, Delivery], now: float
    ) -> set[int]:
        """Dead-letter oversized or unreadable messages that another program wrote to the file; return their row ids.

        Messages of a dead-letter queue are delivered as they are.
        """
        reasons = {seq: reason for seq, delivery in found.items() if (reason := _unfit(delivery.message)) is not None}
        if not reasons or self._queues.is_dead_letter_queue(connection, queue.settings.name):
            return set()
        self._upkeep.dead_letter_by_broker(connection, queue, list(reasons), lambda row: reasons[row[0]], now)
        return set(reasons)


class SqliteSettler:
    """Settle deliveries. Every method runs inside the caller's transaction."""

    def __init__(
        self, sql: Mapping[str, str], holder: str, queues: SqliteQueues, upkeep: SqliteUpkeep, leasing: SqliteLeases
    ) -> None:
        self._sql = sql
        self._holder = holder
        self._queues = queues
        self._upkeep = upkeep
        self._leasing = leasing

    def settle(
        self, connection: sqlite3.Connection, settlements: Sequence[tuple[Delivery, Settlement]], now: float
    ) -> Sequence[Delivery]:
        """Apply the settlements; return the deliveries with a lost lease."""
        mine: list[tuple[int, Delivery, Settlement]] = []
        lost: list[Delivery] = []
        leased = self._leasing.find_leased(connection, [delivery for delivery, _ in settlements], now)
        for delivery, settlement in settlements:
            seq = leased.pop(delivery.receipt, None)
            if seq is None:
                lost.append(delivery)
            else:
                mine.append((seq, delivery, settlement))
        self._apply(connection, mine, now)
        return lost

    def _apply(
        self, connection: sqlite3.Connection, settlements: Sequence[tuple[int, Delivery, Settlement]], now: float
    ) -> None:
        acked: list[int] = []
        released: dict[Release, list[int]] = {}
        delayed: set[str] = set()
        for seq, delivery, settlement in settlements:
            match settlement:
                case Ack():
                    acked.append(seq)
                case Release():
                    released.setdefault(settlement, []).append(seq)
                    delayed.add(delivery.queue)
                case DeadLetter() if self._is_last(connection, delivery.queue):
                    released.setdefault(shared.release_in_final_dlq(settlement), []).append(seq)
                    delayed.add(delivery.queue)
                case DeadLetter():
                    self._dead_letter(connection, seq, delivery, settlement, now)
        if acked:
            connection.execute(self._sql["delete"], {"ids": json.dumps(acked)})
        for release, seqs in released.items():
            parameters = {
                "ids": json.dumps(seqs),
                "until": now + release.delay_seconds,
                "refund": int(release.uncounted),
                "reason": shared.storable_reason(release.reason),
                "now": now,
            }
            connection.execute(self._sql["release"], parameters)
            self._upkeep.reset_ages(connection, seqs)
        if delayed:
            self._queues.set_clock(connection, delayed, now)

    def _dead_letter(
        self, connection: sqlite3.Connection, seq: int, delivery: Delivery, settlement: DeadLetter, now: float
    ) -> None:
        queue = self._queues.ensure(connection, delivery.queue)

        def attributes(before: Attributes, row: Row) -> Attributes:
            death = shared.death_by_settlement(
                settlement,
                delivery,
                worker=self._holder,
                first_failed_at=row[4],
                now=now,
                tries=tries_of(row[7]),
            )
            return buried(before, settlement, death)

        self._upkeep.move_to_dlq(connection, queue, [seq], attributes, now)

    def _is_last(self, connection: sqlite3.Connection, queue: str) -> bool:
        """Return True if the queue's dead letters have no further queue to go to."""
        return self._queues.dead_letter_queue(connection, self._queues.settings(connection, queue)) == queue


def _unfit(message: Message) -> str | None:
    """Return why no handler can process the message; None if one can."""
    if len(message.body) > _BODY_BYTES_MAX:
        return shared.reason_too_large(len(message.body))
    return shared.reason_unreadable() if UNREADABLE_ATTRIBUTE in message.attributes else None
