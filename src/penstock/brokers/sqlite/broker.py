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

Time is the host's clock, which all processes at the file share: WAL needs their common memory, so no two hosts can use
one file. The file itself knows no time, and no statement asks SQLite for it. Where the clock is set back, a lease has
never more left than its own length, nor has a delay (checked against the time of the last one, to the second). Where it
is set forward, leases and delays end early. A message may then be handed over twice, and the fence lets one of the two
settle it.

Putting messages into the queue file, each deduplication id once within its window.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from penstock.brokers import shared
from penstock.brokers.shared import Arrivals, encode_attributes, encode_group, one_by_one
from penstock.brokers.sqlite.deliveries import SqliteLeases, SqliteSettler
from penstock.brokers.sqlite.file import QueueFile, statements
from penstock.brokers.sqlite.queues import QueueRow, Row, SqliteQueues, message_of
from penstock.brokers.sqlite.upkeep import SqliteUpkeep
from penstock.messaging.broker import (
    Capabilities,
    Listening,
    QueueSettings,
    QueueStats,
    ReceiveRequest,
    SettleFailure,
    TurnResult,
)
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, Release, Settlement


class SqliteSender:
    def __init__(self, sql: Mapping[str, str], queues: SqliteQueues, *, deduplication_window_seconds: float) -> None:
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


__all__ = ["SqliteBroker"]


