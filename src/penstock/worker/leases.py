"""Extend message leases and claims with a heartbeat.

- `HeartbeatCalls`: the calls of a heartbeat, each in a thread of its own
- `ClaimBeat`: extends the claims of running batches, several in one call to their extender
- `LeaseBook`: the message leases that the worker holds
- `Heartbeat`: the thread that starts each beat

The heartbeat thread calls no service itself. Each beat starts one thread per queue and one per extender of claims, so a
broker call that hangs delays only the leases of its own queue, and a ledger that hangs delays none. Meanwhile the
heartbeat thread reports the leases that are about to be lost.

A claim ends shortly before the lease of its message, so that the claim of a worker that died is free when the message
is redelivered. Neither call waits for the other: every message lease extended in a beat ends no earlier than one lease
period after the beat began, and each claim is extended until shortly before that, no matter how late the call is made.

The timeouts of the calls derive from the lease. The calls of a beat end with the beat; the next beat extends the rest
on a fresh connection. Claims that end first are extended first, so that no claim waits while others are extended
repeatedly. If a call takes more than half its timeout, the next call has half as many claims: a ledger that is slow per
claim would never answer for all of them. If calls take as long for few claims as for many, as over a slow network,
smaller calls would only extend fewer claims in the same time, so the calls grow again.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.errors import ClaimLost
from penstock.events import Bus, HeartbeatFailed, LeaseLost, LeasesExpiring, LeasesExtended
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ClaimExtender, HeldClaim
from penstock.messaging.threads import begin_thread_or_do
from penstock.worker.liveness import CALL_SECONDS_MAX, LifeSign
from penstock.worker.settings import WorkerSettings

TRIES = 5  # per beat
TRY_AGAIN_SECONDS = 1.0


class HeartbeatCalls:
    """The threads of heartbeat calls, at most one for each key: a queue, or an extender of claims. Thread-safe.

    Work submitted while earlier work of its key runs follows immediately. Calls that take longer than a beat thus run
    back to back, instead of in every other beat only. A thread that hangs is left behind.
    """

    def __init__(self, clock: Clock, *, changed: Callable[[], None]) -> None:
        """``changed`` is called after each begin and each end."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._begun_at: dict[Hashable, float] = {}  # under the lock; start of the running work (monotonic)
        self._following: dict[Hashable, Callable[[], None]] = {}  # under the lock; the latest work that waits, by key

    def begin(self, key: Hashable, work: Callable[[], None]) -> None:
        """Run the work in its own thread, after earlier work of this key."""
        with self._lock:
            if key in self._begun_at:
                self._following[key] = work
                return
            self._begun_at[key] = self._clock.monotonic()
        self._start(key, work)

    @property
    def oldest_begun_at(self) -> float | None:
        """The time at which the longest-running work began (monotonic); None if there is none."""
        with self._lock:
            return min(self._begun_at.values(), default=None)

    @property
    def idle(self) -> bool:
        """Return True if no work is running."""
        return not self._begun_at

    def end(self) -> None:
        """Drop the waiting work."""
        with self._lock:
            self._following.clear()

    def _start(self, key: Hashable, work: Callable[[], None]) -> None:
        self._changed()
        begin_thread_or_do(self._run, key, work, name="penstock-heartbeat-call")

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            following = self._take_following(key)
            if following is not None:
                self._start(key, following)

    def _take_following(self, key: Hashable) -> Callable[[], None] | None:
        with self._lock:
            following = self._following.pop(key, None)
            if following is None:
                del self._begun_at[key]
            else:
                self._begun_at[key] = self._clock.monotonic()
        if following is None:
            self._changed()
        return following


