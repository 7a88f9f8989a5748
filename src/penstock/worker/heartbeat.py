"""Extend what the worker holds: the book of message leases, and the heartbeat that extends leases and claims.

The heartbeat's thread calls no service itself. Each beat starts a thread for each queue and for each keeper of claims
(see `claim_beat`), so that a broker call that hangs delays the leases of its own queue only, and a ledger that hangs
delays none. Meanwhile the heartbeat's thread reports what is about to be lost.

A claim ends a little before the lease of its message, so that the claim of a worker that died is free when its message
comes back. Neither call waits for the other to make that so: every lease extended in a beat ends no sooner than one
lease after the begin of the beat, and a claim is asked for until a moment before that, however late its call is made.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from penstock.events import Bus, HeartbeatFailed, LeaseLost, LeasesEndangered, LeasesExtended
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.waits import Random
from penstock.worker.beats import TRIES, TRY_AGAIN_SECONDS, Beats
from penstock.worker.claim_beat import ClaimBeat, Claimed
from penstock.worker.pulse import CALL_SECONDS_MAX, Sign
from penstock.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call to the broker that has not answered yet."""

    receipts: frozenset[str]
    over: threading.Event


def _nothing() -> None:
    pass


class Book:
    """Which leases we hold, and when each will have ended if nobody extends it again. Any thread may call it."""

    def __init__(self, *, clock: Clock, lease_seconds: float, call_over: Callable[[], None] = _nothing) -> None:
        """``call_over`` is called after each call that extends leases, in the thread of that call."""
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._call_over = call_over
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Delivery, float]] = {}  # under the lock; by receipt, with the lease's end
        self._calls: dict[str, _Call] = {}  # under the lock; by queue, each written by the thread of that queue

    def register(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were received just now: from here on they are extended."""
        ends_at = self._ends_at()
        with self._lock:
            self._held.update((delivery.receipt, (delivery, ends_at)) for delivery in deliveries)

    def unregister(self, deliveries: Sequence[Delivery], *, wait_seconds: float) -> Mapping[str, float]:
        """Take deliveries out, and await a heartbeat call in flight for any of them, at most ``wait_seconds``.

        Without the wait a late heartbeat took a released message back (measured). Answers, by receipt, the monotonic
        time at which each lease must have ended; deliveries whose lease was lost already are missing from it.
        """
        receipts = [delivery.receipt for delivery in deliveries]
        with self._lock:
            ends_at = {receipt: self._held.pop(receipt)[1] for receipt in receipts if receipt in self._held}
            calls = [call for call in self._calls.values() if not call.receipts.isdisjoint(receipts)]
        ends_wait_at = self._clock.monotonic() + wait_seconds
        for call in calls:
            if (left_seconds := ends_wait_at - self._clock.monotonic()) > 0:
                self._clock.wait(call.over, left_seconds)
        return ends_at

    def is_extended_now(self, delivery: Delivery) -> bool:
        """Return True while a call is under way that may extend it. None begins after `unregister`."""
        with self._lock:
            call = self._calls.get(delivery.queue)
            return call is not None and delivery.receipt in call.receipts

    def holds(self, delivery: Delivery) -> bool:
        """Whether the lease is still ours, as far as we know."""
        with self._lock:
            return delivery.receipt in self._held

    def held_of(self, batches: Sequence[Sequence[Delivery]]) -> Sequence[Sequence[Delivery]]:
        """The batches without the deliveries whose lease is not ours any more, and without those left empty by it."""
        with self._lock:
            kept = [[delivery for delivery in batch if delivery.receipt in self._held] for batch in batches]
        return [batch for batch in kept if batch]

    def deliveries(self) -> Sequence[Delivery]:
        """Everything held."""
        with self._lock:
            return [delivery for delivery, _ in self._held.values()]

    def endangered(self, *, within_seconds: float) -> Mapping[str, Sequence[float]]:
        """Return the seconds left of each lease that ends soon, by queue."""
        now = self._clock.monotonic()
        left_seconds: dict[str, list[float]] = {}
        with self._lock:
            for delivery, ends_at in self._held.values():
                if ends_at - now < within_seconds:
                    left_seconds.setdefault(delivery.queue, []).append(ends_at - now)
        return left_seconds

    @contextmanager
    def calling(self, queue: str, deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
        """Those of the queue's deliveries that are still held, while the caller extends them; one call a queue."""
        call_over = threading.Event()
        with self._lock:
            held = [delivery for delivery in deliveries if delivery.receipt in self._held]
            self._calls[queue] = _Call(receipts=frozenset(delivery.receipt for delivery in held), over=call_over)
        try:
            yield held
        finally:
            with self._lock:
                del self._calls[queue]
            call_over.set()
            self._call_over()

    def extended(self, deliveries: Sequence[Delivery], lost: Sequence[Delivery]) -> Sequence[Delivery]:
        """What a call came to; answers the lost ones that nobody had taken out of the book meanwhile."""
        ends_at = self._ends_at()
        with self._lock:
            gone = [delivery for delivery in lost if self._held.pop(delivery.receipt, None)]
            for delivery in deliveries:
                if delivery.receipt in self._held:
                    self._held[delivery.receipt] = (delivery, ends_at)
        return gone

    def _ends_at(self) -> float:
        # Counted from the answer, not from the question: it is an upper bound of what the broker holds.
        return self._clock.monotonic() + self._lease_seconds


class Heartbeat:
    """The loop that extends. It goes on while the worker drains."""

    def __init__(
        self,
        *,
        broker: Broker,
        book: Book,
        claims: Callable[[], Sequence[Claimed]],
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        sign: Sign,
    ) -> None:
        self._broker = broker
        self._book = book
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._sign = sign
        self._ended = threading.Event()  # set by the thread that runs the worker
        self._beats = Beats(clock, changed=self._give_sign)
        self._claim_beat = ClaimBeat(
            claims=claims, beats=self._beats, settings=settings, clock=clock, bus=bus, ended=self._ended
        )

    def run(self) -> None:
        """Beat until told to end."""
        try:
            while not self._ended_while_waiting():
                self.watch()
                self.beat()
        finally:
            self._sign.end()

    def end(self) -> None:
        """Beat no more."""
        self._ended.set()
        self._beats.end()

    @property
    def idle(self) -> bool:
        """Whether every call was answered."""
        return self._beats.idle

    def beat(self) -> None:
        """Begin to extend all leases and claims without waiting. If the last beat still runs, this one follows."""
        for queue, deliveries in self._by_queue().items():
            self._beats.begin(queue, partial(self._extend_queue, queue, deliveries))
        self._claim_beat.begin()

    def watch(self) -> None:
        """Report what was not extended in time and will be lost soon."""
        for queue, left_seconds in self._book.endangered(within_seconds=self._settings.endangered_seconds).items():
            self._bus.emit(
                LeasesEndangered(
                    queue=queue,
                    held="message leases",
                    count=len(left_seconds),
                    seconds_left=max(min(left_seconds), 0.0),
                )
            )
        self._claim_beat.watch()

    def _ended_while_waiting(self) -> bool:
        """Wait for the next beat, and watch half-way."""
        pause_seconds = self._pause_seconds()
        beat_at = self._clock.monotonic() + pause_seconds
        self._give_sign()
        if self._clock.wait(self._ended, pause_seconds / 2):
            return True
        self._give_sign()
        self.watch()
        return self._clock.wait(self._ended, max(beat_at - self._clock.monotonic(), 0.0))

    def _pause_seconds(self) -> float:
        # Never longer than the interval; shorter by up to a fifth, so that workers started together drift apart.
        return self._settings.heartbeat_interval_seconds * (0.8 + 0.2 * self._random())

    def _give_sign(self) -> None:
        """A sign of life. A call that never ends shows as a thread that does not move."""
        begun_at = self._beats.oldest_begun_at
        if begun_at is None:
            self._sign.give(self._settings.lease_seconds, "waiting for its next beat")
        else:
            seconds_max = max(self._settings.lease_seconds, CALL_SECONDS_MAX)
            self._sign.give(seconds_max, "extending what is held", since=begun_at)

    def _by_queue(self) -> Mapping[str, Sequence[Delivery]]:
        by_queue: dict[str, list[Delivery]] = {}
        for delivery in self._book.deliveries():
            by_queue.setdefault(delivery.queue, []).append(delivery)
        return by_queue

    def _extend_queue(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Extend the leases of one queue. What fails is tried again, within this beat and up to `TRIES` times."""
        ends_at = self._clock.monotonic() + self._settings.heartbeat_interval_seconds
        size = self._settings.settle_max
        groups = [deliveries[start : start + size] for start in range(0, len(deliveries), size)]
        for left in reversed(range(TRIES)):
            last = not left or self._clock.monotonic() >= ends_at
            groups = [group for group in groups if not self._extend(queue, group, last=last)]
            if not groups or last or self._clock.wait(self._ended, TRY_AGAIN_SECONDS):
                return

    def _extend(self, queue: str, group: Sequence[Delivery], *, last: bool) -> bool:
        with self._book.calling(queue, group) as held:
            if not held:
                return True
            try:
                lost = self._broker.extend(held, lease_seconds=self._settings.lease_seconds)
            except Exception as error:
                self._bus.emit(HeartbeatFailed(queue=queue, error=f"{type(error).__name__}: {error}", last=last))
                return False
            gone = self._book.extended(held, lost)
        for delivery in gone:
            self._bus.emit(LeaseLost(queue=delivery.queue, message_id=delivery.message.id, attempt=delivery.attempt))
        lost_receipts = {delivery.receipt for delivery in lost}
        extended = tuple(delivery.message.id for delivery in held if delivery.receipt not in lost_receipts)
        if extended:
            self._bus.emit(LeasesExtended(queue=queue, message_ids=extended))
        return True
