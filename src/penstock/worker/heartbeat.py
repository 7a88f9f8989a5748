"""Keeping what we hold: the book of leases, and the thread that extends every lease in it.

Each beat extends the claims of the batches at work first and the message leases after them, so that the claim of a
worker that died is free by the time its messages come back.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from penstock.events import Bus, HeartbeatFailed, LeaseLost, LeasesExtended
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.waits import Random
from penstock.worker.pulse import CALL_SECONDS_MAX, Sign
from penstock.worker.settings import WorkerSettings

TRIES = 5
TRY_AGAIN_SECONDS = 1.0
CLAIMS_SECONDS = 1.0  # after which a claim that fails is the last before the leases


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call to the broker that has not answered yet."""

    receipts: frozenset[str]
    over: threading.Event


class Book:
    """Which leases we hold, and when each will have ended if nobody extends it again. Any thread may call it."""

    def __init__(self, *, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Delivery, float]] = {}  # under the lock; by receipt, with the lease's end
        self._call: _Call | None = None  # under the lock; written by the heartbeat thread

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
            call = self._call
        if call is not None and not call.receipts.isdisjoint(receipts):
            self._clock.wait(call.over, wait_seconds)
        return ends_at

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

    @contextmanager
    def calling(self, deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
        """Those of the deliveries that are still held, while the caller extends them; one call at a time."""
        call_over = threading.Event()
        with self._lock:
            held = [delivery for delivery in deliveries if delivery.receipt in self._held]
            self._call = _Call(receipts=frozenset(delivery.receipt for delivery in held), over=call_over)
        try:
            yield held
        finally:
            with self._lock:
                self._call = None
            call_over.set()

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


class Claimed(Protocol):
    """A batch at work that holds a claim."""

    @property
    def queue(self) -> str:
        """Where its deliveries are from."""
        ...

    def extend(self) -> bool:
        """Extend the claim; False when it is lost."""
        ...

    def lose(self) -> None:
        """The claim is lost: end the work without a settlement. Does not block."""
        ...


class Heartbeat:
    """The loop that extends. It has a thread of its own and goes on while the worker drains."""

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
        self._claims = claims
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._sign = sign
        self._ended = threading.Event()  # set by the thread that runs the worker

    def run(self) -> None:
        """Beat until told to end."""
        try:
            while not self._clock.wait(self._ended, self._pause_seconds()):
                self.beat()
        finally:
            self._sign.end()

    def end(self) -> None:
        """Beat no more."""
        self._ended.set()

    def beat(self) -> None:
        """Extend everything once: claims, then leases. What fails is tried again, up to `TRIES` times in all."""
        claims, leases = self._claims(), list(self._lease_groups())
        for left in reversed(range(TRIES)):
            claims = self._extend_claims(claims, last=not left)
            leases = [group for group in leases if not self._extend_leases(group, last=not left)]
            if not (claims or leases) or self._clock.wait(self._ended, TRY_AGAIN_SECONDS):
                return

    def _pause_seconds(self) -> float:
        # Never longer than the interval; shorter by up to a fifth, so that workers started together drift apart.
        self._sign.give(self._settings.lease_seconds, "waiting for its next beat")
        return self._settings.heartbeat_interval_seconds * (0.8 + 0.2 * self._random())

    def _calls(self) -> None:
        """A sign of life before each call: of a server that is away one call may take long, and a beat many of them."""
        self._sign.give(max(self._settings.lease_seconds, CALL_SECONDS_MAX), "extending what is held")

    def _lease_groups(self) -> Iterator[Sequence[Delivery]]:
        by_queue: dict[str, list[Delivery]] = {}
        for delivery in self._book.deliveries():
            by_queue.setdefault(delivery.queue, []).append(delivery)
        for deliveries in by_queue.values():
            for start in range(0, len(deliveries), self._settings.settle_max):
                yield deliveries[start : start + self._settings.settle_max]

    def _extend_claims(self, claims: Sequence[Claimed], *, last: bool) -> Sequence[Claimed]:
        """Answers those to try again, what was not tried yet before what failed.

        A ledger that is away may take its time to say so, and would take it for each of them, while the leases of all
        queues run out. So failures end the round when it has lasted long enough.
        """
        failed: list[Claimed] = []
        ends_at = self._clock.monotonic() + CLAIMS_SECONDS
        for number, claim in enumerate(claims, start=1):
            if not self._extend_claim(claim, last=last):
                failed.append(claim)
                if self._clock.monotonic() >= ends_at:
                    return [*claims[number:], *failed]
        return failed

    def _extend_claim(self, claim: Claimed, *, last: bool) -> bool:
        self._calls()
        try:
            held = claim.extend()
        except Exception as error:
            return self._failed(claim.queue, error, last=last)
        if not held:
            claim.lose()
        return True

    def _extend_leases(self, group: Sequence[Delivery], *, last: bool) -> bool:
        queue = group[0].queue
        with self._book.calling(group) as held:
            if not held:
                return True
            self._calls()
            try:
                lost = self._broker.extend(held, lease_seconds=self._settings.lease_seconds)
            except Exception as error:
                return self._failed(queue, error, last=last)
            gone = self._book.extended(held, lost)
        for delivery in gone:
            self._bus.emit(LeaseLost(queue=delivery.queue, message_id=delivery.message.id, attempt=delivery.attempt))
        lost_receipts = {delivery.receipt for delivery in lost}
        extended = tuple(delivery.message.id for delivery in held if delivery.receipt not in lost_receipts)
        if extended:
            self._bus.emit(LeasesExtended(queue=queue, message_ids=extended))
        return True

    def _failed(self, queue: str, error: Exception, *, last: bool) -> bool:
        self._bus.emit(HeartbeatFailed(queue=queue, error=f"{type(error).__name__}: {error}", last=last))
        return False
