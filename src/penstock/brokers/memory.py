"""A broker in this process's memory: the reference for what the embedded queue means, and for tests.

It keeps every promise of the SQLite broker but durability. Several workers of one process share it: each takes a view
of its own with `held_by`, so that leases have holders.
"""

import secrets
import threading
from collections.abc import Sequence
from types import MappingProxyType

from penstock.brokers import rules
from penstock.brokers.arrivals import Arrivals
from penstock.brokers.memory_line import Entry, Line
from penstock.errors import TemporaryError
from penstock.messaging.broker import Capabilities, QueueSettings, QueueStats, SettleFailure
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.death import Death, with_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

_PAUSE_SECONDS_MIN = 0.001  # so that a due time just ahead cannot make a waiting receiver spin


class _Store:
    """What all views share; every field but the constants is written under the lock."""

    def __init__(self, clock: Clock, queues: Sequence[QueueSettings], deduplication_window_seconds: float) -> None:
        self.id = f"memory{secrets.token_hex(8)}"
        self.clock = clock
        self.deduplication_window_seconds = deduplication_window_seconds
        self.lock = threading.Lock()
        self.arrivals = Arrivals()
        self.lines: dict[str, Line] = {settings.name: Line(settings=settings) for settings in queues}
        self.seq = 0

    def line(self, queue: str) -> Line:
        """The queue, made on its first use."""
        return self.lines.setdefault(queue, Line(settings=QueueSettings(name=queue)))

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq


