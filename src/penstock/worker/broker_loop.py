"""The I/O thread: settle and receive in one exchange with the broker, begin batches, then rest until work is due.

- `BrokerExchange`: one turn at the broker; settlements go out and messages come in
- `BrokerLoop`: the thread

In normal operation only this thread calls the queues; the heartbeat has threads of its own, and releases during a stop
bypass this thread. While the worker drains, it receives nothing more, releases messages that no execution began, and
ends once everything is settled.
"""

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.events import Bus, UpkeepFailed
from penstock.messaging.broker import Broker, TurnResult
from penstock.messaging.clock import Clock
from penstock.worker.jobs import BackgroundJob
from penstock.worker.liveness import LifeSign
from penstock.worker.queue_scheduler import ArrivalFlag, QueueScheduler, ServedLine
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler
from penstock.worker.shutdown import UNSTARTED

NOTHING_TO_DO = TurnResult()


class BrokerExchange:
    """The turns at the broker, and the arrivals to listen for. Used by the I/O thread only."""

    def __init__(
        self,
        *,
        broker: Broker,
        settler: Settler,
        asking: QueueScheduler,
        hearing: ArrivalFlag,
        settings: WorkerSettings,
        lines: int,
    ) -> None:
        self._broker = broker
        self._settler = settler
        self._asking = asking
        self._hearing = hearing
        self._looks_cost = broker.capabilities.looks_cost
        self._lease_seconds = settings.lease_seconds
        # With several consumers, the others would wait for the poll.
        self._poll_wait_seconds = settings.poll_wait_seconds if lines == 1 else 0.0

    def open(self) -> None:
        """Start listening for arrivals."""
        self._hearing.open()

    def close(self) -> None:
        """Stop listening for arrivals."""
        self._hearing.close()

    def turn(self, *, idle: Callable[[], bool]) -> bool:
        """Settle one group of due settlements and poll the queues that are due; return True if any message arrived.

        The broker may wait for messages only while the worker is ``idle`` (nothing running, nothing to settle);
        otherwise other work waits for this thread. Raises `UserError` if the broker can never serve the call.
        """
        if self._hearing.told():
            self._asking.alarmed()
        wait_seconds = self._poll_wait_seconds if self._poll_wait_seconds and idle() else 0.0
        group = self._settler.take_due()
        asks = self._asking.asks()
        if asks and self._asking.full is None:
            # Listen before polling, so that no arrival is missed between the poll and the rest.
            self._listen(self._asking.roomy)
        heard = self._hearing.wanted
        turn = NOTHING_TO_DO
        if group.settlements or asks:
            turn = self._broker.turn(
                group.settlements, asks, lease_seconds=self._lease_seconds, wait_seconds=wait_seconds
            )
        try:
            self._settler.applied(group, turn.failures, turn.settle_error)
        finally:
            arrived = self._asking.came(turn, heard=heard)
        if self._looks_cost and asks and self._asking.full is not None:
            self._listen_beside(self._asking.full)
        return arrived

    def rest_seconds(self) -> float | None:
        """Return the seconds until the next poll is due; None if no consumer has room."""
        seconds = self._asking.rest_seconds()
        if seconds is None:
            self.stop_listening()
        elif full := self._hearing.wanted - self._asking.roomy:
            self._listen(self._hearing.wanted - full)
        return seconds

    def stop_listening(self) -> None:
        """Stop listening: this worker has no room for an arrival, and another worker may have some."""
        if self._hearing.wanted:
            self._hearing.want(frozenset())
            self._asking.unheard()

    def _listen_beside(self, full: str) -> None:
        """While one queue keeps the worker busy, listen to the queues found empty instead of polling them in vain.

        Listen only to those: messages waiting in another queue would be signalled at once, and the worker has no room
        for them.
        """
        heard = (self._hearing.wanted | self._asking.found_empty) & self._asking.roomy
        self._listen(heard - {full})

    def _listen(self, roomy: Set[str]) -> None:
        """Listen to the queues with room; arrivals in other queues are left to workers that have room."""
        self._hearing.want(roomy)
        self._asking.unheard_beside(roomy)


