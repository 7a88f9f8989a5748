"""One queue in memory: what is ready, leased or delayed, and whose turn it is."""

import heapq
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from penstock.brokers import rules
from penstock.messaging.broker import QueueSettings, QueueStats
from penstock.messaging.death import TRIES_MAX
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt
from penstock.messaging.message import Attributes


@dataclass(slots=True, kw_only=True)
class Entry:
    """A message with its state: ready, or leased, or (neither) delayed. Only the broker, under its lock, writes it."""

    seq: int
    body: bytes
    attributes: Attributes
    group: str | None
    enqueued_at: float
    visible_at: float
    ready: bool = False
    leased: bool = False
    holder: str = ""  # the last one
    receive_count: int = 0
    refunds: int = 0
    unsuccessful: int = 0  # hand-overs in this queue that ended without an ack
    age_from: float  # of the oldest message's age: the enqueueing, or the last reset
    leased_at: float = 0.0
    tries: deque[PreviousAttempt] = field(default_factory=lambda: deque(maxlen=TRIES_MAX))  # the last that ended
    first_failed_at: float | None = None
    last_failed_at: float | None = None

    @property
    def attempts(self) -> int:
        return self.receive_count - self.refunds

    def begin(self, holder: str, at: float) -> None:
        """It is handed over."""
        self.ready, self.leased, self.holder, self.leased_at = False, True, holder, at
        self.receive_count += 1

    def end(self, end: AttemptEnd, at: float, reason: str | None = None) -> None:
        """The hand-over ended, and the message is to be handed over again."""
        self.leased = False
        self.tries.append(
            PreviousAttempt(started_at=self.leased_at, ended_at=at, worker=self.holder, end=end, reason=reason)
        )
        self.unsuccessful += 1
        if self.unsuccessful % rules.RESET_EVERY == 0:
            self.age_from = at
        if end is AttemptEnd.GIVEN_BACK:
            self.refunds += 1
        else:
            self.first_failed_at = at if self.first_failed_at is None else self.first_failed_at
            self.last_failed_at = at

    def bury(self, at: float) -> None:
        """It begins anew in another queue."""
        self.ready = self.leased = False
        self.refunds, self.unsuccessful = self.receive_count, 0
        self.first_failed_at = self.last_failed_at = None
        self.tries.clear()
        self.enqueued_at = self.visible_at = self.age_from = at


@dataclass(slots=True, kw_only=True)
class Line:
    """A queue. ``ring`` holds the groups that have ready messages, the next one to be served first."""

    settings: QueueSettings
    entries: dict[int, Entry] = field(default_factory=dict)
    ring: dict[str | None, list[int]] = field(default_factory=dict)  # heaps of seqs: oldest first within a group
    waiting: list[tuple[float, int]] = field(default_factory=list)  # a heap; entries that changed since are skipped
    ages: list[tuple[float, int]] = field(default_factory=list)  # a heap of (enqueued_at, seq); likewise
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
        heapq.heappush(self.ring.setdefault(entry.group, []), entry.seq)

    def make_wait(self, entry: Entry, until: float) -> None:
        entry.visible_at = until
        heapq.heappush(self.waiting, (until, entry.seq))

    def take(self, count: int) -> list[Entry]:
        """Remove the next ready messages: one of each group in turn; the groups served go to the ring's end."""
        groups = list(self.ring)[:count]
        taken: list[Entry] = []
        hungry = groups
        while hungry and len(taken) < count:
            turn = hungry[: count - len(taken)]
            taken += [self.entries[heapq.heappop(self.ring[group])] for group in turn]
            hungry = [group for group in hungry if self.ring[group]]
        for group in groups:
            rest = self.ring.pop(group)
            if rest:
                self.ring[group] = rest
        return taken

    def pop_due(self, now: float) -> Iterator[Entry]:
        """What waited long enough: delays and leases that are over, in that order in time."""
        while self.waiting and self.waiting[0][0] <= now:
            until, seq = heapq.heappop(self.waiting)
            entry = self.entries.get(seq)
            if entry is not None and not entry.ready and entry.visible_at == until:
                yield entry

    def pop_expired(self, now: float) -> list[Entry]:
        """Take out what is past its retention, unless it is leased: somebody is at work on that."""
        expired, kept = [], []
        while self.ages and self.ages[0][0] <= now - self.settings.retention_seconds:
            age = heapq.heappop(self.ages)
            entry = self.entries.get(age[1])
            if entry is None or entry.enqueued_at != age[0]:
                continue
            if entry.leased:
                kept.append(age)
            else:
                expired.append(self.entries.pop(entry.seq))
        for age in kept:
            heapq.heappush(self.ages, age)
        self._leave_ring({entry.group for entry in expired if entry.ready})
        return sorted(expired, key=lambda entry: entry.seq)

    def _leave_ring(self, groups: set[str | None]) -> None:
        for group in groups:
            rest = sorted(seq for seq in self.ring[group] if seq in self.entries)
            if rest:
                self.ring[group] = rest
            else:
                del self.ring[group]

    def seen_before(self, deduplication_id: str, now: float) -> str | None:
        """The id of the message that was sent under this deduplication id within the window."""
        while self.seen and next(iter(self.seen.values()))[0] <= now:
            del self.seen[next(iter(self.seen))]
        found = self.seen.get(deduplication_id)
        return None if found is None or found[0] <= now else found[1]

    def next_change_at(self) -> float | None:
        """When the earliest lease or delay ends."""
        return self.waiting[0][0] if self.waiting else None

    def discard(self, seqs: Set[int]) -> int:
        """Take these out, in whatever state they are; answers how many were there."""
        gone = [self.entries.pop(seq) for seq in seqs if seq in self.entries]
        self._leave_ring({entry.group for entry in gone if entry.ready})
        return len(gone)

    def clear(self) -> int:
        """Drop everything; deduplication ids stay."""
        count = len(self.entries)
        for held in (self.entries, self.ring, self.waiting, self.ages):
            held.clear()
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
