"""One batch of notifications: open the parcels, group them, let each group have its attempt, and settle.

The pipeline as the worker sees it: a handler whose unit of work is a batch of notifications.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress

from penstock.errors import InvalidMessage, PenstockError, TemporaryError
from penstock.events import AttemptAbandoned
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer, ExecutionPlace, HeldClaim
from penstock.messaging.settlement import DeadLetter, Release, Settlement
from penstock.pipeline.attempt import AT_ONCE, Attempts, AttemptSettings, ClaimGuard, PipelineRuntime
from penstock.pipeline.engine import RunGivenBack
from penstock.pipeline.notifications import (
    NotificationDelivery,
    ObjectOutcome,
    groups,
    open_parcel,
    parts,
    settle_parcel,
)
from penstock.pipeline.reporting import BatchEvents


class BatchExecution:
    """A `penstock.messaging.handler.Execution` over one batch of notifications."""

    def __init__(self, deliveries: Sequence[Delivery], settings: AttemptSettings, around: PipelineRuntime) -> None:
        self._deliveries = deliveries
        self._settings = settings
        self._around = around
        telling = BatchEvents(settings.pipeline, around.bus, batches=settings.tells_batches)
        self._telling = telling
        self._hold = ClaimGuard(around.ledger, telling, lease_seconds=settings.lease_seconds)
        self._attempts = Attempts(settings, around, hold=self._hold, telling=telling)
        # The rest is written by the run thread: always as a whole, so that others read one state or the next.
        self._settled: Mapping[str, Settlement] = {}  # by receipt: messages without objects to work on
        self._parcels: Sequence[NotificationDelivery] = ()
        self._outcomes: Mapping[bytes, ObjectOutcome] = {}  # of objects that the batch is done with
        self._invalid: Set[str] = frozenset()  # by receipt: deliveries with bad records that an event was emitted for
        self._thread_id: int | None = None

    # -- the run thread ------------------------------------------------------------------------------------------

    def run(self) -> Answer:
        self._thread_id = threading.get_ident()
        self._open()
        try:
            suspects = self._suspects()
        except TemporaryError as away:  # the ledger: a job that is to end counts it like other faults
            self._attempts.add_fault(away)
            later = Release(delay_seconds=self._attempts.fault_seconds(), refund=True, reason=str(away))
            return {**self._answer({}), **{parcel.delivery.receipt: later for parcel in self._parcels}}
        for group in groups(suspects, objects_max=self._settings.objects_max, attempts_max=self._settings.attempts_max):
            try:
                self._outcomes = {**self._outcomes, **self._attempts.of_group(group)}
            except RunGivenBack:
                break  # what was not begun is not begun any more
        with suppress(PenstockError):  # upkeep publishes too, and says what is wrong
            self._around.publish()
        return self._answer(self._outcomes)

    # -- other threads -------------------------------------------------------------------------------------------

    def claim(self) -> HeldClaim | None:
        return self._hold.claim()

    def loses(self, claim: HeldClaim) -> bool:
        return self._hold.loses(claim)

    def drain(self) -> None:
        """A run goes on until it is given back."""

    def left_seconds(self, timeout_seconds: float) -> float:
        """A pipeline has no timeout; an object handler counts the time of its function."""
        return timeout_seconds

    def time_out(self) -> Answer:
        work = self._hold.stop()
        outcomes = dict(self._outcomes)
        if work is not None:
            outcomes |= self._attempts.timed_out(work, where=self._where())
        return self._answer(outcomes)

    def give_back(self) -> None:
        work = self._hold.stop()
        if work is not None:
            self._hold.give_up(work, reason="given back at shutdown", outcome="given_back")
        else:
            self._hold.await_taken()  # so that the attempt is free before the messages are

    def interrupt(self) -> None:
        work = self._hold.stop()
        self._hold.stop_waiting()
        if work is not None:
            self._around.engine.cancel(work.attempt_id)

    # -- parts of these -------------------------------------------------------------------------------------------

    def _answer(self, outcomes: Mapping[bytes, ObjectOutcome]) -> Answer:
        """Settlements of all deliveries; an object without an outcome was not worked on, and waits for who does."""
        unreached = {ref.object_id: AT_ONCE for parcel in self._parcels for ref in parcel.objects}
        reached: Mapping[bytes, ObjectOutcome] = {**unreached, **outcomes}
        answer: dict[str, Settlement] = {one.receipt: Release(refund=True) for one in self._deliveries}
        answer |= self._settled
        handler = self._settings.pipeline
        answer |= {one.delivery.receipt: settle_parcel(one, reached, handler=handler) for one in self._parcels}
        for one in self._parcels:
            receipt = one.delivery.receipt
            if one.problems and isinstance(answer[receipt], DeadLetter) and receipt not in self._invalid:
                self._invalid = {*self._invalid, receipt}
                self._telling.invalid(one.delivery, "; ".join(one.problems))
        return answer

    def _open(self) -> None:
        settlements: dict[str, Settlement] = {}
        parcels: list[NotificationDelivery] = []
        for delivery in self._deliveries:
            opened = open_parcel(delivery, self._around.parse, handler=self._settings.pipeline)
            if isinstance(opened, NotificationDelivery):
                parcels.append(opened)
            else:
                settlements[delivery.receipt] = opened
                if isinstance(opened, DeadLetter):
                    self._telling.invalid(delivery, opened.reason)
        self._settled, self._parcels = settlements, parcels

    def _suspects(self) -> Sequence[NotificationDelivery]:
        """Return the parcels to be put into groups: a delivery's objects together, unless some of them are suspects."""
        ids = {ref.object_id for parcel in self._parcels for ref in parcel.objects}
        failures: Mapping[bytes, int] = {}
        if ids:
            with self._around.ledger_watch.asked():
                failures = self._around.ledger.unattributed_failures(self._settings.pipeline, ids)
        singly = self._settings.objects_max == 1
        found = [part for parcel in self._parcels for part in parts(parcel, failures, singly=singly)]
        # Suspects come in another order each time: where only a few of them fail, the others must not wait behind them.
        return sorted(found, key=lambda part: self._around.random() if part.failures else 0.0)

    def _where(self) -> str:
        """What the run is doing now, as a stack without variables."""
        frame = sys._current_frames().get(self._thread_id or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))


