"""Ending deliveries in the queue file: deleting, putting back, burying."""

import json
import sqlite3
from collections.abc import Mapping, Sequence

from penstock.brokers import rules
from penstock.brokers.sqlite_leasing import Leasing
from penstock.brokers.sqlite_queues import Queues
from penstock.brokers.sqlite_rows import Row, tries_of
from penstock.brokers.sqlite_upkeep import Upkeep
from penstock.messaging.death import buried
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement


class Settling:
    """Everything runs inside a transaction of the caller's."""

    def __init__(self, sql: Mapping[str, str], holder: str, queues: Queues, upkeep: Upkeep, leasing: Leasing) -> None:
        self._sql = sql
        self._holder = holder
        self._queues = queues
        self._upkeep = upkeep
        self._leasing = leasing

    def settle(
        self, connection: sqlite3.Connection, settlements: Sequence[tuple[Delivery, Settlement]], now: float
    ) -> Sequence[Delivery]:
        """Answers the deliveries whose lease is lost."""
        mine: list[tuple[int, Delivery, Settlement]] = []
        lost: list[Delivery] = []
        held = self._leasing.held(connection, [delivery for delivery, _ in settlements], now)
        for delivery, settlement in settlements:
            seq = held.pop(delivery.receipt, None)
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
                    released.setdefault(rules.kept_back(settlement), []).append(seq)
                    delayed.add(delivery.queue)
                case DeadLetter():
                    self._dead_letter(connection, seq, delivery, settlement, now)
        if acked:
            connection.execute(self._sql["delete"], {"ids": json.dumps(acked)})
        for release, seqs in released.items():
            parameters = {
                "ids": json.dumps(seqs),
                "until": now + release.delay_seconds,
                "refund": int(release.refund),
                "reason": rules.kept_reason(release.reason),
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
            death = rules.death_by_settlement(
                settlement,
                delivery,
                worker=self._holder,
                first_failed_at=row[4],
                now=now,
                tries=tries_of(row[7]),
            )
            return buried(before, settlement, death)

        self._upkeep.bury(connection, queue, [seq], attributes, now)

    def _is_last(self, connection: sqlite3.Connection, queue: str) -> bool:
        """Whether there is no other place for its letters."""
        return self._queues.dead_letter_queue(connection, self._queues.settings(connection, queue)) == queue