_CAPABILITIES = replace(shared.CAPABILITIES, system="sqlite")


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
        deduplication_window_seconds: float = shared.DEDUPLICATION_WINDOW_SECONDS,
    ) -> None:
        for settings in queues:
            shared.check_settings(settings)
        self._clock = clock or SystemClock()
        self._poll_seconds = poll_seconds
        self._arrivals = Arrivals()
        self._closed = False  # written by the thread that closes
        self._sql = statements()
        self._file = QueueFile(Path(path), busy_timeout_seconds=busy_timeout_seconds)
        self._store_id = self._file.store_id
        self._queues = SqliteQueues(self._sql)
        self._upkeep = SqliteUpkeep(self._sql, self._store_id, self._queues)
        self._sending = SqliteSender(self._sql, self._queues, deduplication_window_seconds=deduplication_window_seconds)
        self._leasing = SqliteLeases(self._sql, self._store_id, holder, self._queues, self._upkeep)
        self._settling = SqliteSettler(self._sql, holder, self._queues, self._upkeep, self._leasing)
        if queues:
            with self._file.transaction(durable=True) as connection:
                for settings in queues:
                    self._queues.configure(connection, settings)

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """All or none, in one transaction that is on the disk when this returns.

        A duplicate within the window is answered with the id of the message it repeats.
        """
        shared.check_outgoing(queue, messages)
        if not messages:
            return ()
        with self._file.transaction(durable=True) as connection:
            found = self._queues.ensure(connection, queue)
            seqs = self._sending.insert(connection, found, messages, self._clock.now())
        self._arrivals.tell(queue)
        return [shared.message_id(self._store_id, seq) for seq in seqs]

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Messages sent in this process end the wait at once, those of others within ``poll_seconds``."""
        shared.check_seconds("lease_seconds", lease_seconds, shared.CAPABILITIES.lease_seconds_max)
        shared.check_wait(wait_seconds)
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
        shared.check_seconds("lease_seconds", lease_seconds, shared.CAPABILITIES.lease_seconds_max)
        if not deliveries:
            return ()
        with self._file.transaction() as connection:
            return self._leasing.extend(connection, deliveries, lease_seconds, self._clock.now())

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """One transaction. What is settled already, or a second time in one call, counts as lost."""
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                shared.check_hold(settlement)
        if not settlements:
            return ()
        with self._file.transaction() as connection:
            lost = self._settling.settle(connection, settlements, self._clock.now())
        if any(not isinstance(settlement, Ack) for _, settlement in settlements):
            self._arrivals.tell()
        return [SettleFailure(delivery=delivery, reason=shared.LOST, lost=True) for delivery in lost]

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        asks: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        return one_by_one(self, settlements, asks, lease_seconds=lease_seconds, wait_seconds=wait_seconds)

    def listen(self, queues: Sequence[str], tell: Callable[[], None]) -> Listening:
        """Hears what is done in this process; what other processes send is found by asking."""
        return self._arrivals.listen(queues, tell)

    def stats(self, queue: str) -> QueueStats:
        found = self._tended(queue)
        if found is None:
            return shared.NEVER_HEARD_OF
        with self._file.reading() as connection:
            row = connection.execute(self._sql["stats"], {"queue_id": found.id}).fetchone()
        now = self._clock.now()
        visible, in_flight, delayed, visible_from, enqueued_from, *ages_from = row
        oldest_from = min((at for at in ages_from if at is not None), default=now)
        return QueueStats(
            visible=visible,
            in_flight=in_flight,
            delayed=delayed,
            oldest_visible_message_age_seconds=None if visible_from is None else max(0.0, now - visible_from),
            oldest_message_age_seconds=max(0.0, now - oldest_from),
            oldest_enqueued_age_seconds=None if enqueued_from is None else max(0.0, now - enqueued_from),
        )

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Messages in any state, by the age of their ids. An id that has left the queue is a fine place to go on."""
        after = 0 if after_id is None else shared.seq_of(self._store_id, after_id)
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
            count = self._upkeep.release_holder(connection, holder, self._clock.now())
        self._arrivals.tell()
        return count

    def queue_names(self) -> Sequence[str]:
        with self._file.reading() as connection:
            return [row[0] for row in connection.execute(self._sql["queue_names"])]

    def dead_letter_queue(self, queue: str) -> str:
        shared.check_queue(queue)
        with self._file.reading() as connection:
            return self._queues.dead_letter_queue(connection, self._queues.settings(connection, queue))

    def retention_seconds(self, queue: str) -> float | None:
        with self._file.reading() as connection:
            return self._queues.settings(connection, queue).retention_seconds

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        """One transaction."""
        seqs = [seq for seq in (shared.seq_of(self._store_id, id) for id in ids) if seq is not None]
        with self._file.transaction() as connection:
            found = self._queues.find(connection, queue)
            if found is None:
                return 0
            parameters = {"queue_id": found.id, "ids": json.dumps(seqs)}
            count = connection.execute(self._sql["discard"], parameters).rowcount
            connection.execute(self._sql["tidy_ring"], {"queue_id": found.id})
            return count

    def purge(self, queue: str) -> int:
        with self._file.transaction() as connection:
            found = self._queues.find(connection, queue)
            if found is None:
                return 0
            connection.execute(self._sql["purge_ring"], {"queue_id": found.id})
            return connection.execute(self._sql["purge"], {"queue_id": found.id}).rowcount

    def pause(self, queue: str) -> None:
        """On the disk when this returns; other processes see it at their next look."""
        shared.check_queue(queue)
        with self._file.transaction(durable=True) as connection:
            self._queues.set_paused(connection, self._queues.ensure(connection, queue), True)

    def resume(self, queue: str) -> None:
        with self._file.transaction(durable=True) as connection:
            found = self._queues.find(connection, queue)
            if found is not None:
                self._queues.set_paused(connection, found, False)
        self._arrivals.tell(queue)

    def now(self) -> float:
        return self._clock.now()

    def paused(self, queue: str) -> bool:
        with self._file.reading() as connection:
            found = self._queues.find(connection, queue)
        return found is not None and found.paused

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

    def _take(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[Delivery]:
        """Look without the write lock first: an idle queue disturbs nobody."""
        now = self._clock.now()
        with self._file.reading() as connection:
            found = self._queues.find(connection, queue)
            if found is None:
                return ()
            ready = connection.execute(self._sql["anything_ready"], {"queue_id": found.id}).fetchone()[0]
            needed = self._upkeep.needed(connection, found, now)
        if needed:
            self._tend(queue)
        if found.paused or not (ready or needed):
            return ()
        with self._file.transaction() as connection:
            return self._leasing.lease(connection, queue, messages_max, lease_seconds, self._clock.now())

    def _tended(self, queue: str) -> QueueRow | None:
        """The queue with leases, delays and retention looked after, as every look at it begins."""
        now = self._clock.now()
        with self._file.reading() as connection:
            found = self._queues.find(connection, queue)
            needed = found is not None and self._upkeep.needed(connection, found, now)
        if needed:
            self._tend(queue)
        return found

    def _tend(self, queue: str) -> None:
        done = False
        while not done:  # ends: what is due is finite, and each turn takes some of it
            with self._file.transaction() as connection:
                found = self._queues.ensure(connection, queue)
                done = self._upkeep.run(connection, found, self._clock.now())
