"""Process one batch of notifications: open the deliveries, group their objects into runs, attempt each, and settle.

- `BatchExecution`: one batch
- `ParsedNotifications`: the notifications that were parsed to weigh their deliveries
- `PipelineHandler`: a pipeline as the worker sees it
"""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress

from penstock.errors import InvalidMessage, PenstockError, TemporaryError
from penstock.events import AttemptAbandoned, DeliveryAcked
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, HeldClaim, Settlements
from penstock.messaging.settlement import UNCOUNTED, DeadLetter, Release, Settlement
from penstock.objects.notification import Notification
from penstock.pipeline.attempt import Attempts, AttemptSettings, ClaimGuard, PipelineRuntime
from penstock.pipeline.engine import RunReleased
from penstock.pipeline.notifications import (
    NotificationDelivery,
    ObjectOutcome,
    Parse,
    groups,
    open_delivery,
    settle_delivery,
    split_suspects,
)
from penstock.pipeline.reporting import BatchEvents

PARSED_MAX = 10_000  # deliveries, or two batches if these are more: one that runs, and one that is collected
PARSED_BYTES_MAX = 8 * 1024  # of a body: a longer one names many objects, and keeping 10,000 of those takes gigabytes


class BatchExecution:
    """One batch of notifications as a `penstock.messaging.handler.Execution`, owned by the worker's executor."""

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        settings: AttemptSettings,
        runtime: PipelineRuntime,
        *,
        parse: Callable[[Delivery], Notification] | None = None,
    ) -> None:
        """``parse`` returns the notification of a delivery, if it may have been parsed before."""
        self._deliveries = deliveries
        self._parse = parse or (lambda delivery: runtime.parse(delivery.message.body))
        self._settings = settings
        self._runtime = runtime
        events = BatchEvents(settings.pipeline, runtime.bus, batches=settings.emits_batches)
        self._events = events
        self._guard = ClaimGuard(runtime.ledger, events, lease_seconds=settings.lease_seconds)
        self._attempts = Attempts(settings, runtime, guard=self._guard, events=events)
        # Only the run thread writes the fields below. It replaces each value whole, so that other threads never see a
        # half-updated one. (`_invalid` is also written by the thread that calls `time_out`.)
        self._settled: Mapping[str, Settlement] = {}  # by receipt handle: messages that name no object to process
        self._notifications: Sequence[NotificationDelivery] = ()
        self._outcomes: Mapping[bytes, ObjectOutcome] = {}  # by object id: objects that need no more work in this batch
        self._invalid: Set[str] = (
            frozenset()
        )  # by receipt handle: deliveries with bad records that were already reported
        self._thread_id: int | None = None

    # -- the run thread ------------------------------------------------------------------------------------------

    def run(self) -> Settlements:
        self._thread_id = threading.get_ident()
        self._open()
        try:
            self._attempts.begin()
            suspects = self._suspects()
        except TemporaryError as away:  # the ledger is unreachable: counts as a fault, so that a one-off job ends
            self._attempts.add_fault(away)
            later = Release(delay_seconds=self._attempts.fault_seconds(), uncounted=True, reason=str(away))
            return {
                **self._settle_all({}),
                **{notification.delivery.receipt: later for notification in self._notifications},
            }
        for group in groups(suspects, objects_max=self._settings.objects_max, attempts_max=self._settings.attempts_max):
            try:
                self._outcomes = {**self._outcomes, **self._attempts.run_group(group)}
            except RunReleased:
                break  # the worker stops: start no further group
        with suppress(PenstockError):  # the publish job publishes too, and reports its errors
            self._runtime.publish()
        return self._settle_all(self._outcomes)

    # -- other threads -------------------------------------------------------------------------------------------

    def claim(self) -> HeldClaim | None:
        return self._guard.claim()

    def loses(self, claim: HeldClaim) -> bool:
        return self._guard.loses(claim)

    def drain(self) -> None:
        """Do nothing: a run continues until `release`."""

    def left_seconds(self, timeout_seconds: float) -> float:
        """Return the whole timeout: a pipeline has none."""
        return timeout_seconds

    def time_out(self) -> Settlements:
        work = self._guard.stop()
        outcomes = dict(self._outcomes)
        if work is not None:
            outcomes |= self._attempts.timed_out(work, where=self._where())
        return self._settle_all(outcomes)

    def release(self) -> None:
        work = self._guard.stop()
        if work is not None:
            self._guard.release(work, reason="released at a stop", outcome="given_back")
        else:
            self._guard.await_taken()  # the claim must be released before the messages are

    def interrupt(self) -> None:
        work = self._guard.stop()
        self._guard.stop_waiting()
        if work is not None:
            self._runtime.engine.cancel(work.attempt_id)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _settle_all(self, outcomes: Mapping[bytes, ObjectOutcome]) -> Settlements:
        """Return the settlement of every delivery. Messages with unprocessed objects are released."""
        settled: dict[str, Settlement] = dict.fromkeys((delivery.receipt for delivery in self._deliveries), UNCOUNTED)
        settled |= self._settled
        handler = self._settings.pipeline
        names_objects = self._runtime.bus.wants(DeliveryAcked)
        for one in self._notifications:
            receipt = one.delivery.receipt
            settled[receipt] = settle_delivery(one, outcomes, handler=handler, names_objects=names_objects)
            if one.problems and isinstance(settled[receipt], DeadLetter) and receipt not in self._invalid:
                self._invalid = {*self._invalid, receipt}
                self._events.emit_invalid(one.delivery, "; ".join(one.problems))
        return settled

    def _open(self) -> None:
        settlements: dict[str, Settlement] = {}
        notifications: list[NotificationDelivery] = []
        for delivery in self._deliveries:
            opened = open_delivery(delivery, self._parse, handler=self._settings.pipeline)
            if isinstance(opened, NotificationDelivery):
                notifications.append(opened)
            else:
                settlements[delivery.receipt] = opened
                if isinstance(opened, DeadLetter):
                    self._events.emit_invalid(delivery, opened.reason)
        self._settled, self._notifications = settlements, notifications

    def _suspects(self) -> Sequence[NotificationDelivery]:
        """Split the deliveries into units for grouping: the objects of a delivery together, except suspects."""
        ids = {ref.object_id for notification in self._notifications for ref in notification.objects}
        failures: Mapping[bytes, int] = {}
        if ids:
            with self._runtime.ledger_watch.watch_request():
                failures = self._runtime.ledger.unattributed_failures(self._settings.pipeline, ids)
        singly = self._settings.objects_max == 1
        found = [
            part
            for notification in self._notifications
            for part in split_suspects(notification, failures, singly=singly)
        ]
        # Shuffle suspects: if only a few of them keep failing, the others must not always wait behind them.
        return sorted(found, key=lambda part: self._runtime.random() if part.failures else 0.0)

    def _where(self) -> str:
        """Return the current stack of the run thread, without variables."""
        frame = sys._current_frames().get(self._thread_id or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))


