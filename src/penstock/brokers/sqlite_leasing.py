"""Handing messages of the queue file over, and the fence: who holds which of them still."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from penstock.brokers import rules
from penstock.brokers.sqlite_queues import QueueRow, Queues
from penstock.brokers.sqlite_rows import Row, delivery_of
from penstock.brokers.sqlite_upkeep import Upkeep
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE, Message

_BODY_BYTES_MAX = rules.CAPABILITIES.body_bytes_max


class Leasing:
    """Everything runs inside a transaction of the caller's."""

    def __init__(self, sql: Mapping[str, str], store_id: str, holder: str, queues: Queues, upkeep: Upkeep) -> None:
        self._sql = sql
        self._store_id = store_id
        self._holder = holder
        self._queues = queues
        self._upkeep = upkeep

    def lease(
        self, connection: sqlite3.Connection, name: str, messages_max: int, lease_seconds: float, now: float
    ) -> Sequence[Delivery]:
        """Lease ready messages, the groups in turn. A message that no handler can take becomes a dead letter."""
        count = max(0, min(messages_max, rules.CAPABILITIES.receive_max))
        while True:  # ends: each turn but the last buries something
            queue = self._queues.ensure(connection, name)  # again: the ring has turned, or somebody paused the queue
            picked = [] if queue.paused else rules.interleave(self._heads(connection, queue, count), count)
            if not picked:
                return ()
            # Not by RETURNING: its order is undefined, and SQLite before 3.35 (shipped with Python 3.11) lacks it.
            ids = json.dumps([seq for _, seq in picked])
            rows: dict[int, Row] = {row[0]: row for row in connection.execute(self._sql["messages"], {"ids": ids})}
            found = {seq: delivery_of(self._store_id, name, row, now) for seq, row in rows.items()}
            buried = self._bury_unfit(connection, queue, found, now)
            if buried:
                ids = json.dumps([seq for seq in rows if seq not in buried])
            parameters = {"ids": ids, "now": now, "lease_seconds": lease_seconds, "holder": self._holder}
            connection.execute(self._sql["lease"], parameters)
            self._queues.turn_ring(connection, queue, dict.fromkeys(group for group, _ in picked), now)
            if len(buried) < len(picked):
                return [found[seq] for _, seq in picked if seq not in buried]

    def held(self, connection: sqlite3.Connection, deliveries: Iterable[Delivery], now: float) -> dict[str, int]:
        """The fence: receipts whose very hand-over is leased still, with the row's id."""
        asked = {delivery.receipt: rules.hand_over_of(self._store_id, delivery.receipt) for delivery in deliveries}
        ids = json.dumps([hand_over.seq for hand_over in asked.values() if hand_over is not None])
        leased: Mapping[int, int] = dict(connection.execute(self._sql["leased"], {"ids": ids, "now": now}).fetchall())
        return {
            receipt: hand_over.seq
            for receipt, hand_over in asked.items()
            if hand_over is not None and leased.get(hand_over.seq) == hand_over.number
        }

    def extend(
        self, connection: sqlite3.Connection, deliveries: Sequence[Delivery], lease_seconds: float, now: float
    ) -> Sequence[Delivery]:
        """Answers the deliveries whose lease is lost."""
        held = self.held(connection, deliveries, now)
        parameters = {"ids": json.dumps(list(held.values())), "now": now, "lease_seconds": lease_seconds}
        connection.execute(self._sql["extend"], parameters)
        names = {delivery.queue for delivery in deliveries if delivery.receipt in held}
        self._queues.set_clock(connection, names, now)
        return [delivery for delivery in deliveries if delivery.receipt not in held]

    def _heads(self, connection: sqlite3.Connection, queue: QueueRow, count: int) -> Iterable[tuple[str, list[int]]]:
        """The oldest ready messages of the next groups, ``count`` together if there are as many.

        Each group is asked for an equal share; where some have less, the share doubles until the others fill it up.
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
        """Make dead letters of messages that another program wrote into the file, and that are too large or cannot be
        read; return their row ids. Messages of a dead-letter queue are delivered as they are."""
        reasons = {seq: reason for seq, delivery in found.items() if (reason := _unfit(delivery.message)) is not None}
        if not reasons or self._queues.is_dead_letter_queue(connection, queue.settings.name):
            return set()
        self._upkeep.give_up(connection, queue, list(reasons), lambda row: reasons[row[0]], now)
        return set(reasons)


def _unfit(message: Message) -> str | None:
    """Return why no handler can take the message; None if one can."""
    if len(message.body) > _BODY_BYTES_MAX:
        return rules.reason_too_large(len(message.body))
    return rules.reason_unreadable() if UNREADABLE_ATTRIBUTE in message.attributes else None