class PipelineHandler:
    """A `penstock.messaging.handler.BatchHandler`."""

    def __init__(self, settings: AttemptSettings, around: PipelineRuntime) -> None:
        self._settings = settings
        self._around = around

    @property
    def name(self) -> str:
        return self._settings.pipeline

    @property
    def place(self) -> ExecutionPlace:
        return ExecutionPlace.THREAD  # few and long: a run waits for Spark

    @property
    def timeout_seconds(self) -> float | None:
        return None

    def weigh(self, delivery: Delivery) -> int:
        """Bytes of the objects that the notification names; 0 for one that cannot be read."""
        try:
            return sum(ref.size_bytes for ref in self._around.parse(delivery.message.body).objects)
        except InvalidMessage:
            return 0

    def begin(self, deliveries: Sequence[Delivery]) -> BatchExecution:
        return BatchExecution(deliveries, self._settings, self._around)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        around = self._around
        jobs = {"claims": self.free_expired, **(around.publish_jobs or {"publish": around.publish})}
        return jobs if around.check_engine is None else {**jobs, "engine": around.check_engine}

    def free_expired(self) -> None:
        """Free what attempts hold that are past their lease."""
        for attempt_id in self._around.ledger.abandon_expired(self._settings.pipeline):
            self._around.bus.emit(
                AttemptAbandoned(pipeline=self._settings.pipeline, attempt_id=attempt_id, reason="its lease ran out")
            )
