"""The in-memory queues that all views of a broker share.

- `Entry`: one message with its state
- `MemoryQueue`: one queue: ready, leased and delayed messages, and the group rotation
- `MemoryStore`: all queues, and sending, leasing, settling and upkeep

The caller holds `MemoryStore.lock`.
"""

import heapq
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.brokers import shared
from penstock.brokers.capabilities import EMBEDDED
from penstock.brokers.shared import Arrivals
from penstock.messaging.broker import QueueSettings, QueueStats, names_dead_letters
from penstock.messaging.clock import Clock
from penstock.messaging.death import TRIES_MAX, Death, buried, with_death
from penstock.messaging.delivery import AttemptEnd, Delivery, PreviousAttempt
from penstock.messaging.message import Attributes, Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement


@dataclass(slots=True, kw_only=True)
class Entry:
    """A message with its state: ready, leased, or (neither) delayed. Written only by the broker, under its lock."""

    seq: int
    body: bytes
    attributes: Attributes
    group: str | None
    enqueued_at: float
    visible_at: float
    ready: bool = False
    leased: bool = False
    holder: str = ""  # of the last delivery
    receive_count: int = 0
    uncounted: int = 0
    unsuccessful: int = 0  # deliveries in this queue that ended without an ack
    age_from: float  # start of the age in `oldest_message_age_seconds`: enqueueing or last reset
    leased_at: float = 0.0
    tries: deque[PreviousAttempt] = field(default_factory=lambda: deque(maxlen=TRIES_MAX))  # the last ended deliveries
    first_failed_at: float | None = None
    last_failed_at: float | None = None

    @property
    def attempts(self) -> int:
        return self.receive_count - self.uncounted

    @property
    def state(self) -> QueuedState:
        if self.leased:
            return QueuedState.IN_FLIGHT
        return QueuedState.WAITING if self.ready else QueuedState.DELAYED

    @property
    def page_key(self) -> tuple[str | float, int]:
        """The position among the messages of its state."""
        return (shared.encode_group(self.group) if self.ready else float(self.visible_at), self.seq)

    def begin(self, holder: str, at: float) -> None:
        """Mark the message as leased by ``holder``."""
        self.ready, self.leased, self.holder, self.leased_at = False, True, holder, at
        self.receive_count += 1

    def end(self, end: AttemptEnd, at: float, reason: str | None = None) -> None:
        """End the delivery without removing the message; it will be delivered again."""
        self.leased = False
        self.tries.append(
            PreviousAttempt(started_at=self.leased_at, ended_at=at, worker=self.holder, end=end, reason=reason)
        )
        self.unsuccessful += 1
        if self.unsuccessful % shared.RESET_EVERY == 0:
            self.age_from = at
        if end is AttemptEnd.RELEASED:
            self.uncounted += 1
        else:
            self.first_failed_at = at if self.first_failed_at is None else self.first_failed_at
            self.last_failed_at = at

    def move_to_dlq(self, at: float) -> None:
        """Reset the message for its start in the dead-letter queue."""
        self.ready = self.leased = False
        self.uncounted, self.unsuccessful = self.receive_count, 0
        self.first_failed_at = self.last_failed_at = None
        self.tries.clear()
        self.enqueued_at = self.visible_at = self.age_from = at