REST_SECONDS_MAX = 60.0  # upper bound for waits that a freed slot ends
FINAL_UPKEEPS_MAX = 5

Until = Callable[[], bool]


class BrokerLoop:
    """One run of the I/O thread."""

    def __init__(
        self,
        *,
        lines: Sequence[ServedLine],
        exchange: BrokerExchange,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        sign: LifeSign,
        wake: threading.Event,
        until: Until | None,
        until_met: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._lines = lines
        self._exchange = exchange
        self._settler = settler
        self._turn_seconds_max = settings.turn_seconds_max
        self._clock = clock
        self._bus = bus
        self._sign = sign
        self._wake = wake
        self._until = until
        self._until_met = until_met
        self._fail = fail
        self._paused = False  # written by the lifecycle's thread; never unset
        self._leaving = False  # written by the I/O thread, and by any thread through `leave`; never unset
        self._quitting = False  # written by the lifecycle's thread; never unset
        self._met = False  # this and the fields below: written by the I/O thread only
        self._concluded_at_until = 0
        self._looked_at = 0.0  # monotonic; when `_begin_due` last ran

    def run(self) -> None:
        """Serve until asked to leave, then until everything is settled."""
        self._moves()
        self._guarded(self._exchange.open)
        self._guarded(self._care)
        while not self._over():
            self._guarded(self._turn)
        if self._met and not self._quitting:
            self._guarded(self._last_care)
        self._guarded(self._exchange.close)
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

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run a step. An exception ends the worker but not this thread, which still has settlements to apply."""
        try:
            step()
        except BaseException as error:
            self._leaving = True
            self._fail(error)

    def _turn(self) -> None:
        self._moves()
        self._wake.clear()
        for served in self._lines:
            served.executors.end_overdue()
        self._rest(self._put_back() if self._leaving else self._serve())

    def _moves(self) -> None:
        """Give a sign of life before a turn."""
        self._sign.give(self._turn_seconds_max, "exchanging messages with the broker")

    def _over(self) -> bool:
        return self._quitting or (self._leaving and self._idle)

    def _put_back(self) -> float:
        """While draining or paused, release the messages that no execution began. Return the seconds to rest."""
        self._exchange.stop_listening()
        self._settler.apply_due()
        unstarted = [delivery for served in self._lines for delivery in served.intake.take_all()]
        self._settler.submit((delivery, UNSTARTED) for delivery in unstarted)
        return 0.0 if unstarted or self._over() else REST_SECONDS_MAX

    def _put_back_barred(self) -> None:
        """Release messages held for a halted consumer (for other workers) or behind a closed gate (with its delay)."""
        for served in self._lines:
            if served.barred and not served.intake.empty:
                unstarted = replace(UNSTARTED, delay_seconds=served.put_back_seconds)
                self._settler.submit((delivery, unstarted) for delivery in served.intake.take_all())

    def _serve(self) -> float:
        """Begin due batches, settle and receive, begin again, and start background jobs. Return the seconds to rest."""
        if self._finished_by_batches():
            return 0.0
        self._put_back_barred()
        if self._paused:
            return self._stand_by()
        self._begin_due()
        arrived = not self._leaving and self._exchange.turn(idle=lambda: self._idle)
        begun = self._begin_due()
        self._care()
        if arrived or begun or (self._idle and self._finished()):
            return 0.0
        seconds = self._exchange.rest_seconds()
        return REST_SECONDS_MAX if seconds is None else seconds

    def _stand_by(self) -> float:
        """While paused, do everything but receive and begin batches. Return the seconds to rest."""
        seconds = self._put_back()
        self._care()
        return 0.0 if self._idle and self._finished() else seconds

    def _begin_due(self) -> bool:
        """Begin the batches that are due; return True if there were any."""
        begun = False
        self._looked_at = self._clock.monotonic()
        for served in self._lines:
            while not (self._leaving or self._paused) and (batches := served.due_batches(self._looked_at)):
                served.executors.begin(batches)
                begun = True
        return begun

    @property
    def _idle(self) -> bool:
        """Return True if nothing is running, held or waiting to be settled."""
        return all(served.idle for served in self._lines) and self._settler.next_due_at() is None

    @property
    def _concluded(self) -> int:
        return sum(served.executors.concluded for served in self._lines)

    def _rest(self, seconds: float) -> None:
        """Wait for a freed slot or a stop request, at most until something is due."""
        if seconds <= 0:
            return
        now = self._clock.monotonic()
        due_at = [self._settler.next_due_at()]
        for served in self._lines:
            due_at.append(served.executors.next_deadline())
            # A batch that `_begin_due` held back may be due by now; then there is no rest.
            if not served.intake.empty and served.executors.not_before > self._looked_at:
                due_at.append(served.executors.not_before)
            if self._paused and not self._leaving:
                due_at.extend(upkeep.due_at for upkeep in served.upkeeps)
            elif not self._leaving:  # `seconds` ignores consumers without room, and a gate that opens gives them room
                due_at.append(served.opens_at)
        seconds = min([seconds, *(at - now for at in due_at if at is not None)])
        if seconds > 0:
            self._sign.give(seconds + self._turn_seconds_max, "resting")
            self._clock.wait(self._wake, seconds)

    def _finished_by_batches(self) -> bool:
        """Return True if ``until`` is met. Calls it once for new outcomes, after applying their settlements."""
        if self._until is None or self._concluded_at_until == self._concluded:
            return False
        self._settler.apply_due()
        return self._finished()

    def _finished(self) -> bool:
        """Return True if ``until`` is met; the worker then drains."""
        self._concluded_at_until = self._concluded
        if self._until is None or self._leaving:
            return self._met
        self._met = self._asked_until(self._until)
        if self._met:
            self._leaving = True
            self._until_met()
        return self._met

    def _asked_until(self, until: Until) -> bool:
        try:
            return until()
        except TemporaryError as error:  # the ledger is unavailable: ask again when idle
            name = self._lines[0].line.handler.name
            self._bus.emit(UpkeepFailed(handler=name, error=f"{type(error).__name__}: {error}"))
            return False

    def _care(self) -> None:
        """Begin the background jobs that are due, for consumers that are idle."""
        for served in self._lines:
            concluded = served.executors.concluded
            for upkeep in served.upkeeps:
                if upkeep.due(concluded) and served.idle and not served.halted:
                    upkeep.begin(concluded)

    def _last_care(self) -> None:
        """Run the last background jobs of a finished worker. Raise the last failure: its work is then incomplete."""
        for served in self._lines:
            for upkeep in served.upkeeps:
                self._last_of(upkeep, served.executors.concluded)

    def _last_of(self, upkeep: BackgroundJob, concluded: int) -> None:
        self._await(upkeep)
        for left in reversed(range(FINAL_UPKEEPS_MAX)):
            if not self._quitting:
                upkeep.begin(concluded)
                self._await(upkeep)
            if upkeep.running or upkeep.error is None or self._ends_at_once():
                return
            if not left or isinstance(upkeep.error, (UserError, PublishHalted)):
                raise upkeep.error
            self._wake.clear()
            self._clock.wait(self._wake, (upkeep.due_at or 0.0) - self._clock.monotonic())

    def _ends_at_once(self) -> bool:
        return self._quitting

    def _await(self, upkeep: BackgroundJob) -> None:
        """Wait for the job's current run, if any, unless the worker must end at once."""
        while upkeep.running and not self._quitting:
            self._wake.clear()
            if upkeep.running:
                self._sign.give(REST_SECONDS_MAX + self._turn_seconds_max, "waiting for the last upkeep")
                self._clock.wait(self._wake, REST_SECONDS_MAX)
