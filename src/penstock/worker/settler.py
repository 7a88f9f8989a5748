"""Settling: the one place where the broker is told how deliveries end.

What is submitted here is recorded already; a settlement is applied, and only then told. One that fails is tried again,
with growing waits, until its lease must have ended. Then it is dropped: the message comes back, and the record absorbs
the second delivery.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.errors import UserError
from penstock.events import Bus, DeliverySettled, SettleFailed
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Release, Settlement
from penstock.messaging.steps import Probe, Step
from penstock.messaging.waits import Random, backoff_seconds
from penstock.worker.heartbeat import Book
from penstock.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A settlement that is being tried, its delivery out of the book. ``lease_ends_at`` and ``due_at``: monotonic."""

    delivery: Delivery
    settlement: Settlement
    lease_ends_at: float
    tries: int = 0
    due_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why a settlement was not taken; ``final`` when another try cannot help."""

    reason: str
    final: bool


class Settler:
    """Holds settlements until they are applied: at most one for each delivery held, so it needs no bound of its own."""

    def __init__(
        self,
        *,
        broker: Broker,
        book: Book,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        probe: Probe,
        random: Random,
    ) -> None:
        self._broker = broker
        self._book = book
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._probe = probe
        self._random = random
        self._delay_seconds_max = broker.capabilities.delay_seconds_max
        self._lock = threading.Lock()
        # Under the lock: added to by any thread, taken from by the I/O thread.
        self._fresh: list[tuple[Delivery, Settlement]] = []
        self._again: list[Pending] = []  # under the lock, as is the next: what failed, written by the I/O thread
        self._applying: Sequence[Delivery] = ()  # the group the I/O thread is at

    def submit(self, settlements: Iterable[tuple[Delivery, Settlement]]) -> None:
        """Take settlements over; any thread may call it. Delays beyond what the broker can do are cut to that."""
        delay_seconds_max = self._delay_seconds_max
        arrived = [(delivery, _within(settlement, delay_seconds_max)) for delivery, settlement in settlements]
        with self._lock:
            self._fresh += arrived

    def unapplied(self) -> Sequence[Delivery]:
        """The deliveries whose settlement the broker has not taken yet."""
        with self._lock:
            fresh = [delivery for delivery, _ in self._fresh]
            return [*self._applying, *fresh, *(pending.delivery for pending in self._again)]

    def next_due_at(self) -> float | None:
        """When the next settlement is to be tried (monotonic); None when there is none."""
        with self._lock:
            return 0.0 if self._fresh else min((pending.due_at for pending in self._again), default=None)

    def apply_due(self) -> None:
        """Apply, group by group, what is due now. Only the I/O thread calls it.

        Raises `UserError` when the broker never can do it; everything else is tried again later.
        """
        now = self._clock.monotonic()
        while (failed := self._apply_group(now)) is not None:
            with self._lock:
                self._again += failed
                self._applying = ()

    def settle_by(self, settlements: Iterable[tuple[Delivery, Settlement]], *, deadline: float) -> Sequence[Delivery]:
        """Apply these in the calling thread, trying again until the deadline (monotonic); answers what is left.

        For a worker that stops: the deliveries have to be out of the book already.
        """
        left = [
            Pending(delivery=delivery, settlement=settlement, lease_ends_at=float("inf"))
            for delivery, settlement in settlements
        ]
        never = threading.Event()
        while left:
            failed: list[Pending] = []
            for start in range(0, len(left), self._settings.settle_max):
                failed += self._apply(left[start : start + self._settings.settle_max])
            left = failed
            now = self._clock.monotonic()
            if not left or now >= deadline:
                break
            self._clock.wait(never, min(self._settings.retry_base_seconds, deadline - now))
        return [pending.delivery for pending in left]

    def _apply_group(self, now: float) -> list[Pending] | None:
        """Settle one group of what is due; answers what has to be tried again, None where nothing was due."""
        with self._lock:
            fresh, self._fresh = self._fresh[: self._settings.settle_max], self._fresh[self._settings.settle_max :]
            again = self._take_again(now, self._settings.settle_max - len(fresh))
            self._applying = [delivery for delivery, _ in fresh] + [pending.delivery for pending in again]
        if not (fresh or again):
            return None
        return self._apply(self._out_of_the_book(fresh) + again)

    def _take_again(self, now: float, count: int) -> list[Pending]:
        if not self._again:
            return []
        due = [pending for pending in self._again if pending.due_at <= now][:count]
        taken = {pending.delivery.receipt for pending in due}
        self._again = [pending for pending in self._again if pending.delivery.receipt not in taken]
        return due

    def _out_of_the_book(self, fresh: Sequence[tuple[Delivery, Settlement]]) -> list[Pending]:
        entered = [delivery for delivery, _ in fresh]
        ends_at = self._book.unregister(entered, wait_seconds=self._settings.heartbeat_interval_seconds)
        now = self._clock.monotonic()
        return [
            Pending(delivery=delivery, settlement=settlement, lease_ends_at=ends_at.get(delivery.receipt, now))
            for delivery, settlement in fresh
        ]

    def _apply(self, group: Sequence[Pending]) -> list[Pending]:
        """Settle, emit; answers what has to be tried again."""
        self._probe(Step.SETTLING)
        refusals = self._call(group)
        self._probe(Step.SETTLED)
        again: list[Pending] = []
        for pending in group:
            refusal = refusals.get(pending.delivery.receipt)
            self._tell(pending, refusal)
            if refusal is not None and not refusal.final:
                again.append(self._later(pending))
        return again

    def _call(self, group: Sequence[Pending]) -> dict[str, _Refusal]:
        """Map every answer and exception of the broker to the refusals, by receipt."""
        try:
            failures = self._broker.settle([(pending.delivery, pending.settlement) for pending in group])
        except UserError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return {pending.delivery.receipt: self._refusal(pending, reason) for pending in group}
        refused = {failure.delivery.receipt: failure for failure in failures}
        return {
            pending.delivery.receipt: (
                _Refusal(reason=failure.reason, final=True) if failure.lost else self._refusal(pending, failure.reason)
            )
            for pending in group
            if (failure := refused.get(pending.delivery.receipt)) is not None
        }

    def _refusal(self, pending: Pending, reason: str) -> _Refusal:
        return _Refusal(reason=reason, final=self._clock.monotonic() >= pending.lease_ends_at)

    def _tell(self, pending: Pending, refusal: _Refusal | None) -> None:
        delivery = pending.delivery
        if refusal is None:
            self._bus.emit(
                DeliverySettled(
                    queue=delivery.queue,
                    message_id=delivery.message.id,
                    attempt=delivery.attempt,
                    settlement=pending.settlement,
                )
            )
        else:
            self._bus.emit(
                SettleFailed(
                    queue=delivery.queue, message_id=delivery.message.id, reason=refusal.reason, lost=refusal.final
                )
            )

    def _later(self, pending: Pending) -> Pending:
        wait_seconds = backoff_seconds(
            attempt=pending.tries + 1,
            base_seconds=self._settings.retry_base_seconds,
            cap_seconds=self._settings.retry_cap_seconds,
            random=self._random,
        )
        return replace(pending, tries=pending.tries + 1, due_at=self._clock.monotonic() + wait_seconds)


def _within(settlement: Settlement, delay_seconds_max: float) -> Settlement:
    # One delay that the broker refuses would make it refuse the whole group.
    if isinstance(settlement, Release) and not 0 <= settlement.delay_seconds <= delay_seconds_max:
        return replace(settlement, delay_seconds=min(max(settlement.delay_seconds, 0.0), delay_seconds_max))
    return settlement