class ClaimHolder(Protocol):
    """A running batch that may hold a claim. No method blocks."""

    @property
    def queue(self) -> str:
        """The queue of its deliveries."""
        ...

    def claim(self) -> HeldClaim | None:
        """Return the claim to extend. Raises `ClaimLost` if the work cannot continue."""
        ...

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if the claim counts as lost when its extender no longer knows it."""
        ...

    def lose(self) -> None:
        """End the work without a settlement, since the claim is lost."""
        ...


Holding = tuple[ClaimHolder, HeldClaim]

_AS_LONG = 4 / 3  # a larger call that takes up to this factor longer still counts as equally fast


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExtendCall:
    """Size and duration of the last successful call to an extender."""

    count: int
    seconds: float
    size_matters: bool  # whether more claims take longer


class ClaimBeat:
    """The part of a heartbeat that extends the claims of the running batches.

    Owned by a `Heartbeat`, and used by its thread. The calls themselves run in the threads of `HeartbeatCalls`.
    """

    def __init__(
        self,
        *,
        claims: Callable[[], Sequence[ClaimHolder]],
        beats: HeartbeatCalls,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        ended: threading.Event,
    ) -> None:
        self._claims = claims
        self._beats = beats
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._ended = ended
        self._lock = threading.Lock()
        self._ends_at: dict[HeldClaim, float] = {}  # under the lock (monotonic): a lower bound, once extended
        # The claims in one call, and the duration of the last one; each value is written by the thread of its extender.
        self._sizes: dict[ClaimExtender, int] = {}
        self._paces: dict[ClaimExtender, _ExtendCall] = {}

    def begin(self) -> None:
        """Start extending all claims; does not wait for the calls."""
        began_at = self._clock.monotonic()
        by_extender: dict[ClaimExtender, list[Holding]] = {}
        for claimed, claim in self._held():
            by_extender.setdefault(claim.extender, []).append((claimed, claim))
        for extender, held in by_extender.items():
            self._beats.begin(extender, partial(self._extend_all, extender, held, began_at))

    def watch(self) -> None:
        """Emit an event for each queue with claims that were not extended in time."""
        now, within_seconds = self._clock.monotonic(), self._settings.endangered_seconds
        left_seconds: dict[str, list[float]] = {}
        held = self._held()
        with self._lock:
            # A claim seen for the first time was taken a moment ago.
            self._ends_at = {claim: self._ends_at.get(claim, now + self._settings.lease_seconds) for _, claim in held}
            for claimed, claim in held:
                if self._ends_at[claim] - now < within_seconds:
                    left_seconds.setdefault(claimed.queue, []).append(self._ends_at[claim] - now)
        for queue, left in left_seconds.items():
            self._bus.emit(
                LeasesExpiring(queue=queue, kind="claims", count=len(left), seconds_left=max(min(left), 0.0))
            )

    def _held(self) -> Sequence[Holding]:
        held: list[Holding] = []
        for claimed in self._claims():
            try:
                claim = claimed.claim()
            except ClaimLost:
                claimed.lose()
                continue
            if claim is not None:
                held.append((claimed, claim))
        return held

    def _extend_all(self, extender: ClaimExtender, held: Sequence[Holding], began_at: float) -> None:
        """Extend claims. Repeat failed calls until the beat is over, with at most `TRIES` calls per claim."""
        ends_at = self._clock.monotonic() + self._settings.heartbeat_interval_seconds
        with self._lock:
            waiting = sorted(held, key=lambda holding: self._ends_at.get(holding[1], math.inf))
        for left in reversed(range(TRIES)):
            failed: list[Holding] = []
            while waiting:
                size = self._sizes.get(extender, self._settings.settle_max)
                group, waiting = waiting[:size], waiting[size:]
                sent_at = self._clock.monotonic()
                again = self._extend(extender, group, began_at, last=not left, ends_at=ends_at)
                failed += again
                self._resize(extender, len(group), self._clock.monotonic() - sent_at, whole_group=again is not group)
                if self._clock.monotonic() >= ends_at:
                    return
            waiting = failed
            if not waiting or self._clock.wait(self._ended, TRY_AGAIN_SECONDS):
                return

    def _resize(self, extender: ClaimExtender, count: int, seconds: float, *, whole_group: bool) -> None:
        """Set the number of claims in the next calls so that the extender extends them well within the timeout."""
        size = self._sizes.get(extender, self._settings.settle_max)
        share = seconds / self._settings.claim_response_seconds
        before = self._paces.pop(extender, None)
        size_matters = True
        if whole_group:
            size_matters = _size_matters(before, count, seconds)
            self._paces[extender] = _ExtendCall(count=count, seconds=seconds, size_matters=size_matters)
        if share > 1 / 2 and size_matters:
            self._sizes[extender] = max(min(count, size) // 2, 1)
        elif (share < 1 / 8 or not size_matters) and count == size:
            self._sizes[extender] = min(2 * size, self._settings.settle_max)

    def _extend(
        self, extender: ClaimExtender, group: Sequence[Holding], began_at: float, *, last: bool, ends_at: float
    ) -> Sequence[Holding]:
        """Extend a group of claims in one call; return those to try again."""
        lease_ends_at = began_at + self._settings.claim_seconds
        try:
            extension = extender.extend(
                [claim.id for _, claim in group],
                lease_seconds=max(lease_ends_at - self._clock.monotonic(), self._settings.claim_seconds / 2),
                response_seconds=self._settings.claim_response_seconds,
            )
        except Exception as error:
            last = last or self._clock.monotonic() >= ends_at
            for queue in dict.fromkeys(claimed.queue for claimed, _ in group):
                self._bus.emit(HeartbeatFailed(queue=queue, error=f"{type(error).__name__}: {error}", last=last))
            return group
        with self._lock:
            for _, claim in group:
                if claim.id not in extension.lost and claim.id not in extension.locked:
                    self._ends_at[claim] = lease_ends_at
        for claimed, claim in group:
            if claim.id in extension.lost and claimed.loses(claim):
                claimed.lose()
        return [(claimed, claim) for claimed, claim in group if claim.id in extension.locked]


def _size_matters(before: _ExtendCall | None, count: int, seconds: float) -> bool:
    """Return False if calls are known to take about as long for few claims as for many."""
    if before is None or count == 1:  # a call with one claim cannot shrink
        return count > 1
    if count == before.count:
        return before.size_matters
    fewer_seconds, more_seconds = (before.seconds, seconds) if count > before.count else (seconds, before.seconds)
    return more_seconds > _AS_LONG * fewer_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call to the broker in progress."""

    receipts: frozenset[str]
    ended: threading.Event


