"""Apply settlements: the only module that reports to the broker how deliveries end.

Submitted settlements are already recorded; a settlement is applied, and only then emitted as an event. A failed
settlement is retried with backoff until its lease must have ended. Then it is dropped: the message is redelivered, and
the record makes the second delivery harmless.

No settlement waits for a lease extension, which may hang. But on a broker without fencing, a late extension leases a
released message again (measured). On those brokers a release is postponed while a call that may extend it is in
progress.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import UserError
from penstock.events import Bus, DeliveryAcked, DeliverySettled, SettlementFailed, SettlementsApplied
from penstock.messaging.backoff import Random, ceiling_seconds
from penstock.messaging.broker import Broker, SettleFailure
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, Release, Settlement, operation_of
from penstock.messaging.steps import Probe, Step
from penstock.worker.leases import LeaseBook
from penstock.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSettlement:
    """A settlement that was refused or postponed, to be retried. ``lease_ends_at`` and ``due_at`` are monotonic."""

    delivery: Delivery
    settlement: Settlement
    lease_ends_at: float
    tries: int
    due_at: float
    put_off: bool = False  # until no call in progress may extend the lease, at most until ``due_at``


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementGroup:
    """Settlements for one call; their deliveries are no longer in the lease book."""

    settlements: Sequence[tuple[Delivery, Settlement]] = ()
    # Monotonic, by receipt handle; missing if the lease was lost.
    lease_ends_at: Mapping[str, float] = field(default_factory=dict)
    tries: Mapping[str, int] = field(default_factory=dict)  # number of earlier tries, by receipt handle


NOTHING_DUE = SettlementGroup()


class Settler:
    """The settlements of one worker that are not applied yet. Any thread submits; the I/O thread applies.

    It holds at most one settlement for each delivery that the worker holds, so it needs no bound of its own.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        lease_book: LeaseBook,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        probe: Probe,
        random: Random,
    ) -> None:
        self._broker = broker
        self._lease_book = lease_book
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._probe = probe
        self._random = random
        self._fenced = broker.capabilities.fenced
        self._release_delay_seconds_max = broker.capabilities.release_delay_seconds_max
        self._batch = broker.capabilities.settle_batch
        self._linger_seconds = broker.capabilities.settle_linger_seconds
        self._lock = threading.Lock()
        # Under the lock: any thread appends, the I/O thread takes.
        self._fresh: list[tuple[Delivery, Settlement]] = []
        self._fresh_since = 0.0  # under the lock: arrival of the oldest (monotonic), on brokers with a linger time
        # Under the lock, as is the next: failed settlements, written by the I/O thread.
        self._again: list[PendingSettlement] = []
        self._applying: Sequence[Delivery] = ()  # the group that the I/O thread is applying

    def submit(self, settlements: Iterable[tuple[Delivery, Settlement]]) -> None:
        """Add settlements to be applied soon. Thread-safe. Delays above the broker's maximum are reduced to it."""
        release_delay_seconds_max = self._release_delay_seconds_max
        arrived = [(delivery, _within(settlement, release_delay_seconds_max)) for delivery, settlement in settlements]
        with self._lock:
            if self._linger_seconds and not self._fresh:
                self._fresh_since = self._clock.monotonic()
            self._fresh += arrived

    def unapplied(self) -> Sequence[Delivery]:
        """Return the deliveries whose settlement the broker has not accepted yet."""
        with self._lock:
            fresh = [delivery for delivery, _ in self._fresh]
            return [*self._applying, *fresh, *(pending.delivery for pending in self._again)]

    def next_due_at(self) -> float | None:
        """Return when the next settlement is due (monotonic); None if there is none."""
        with self._lock:
            due_at = [self._due_at(pending) for pending in self._again]
            if self._fresh:
                due_at.append(self._fresh_since + self._linger_seconds if self._lingers else 0.0)
            return min(due_at, default=None)

    def apply_due(self) -> None:
        """Apply everything due, group by group, without lingering. Called by the I/O thread only.

        Raises `UserError` if the broker can never apply them; other failures are retried later.
        """
        while (group := self.take_due(lingering=False)).settlements:
            self.record_result(group, *self._call_broker(group.settlements))

    def take_due(self, *, lingering: bool = True) -> SettlementGroup:
        """Remove and return the next group of due settlements, to be reported with `record_result`. For the I/O thread
        only.

        On brokers that charge per call, a few settlements may wait a moment for more (``lingering``).
        """
        with self._lock:
            if not (self._fresh or self._again):
                return NOTHING_DUE
            now = self._clock.monotonic()
            fresh: list[tuple[Delivery, Settlement]] = []
            if not (lingering and self._lingers and now < self._fresh_since + self._linger_seconds):
                fresh, self._fresh = self._fresh[: self._settings.settle_max], self._fresh[self._settings.settle_max :]
                self._fresh_since = now
            again = self._take_again(now, self._settings.settle_max - len(fresh))
            self._applying = [delivery for delivery, _ in fresh] + [pending.delivery for pending in again]
        group = self._group(fresh, again)
        if group.settlements:
            self._probe(Step.SETTLING)
        return group

    def record_result(self, group: SettlementGroup, failures: Sequence[SettleFailure], error: Exception | None) -> None:
        """Record the result for a group: the broker's failures, or an error for all of it. For the I/O thread only.

        Raises `UserError` if the broker can never apply them; other failures are retried later.
        """
        if not group.settlements:
            return
        again = self._emit_results(group, failures, error)
        with self._lock:
            self._again += again
            self._applying = ()

    def settle_by(self, settlements: Iterable[tuple[Delivery, Settlement]], *, deadline: float) -> Sequence[Delivery]:
        """Apply settlements in the calling thread, with retries until the deadline (monotonic); return the rest.

        For a worker that stops: the deliveries must already be out of the lease book.
        """
        left = list(settlements)
        ends_at = {delivery.receipt: float("inf") for delivery, _ in left}
        never, tries = threading.Event(), 0
        while left:
            tries += 1
            refused: list[tuple[Delivery, Settlement]] = []
            for start in range(0, len(left), self._settings.settle_max):
                group = SettlementGroup(
                    settlements=left[start : start + self._settings.settle_max], lease_ends_at=ends_at
                )
                self._probe(Step.SETTLING)
                again = self._emit_results(group, *self._call_broker(group.settlements))
                refused += [(pending.delivery, pending.settlement) for pending in again]
            left = refused
            now = self._clock.monotonic()
            if not left or now >= deadline:
                break
            # No cap: each try emits an event per message, so tries become rare. The deadline bounds the wait.
            pause_seconds = ceiling_seconds(attempt=tries, base_seconds=self._settings.retry_base_seconds)
            self._clock.wait(never, min(pause_seconds, deadline - now))
        return [delivery for delivery, _ in left]

    @property
    def _lingers(self) -> bool:
        """Return True if the new settlements are too few for a call of their own. Call under the lock."""
        return self._linger_seconds > 0 and len(self._fresh) < self._batch

    def _take_again(self, now: float, count: int) -> list[PendingSettlement]:
        if not self._again:
            return []
        due = [pending for pending in self._again if self._due_at(pending) <= now][:count]
        taken = {pending.delivery.receipt for pending in due}
        self._again = [pending for pending in self._again if pending.delivery.receipt not in taken]
        return due

    def _due_at(self, pending: PendingSettlement) -> float:
        is_due = pending.put_off and not self._lease_book.is_extended_now(pending.delivery)
        return 0.0 if is_due else pending.due_at

    def _group(
        self, fresh: Sequence[tuple[Delivery, Settlement]], again: Sequence[PendingSettlement]
    ) -> SettlementGroup:
        ends_at = self._lease_book.unregister([delivery for delivery, _ in fresh], wait_seconds=0.0)
        if not self._fenced:
            fresh = self._postpone_extended(fresh, ends_at)
        if not again:
            return SettlementGroup(settlements=fresh, lease_ends_at=ends_at)
        return SettlementGroup(
            settlements=[*fresh, *((pending.delivery, pending.settlement) for pending in again)],
            lease_ends_at={**ends_at, **{pending.delivery.receipt: pending.lease_ends_at for pending in again}},
            tries={pending.delivery.receipt: pending.tries for pending in again},
        )

    def _postpone_extended(
        self, fresh: Sequence[tuple[Delivery, Settlement]], ends_at: Mapping[str, float]
    ) -> Sequence[tuple[Delivery, Settlement]]:
        """Postpone settlements that an extension in progress could undo; return the rest. Nothing can undo an ack."""
        due_at = self._clock.monotonic() + self._settings.heartbeat_interval_seconds
        put_off = {
            delivery.receipt: PendingSettlement(
                delivery=delivery,
                settlement=settlement,
                lease_ends_at=ends_at.get(delivery.receipt, 0.0),  # 0 if the lease was lost
                tries=0,
                due_at=due_at,
                put_off=True,
            )
            for delivery, settlement in fresh
            if not isinstance(settlement, Ack) and self._lease_book.is_extended_now(delivery)
        }
        if not put_off:
            return fresh
        with self._lock:
            self._again += put_off.values()
            self._applying = [delivery for delivery in self._applying if delivery.receipt not in put_off]
        return [(delivery, settlement) for delivery, settlement in fresh if delivery.receipt not in put_off]

    def _call_broker(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> tuple[Sequence[SettleFailure], Exception | None]:
        try:
            return self._broker.settle(settlements), None
        except Exception as error:
            return (), error

    def _emit_results(
        self, group: SettlementGroup, failures: Sequence[SettleFailure], error: Exception | None
    ) -> list[PendingSettlement]:
        """Emit the results; return the settlements to retry."""
        if isinstance(error, UserError):
            raise error
        self._probe(Step.SETTLED)
        refused = {failure.delivery.receipt: failure for failure in failures}
        if error is None:
            self._emit_applied(group.settlements, refused)
        reported = group.settlements
        if error is None and not failures and not self._bus.wants(DeliveryAcked):
            reported = [each for each in reported if not isinstance(each[1], Ack)]
        again: list[PendingSettlement] = []
        for delivery, settlement in reported:
            failure = refused.get(delivery.receipt)
            if error is not None:
                reason = f"{type(error).__name__}: {error}"
                failure = SettleFailure(delivery=delivery, reason=reason, lost=False)
            if failure is None and isinstance(settlement, Ack):
                self._emit_settled(DeliveryAcked, delivery, settlement)
            elif failure is None:
                self._emit_settled(DeliverySettled, delivery, settlement)
            elif self._emit_refused(group, settlement, failure):
                again.append(self._retry(group, delivery, settlement))
        return again

    def _emit_applied(self, settlements: Sequence[tuple[Delivery, Settlement]], refused: Collection[str]) -> None:
        if not self._bus.wants(SettlementsApplied):
            return
        applied = [each for each in settlements if each[0].receipt not in refused] if refused else settlements
        for queue in dict.fromkeys(delivery.queue for delivery, _ in applied):
            own = [each for each in applied if each[0].queue == queue]
            self._bus.emit(
                SettlementsApplied(
                    queue=queue,
                    message_ids=tuple([delivery.message.id for delivery, _ in own]),
                    settlements=tuple([settlement for _, settlement in own]),
                )
            )

    def _emit_settled(self, kind: type[DeliverySettled], delivery: Delivery, settlement: Settlement) -> None:
        if not self._bus.wants(kind):
            return
        self._bus.emit(
            kind(queue=delivery.queue, message_id=delivery.message.id, attempt=delivery.attempt, settlement=settlement)
        )

    def _emit_refused(self, group: SettlementGroup, settlement: Settlement, failure: SettleFailure) -> bool:
        """Emit a failure; return True if a retry can succeed."""
        delivery = failure.delivery
        now = self._clock.monotonic()
        lost = failure.lost or now >= group.lease_ends_at.get(delivery.receipt, now)
        self._bus.emit(
            SettlementFailed(
                queue=delivery.queue,
                message_id=delivery.message.id,
                attempt=delivery.attempt,
                operation=operation_of(settlement),
                reason=failure.reason,
                lost=lost,
            )
        )
        return not lost

    def _retry(self, group: SettlementGroup, delivery: Delivery, settlement: Settlement) -> PendingSettlement:
        tries = group.tries.get(delivery.receipt, 0) + 1
        wait_seconds = self._settings.retry_seconds(tries, self._random)
        return PendingSettlement(
            delivery=delivery,
            settlement=settlement,
            lease_ends_at=group.lease_ends_at[delivery.receipt],
            tries=tries,
            due_at=self._clock.monotonic() + wait_seconds,
        )


def _within(settlement: Settlement, release_delay_seconds_max: float) -> Settlement:
    # One delay that the broker refuses would make it refuse the whole group.
    if isinstance(settlement, Release) and not 0 <= settlement.delay_seconds <= release_delay_seconds_max:
        return replace(settlement, delay_seconds=min(max(settlement.delay_seconds, 0.0), release_delay_seconds_max))
    return settlement
