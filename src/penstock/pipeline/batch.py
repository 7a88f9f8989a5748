"""Process one batch of notifications: open the deliveries, group their objects into runs, attempt each, and settle.

`PipelineHandler` is a pipeline as the worker sees it: a handler whose unit of work is a batch of notifications.
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
    """A `penstock.messaging.handler.Execution` for one batch of notifications."""

    def __init__(self, deliveries: Sequence[Delivery], settings: AttemptSettings, around: PipelineRuntime) -> None:
        self._deliveries = deliveries
        self._settings = settings
        self._around = around
        telling = BatchEvents(settings.pipeline, around.bus, batches=settings.tells_batches)
        self._telling = telling
        self._hold = ClaimGuard(around.ledger, telling, lease_seconds=settings.lease_seconds)
        self._attempts = Attempts(settings, around, hold=self._hold, telling=telling)
        # Only the run thread writes the fields below. It replaces each value whole, so that other threads never see a
        # half-updated one. (`_invalid` is also written by the thread that calls `time_out`.)
        self._settled: Mapping[str, Settlement] = {}  # by receipt handle: messages that name no object to process
        self._parcels: Sequence[NotificationDelivery] = ()
        self._outcomes: Mapping[bytes, ObjectOutcome] = {}  # by object id: objects that need no more work in this batch
        self._invalid: Set[str] = frozenset()  # by receipt handle: deliveries whose bad records were already reported
        self._thread_id: int | None = None

    # -- the run thread ------------------------------------------------------------------------------------------

    def run(self) -> Answer:
        self._thread_id = threading.get_ident()
        self._open()
        try:
            suspects = self._suspects()
        except TemporaryError as away:  # the ledger is unreachable: counts as a fault, so that a one-off job ends
            self._attempts.add_fault(away)
            later = Release(delay_seconds=self._attempts.fault_seconds(), refund=True, reason=str(away))
            return {**self._answer({}), **{parcel.delivery.receipt: later for parcel in self._parcels}}
        for group in groups(suspects, objects_max=self._settings.objects_max, attempts_max=self._settings.attempts_max):
            try:
                self._outcomes = {**self._outcomes, **self._attempts.of_group(group)}
            except RunGivenBack:
                break  # the worker stops: start no further group
        with suppress(PenstockError):  # the publish job publishes too, and reports its errors
            self._around.publish()
        return self._answer(self._outcomes)

    # -- other threads -------------------------------------------------------------------------------------------

    def claim(self) -> HeldClaim | None:
        return self._hold.claim()

    def loses(self, claim: HeldClaim) -> bool:
        return self._hold.loses(claim)

    def drain(self) -> None:
        """Do nothing: a run continues until `give_back`."""

    def left_seconds(self, timeout_seconds: float) -> float:
        """Return the whole timeout: here it is wall time. An object handler counts only the time in its function."""
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
            self._hold.await_taken()  # the claim must be released before the messages are

    def interrupt(self) -> None:
        work = self._hold.stop()
        self._hold.stop_waiting()
        if work is not None:
            self._around.engine.cancel(work.attempt_id)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _answer(self, outcomes: Mapping[bytes, ObjectOutcome]) -> Answer:
        """Return the settlement of every delivery. Messages with unprocessed objects are released."""
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
        """Split the deliveries into units for grouping: the objects of a delivery together, except suspects."""
        ids = {ref.object_id for parcel in self._parcels for ref in parcel.objects}
        failures: Mapping[bytes, int] = {}
        if ids:
            with self._around.ledger_watch.asked():
                failures = self._around.ledger.unattributed_failures(self._settings.pipeline, ids)
        singly = self._settings.objects_max == 1
        found = [part for parcel in self._parcels for part in parts(parcel, failures, singly=singly)]
        # Shuffle suspects: if only a few of them keep failing, the others must not always wait behind them.
        return sorted(found, key=lambda part: self._around.random() if part.failures else 0.0)

    def _where(self) -> str:
        """Return the current stack of the run thread, without variables."""
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
        return ExecutionPlace.THREAD  # few and long: a run waits for Spark, not for the CPU

    @property
    def timeout_seconds(self) -> float | None:
        return None

    def weigh(self, delivery: Delivery) -> int:
        """Return the total bytes of the objects that the notification names, or 0 if it cannot be parsed."""
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
        """Release the objects of attempts whose lease has expired."""
        for attempt_id in self._around.ledger.abandon_expired(self._settings.pipeline):
            self._around.bus.emit(
                AttemptAbandoned(pipeline=self._settings.pipeline, attempt_id=attempt_id, reason="its lease ran out")
            )