@dataclass(slots=True, kw_only=True)
class MemoryQueue:
    """One queue. ``rotation`` holds the groups with ready messages in rotation order: the first is served next."""

    settings: QueueSettings
    entries: dict[int, Entry] = field(default_factory=dict)
    rotation: dict[str | None, list[int]] = field(default_factory=dict)  # heaps of seqs: oldest first in each group
    # Heap of (visible_at, seq); entries changed since are skipped
    waiting: list[tuple[float, int]] = field(default_factory=list)
    ages: list[tuple[float, int]] = field(default_factory=list)  # heap of (enqueued_at, seq); likewise
    seen: dict[str, tuple[float, str]] = field(default_factory=dict)  # deduplication id -> (until, message id)
    dropped: int = 0
    paused: bool = False

    def put(self, entry: Entry, *, ready: bool) -> None:
        self.entries[entry.seq] = entry
        heapq.heappush(self.ages, (entry.enqueued_at, entry.seq))
        if ready:
            self.make_ready(entry)
        else:
            self.make_wait(entry, entry.visible_at)

    def make_ready(self, entry: Entry) -> None:
        entry.ready, entry.leased = True, False
        heapq.heappush(self.rotation.setdefault(entry.group, []), entry.seq)

    def make_wait(self, entry: Entry, until: float) -> None:
        entry.visible_at = until
        heapq.heappush(self.waiting, (until, entry.seq))

    def take(self, count: int) -> list[Entry]:
        """Take the next ready messages from the rotation, one of each group in turn. Served groups move to its end."""
        groups = list(self.rotation)[:count]
        taken: list[Entry] = []
        unfinished = groups
        while unfinished and len(taken) < count:
            turn = unfinished[: count - len(taken)]
            taken += [self.entries[heapq.heappop(self.rotation[group])] for group in turn]
            unfinished = [group for group in unfinished if self.rotation[group]]
        for group in groups:
            remaining = self.rotation.pop(group)
            if remaining:
                self.rotation[group] = remaining
        return taken

    def pop_due(self, now: float) -> Iterator[Entry]:
        """Yield the messages with an ended delay or lease, in the order of those times."""
        while self.waiting and self.waiting[0][0] <= now:
            until, seq = heapq.heappop(self.waiting)
            entry = self.entries.get(seq)
            if entry is not None and not entry.ready and entry.visible_at == until:
                yield entry

    def pop_expired(self, now: float) -> list[Entry]:
        """Remove and return the messages past their retention, except leased ones, which a worker is processing."""
        expired, still_leased = [], []
        while self.ages and self.ages[0][0] <= now - self.settings.retention_seconds:
            age = heapq.heappop(self.ages)
            entry = self.entries.get(age[1])
            if entry is None or entry.enqueued_at != age[0]:
                continue
            if entry.leased:
                still_leased.append(age)
            else:
                expired.append(self.entries.pop(entry.seq))
        for age in still_leased:
            heapq.heappush(self.ages, age)
        self._leave_rotation({entry.group for entry in expired if entry.ready})
        return sorted(expired, key=lambda entry: entry.seq)

    def duplicate_of(self, deduplication_id: str, now: float) -> str | None:
        """Return the id of the message sent with this deduplication id within the window; None if there is none."""
        while self.seen and next(iter(self.seen.values()))[0] <= now:
            del self.seen[next(iter(self.seen))]
        found = self.seen.get(deduplication_id)
        return None if found is None or found[0] <= now else found[1]

    def next_change_at(self) -> float | None:
        """Return when the earliest lease or delay ends; None if there is none."""
        return self.waiting[0][0] if self.waiting else None

    def discard(self, seqs: Set[int]) -> int:
        """Delete these messages in any state; return how many existed."""
        deleted = [self.entries.pop(seq) for seq in seqs if seq in self.entries]
        self._leave_rotation({entry.group for entry in deleted if entry.ready})
        return len(deleted)

    def clear(self) -> int:
        """Delete all messages and return how many; deduplication ids stay."""
        count = len(self.entries)
        for container in (self.entries, self.rotation, self.waiting, self.ages):
            container.clear()
        return count

    def stats(self, now: float) -> QueueStats:
        oldest_from = min((entry.age_from for entry in self.entries.values()), default=now)
        enqueued_from = min((entry.enqueued_at for entry in self.entries.values()), default=None)
        ready = [entry.enqueued_at for entry in self.entries.values() if entry.ready]
        in_flight = sum(entry.leased for entry in self.entries.values())
        return QueueStats(
            visible=len(ready),
            in_flight=in_flight,
            delayed=len(self.entries) - len(ready) - in_flight,
            oldest_visible_message_age_seconds=max(0.0, now - min(ready)) if ready else None,
            oldest_message_age_seconds=max(0.0, now - oldest_from),
            oldest_enqueued_age_seconds=None if enqueued_from is None else max(0.0, now - enqueued_from),
        )

    def _leave_rotation(self, groups: set[str | None]) -> None:
        for group in groups:
            remaining = sorted(seq for seq in self.rotation[group] if seq in self.entries)
            if remaining:
                self.rotation[group] = remaining
            else:
                del self.rotation[group]