def _nothing() -> None:
    pass


class LeaseBook:
    """The leases that the worker holds, with the time at which each ends unless it is extended. Thread-safe."""

    def __init__(self, *, clock: Clock, lease_seconds: float, call_ended: Callable[[], None] = _nothing) -> None:
        """``call_ended`` is called after each call that extends leases, in the thread of that call."""
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._call_ended = call_ended
        self._lock = threading.Lock()
        # Under the lock; by receipt handle, with the end of the lease.
        self._held: dict[str, tuple[Delivery, float]] = {}
        self._calls: dict[str, _Call] = {}  # under the lock; by queue, each written by the thread of that queue

    def register(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries received just now; from here on they are extended."""
        ends_at = self._ends_at()
        with self._lock:
            self._held.update((delivery.receipt, (delivery, ends_at)) for delivery in deliveries)

    def unregister(self, deliveries: Sequence[Delivery], *, wait_seconds: float) -> Mapping[str, float]:
        """Remove deliveries, and wait up to ``wait_seconds`` for a heartbeat call that is extending any of them.

        Without the wait, a late heartbeat leased a released message again (measured).

        Returns:
            The monotonic time by which each lease has ended, by receipt handle. Leases already lost are missing.
        """
        receipts = [delivery.receipt for delivery in deliveries]
        with self._lock:
            ends_at = {receipt: self._held.pop(receipt)[1] for receipt in receipts if receipt in self._held}
            calls = [call for call in self._calls.values() if not call.receipts.isdisjoint(receipts)]
        ends_wait_at = self._clock.monotonic() + wait_seconds
        for call in calls:
            if (left_seconds := ends_wait_at - self._clock.monotonic()) > 0:
                self._clock.wait(call.ended, left_seconds)
        return ends_at

    def is_extended_now(self, delivery: Delivery) -> bool:
        """Return True while a call in progress may extend the delivery. No call begins after `unregister`."""
        with self._lock:
            call = self._calls.get(delivery.queue)
            return call is not None and delivery.receipt in call.receipts

    def holds(self, delivery: Delivery) -> bool:
        """Return True if, as far as known here, the lease is still held."""
        with self._lock:
            return delivery.receipt in self._held

    def still_leased(self, batches: Sequence[Sequence[Delivery]]) -> Sequence[Sequence[Delivery]]:
        """Return the batches without deliveries with a lost lease, and without batches that this leaves empty."""
        with self._lock:
            kept = [[delivery for delivery in batch if delivery.receipt in self._held] for batch in batches]
        return [batch for batch in kept if batch]

    def deliveries(self) -> Sequence[Delivery]:
        """Return all deliveries held."""
        with self._lock:
            return [delivery for delivery, _ in self._held.values()]

    def endangered(self, *, within_seconds: float) -> Mapping[str, Sequence[float]]:
        """Return the seconds left of each lease that ends within ``within_seconds``, by queue."""
        now = self._clock.monotonic()
        left_seconds: dict[str, list[float]] = {}
        with self._lock:
            for delivery, ends_at in self._held.values():
                if ends_at - now < within_seconds:
                    left_seconds.setdefault(delivery.queue, []).append(ends_at - now)
        return left_seconds

    @contextmanager
    def calling(self, queue: str, deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
        """Yield the deliveries still held, for the caller to extend inside the block; one call per queue at a time."""
        call_ended = threading.Event()
        with self._lock:
            held = [delivery for delivery in deliveries if delivery.receipt in self._held]
            self._calls[queue] = _Call(receipts=frozenset(delivery.receipt for delivery in held), ended=call_ended)
        try:
            yield held
        finally:
            with self._lock:
                del self._calls[queue]
            call_ended.set()
            self._call_ended()

    def record_extension(self, deliveries: Sequence[Delivery], lost: Sequence[Delivery]) -> Sequence[Delivery]:
        """Record the result of a call; return the lost deliveries that were still in the book."""
        ends_at = self._ends_at()
        with self._lock:
            removed = [delivery for delivery in lost if self._held.pop(delivery.receipt, None)]
            for delivery in deliveries:
                if delivery.receipt in self._held:
                    self._held[delivery.receipt] = (delivery, ends_at)
        return removed

    def _ends_at(self) -> float:
        # Counted from the end of the call, not from its start: an upper bound for the lease in the broker.
        return self._clock.monotonic() + self._lease_seconds


class Heartbeat:
    """The heartbeat of one worker: its thread extends leases and claims, and continues while the worker drains."""

    def __init__(
        self,
        *,
        broker: Broker,
        lease_book: LeaseBook,
        claims: Callable[[], Sequence[ClaimHolder]],
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        sign: LifeSign,
    ) -> None:
        self._broker = broker
        self._lease_book = lease_book
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._sign = sign
        self._ended = threading.Event()  # set by the lifecycle's thread
        self._beats = HeartbeatCalls(clock, changed=self._give_sign)
        self._claim_beat = ClaimBeat(
            claims=claims, beats=self._beats, settings=settings, clock=clock, bus=bus, ended=self._ended
        )

    def run(self) -> None:
        """Beat until `end` is called."""
        try:
            while not self._wait_for_beat():
                self.watch()
                self.beat()
        finally:
            self._sign.end()

    def end(self) -> None:
        """Stop beating."""
        self._ended.set()
        self._beats.end()

    @property
    def idle(self) -> bool:
        """Return True if no call is in progress."""
        return self._beats.idle

    def beat(self) -> None:
        """Start extending all leases and claims, without waiting.

        Calls of the last beat that still run finish first.
        """
        for queue, deliveries in self._by_queue().items():
            self._beats.begin(queue, partial(self._extend_queue, queue, deliveries))
        self._claim_beat.begin()

    def watch(self) -> None:
        """Report leases and claims that were not extended in time and may soon be lost."""
        for queue, left_seconds in self._lease_book.endangered(
            within_seconds=self._settings.endangered_seconds
        ).items():
            self._bus.emit(
                LeasesExpiring(
                    queue=queue,
                    kind="message leases",
                    count=len(left_seconds),
                    seconds_left=max(min(left_seconds), 0.0),
                )
            )
        self._claim_beat.watch()

    def _wait_for_beat(self) -> bool:
        """Wait for the next beat, and check for endangered leases half-way. Return True if the heartbeat was ended."""
        pause_seconds = self._pause_seconds()
        beat_at = self._clock.monotonic() + pause_seconds
        self._give_sign()
        if self._clock.wait(self._ended, pause_seconds / 2):
            return True
        self._give_sign()
        self.watch()
        return self._clock.wait(self._ended, max(beat_at - self._clock.monotonic(), 0.0))

    def _pause_seconds(self) -> float:
        # Never longer than the interval; up to a fifth shorter, so that workers started together drift apart.
        return self._settings.heartbeat_interval_seconds * (0.8 + 0.2 * self._random())

    def _give_sign(self) -> None:
        """Give a sign of life dated from the oldest call in progress: a call that never ends shows as a hung thread."""
        begun_at = self._beats.oldest_begun_at
        if begun_at is None:
            self._sign.give(self._settings.lease_seconds, "waiting for its next beat")
        else:
            seconds_max = max(self._settings.lease_seconds, CALL_SECONDS_MAX)
            self._sign.give(seconds_max, "extending leases and claims", since=begun_at)

    def _by_queue(self) -> Mapping[str, Sequence[Delivery]]:
        by_queue: dict[str, list[Delivery]] = {}
        for delivery in self._lease_book.deliveries():
            by_queue.setdefault(delivery.queue, []).append(delivery)
        return by_queue

    def _extend_queue(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Extend the leases of one queue. Repeat failed calls within this beat, up to `TRIES` times."""
        ends_at = self._clock.monotonic() + self._settings.heartbeat_interval_seconds
        size = self._settings.settle_max
        groups = [deliveries[start : start + size] for start in range(0, len(deliveries), size)]
        for left in reversed(range(TRIES)):
            last = not left or self._clock.monotonic() >= ends_at
            groups = [group for group in groups if not self._extend(queue, group, last=last)]
            if not groups or last or self._clock.wait(self._ended, TRY_AGAIN_SECONDS):
                return

    def _extend(self, queue: str, group: Sequence[Delivery], *, last: bool) -> bool:
        with self._lease_book.calling(queue, group) as held:
            if not held:
                return True
            try:
                lost = self._broker.extend(held, lease_seconds=self._settings.lease_seconds)
            except Exception as error:
                self._bus.emit(HeartbeatFailed(queue=queue, error=f"{type(error).__name__}: {error}", last=last))
                return False
            removed = self._lease_book.record_extension(held, lost)
        for delivery in removed:
            self._bus.emit(LeaseLost(queue=delivery.queue, message_id=delivery.message.id, attempt=delivery.attempt))
        lost_receipts = {delivery.receipt for delivery in lost}
        extended = tuple(delivery.message.id for delivery in held if delivery.receipt not in lost_receipts)
        if extended:
            self._bus.emit(LeasesExtended(queue=queue, message_ids=extended))
        return True
