"""The embedded broker: SQS semantics in one SQLite file, for any number of threads and processes of one host.

Guarantees beyond `penstock.messaging.broker.Broker`:

- A message survives power loss once `send` has returned, provided that disk and operating system report syncs
  truthfully: its transaction is on the disk by then (WAL with synchronous=FULL). Leases, settlements and upkeep do not
  wait for the disk (NORMAL). If a power loss undoes some of those, messages are redelivered, which at-least-once
  allows; no message is lost. A process crash undoes nothing.
- Groups share fairly: a rotation over the groups with ready messages takes one message per turn, oldest first within a
  group. Messages without a group form one group, so a flood of those cannot delay a tenant's.
- No message disappears silently: one past its queue's retention is dead-lettered (SQS deletes it). Only expired dead
  letters are deleted, and counted (`dropped`). A leased message does not expire.
- A lease ends at its time, even if no other worker has received the message; settling is refused from then on.
- The first `send` to an unknown queue creates it.

Time is the host's clock, shared by all processes that use the file: WAL needs shared memory, so two hosts cannot use
one file. No statement asks SQLite for the time. If the clock is set back, no lease or delay lasts longer from then on
than its full length (detected by comparison with the time of the last one, to the second). If it is set forward, leases
and delays end early; a message may then be delivered twice, and the fence lets only one delivery settle it.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path

from penstock.brokers import shared
from penstock.brokers.capabilities import EMBEDDED, SQLITE
from penstock.brokers.shared import Arrivals, encode_attributes, encode_group, one_by_one
from penstock.brokers.sqlite.deliveries import SqliteLeases, SqliteSettler
from penstock.brokers.sqlite.file import QueueFile, statements
from penstock.brokers.sqlite.peeking import peek, queued_of
from penstock.brokers.sqlite.queues import QueueRow, Row, SqliteQueues, message_of
from penstock.brokers.sqlite.upkeep import SqliteUpkeep
from penstock.messaging.broker import (
    BrokerCapabilities,
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
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Ack, Release, Settlement


class SqliteSender:
    def __init__(self, sql: Mapping[str, str], queues: SqliteQueues, *, deduplication_window_seconds: float) -> None:
        self._sql = sql
        self._queues = queues
        self._deduplication_window_seconds = deduplication_window_seconds

    def insert(
        self, connection: sqlite3.Connection, queue: QueueRow, messages: Sequence[Outgoing], now: float
    ) -> list[int]:
        """Insert the messages and return the row id of each, or of the earlier message that it duplicates."""
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
        self._queues.join_rotation(connection, queue, [row[5] for row in rows if row[2] == 0])
        return seqs

    def _deduplicated(
        self, connection: sqlite3.Connection, queue: QueueRow, outgoing: Outgoing, seq: int, now: float
    ) -> int:
        """Return ``seq``, or the row id of the earlier message that this one duplicates."""
        if outgoing.deduplication_id is None:
            return seq
        parameters = {"queue_id": queue.id, "deduplication_id": outgoing.deduplication_id}
        earlier = connection.execute(self._sql["deduplicated"], parameters).fetchone()
        if earlier is not None:
            return int(earlier[0])
        until = now + self._deduplication_window_seconds
        connection.execute(self._sql["remember_deduplication"], (queue.id, outgoing.deduplication_id, until, seq))
        return seq


class SqliteBroker:
    """A `penstock.messaging.broker.Broker` in a file. Thread-safe; each process opens the file separately.

    ``holder`` names this worker; `release_holder` releases its messages once it is proven dead. ``queues`` are created,
    or get these settings from now on. Raises ConfigurationError if the file is damaged, newer than this program, or
    from another program.
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
        self._closed = False  # written by the thread that calls close
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
    def capabilities(self) -> BrokerCapabilities:
        return SQLITE

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send all messages or none, in one transaction that is on the disk when this returns.

        For a duplicate within the deduplication window, return the id of the earlier message.
        """
        shared.check_outgoing(queue, messages)
        if not messages:
            return ()
        with self._file.transaction(durable=True) as connection:
            found = self._queues.ensure(connection, queue)
            seqs = self._sending.insert(connection, found, messages, self._clock.now())
        self._arrivals.notify(queue)
        return [shared.message_id(self._store_id, seq) for seq in seqs]

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        """Lease messages. A send in this process ends the wait at once, one elsewhere within ``poll_seconds``."""
        shared.check_seconds("lease_seconds", lease_seconds, EMBEDDED.lease_seconds_max)
        shared.check_wait(wait_seconds)
        deadline = self._clock.monotonic() + wait_seconds
        with self._arrivals.watch() as arrived:
            while True:
                arrived.clear()  # before the poll, so that a message arriving after it sets the event again
                deliveries = self._take(queue, messages_max, lease_seconds)
                left = deadline - self._clock.monotonic()
                if deliveries or left <= 0 or messages_max < 1:
                    return deliveries
                self._clock.wait(arrived, min(left, self._poll_seconds))
                if self._closed:
                    return ()

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        shared.check_seconds("lease_seconds", lease_seconds, EMBEDDED.lease_seconds_max)
        if not deliveries:
            return ()
        with self._file.transaction() as connection:
            return self._leasing.extend(connection, deliveries, lease_seconds, self._clock.now())

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """Settle in one transaction. A delivery that is already settled, or is listed twice, counts as lost."""
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                shared.check_release(settlement)
        if not settlements:
            return ()
        with self._file.transaction() as connection:
            lost = self._settling.settle(connection, settlements, self._clock.now())
        if any(not isinstance(settlement, Ack) for _, settlement in settlements):
            self._arrivals.notify()
        return [SettleFailure(delivery=delivery, reason=shared.LOST, lost=True) for delivery in lost]

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        return one_by_one(self, settlements, requests, lease_seconds=lease_seconds, wait_seconds=wait_seconds)

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> Listening:
        """Return a listener for arrivals from this process; messages of other processes are found by polling."""
        return self._arrivals.listen(queues, on_arrival)

    def stats(self, queue: str) -> QueueStats:
        found = self._find_updated(queue)
        if found is None:
            return shared.EMPTY_STATS
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

    def is_empty(self, queue: str) -> bool:
        found = self._find_updated(queue)
        if found is None:
            return True
        with self._file.reading() as connection:
            return not connection.execute(self._sql["any_message"], {"queue_id": found.id}).fetchone()[0]

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Return messages in any state, ordered by id. ``after_id`` may name a message that has left the queue."""
        after = 0 if after_id is None else shared.seq_of(self._store_id, after_id)
        found = self._find_updated(queue)
        if found is None or after is None:
            return ()
        parameters = {"queue_id": found.id, "after": after, "messages_max": max(messages_max, 0)}
        with self._file.reading() as connection:
            rows = connection.execute(self._sql["browse"], parameters).fetchall()
        return [message_of(self._store_id, row) for row in rows]

    def peek(self, queue: str, state: QueuedState, *, messages_max: int, after: str | None = None) -> QueuedPage:
        """Return a page: waiting messages by group and id, others by the end of their lease or delay."""
        key = shared.parse_page_key(after, str if state is QueuedState.WAITING else float, int)
        found = self._find_updated(queue)
        if found is None:
            return QueuedPage()
        with self._file.reading() as connection:
            return peek(connection, self._sql, self._store_id, found.id, state, max(messages_max, 0), key)

    def find(self, queue: str, id: str, *, near: str | None = None) -> QueuedMessage | None:  # noqa: ARG002 - ids are keys
        seq = shared.seq_of(self._store_id, id)
        found = self._find_updated(queue)
        if found is None or seq is None:
            return None
        with self._file.reading() as connection:
            row = connection.execute(self._sql["find"], {"id": seq, "queue_id": found.id}).fetchone()
        return None if row is None else queued_of(self._store_id, row)

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead. Its messages are visible at once; the attempts count."""
        with self._file.transaction() as connection:
            count = self._upkeep.release_holder(connection, holder, self._clock.now())
        self._arrivals.notify()
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
        """Pause the queue. The pause is on the disk when this returns; other processes notice it at their next poll."""
        shared.check_queue(queue)
        with self._file.transaction(durable=True) as connection:
            self._queues.set_paused(connection, self._queues.ensure(connection, queue), True)

    def resume(self, queue: str) -> None:
        with self._file.transaction(durable=True) as connection:
            found = self._queues.find(connection, queue)
            if found is not None:
                self._queues.set_paused(connection, found, False)
        self._arrivals.notify(queue)

    def now(self) -> float:
        return self._clock.now()

    def paused(self, queue: str) -> bool:
        with self._file.reading() as connection:
            found = self._queues.find(connection, queue)
        return found is not None and found.paused

    def dropped(self, queue: str) -> int:
        """Return how many expired dead letters this queue has deleted."""
        with self._file.reading() as connection:
            row = connection.execute(self._sql["dropped"], {"name": queue}).fetchone()
        return 0 if row is None else int(row[0])

    def close(self) -> None:
        """Close the file. A waiting receiver returns no messages; later calls raise TemporaryError."""
        self._closed = True
        self._arrivals.notify()
        self._file.close()

    def _take(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[Delivery]:
        """Lease messages. Checks without the write lock first, so that polling an idle queue blocks no writer."""
        now = self._clock.now()
        with self._file.reading() as connection:
            found = self._queues.find(connection, queue)
            if found is None:
                return ()
            ready = connection.execute(self._sql["anything_ready"], {"queue_id": found.id}).fetchone()[0]
            needed = self._upkeep.needed(connection, found, now)
        if needed:
            self._apply_due(queue)
        if found.paused or not (ready or needed):
            return ()
        with self._file.transaction() as connection:
            return self._leasing.lease(connection, queue, messages_max, lease_seconds, self._clock.now())

    def _find_updated(self, queue: str) -> QueueRow | None:
        """Return the queue after applying due leases, delays and retention; None if it does not exist."""
        now = self._clock.now()
        with self._file.reading() as connection:
            found = self._queues.find(connection, queue)
            needed = found is not None and self._upkeep.needed(connection, found, now)
        if needed:
            self._apply_due(queue)
        return found

    def _apply_due(self, queue: str) -> None:
        done = False
        while not done:  # terminates: the due messages are finite, and each round handles some
            with self._file.transaction() as connection:
                found = self._queues.ensure(connection, queue)
                done = self._upkeep.run(connection, found, self._clock.now())


def _new_row(seq: int, queue: QueueRow, outgoing: Outgoing, now: float) -> Row:
    """Return the values in the column order of the statement `insert`."""
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
