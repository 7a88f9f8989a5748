"""Extend what the worker holds: the book of message leases, and the heartbeat that extends leases and claims.

The heartbeat's thread calls no service itself. Each beat starts a thread for each queue and for each keeper of claims
(see `claim_beat`), so that a broker call that hangs delays the leases of its own queue only, and a ledger that hangs
delays none. Meanwhile the heartbeat's thread reports what is about to be lost.

A claim ends a little before the lease of its message, so that the claim of a worker that died is free when its message
comes back. Neither call waits for the other to make that so: every lease extended in a beat ends no sooner than one
lease after the begin of the beat, and a claim is asked for until a moment before that, however late its call is made.

The claims of the batches at work, extended as a set: one call for all claims of a keeper.

The bounds of the calls derive from the lease, and the calls of a beat end with the beat: what was not extended by then
belongs to the next one, on a fresh connection. Claims that end first are extended first, so that no claim waits while
others are extended again and again. If a call takes more than half its bound, the next one has half as many claims:
a ledger that is slow for each claim would never answer for all of them. If calls take as long for few claims as for
many, as over a slow network, smaller calls would extend fewer claims in the same time: then calls grow again.

The calls of a heartbeat, each in a thread of its own, so that none waits for another.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.errors import ClaimLost
from penstock.events import Bus, HeartbeatFailed, LeaseLost, LeasesEndangered, LeasesExtended
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ClaimKeeper, HeldClaim
from penstock.messaging.threads import begin_thread_or_do
from penstock.worker.liveness import CALL_SECONDS_MAX, LifeSign
from penstock.worker.settings import WorkerSettings

TRIES = 5  # of one beat
TRY_AGAIN_SECONDS = 1.0


class HeartbeatCalls:
    """At most one thread for each key: a queue, or a keeper of claims. Daemons: one that hangs is left behind.

    Work that is due while earlier work of its key still runs follows it at once. So calls that take longer than a beat
    run one after another, instead of in every other beat only.
    """

    def __init__(self, clock: Clock, *, changed: Callable[[], None]) -> None:
        """``changed``: called after each begin and each end."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._begun_at: dict[Hashable, float] = {}  # under the lock (monotonic); of the threads at work
        self._following: dict[Hashable, Callable[[], None]] = {}  # under the lock; the latest that is due

    def begin(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work in a thread of its own, once earlier work of this key has ended."""
        with self._lock:
            if key in self._begun_at:
                self._following[key] = work
                return
            self._begun_at[key] = self._clock.monotonic()
        self._start(key, work)

    @property
    def oldest_begun_at(self) -> float | None:
        """When the work that takes longest began (monotonic); None if there is none."""
        with self._lock:
            return min(self._begun_at.values(), default=None)

    @property
    def idle(self) -> bool:
        """Whether all work is done."""
        return not self._begun_at

    def end(self) -> None:
        """Drop the work that was to follow."""
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


class HoldsClaim(Protocol):
    """A batch at work that may hold a claim. No method blocks."""

    @property
    def queue(self) -> str:
        """The queue of its deliveries."""
        ...

    def claim(self) -> HeldClaim | None:
        """Return the claim to extend. Raises `ClaimLost` if the work cannot go on."""
        ...

    def loses(self, claim: HeldClaim) -> bool:
        """Return True if a claim that its keeper does not know any more is a loss."""
        ...

    def lose(self) -> None:
        """End the work without a settlement, since the claim is lost."""
        ...


Holding = tuple[HoldsClaim, HeldClaim]

_AS_LONG = 4 / 3  # how much longer a larger call may take whose size is not what takes the time


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeeperResponse:
    """Of a keeper's last call that it answered."""

    count: int
    seconds: float
    size_matters: bool  # whether it takes longer for more claims


class ClaimBeat:
    """The claims' part of a heartbeat."""

    def __init__(
        self,
        *,
        claims: Callable[[], Sequence[HoldsClaim]],
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
        self._ends_at: dict[HeldClaim, float] = {}  # under the lock (monotonic): a lower bound, once it was extended
        # The number of claims in one call, and the pace of the last one; each written by the thread of that keeper.
        self._sizes: dict[ClaimKeeper, int] = {}
        self._paces: dict[ClaimKeeper, _KeeperResponse] = {}

    def begin(self) -> None:
        """Begin to extend all claims; waits for no answer."""
        began_at = self._clock.monotonic()
        by_keeper: dict[ClaimKeeper, list[Holding]] = {}
        for claimed, claim in self._held():
            by_keeper.setdefault(claim.keeper, []).append((claimed, claim))
        for keeper, held in by_keeper.items():
            self._beats.begin(keeper, partial(self._extend_all, keeper, held, began_at))

    def watch(self) -> None:
        """Report claims that were not extended in time."""
        now, within_seconds = self._clock.monotonic(), self._settings.endangered_seconds
        left_seconds: dict[str, list[float]] = {}
        held = self._held()
        with self._lock:
            # A claim that is seen for the first time was taken a moment ago.
            self._ends_at = {claim: self._ends_at.get(claim, now + self._settings.lease_seconds) for _, claim in held}
            for claimed, claim in held:
                if self._ends_at[claim] - now < within_seconds:
                    left_seconds.setdefault(claimed.queue, []).append(self._ends_at[claim] - now)
        for queue, left in left_seconds.items():
            self._bus.emit(
                LeasesEndangered(queue=queue, held="claims", count=len(left), seconds_left=max(min(left), 0.0))
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

    def _extend_all(self, keeper: ClaimKeeper, held: Sequence[Holding], began_at: float) -> None:
        """Extend claims. Calls that fail are repeated until the time of a beat is over, up to `TRIES` times in all."""
        ends_at = self._clock.monotonic() + self._settings.heartbeat_interval_seconds
        with self._lock:
            waiting = sorted(held, key=lambda holding: self._ends_at.get(holding[1], math.inf))
        for left in reversed(range(TRIES)):
            failed: list[Holding] = []
            while waiting:
                size = self._sizes.get(keeper, self._settings.settle_max)
                group, waiting = waiting[:size], waiting[size:]
                asked_at = self._clock.monotonic()
                again = self._extend(keeper, group, began_at, last=not left, ends_at=ends_at)
                failed += again
                self._resize(keeper, len(group), self._clock.monotonic() - asked_at, answered=again is not group)
                if self._clock.monotonic() >= ends_at:
                    return
            waiting = failed
            if not waiting or self._clock.wait(self._ended, TRY_AGAIN_SECONDS):
                return

    def _resize(self, keeper: ClaimKeeper, count: int, seconds: float, *, answered: bool) -> None:
        """Set the number of claims in the next calls to what the keeper extends well within the bound."""
        size = self._sizes.get(keeper, self._settings.settle_max)
        share = seconds / self._settings.claim_answer_seconds
        before = self._paces.pop(keeper, None)
        size_matters = True
        if answered:
            size_matters = _size_matters(before, count, seconds)
            self._paces[keeper] = _KeeperResponse(count=count, seconds=seconds, size_matters=size_matters)
        if share > 1 / 2 and size_matters:
            self._sizes[keeper] = max(min(count, size) // 2, 1)
        elif (share < 1 / 8 or not size_matters) and count == size:
            self._sizes[keeper] = min(2 * size, self._settings.settle_max)

    def _extend(
        self, keeper: ClaimKeeper, group: Sequence[Holding], began_at: float, *, last: bool, ends_at: float
    ) -> Sequence[Holding]:
        """Return what is to be tried again."""
        lease_ends_at = began_at + self._settings.claim_seconds
        try:
            extension = keeper.extend(
                [claim.id for _, claim in group],
                lease_seconds=max(lease_ends_at - self._clock.monotonic(), self._settings.claim_seconds / 2),
                answer_seconds=self._settings.claim_answer_seconds,
            )
        except Exception as error:
            last = last or self._clock.monotonic() >= ends_at
            for queue in dict.fromkeys(claimed.queue for claimed, _ in group):
                self._bus.emit(HeartbeatFailed(queue=queue, error=f"{type(error).__name__}: {error}", last=last))
            return group
        with self._lock:
            for _, claim in group:
                if claim.id not in extension.lost and claim.id not in extension.late:
                    self._ends_at[claim] = lease_ends_at
        for claimed, claim in group:
            if claim.id in extension.lost and claimed.loses(claim):
                claimed.lose()
        return [(claimed, claim) for claimed, claim in group if claim.id in extension.late]


def _size_matters(before: _KeeperResponse | None, count: int, seconds: float) -> bool:
    """Return False if calls are known to take about as long for few claims as for many."""
    if before is None or count == 1:  # fewer than one claim is none
        return count > 1
    if count == before.count:
        return before.size_matters
    fewer_seconds, more_seconds = (before.seconds, seconds) if count > before.count else (seconds, before.seconds)
    return more_seconds > _AS_LONG * fewer_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call to the broker that has not answered yet."""

    receipts: frozenset[str]
    over: threading.Event


def _nothing() -> None:
    pass


class LeaseBook:
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
        book: LeaseBook,
        claims: Callable[[], Sequence[HoldsClaim]],
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        sign: LifeSign,
    ) -> None:
        self._broker = broker
        self._book = book
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._sign = sign
        self._ended = threading.Event()  # set by the thread that runs the worker
        self._beats = HeartbeatCalls(clock, changed=self._give_sign)
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