class MemoryBroker:
    """`penstock.messaging.broker.Broker` in memory. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        queues: Sequence[QueueSettings] = (),
        holder: str = "memory",
        deduplication_window_seconds: float = rules.DEDUPLICATION_WINDOW_SECONDS,
    ) -> None:
        for settings in queues:
            rules.check_settings(settings)
        self._store = _Store(clock or SystemClock(), queues, deduplication_window_seconds)
        self._holder = holder
        self._closed = False  # written by the thread that closes

    def held_by(self, holder: str) -> "MemoryBroker":
        """The same queues, for another worker of this process."""
        view = MemoryBroker(holder=holder)
        view._store = self._store
        return view

    @property
    def capabilities(self) -> Capabilities:
        return rules.EMBEDDED

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """All or none. A duplicate within the window is answered with the id of the message it repeats."""
        rules.check_outgoing(queue, messages)
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            ids = [self._put(self._store.line(queue), message, now) for message in messages]
        self._store.arrivals.tell()
        return ids

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        rules.check_seconds("lease_seconds", lease_seconds, rules.EMBEDDED.lease_seconds_max)
        rules.check_wait(wait_seconds)
        self._check_open()
        clock = self._store.clock
        deadline = clock.monotonic() + wait_seconds
        with self._store.arrivals.watch() as arrived:
            while True:
                arrived.clear()  # before looking: what comes after the look sets it again
                deliveries, next_change_at = self._take(queue, messages_max, lease_seconds)
                left = deadline - clock.monotonic()
                if deliveries or left <= 0 or messages_max < 1 or self._closed:
                    return deliveries
                pause = left if next_change_at is None else min(left, next_change_at - clock.now())
                clock.wait(arrived, max(pause, _PAUSE_SECONDS_MIN))

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        rules.check_seconds("lease_seconds", lease_seconds, rules.EMBEDDED.lease_seconds_max)
        self._check_open()
        lost = []
        with self._store.lock:
            now = self._store.clock.now()
            for delivery in deliveries:
                held = self._held(delivery, now)
                if held is None:
                    lost.append(delivery)
                else:
                    held[0].make_wait(held[1], now + lease_seconds)
        return lost

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        self._check_open()
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                rules.check_seconds("delay_seconds", settlement.delay_seconds, rules.EMBEDDED.delay_seconds_max)
        failures = []
        with self._store.lock:
            now = self._store.clock.now()
            for delivery, settlement in settlements:
                held = self._held(delivery, now)
                if held is None:
                    failures.append(SettleFailure(delivery=delivery, reason=rules.LOST, lost=True))
                else:
                    self._apply(*held, delivery, settlement, now)
        self._store.arrivals.tell()
        return failures

    def stats(self, queue: str) -> QueueStats:
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            line = self._tended(queue, now)
            return Line(settings=QueueSettings(name=queue)).stats(now) if line is None else line.stats(now)

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Messages in any state, by the age of their ids. An id that has left the queue is a fine place to go on."""
        self._check_open()
        after = 0 if after_id is None else rules.seq_of(self._store.id, after_id)
        with self._store.lock:
            line = self._tended(queue, self._store.clock.now())
            if line is None or after is None:
                return ()
            seqs = sorted(seq for seq in line.entries if seq > after)[: max(messages_max, 0)]
            return [self._message(line.entries[seq]) for seq in seqs]

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead: visible at once, the attempt stays counted."""
        self._check_open()
        with self._store.lock:
            now = self._store.clock.now()
            held = [(line, entry) for line in self._store.lines.values() for entry in line.entries.values()]
            held = [(line, entry) for line, entry in held if entry.leased and entry.holder == holder]
            for line, entry in held:
                entry.leased = False
                entry.fail(now)
                line.make_wait(entry, now)
        self._store.arrivals.tell()
        return len(held)

    def queue_names(self) -> Sequence[str]:
        with self._store.lock:
            return sorted(self._store.lines)

    def purge(self, queue: str) -> int:
        """Delete every message of the queue, leased ones too; answers how many."""
        self._check_open()
        with self._store.lock:
            return self._store.lines[queue].clear() if queue in self._store.lines else 0

    def dropped(self, queue: str) -> int:
        """How many dead letters this queue has deleted at the end of their retention."""
        with self._store.lock:
            return self._store.lines[queue].dropped if queue in self._store.lines else 0

    def close(self) -> None:
        self._closed = True
        self._store.arrivals.tell()

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("this view of the memory broker was closed: take another with held_by()")

    def _put(self, line: Line, message: Outgoing, now: float) -> str:
        if message.deduplication_id is not None:
            earlier = line.seen_before(message.deduplication_id, now)
            if earlier is not None:
                return earlier
        entry = Entry(
            seq=self._store.next_seq(),
            body=bytes(message.body),
            attributes=MappingProxyType(dict(message.attributes)),
            group=message.group,
            enqueued_at=now,
            visible_at=now + message.delay_seconds,
        )
        line.put(entry, ready=message.delay_seconds == 0)
        id = rules.message_id(self._store.id, entry.seq)
        if message.deduplication_id is not None:
            line.seen[message.deduplication_id] = (now + self._store.deduplication_window_seconds, id)
        return id

    def _take(self, queue: str, messages_max: int, lease_seconds: float) -> tuple[list[Delivery], float | None]:
        with self._store.lock:
            now = self._store.clock.now()
            line = self._tended(queue, now)
            if line is None:
                return [], None
            taken = line.take(max(0, min(messages_max, rules.EMBEDDED.receive_max)))
            for entry in taken:
                entry.ready, entry.leased, entry.holder = False, True, self._holder
                entry.receive_count += 1
                line.make_wait(entry, now + lease_seconds)
            return [self._delivery(queue, entry, now) for entry in taken], line.next_change_at()

    def _tended(self, queue: str, now: float) -> Line | None:
        """The queue with leases, delays and retention looked after, as every look at it begins."""
        line = self._store.lines.get(queue)
        if line is None:
            return None
        for entry in line.pop_due(now):
            if entry.leased:
                entry.fail(entry.visible_at)
            entry.leased = False
            if line.settings.receives_max is not None and entry.attempts >= line.settings.receives_max:
                del line.entries[entry.seq]
                self._bury(line, entry, self._death(queue, entry, rules.reason_exhausted(entry.attempts), now), now)
            else:
                line.make_ready(entry)
        self._expire(queue, line, now)
        return line

    def _expire(self, queue: str, line: Line, now: float) -> None:
        expired = line.pop_expired(now)
        others = self._store.lines.values()
        if any(rules.dead_letter_queue(other.settings) == queue for other in others):
            line.dropped += len(expired)
            return
        reason = rules.reason_expired(line.settings.retention_seconds)
        for entry in expired:
            self._bury(line, entry, self._death(queue, entry, reason, now), now)

    def _held(self, delivery: Delivery, now: float) -> tuple[Line, Entry] | None:
        """The fence: this very hand-over, its lease not over."""
        hand_over = rules.hand_over_of(self._store.id, delivery.receipt)
        line = self._store.lines.get(delivery.queue)
        entry = line.entries.get(hand_over.seq) if line is not None and hand_over is not None else None
        if line is None or hand_over is None or entry is None:
            return None
        holds = entry.leased and entry.receive_count == hand_over.number and entry.visible_at > now
        return (line, entry) if holds else None

    def _apply(self, line: Line, entry: Entry, delivery: Delivery, settlement: Settlement, now: float) -> None:
        match settlement:
            case Ack():
                del line.entries[entry.seq]
            case Release(delay_seconds=delay_seconds, refund=refund):
                entry.leased = False
                entry.refunds += refund
                if not refund:
                    entry.fail(now)
                line.make_wait(entry, now + delay_seconds)
            case DeadLetter():
                first = entry.first_failed_at
                del line.entries[entry.seq]
                death = rules.death_by_settlement(
                    settlement, delivery, worker=self._holder, first_failed_at=first, now=now
                )
                self._bury(line, entry, death, now)

    def _bury(self, line: Line, entry: Entry, death: Death, now: float) -> None:
        """Into the dead-letter queue: a new age, new attempts, the same id, body, group and attributes."""
        entry.attributes = with_death(entry.attributes, death)
        entry.ready = entry.leased = False
        entry.refunds = entry.receive_count
        entry.first_failed_at = entry.last_failed_at = None
        entry.enqueued_at = entry.visible_at = now
        self._store.line(rules.dead_letter_queue(line.settings)).put(entry, ready=False)

    def _death(self, queue: str, entry: Entry, reason: str, now: float) -> Death:
        return Death(
            reason=reason,
            attempts=entry.attempts,
            first_failed_at=entry.first_failed_at,
            last_failed_at=now if entry.last_failed_at is None else entry.last_failed_at,
            worker=entry.holder,
            queue=queue,
            message_id=rules.message_id(self._store.id, entry.seq),
            enqueued_at=entry.enqueued_at,
        )

    def _message(self, entry: Entry) -> Message:
        return Message(
            id=rules.message_id(self._store.id, entry.seq),
            body=entry.body,
            enqueued_at=entry.enqueued_at,
            attributes=entry.attributes,
            group=entry.group,
        )

    def _delivery(self, queue: str, entry: Entry, now: float) -> Delivery:
        return Delivery(
            message=self._message(entry),
            queue=queue,
            receipt=rules.receipt(self._store.id, rules.HandOver(seq=entry.seq, number=entry.receive_count)),
            attempt=entry.attempts,
            received_at=now,
        )