class ParsedNotifications:
    """The notifications that were parsed for their weight, until their batch begins. Thread-safe.

    Deliveries that are released before their batch begins are never taken, so the oldest are dropped beyond a limit.
    """

    def __init__(self, parse: Parse, *, kept_max: int = PARSED_MAX) -> None:
        self._parse = parse
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[bytes, Notification]] = {}  # guarded by _lock; body and result by receipt handle

    def weigh(self, delivery: Delivery) -> int:
        """Return the total bytes of the objects that the notification names. Raises `InvalidMessage`."""
        body = delivery.message.body
        notification = self._parse(body)
        if len(body) <= PARSED_BYTES_MAX:
            with self._lock:
                self._kept[delivery.receipt] = body, notification
                if len(self._kept) > self._kept_max:
                    del self._kept[next(iter(self._kept))]
        return sum(ref.size_bytes for ref in notification.objects)

    def take(self, delivery: Delivery) -> Notification:
        """Return the notification, parsed now unless `weigh` has parsed it. Raises `InvalidMessage`."""
        with self._lock:
            body, notification = self._kept.pop(delivery.receipt, (None, None))
        if notification is None or body is not delivery.message.body:
            return self._parse(delivery.message.body)
        return notification


class PipelineHandler:
    """A pipeline as a `penstock.messaging.handler.BatchHandler`: its unit of work is a batch of notifications.

    A consumer of the worker owns it. The I/O thread weighs deliveries and begins batches.
    """

    def __init__(self, settings: AttemptSettings, runtime: PipelineRuntime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._parsed = ParsedNotifications(runtime.parse, kept_max=max(PARSED_MAX, 2 * settings.objects_max))

    @property
    def name(self) -> str:
        return self._settings.pipeline

    @property
    def place(self) -> ExecutionPlace:
        return ExecutionPlace.THREAD  # few and long: a run waits for Spark, not for the CPU

    @property
    def timeout_seconds(self) -> float | None:
        return None

    def weigh(self, delivery: Delivery) -> int:
        """Return the total bytes of the objects that the notification names, or 0 if it cannot be parsed."""
        try:
            return self._parsed.weigh(delivery)
        except InvalidMessage:
            return 0

    def begin(self, deliveries: Sequence[Delivery]) -> BatchExecution:
        return BatchExecution(deliveries, self._settings, self._runtime, parse=self._parsed.take)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        runtime = self._runtime
        jobs = {"claims": self.free_expired, **(runtime.publish_jobs or {"publish": runtime.publish})}
        return jobs if runtime.check_engine is None else {**jobs, "engine": runtime.check_engine}

    def free_expired(self) -> None:
        """Release the objects of attempts with an expired lease."""
        for attempt_id in self._runtime.ledger.abandon_expired(self._settings.pipeline):
            self._runtime.bus.emit(
                AttemptAbandoned(pipeline=self._settings.pipeline, attempt_id=attempt_id, reason="its lease ran out")
            )
