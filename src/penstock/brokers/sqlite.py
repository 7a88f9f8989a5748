"""The embedded broker: SQS semantics in one SQLite file, for any number of threads and processes of one host.

What it promises beyond `penstock.messaging.broker.Broker`:

- A message that `send` answered for survives power loss as far as disk and operating system tell the truth: its
  transaction is on the disk before the answer (WAL with synchronous=FULL). Leases, settlements and upkeep do not wait
  for the disk (NORMAL): what a power loss takes back of them makes messages come again, which at-least-once allows; it
  never takes a message away. A crash of the process alone takes back nothing.
- Groups share fairly: a ring of the groups that have ready messages is served one message a turn, oldest first within
  a group. Messages without a group are one group together, so a flood of those cannot hide a tenant's.
- Nothing leaves silently: a message past its queue's retention becomes a dead letter (SQS deletes it). Only dead
  letters past theirs are deleted, and counted (`dropped`). A leased message does not expire.
- A lease is over at its time, whether or not somebody else has the message by then; settling is refused from there on.
- Unknown queues are made by their first `send`.

Time is the clock injected, the host's: processes of one host share it.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path

from penstock.brokers import rules
from penstock.brokers.arrivals import Arrivals
from penstock.brokers.sqlite_file import QueueFile, statements
from penstock.brokers.sqlite_rows import Row, delivery_of, encode_attributes, encode_group, message_of
from penstock.brokers.sqlite_upkeep import QueueRow, Upkeep
from penstock.messaging.broker import Capabilities, QueueSettings, QueueStats, SettleFailure
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

__all__ = ["SqliteBroker"]

_EMPTY = QueueStats(
    visible=0, in_flight=0, delayed=0, oldest_visible_message_age_seconds=None, oldest_message_age_seconds=None
)


class SqliteBroker:
    """`penstock.messaging.broker.Broker` in a file. Thread-safe; processes open the file each for themselves.

    ``holder`` names this worker: `release_holder` frees what it held once it is proven dead. ``queues`` are created, or
    given these settings from now on. Raises ConfigurationError where the file is none of ours, damaged, or newer.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        holder: str,
        clock: Clock | None = None,
        queues: Sequence[QueueSettings] = (),
        busy_timeout_seconds: float = 30.0,
        poll_seconds: float = 0.05,
        deduplication_window_seconds: float = rules.DEDUPLICATION_WINDOW_SECONDS,
    ) -> None:
        for settings in queues:
            rules.check_settings(settings)
        self._holder = holder
        self._clock = clock or SystemClock()
        self._poll_seconds = poll_seconds
        self._deduplication_window_seconds = deduplication_window_seconds
        self._arrivals = Arrivals()
        self._closed = False  # written by the thread that closes
        self._sql = statements()
        self._file = QueueFile(Path(path), busy_timeout_seconds=busy_timeout_seconds)
        self._store_id = self._file.store_id
        self._upkeep = Upkeep(self._sql, self._store_id)
        if queues:
            with self._file.transaction(durable=True) as connection:
                for settings in queues:
                    self._upkeep.write_settings(connection, "configure_queue", settings)

    @property
    def capabilities(self) -> Capabilities:
        return rules.EMBEDDED

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """All or none, in one transaction that is on the disk when this returns.

        A duplicate within the window is answered with the id of the message it repeats.
        """
        rules.check_outgoing(queue, messages)
        if not messages:
            return ()
        with self._file.transaction(durable=True) as connection:
            seqs = self._insert(connection, self._upkeep.ensure_queue(connection, queue), messages)
        self._arrivals.tell()
        return [rules.message_id(self._store_id, seq) for seq in seqs]

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Messages sent in this process end the wait at once, those of others within ``poll_seconds``."""
        rules.check_seconds("lease_seconds", lease_seconds, rules.EMBEDDED.lease_seconds_max)
        rules.check_wait(wait_seconds)
        deadline = self._clock.monotonic() + wait_seconds
        with self._arrivals.watch() as arrived:
            while True:
                arrived.clear()  # before looking: what comes after the look sets it again
                deliveries = self._take(queue, messages_max, lease_seconds)
                left = deadline - self._clock.monotonic()
                if deliveries or left <= 0 or messages_max < 1:
                    return deliveries
                self._clock.wait(arrived, min(left, self._poll_seconds))
                if self._closed:
                    return ()

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        rules.check_seconds("lease_seconds", lease_seconds, rules.EMBEDDED.lease_seconds_max)
        if not deliveries:
            return ()
        with self._file.transaction() as connection:
            now = self._clock.now()
            held = self._held(connection, deliveries, now)
            ids = json.dumps(list(held.values()))
            connection.execute(self._sql["extend"], {"ids": ids, "until": now + lease_seconds})
        return [delivery for delivery in deliveries if delivery.receipt not in held]

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """One transaction. What is settled already, or a second time in one call, counts as lost."""
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                rules.check_seconds("delay_seconds", settlement.delay_seconds, rules.EMBEDDED.delay_seconds_max)
        if not settlements:
            return ()
        mine: list[tuple[int, Delivery, Settlement]] = []
        lost: list[Delivery] = []
        with self._file.transaction() as connection:
            now = self._clock.now()
            held = self._held(connection, [delivery for delivery, _ in settlements], now)
            for delivery, settlement in settlements:
                seq = held.pop(delivery.receipt, None)
                if seq is None:
                    lost.append(delivery)
                else:
                    mine.append((seq, delivery, settlement))
            self._apply(connection, mine, now)
        self._arrivals.tell()
        return [SettleFailure(delivery=delivery, reason=rules.LOST, lost=True) for delivery in lost]

    def stats(self, queue: str) -> QueueStats:
        found = self._tended(queue)
        if found is None:
            return _EMPTY
        with self._file.reading() as connection:
            row = connection.execute(self._sql["stats"], {"queue_id": found.id}).fetchone()
        visible, in_flight, delayed, oldest_at = row
        age_seconds = None if oldest_at is None else max(0.0, self._clock.now() - oldest_at)
        return QueueStats(
            visible=visible,
            in_flight=in_flight,
            delayed=delayed,
            oldest_visible_message_age_seconds=age_seconds,
            oldest_message_age_seconds=None,
        )

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Messages in any state, by the age of their ids. An id that has left the queue is a fine place to go on."""
        after = 0 if after_id is None else rules.seq_of(self._store_id, after_id)
        found = self._tended(queue)
        if found is None or after is None:
            return ()
        parameters = {"queue_id": found.id, "after": after, "messages_max": max(messages_max, 0)}
        with self._file.reading() as connection:
            rows = connection.execute(self._sql["browse"], parameters).fetchall()
        return [message_of(self._store_id, row) for row in rows]

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead: visible at once, the attempt stays counted."""
        with self._file.transaction() as connection:
            parameters = {"holder": holder, "now": self._clock.now()}
            count = connection.execute(self._sql["release_holder"], parameters).rowcount
        self._arrivals.tell()
        return count

    def queue_names(self) -> Sequence[str]:
        with self._file.reading() as connection:
            return [row[0] for row in connection.execute(self._sql["queue_names"])]

    def purge(self, queue: str) -> int:
        """Delete every message of the queue, leased ones too; answers how many."""
        with self._file.transaction() as connection:
            found = self._upkeep.queue(connection, queue)
            if found is None:
                return 0
            connection.execute(self._sql["purge_ring"], {"queue_id": found.id})
            return connection.execute(self._sql["purge"], {"queue_id": found.id}).rowcount

    def dropped(self, queue: str) -> int:
        """How many dead letters this queue has deleted at the end of their retention."""
        with self._file.reading() as connection:
            row = connection.execute(self._sql["dropped"], {"name": queue}).fetchone()
        return 0 if row is None else int(row[0])

    def close(self) -> None:
        """A receiver that waits returns empty; calls after this raise TemporaryError."""
        self._closed = True
        self._arrivals.tell()
        self._file.close()

    def _insert(self, connection: sqlite3.Connection, queue: QueueRow, messages: Sequence[Outgoing]) -> list[int]:
        now = self._clock.now()
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
        self._upkeep.join_ring(connection, queue, [row[5] for row in rows if row[2] == 0])
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

    def _take(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[Delivery]:
        """Look without the write lock first: an idle queue disturbs nobody."""
        now = self._clock.now()
        with self._file.reading() as connection:
            found = self._upkeep.queue(connection, queue)
            if found is None:
                return ()
            ready = connection.execute(self._sql["anything_ready"], {"queue_id": found.id}).fetchone()[0]
            needed = self._upkeep.needed(connection, found, now)
        if needed:
            self._tend(queue, now)
        elif not ready:
            return ()
        with self._file.transaction() as connection:
            found = self._upkeep.ensure_queue(connection, queue)
            return self._lease(connection, found, max(0, min(messages_max, rules.EMBEDDED.receive_max)), lease_seconds)

    def _lease(
        self, connection: sqlite3.Connection, queue: QueueRow, count: int, lease_seconds: float
    ) -> Sequence[Delivery]:
        now = self._clock.now()
        picked = rules.interleave(self._heads(connection, queue, count), count)
        if not picked:
            return ()
        ids = json.dumps([seq for _, seq in picked])
        parameters = {"ids": ids, "until": now + lease_seconds, "holder": self._holder}
        connection.execute(self._sql["lease"], parameters)
        self._turn_ring(connection, queue, dict.fromkeys(group for group, _ in picked))
        # Not by RETURNING: its order is undefined, and SQLite before 3.35 (still shipped with Python 3.11) lacks it.
        rows = {row[0]: row for row in connection.execute(self._sql["messages"], {"ids": ids})}
        return [delivery_of(self._store_id, queue.settings.name, rows[seq], now) for _, seq in picked]

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

    def _turn_ring(self, connection: sqlite3.Connection, queue: QueueRow, groups: Iterable[str]) -> None:
        """The groups just served go to the end, or leave when nothing of theirs is ready."""
        places = [(place, queue.id, group) for place, group in enumerate(groups, start=queue.ring_end + 1)]
        connection.executemany(self._sql["move_in_ring"], places)
        names = json.dumps([group for _, _, group in places])
        connection.execute(self._sql["leave_ring"], {"queue_id": queue.id, "groups": names})
        self._upkeep.set_ring_end(connection, queue, places[-1][0])

    def _held(self, connection: sqlite3.Connection, deliveries: Iterable[Delivery], now: float) -> dict[str, int]:
        """The fence: receipts whose very hand-over is leased still, with the row's id."""
        asked = {delivery.receipt: rules.hand_over_of(self._store_id, delivery.receipt) for delivery in deliveries}
        ids = json.dumps([hand_over.seq for hand_over in asked.values() if hand_over is not None])
        leased: Mapping[int, int] = dict(connection.execute(self._sql["leased"], {"ids": ids, "now": now}).fetchall())
        return {
            receipt: hand_over.seq
            for receipt, hand_over in asked.items()
            if hand_over is not None and leased.get(hand_over.seq) == hand_over.number
        }

    def _apply(
        self, connection: sqlite3.Connection, settlements: Sequence[tuple[int, Delivery, Settlement]], now: float
    ) -> None:
        acked: list[int] = []
        released: dict[Release, list[int]] = {}
        for seq, delivery, settlement in settlements:
            match settlement:
                case Ack():
                    acked.append(seq)
                case Release():
                    released.setdefault(settlement, []).append(seq)
                case DeadLetter():
                    self._dead_letter(connection, seq, delivery, settlement, now)
        if acked:
            connection.execute(self._sql["delete"], {"ids": json.dumps(acked)})
        for release, seqs in released.items():
            until, ids = now + release.delay_seconds, json.dumps(seqs)
            parameters = {"ids": ids, "until": until, "refund": int(release.refund), "now": now}
            connection.execute(self._sql["release"], parameters)

    def _dead_letter(
        self, connection: sqlite3.Connection, seq: int, delivery: Delivery, settlement: DeadLetter, now: float
    ) -> None:
        queue = self._upkeep.ensure_queue(connection, delivery.queue)
        self._upkeep.bury(
            connection,
            queue,
            [seq],
            lambda row: rules.death_by_settlement(
                settlement, delivery, worker=self._holder, first_failed_at=row[4], now=now
            ),
            now,
        )

    def _tended(self, queue: str) -> QueueRow | None:
        """The queue with leases, delays and retention looked after, as every look at it begins."""
        now = self._clock.now()
        with self._file.reading() as connection:
            found = self._upkeep.queue(connection, queue)
            needed = found is not None and self._upkeep.needed(connection, found, now)
        if needed:
            self._tend(queue, now)
        return found

    def _tend(self, queue: str, now: float) -> None:
        done = False
        while not done:  # ends: what is due at one moment is finite, and each turn takes some of it
            with self._file.transaction() as connection:
                done = self._upkeep.run(connection, self._upkeep.ensure_queue(connection, queue), now)


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
