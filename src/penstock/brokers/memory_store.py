"""The queues in memory that all views of one broker share, and what is done to them. The caller holds the lock."""

import secrets
import threading
from collections.abc import Sequence
from types import MappingProxyType

from penstock.brokers import rules
from penstock.brokers.arrivals import Arrivals
from penstock.brokers.memory_line import Entry, Line
from penstock.messaging.broker import QueueSettings, names_dead_letters
from penstock.messaging.clock import Clock
from penstock.messaging.death import Death, buried, with_death
from penstock.messaging.delivery import AttemptEnd, Delivery
from penstock.messaging.message import Attributes, Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement


class Store:
    """Every field but the constants is written under the lock."""

    def __init__(self, clock: Clock, queues: Sequence[QueueSettings], deduplication_window_seconds: float) -> None:
        self.id = f"memory{secrets.token_hex(8)}"
        self.clock = clock
        self.lock = threading.Lock()
        self.arrivals = Arrivals()
        self.lines: dict[str, Line] = {settings.name: Line(settings=settings) for settings in queues}
        self._deduplication_window_seconds = deduplication_window_seconds
        self._seq = 0

    def line(self, queue: str) -> Line:
        """The queue, made on its first use."""
        return self.lines.setdefault(queue, Line(settings=QueueSettings(name=queue)))

    def settings(self, queue: str) -> QueueSettings:
        """What the queue was told, or what it would be made with."""
        line = self.lines.get(queue)
        return QueueSettings(name=queue) if line is None else line.settings

    def dead_letter_queue(self, queue: str) -> str:
        """Where its dead letters go."""
        return rules.dead_letter_queue(self.settings(queue), holds_dead=self._is_dead_letter_queue(queue))

    def put(self, line: Line, message: Outgoing, now: float) -> str:
        """Answers the message's id, or that of the earlier message which it repeats."""
        if message.deduplication_id is not None:
            earlier = line.seen_before(message.deduplication_id, now)
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
        line.put(entry, ready=message.delay_seconds == 0)
        id = rules.message_id(self.id, entry.seq)
        if message.deduplication_id is not None:
            line.seen[message.deduplication_id] = (now + self._deduplication_window_seconds, id)
        return id

    def take(self, queue: str, messages_max: int, lease_seconds: float, holder: str) -> Sequence[Delivery]:
        """Lease the next ready messages."""
        now = self.clock.now()
        line = self.tended(queue, now)
        if line is None or line.paused:
            return ()
        taken = line.take(max(0, min(messages_max, rules.CAPABILITIES.receive_max)))
        for entry in taken:
            entry.begin(holder, now)
            line.make_wait(entry, now + lease_seconds)
        return [self._delivery(queue, entry, now) for entry in taken]

    def tended(self, queue: str, now: float) -> Line | None:
        """The queue with leases, delays and retention looked after, as every look at it begins."""
        line = self.lines.get(queue)
        if line is None:
            return None
        for entry in line.pop_due(now):
            if entry.leased:
                entry.end(AttemptEnd.EXPIRED, entry.visible_at)
            if line.settings.receives_max is not None and entry.attempts >= line.settings.receives_max:
                del line.entries[entry.seq]
                self._give_up(line, entry, rules.reason_exhausted(entry.attempts), now)
            else:
                line.make_ready(entry)
        self._expire(queue, line, now)
        return line

    def held(self, delivery: Delivery, now: float) -> tuple[Line, Entry] | None:
        """The fence: this very hand-over, its lease not over."""
        hand_over = rules.hand_over_of(self.id, delivery.receipt)
        line = self.lines.get(delivery.queue)
        entry = line.entries.get(hand_over.seq) if line is not None and hand_over is not None else None
        if line is None or hand_over is None or entry is None:
            return None
        holds = entry.leased and entry.receive_count == hand_over.number and entry.visible_at > now
        return (line, entry) if holds else None

    def apply(
        self, line: Line, entry: Entry, delivery: Delivery, settlement: Settlement, *, holder: str, now: float
    ) -> None:
        """End a hand-over that is held."""
        match settlement:
            case Ack():
                del line.entries[entry.seq]
            case Release():
                self._release(line, entry, settlement, now)
            case DeadLetter() if self.dead_letter_queue(delivery.queue) == delivery.queue:
                self._release(line, entry, rules.kept_back(settlement), now)
            case DeadLetter():
                death = rules.death_by_settlement(
                    settlement,
                    delivery,
                    worker=holder,
                    first_failed_at=entry.first_failed_at,
                    now=now,
                    tries=tuple(map(rules.tried, entry.tries)),
                )
                del line.entries[entry.seq]
                self._bury(line, entry, buried(entry.attributes, settlement, death), now)

    def release_holder(self, holder: str, now: float) -> int:
        """End the leases of a dead worker: now, or when they ended by themselves."""
        held = [(line, entry) for line in self.lines.values() for entry in line.entries.values()]
        held = [(line, entry) for line, entry in held if entry.leased and entry.holder == holder]
        for line, entry in held:
            ended_at = min(entry.visible_at, now)
            entry.end(AttemptEnd.EXPIRED, ended_at)
            line.make_wait(entry, ended_at)
        return len(held)

    def message(self, entry: Entry) -> Message:
        return Message(
            id=rules.message_id(self.id, entry.seq),
            body=entry.body,
            enqueued_at=entry.enqueued_at,
            attributes=entry.attributes,
            group=entry.group,
        )

    def _expire(self, queue: str, line: Line, now: float) -> None:
        expired = line.pop_expired(now)
        if self._is_dead_letter_queue(queue):
            line.dropped += len(expired)
            return
        reason = rules.reason_expired(line.settings.retention_seconds)
        for entry in expired:
            self._give_up(line, entry, reason, now)

    def _release(self, line: Line, entry: Entry, release: Release, now: float) -> None:
        end = AttemptEnd.GIVEN_BACK if release.refund else AttemptEnd.FAILED
        entry.end(end, now, rules.kept_reason(release.reason))
        line.make_wait(entry, now + release.delay_seconds)

    def _give_up(self, line: Line, entry: Entry, reason: str, now: float) -> None:
        """Bury what dies by the broker's own hand."""
        death = self._death(line.settings.name, entry, reason, now)
        self._bury(line, entry, with_death(entry.attributes, death), now)

    def _bury(self, line: Line, entry: Entry, attributes: Attributes, now: float) -> None:
        """Into the dead-letter queue: a new age, new attempts, the same id, body, group and attributes."""
        entry.attributes = attributes
        entry.bury(now)
        self.line(self.dead_letter_queue(line.settings.name)).put(entry, ready=False)

    def _is_dead_letter_queue(self, queue: str) -> bool:
        others = self.lines.values()
        return names_dead_letters(queue) or any(line.settings.dead_letter_queue == queue for line in others)

    def _death(self, queue: str, entry: Entry, reason: str, now: float) -> Death:
        return Death(
            reason=reason,
            attempts=entry.attempts,
            first_failed_at=entry.first_failed_at,
            last_failed_at=now if entry.last_failed_at is None else entry.last_failed_at,
            worker=entry.holder,
            queue=queue,
            message_id=rules.message_id(self.id, entry.seq),
            enqueued_at=entry.enqueued_at,
            tries=tuple(map(rules.tried, entry.tries)),
        )

    def _delivery(self, queue: str, entry: Entry, now: float) -> Delivery:
        return Delivery(
            message=self.message(entry),
            queue=queue,
            receipt=rules.receipt(self.id, rules.HandOver(seq=entry.seq, number=entry.receive_count)),
            attempt=entry.attempts,
            received_at=now,
            previous=entry.tries[-1] if entry.tries else None,
        )
