"""The I/O thread: settle and receive in one exchange with the broker, begin batches, then rest until work is due.

In normal operation only this thread calls the queues; the heartbeat has threads of its own, and releases during a stop
bypass this thread. While the worker drains, it receives nothing more, releases messages that no execution began, and
ends once everything is settled.
"""

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.events import Bus, JobFailed
from penstock.messaging.broker import Broker, TurnResult
from penstock.messaging.clock import Clock
from penstock.messaging.settlement import UNCOUNTED
from penstock.worker.jobs import BackgroundJob
from penstock.worker.liveness import LifeSign
from penstock.worker.queue_scheduler import ArrivalFlag, QueueScheduler, ServedConsumer
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler

NOTHING_TO_DO = TurnResult()
REST_SECONDS_MAX = 60.0  # upper bound of a rest; a freed slot or a due settlement ends it earlier
FINAL_RUNS_MAX = 5  # runs of a background job at the end of a finished worker, if they fail

Until = Callable[[], bool]


class BrokerLoop:
    """The loop of one worker's I/O thread. The worker's lifecycle creates it, and its I/O thread calls `run` once.

    Other threads call only `pause`, `leave` and `quit`.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        consumers: Sequence[ServedConsumer],
        scheduler: QueueScheduler,
        arrivals: ArrivalFlag,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        sign: LifeSign,
        wake: threading.Event,
        until: Until | None,
        on_end_condition: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._broker = broker
        self._consumers = consumers
        self._scheduler = scheduler
        self._arrivals = arrivals
        self._settler = settler
        self._polls_are_billed = broker.capabilities.polls_are_billed
        self._lease_seconds = settings.lease_seconds
        # A poll that waits would delay all other consumers, so only a single consumer may wait.
        self._poll_wait_seconds = settings.poll_wait_seconds if len(consumers) == 1 else 0.0
        self._turn_seconds_max = settings.turn_seconds_max
        self._clock = clock
        self._bus = bus
        self._sign = sign
        self._wake = wake
        self._until = until
        self._on_end_condition = on_end_condition
        self._fail = fail
        self._paused = False  # written by the lifecycle's thread; never unset
        self._leaving = False  # written by the I/O thread, and by any thread through `leave`; never unset
        self._quitting = False  # written by the lifecycle's thread; never unset
        self._met = False  # True once `until` was met; this and the fields below: written by the I/O thread only
        self._concluded_at_until = 0  # number of concluded batches when `until` was last called
        self._begun_at = 0.0  # monotonic; when `_begin_due` last ran

    def run(self) -> None:
        """Receive, run and settle until `leave`, then only settle until nothing is left."""
        self._give_sign()
        self._run_guarded(self._arrivals.open)
        self._run_guarded(self._begin_jobs)
        while not (self._quitting or (self._leaving and self._idle)):
            self._run_guarded(self._turn)
        if self._met and not self._quitting:
            self._run_guarded(self._run_last_jobs)
        self._run_guarded(self._arrivals.close)
        self._sign.end()

    def pause(self) -> None:
        """Stop receiving and beginning batches; running batches and this thread continue."""
        self._paused = True
        self._wake.set()

    def leave(self) -> None:
        """Stop receiving; end once everything is settled."""
        self._leaving = True
        self._wake.set()

    def quit(self) -> None:
        """End at once, even with unsettled deliveries."""
        self._leaving = self._quitting = True
        self._wake.set()

    def _run_guarded(self, step: Callable[[], object]) -> None:
        """Run a step. An exception ends the worker but not this thread, which still has settlements to apply."""
        try:
            step()
        except BaseException as error:
            self._leaving = True
            self._fail(error)

    def _give_sign(self) -> None:
        self._sign.give(self._turn_seconds_max, "exchanging messages with the broker")

    def _turn(self) -> None:
        self._give_sign()
        self._wake.clear()
        self._collect()
        for served in self._consumers:
            served.executor.end_overdue()
        self._rest(self._release_unstarted() if self._leaving else self._serve())

    def _serve(self) -> float:
        """Begin due batches, settle and receive, begin again, and start background jobs. Return the seconds to rest."""
        if self._until is not None and self._is_finished_by_batches():
            return 0.0
        self._release_barred()
        if self._paused:
            return self._stand_by()
        self._begin_due()
        if not self._leaving:
            self._settle_and_receive()
        self._collect()  # runs that ended during the call of the broker
        self._begin_due()
        self._begin_jobs()
        if self._leaving or (self._idle and self._check_until()):
            return 0.0
        return self._seconds_to_next_poll()

    def _collect(self) -> None:
        """Submit the settlements of ended runs, and free their slots.

        A run that ends later wakes this thread, and is collected in its next turn.
        """
        for served in self._consumers:
            served.executor.collect()

    def _settle_and_receive(self) -> bool:
        """Settle one group of due settlements and poll the queues that are due; return True if any message arrived.

        The broker may wait for messages only while nothing is running and nothing waits to be settled; otherwise other
        work waits for this thread. Raises `UserError` if the broker can never serve the call.
        """
        scheduler = self._scheduler
        if self._arrivals.take():
            scheduler.record_signal()
        wait_seconds = self._poll_wait_seconds if self._poll_wait_seconds and self._idle else 0.0
        group = self._settler.take_due()
        requests = scheduler.begin_poll()
        if requests and scheduler.full is None:
            # Listen before polling, so that no arrival is missed between the poll and the rest.
            self._listen(scheduler.with_capacity)
        listened = self._arrivals.wanted
        turn = NOTHING_TO_DO
        if group.settlements or requests:
            turn = self._broker.turn(
                group.settlements, requests, lease_seconds=self._lease_seconds, wait_seconds=wait_seconds
            )
        try:
            self._settler.record_result(group, turn.failures, turn.settle_error)
        finally:
            received = scheduler.record(turn, listened=listened)
        if self._polls_are_billed and requests and scheduler.full is not None:
            # While one queue keeps the worker busy, listen to the queues that were found empty, which costs less than
            # polling them. Not to others: a message that waits there would be signalled at once, without room for it.
            listened = (self._arrivals.wanted | scheduler.found_empty) & scheduler.with_capacity
            self._listen(listened - {scheduler.full})
        return received

    def _begin_due(self) -> bool:
        """Begin the batches that are due; return True if there were any."""
        begun = False
        self._begun_at = self._clock.monotonic()
        for served in self._consumers:
            while not (self._leaving or self._paused) and (batches := served.due_batches(self._begun_at)):
                served.executor.begin(batches)
                begun = True
        return begun

    def _seconds_to_next_poll(self) -> float:
        """Return the seconds until a poll is due; listen for arrivals only in queues with room for them."""
        seconds = self._scheduler.rest_seconds()
        if seconds is None:
            self._stop_listening()
            return REST_SECONDS_MAX
        if self._arrivals.wanted - self._scheduler.with_capacity:
            self._listen(self._arrivals.wanted & self._scheduler.with_capacity)
        return seconds

    def _listen(self, queues: Set[str]) -> None:
        """Listen to these queues; arrivals in other queues are left to workers that have room."""
        self._arrivals.want(queues)
        self._scheduler.suspect_arrivals(besides=queues)

    def _stop_listening(self) -> None:
        """Stop listening: this worker has no room for an arrival, and another worker may have some."""
        if self._arrivals.wanted:
            self._listen(frozenset())

    def _release_unstarted(self) -> float:
        """While draining or paused, release the messages that no execution began. Return the seconds to rest."""
        self._stop_listening()
        self._settler.apply_due()
        unstarted = [delivery for served in self._consumers for delivery in served.prefetch.take_all()]
        self._settler.submit((delivery, UNCOUNTED) for delivery in unstarted)
        return 0.0 if unstarted or self._quitting or (self._leaving and self._idle) else REST_SECONDS_MAX

    def _release_barred(self) -> None:
        """Release messages held for a halted consumer (for other workers) or behind a closed gate (with its delay)."""
        for served in self._consumers:
            if served.barred and not served.prefetch.empty:
                unstarted = replace(UNCOUNTED, delay_seconds=served.release_delay_seconds)
                self._settler.submit((delivery, unstarted) for delivery in served.prefetch.take_all())

    def _stand_by(self) -> float:
        """While paused, do everything but receive and begin batches. Return the seconds to rest."""
        seconds = self._release_unstarted()
        self._begin_jobs()
        return 0.0 if self._idle and self._check_until() else seconds

    @property
    def _idle(self) -> bool:
        """Return True if nothing is running, held or waiting to be settled."""
        return all(served.idle for served in self._consumers) and self._settler.next_due_at() is None

    @property
    def _concluded(self) -> int:
        return sum(served.executor.concluded for served in self._consumers)

    def _rest(self, seconds: float) -> None:
        """Wait for a freed slot or a stop request, at most until something is due."""
        if seconds <= 0:
            return
        now = self._clock.monotonic()
        due_at = [self._settler.next_due_at()]
        for served in self._consumers:
            due_at.append(served.executor.next_deadline())
            # A batch that `_begin_due` held back may be due by now; then there is no rest.
            if not served.prefetch.empty and served.executor.not_before > self._begun_at:
                due_at.append(served.executor.not_before)
            if self._paused and not self._leaving:
                due_at.extend(job.due_at for job in served.jobs)
            elif not self._leaving:  # `seconds` ignores consumers without room, and a gate that opens gives them room
                due_at.append(served.opens_at)
        seconds = min([seconds, *(at - now for at in due_at if at is not None)])
        if seconds > 0:
            self._sign.give(seconds + self._turn_seconds_max, "resting")
            self._clock.wait(self._wake, seconds)

    def _is_finished_by_batches(self) -> bool:
        """Return True if ``until`` is met. Calls it once for new outcomes, after applying their settlements."""
        if self._concluded_at_until == self._concluded:
            return False
        self._settler.apply_due()
        return self._check_until()

    def _check_until(self) -> bool:
        """Return True if ``until`` is met; the worker then drains."""
        self._concluded_at_until = self._concluded
        if self._until is None or self._leaving:
            return self._met
        try:
            self._met = self._until()
        except TemporaryError as error:  # the ledger is unavailable: call it again when idle
            name = self._consumers[0].consumer.handler.name
            self._bus.emit(JobFailed(job=name, error=f"{type(error).__name__}: {error}"))
            self._met = False
        if self._met:
            self._leaving = True
            self._on_end_condition()
        return self._met

    def _begin_jobs(self) -> None:
        """Begin the background jobs that are due, for consumers that are idle."""
        for served in self._consumers:
            concluded = served.executor.concluded
            for job in served.jobs:
                if job.due(concluded) and served.idle and not served.halted:
                    job.begin(concluded)

    def _run_last_jobs(self) -> None:
        """Run the last background jobs of a finished worker. Raise the last failure: its work is then incomplete."""
        for served in self._consumers:
            for job in served.jobs:
                self._run_last(job, served.executor.concluded)

    def _run_last(self, job: BackgroundJob, concluded: int) -> None:
        self._await(job)
        for left in reversed(range(FINAL_RUNS_MAX)):
            if not self._quitting:
                job.begin(concluded)
                self._await(job)
            if job.running or job.error is None or self._must_quit():
                return
            if not left or isinstance(job.error, (UserError, PublishHalted)):
                raise job.error
            self._wake.clear()
            self._clock.wait(self._wake, (job.due_at or 0.0) - self._clock.monotonic())

    def _must_quit(self) -> bool:
        return self._quitting  # a method, since mypy assumes that an attribute keeps its value during a call

    def _await(self, job: BackgroundJob) -> None:
        """Wait for the job's current run, if any, unless the worker must end at once."""
        while job.running and not self._quitting:
            self._wake.clear()
            if job.running:
                self._sign.give(REST_SECONDS_MAX + self._turn_seconds_max, "waiting for the last background jobs")
                self._clock.wait(self._wake, REST_SECONDS_MAX)