class MemoryStore:
    """All queues of one broker. Fields other than constants are written under the lock."""

    def __init__(self, clock: Clock, queues: Sequence[QueueSettings], deduplication_window_seconds: float) -> None:
        self.id = f"memory{secrets.token_hex(8)}"
        self.clock = clock
        self.lock = threading.Lock()
        self.arrivals = Arrivals()
        self.queues: dict[str, MemoryQueue] = {settings.name: MemoryQueue(settings=settings) for settings in queues}
        self._deduplication_window_seconds = deduplication_window_seconds
        self._seq = 0

    def ensure_queue(self, queue: str) -> MemoryQueue:
        """Return the queue, created on first use."""
        return self.queues.setdefault(queue, MemoryQueue(settings=QueueSettings(name=queue)))

    def settings(self, queue: str) -> QueueSettings:
        """Return the queue's settings, or the defaults if it does not exist."""
        memory_queue = self.queues.get(queue)
        return QueueSettings(name=queue) if memory_queue is None else memory_queue.settings

    def dead_letter_queue(self, queue: str) -> str:
        """Return the queue for its dead letters."""
        return shared.dead_letter_queue(self.settings(queue), is_dlq=self._is_dead_letter_queue(queue))

    def put(self, memory_queue: MemoryQueue, message: Outgoing, now: float) -> str:
        """Add the message and return its id, or the id of the earlier message that it duplicates."""
        if message.deduplication_id is not None:
            earlier = memory_queue.duplicate_of(message.deduplication_id, now)
            if earlier is not None:
                return earlier
        self._seq += 1
        entry = Entry(
            seq=self._seq,
            body=bytes(message.body),
            attributes=MappingProxyType(dict(message.attributes)),
            group=message.group,
            enqueued_at=now,
            age_from=now,
            visible_at=now + message.delay_seconds,
        )
        memory_queue.put(entry, ready=message.delay_seconds == 0)
        id = shared.message_id(self.id, entry.seq)
        if message.deduplication_id is not None:
            memory_queue.seen[message.deduplication_id] = (now + self._deduplication_window_seconds, id)
        return id

    def take(self, queue: str, messages_max: int, lease_seconds: float, holder: str) -> Sequence[Delivery]:
        """Lease the next ready messages."""
        now = self.clock.now()
        memory_queue = self.find_updated(queue, now)
        if memory_queue is None or memory_queue.paused:
            return ()
        taken = memory_queue.take(max(0, min(messages_max, EMBEDDED.receive_max)))
        for entry in taken:
            entry.begin(holder, now)
            memory_queue.make_wait(entry, now + lease_seconds)
        return [self._delivery(queue, entry, now) for entry in taken]

    def find_updated(self, queue: str, now: float) -> MemoryQueue | None:
        """Return the queue after applying due leases, delays and retention. Precedes every take, stats and browse."""
        memory_queue = self.queues.get(queue)
        if memory_queue is None:
            return None
        for entry in memory_queue.pop_due(now):
            if entry.leased:
                entry.end(AttemptEnd.EXPIRED, entry.visible_at)
            if memory_queue.settings.receives_max is not None and entry.attempts >= memory_queue.settings.receives_max:
                del memory_queue.entries[entry.seq]
                self._dead_letter_by_broker(memory_queue, entry, shared.reason_exhausted(entry.attempts), now)
            else:
                memory_queue.make_ready(entry)
        self._expire(queue, memory_queue, now)
        return memory_queue

    def find_leased(self, delivery: Delivery, now: float) -> tuple[MemoryQueue, Entry] | None:
        """Return the queue and entry of a delivery, or None unless that same delivery is leased and its lease has not
        ended.

        This is the fence against stale receipt handles.
        """
        handle = shared.parse_receipt(self.id, delivery.receipt)
        memory_queue = self.queues.get(delivery.queue)
        entry = memory_queue.entries.get(handle.seq) if memory_queue is not None and handle is not None else None
        if memory_queue is None or handle is None or entry is None:
            return None
        is_leased = entry.leased and entry.receive_count == handle.number and entry.visible_at > now
        return (memory_queue, entry) if is_leased else None

    def apply(
        self,
        memory_queue: MemoryQueue,
        entry: Entry,
        delivery: Delivery,
        settlement: Settlement,
        *,
        holder: str,
        now: float,
    ) -> None:
        """Settle a delivery that `find_leased` returned."""
        match settlement:
            case Ack():
                del memory_queue.entries[entry.seq]
            case Release():
                self._release(memory_queue, entry, settlement, now)
            case DeadLetter() if self.dead_letter_queue(delivery.queue) == delivery.queue:
                self._release(memory_queue, entry, shared.release_in_final_dlq(settlement), now)
            case DeadLetter():
                death = shared.death_by_settlement(
                    settlement,
                    delivery,
                    worker=holder,
                    first_failed_at=entry.first_failed_at,
                    now=now,
                    tries=tuple(map(shared.attempt_record, entry.tries)),
                )
                del memory_queue.entries[entry.seq]
                self._move_to_dlq(memory_queue, entry, buried(entry.attributes, settlement, death), now)

    def release_holder(self, holder: str, now: float) -> int:
        """End the leases of a dead worker, now or at their own end if that was earlier. Return how many."""
        every = [(queue, entry) for queue in self.queues.values() for entry in queue.entries.values()]
        leased = [(each, entry) for each, entry in every if entry.leased and entry.holder == holder]
        for memory_queue, entry in leased:
            ended_at = min(entry.visible_at, now)
            entry.end(AttemptEnd.EXPIRED, ended_at)
            memory_queue.make_wait(entry, ended_at)
        return len(leased)

    def message(self, entry: Entry) -> Message:
        return Message(
            id=shared.message_id(self.id, entry.seq),
            body=entry.body,
            enqueued_at=entry.enqueued_at,
            attributes=entry.attributes,
            group=entry.group,
        )

    def page(
        self, memory_queue: MemoryQueue, state: QueuedState, messages_max: int, after: tuple[Any, ...] | None
    ) -> QueuedPage:
        """Return the messages in this state after a position."""
        entries = (entry for entry in memory_queue.entries.values() if entry.state is state)
        behind = (entry for entry in entries if after is None or entry.page_key > after)
        first = heapq.nsmallest(max(messages_max, 0) + 1, behind, key=lambda entry: entry.page_key)
        taken = shared.page_of(first[: max(messages_max, 0)], lambda entry: len(entry.body))
        more = taken and len(taken) < len(first)
        return QueuedPage(
            messages=[self.queued(entry) for entry in taken],
            next=shared.page_key(*taken[-1].page_key) if more else None,
        )

    def queued(self, entry: Entry) -> QueuedMessage:
        """Return the message with its state."""
        return QueuedMessage(
            message=self.message(entry),
            state=entry.state,
            near="",
            deliveries=entry.receive_count,
            attempts=entry.attempts,
            visible_at=None if entry.ready else entry.visible_at,
            leased_at=entry.leased_at if entry.leased else None,
            worker=entry.holder if entry.leased else None,
            tries=tuple(map(shared.attempt_record, entry.tries)),
        )

    def _expire(self, queue: str, memory_queue: MemoryQueue, now: float) -> None:
        expired = memory_queue.pop_expired(now)
        if self._is_dead_letter_queue(queue):
            memory_queue.dropped += len(expired)
            return
        reason = shared.reason_expired(memory_queue.settings.retention_seconds)
        for entry in expired:
            self._dead_letter_by_broker(memory_queue, entry, reason, now)

    def _release(self, memory_queue: MemoryQueue, entry: Entry, release: Release, now: float) -> None:
        end = AttemptEnd.RELEASED if release.uncounted else AttemptEnd.FAILED
        entry.end(end, now, shared.storable_reason(release.reason))
        memory_queue.make_wait(entry, now + release.delay_seconds)

    def _dead_letter_by_broker(self, memory_queue: MemoryQueue, entry: Entry, reason: str, now: float) -> None:
        """Dead-letter a message on the broker's own decision."""
        death = self._death(memory_queue.settings.name, entry, reason, now)
        self._move_to_dlq(memory_queue, entry, with_death(entry.attributes, death), now)

    def _move_to_dlq(self, memory_queue: MemoryQueue, entry: Entry, attributes: Attributes, now: float) -> None:
        """Move the message to the dead-letter queue: new age and attempts; same id, body and group."""
        entry.attributes = attributes
        entry.move_to_dlq(now)
        self.ensure_queue(self.dead_letter_queue(memory_queue.settings.name)).put(entry, ready=False)

    def _is_dead_letter_queue(self, queue: str) -> bool:
        others = self.queues.values()
        return names_dead_letters(queue) or any(other.settings.dead_letter_queue == queue for other in others)

    def _death(self, queue: str, entry: Entry, reason: str, now: float) -> Death:
        return Death(
            reason=reason,
            attempts=entry.attempts,
            first_failed_at=entry.first_failed_at,
            last_failed_at=now if entry.last_failed_at is None else entry.last_failed_at,
            worker=entry.holder,
            queue=queue,
            message_id=shared.message_id(self.id, entry.seq),
            enqueued_at=entry.enqueued_at,
            tries=tuple(map(shared.attempt_record, entry.tries)),
        )

    def _delivery(self, queue: str, entry: Entry, now: float) -> Delivery:
        return Delivery(
            message=self.message(entry),
            queue=queue,
            receipt=shared.receipt(self.id, shared.ReceiptHandle(seq=entry.seq, number=entry.receive_count)),
            attempt=entry.attempts,
            received_at=now,
            previous=entry.tries[-1] if entry.tries else None,
        )
