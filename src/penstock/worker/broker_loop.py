"""The broker's thread: settle what is decided and receive into the free slots, begin what is due, rest.

It alone talks to the queues in normal life (heartbeats have a thread of their own; what a stop gives back goes past
it). While the worker drains it receives no more, releases what nobody began, and ends when everything is settled.

The exchange with the broker: what is to be settled goes out and messages come in, in one turn.
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
    """Turns at the broker, and the ear that tells when one makes sense. The I/O thread's alone."""

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
        self._poll_wait_seconds = settings.poll_wait_seconds if lines == 1 else 0.0  # others would wait for it

    def open(self) -> None:
        """Begin to listen."""
        self._hearing.open()

    def close(self) -> None:
        """Listen no more."""
        self._hearing.close()

    def turn(self, *, idle: Callable[[], bool]) -> bool:
        """Settle a group of what is due and ask all lines that may be asked; answers whether any message arrived.

        While the worker is ``idle`` (nothing at work, nothing to settle) the broker may wait for messages; else
        somebody waits for this thread. Raises `UserError` when the broker never can do what was asked.
        """
        if self._hearing.told():
            self._asking.alarmed()
        wait_seconds = self._poll_wait_seconds if self._poll_wait_seconds and idle() else 0.0
        group = self._settler.take_due()
        asks = self._asking.asks()
        if asks and self._asking.full is None:
            # Before the look, so that no arrival falls between the look and the rest.
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
        """How long to rest until a line is to be asked; None while none has room."""
        seconds = self._asking.rest_seconds()
        if seconds is None:
            self.stop_listening()
        elif full := self._hearing.wanted - self._asking.roomy:
            self._listen(self._hearing.wanted - full)
        return seconds

    def stop_listening(self) -> None:
        """No arrival could be taken, so none is to be told of: another worker may have room."""
        if self._hearing.wanted:
            self._hearing.want(frozenset())
            self._asking.unheard()

    def _listen_beside(self, full: str) -> None:
        """While one queue keeps the worker busy those found empty are heard, and not asked again and again in vain.

        Only those: what waits in others would come at once, take the way of an arrival, and find no room.
        """
        heard = (self._hearing.wanted | self._asking.found_empty) & self._asking.roomy
        self._listen(heard - {full})

    def _listen(self, roomy: Set[str]) -> None:
        """Where there is room; an arrival elsewhere is for a worker that has some."""
        self._hearing.want(roomy)
        self._asking.unheard_beside(roomy)


REST_SECONDS_MAX = 60.0  # a bound for waits that a freed slot ends
FINAL_UPKEEPS_MAX = 5

Until = Callable[[], bool]


class BrokerLoop:
    """One run of the broker's thread."""

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
        self._paused = False  # written by the thread that runs the worker; never unset
        self._leaving = False  # written by the I/O thread and by the one that runs the worker; never unset
        self._quitting = False  # written by the thread that runs the worker; never unset
        self._met = False  # this and the rest: written by the I/O thread only
        self._concluded_at_until = 0
        self._looked_at = 0.0  # monotonic; when something was to be begun last

    def run(self) -> None:
        """Serve until told to leave, then until everything is settled."""
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
        """Receive and begin no more; what is at work goes on, and so does this thread."""
        self._paused = True
        self._wake.set()

    def leave(self) -> None:
        """Receive no more; end when everything is settled."""
        self._leaving = True
        self._wake.set()

    def quit(self) -> None:
        """End at once, whatever is unsettled."""
        self._leaving = self._quitting = True
        self._wake.set()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Whatever a step raises is fatal to the worker, but not to this thread: there are settlements to apply."""
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
        """Whoever looks at this thread sees that it goes on."""
        self._sign.give(self._turn_seconds_max, "exchanging messages with the broker")

    def _over(self) -> bool:
        return self._quitting or (self._leaving and self._idle)

    def _put_back(self) -> float:
        """Draining or paused: what is held unstarted goes back. Answers how long to rest."""
        self._exchange.stop_listening()
        self._settler.apply_due()
        unstarted = [delivery for served in self._lines for delivery in served.intake.take_all()]
        self._settler.submit((delivery, UNSTARTED) for delivery in unstarted)
        return 0.0 if unstarted or self._over() else REST_SECONDS_MAX

    def _put_back_barred(self) -> None:
        """What a line holds that was halted meanwhile, or whose gate fell shut, is for others or for later."""
        for served in self._lines:
            if served.barred and not served.intake.empty:
                unstarted = replace(UNSTARTED, delay_seconds=served.put_back_seconds)
                self._settler.submit((delivery, unstarted) for delivery in served.intake.take_all())

    def _serve(self) -> float:
        """Begin, settle and receive, begin, and look around when nothing else is to do. Answers how long to rest."""
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
        """Paused: all but receiving and beginning goes on. Answers how long to rest."""
        seconds = self._put_back()
        self._care()
        return 0.0 if self._idle and self._finished() else seconds

    def _begin_due(self) -> bool:
        """Begin what may begin now; answers whether anything did."""
        begun = False
        self._looked_at = self._clock.monotonic()
        for served in self._lines:
            while not (self._leaving or self._paused) and (batches := served.due_batches(self._looked_at)):
                served.executors.begin(batches)
                begun = True
        return begun

    @property
    def _idle(self) -> bool:
        """Nothing at work, nothing held, nothing to settle."""
        return all(served.idle for served in self._lines) and self._settler.next_due_at() is None

    @property
    def _concluded(self) -> int:
        return sum(served.executors.concluded for served in self._lines)

    def _rest(self, seconds: float) -> None:
        """Wait for a freed slot or a request to stop, and no longer than until something is due."""
        if seconds <= 0:
            return
        now = self._clock.monotonic()
        due_at = [self._settler.next_due_at()]
        for served in self._lines:
            due_at.append(served.executors.next_deadline())
            # What was held back when it was looked at is due by now, perhaps: then there is no rest at all.
            if not served.intake.empty and served.executors.not_before > self._looked_at:
                due_at.append(served.executors.not_before)
            if self._paused and not self._leaving:
                due_at.extend(upkeep.due_at for upkeep in served.upkeeps)
            elif not self._leaving:  # a line without room is not among those that are to be asked again at some time
                due_at.append(served.opens_at)
        seconds = min([seconds, *(at - now for at in due_at if at is not None)])
        if seconds > 0:
            self._sign.give(seconds + self._turn_seconds_max, "resting")
            self._clock.wait(self._wake, seconds)

    def _finished_by_batches(self) -> bool:
        """Whether ``until`` is met by what was concluded since it was asked; it is asked once that is settled."""
        if self._until is None or self._concluded_at_until == self._concluded:
            return False
        self._settler.apply_due()
        return self._finished()

    def _finished(self) -> bool:
        """Whether ``until`` is met; then the worker drains."""
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
        except TemporaryError as error:  # the ledger is away: asked again when idle
            name = self._lines[0].line.handler.name
            self._bus.emit(UpkeepFailed(handler=name, error=f"{type(error).__name__}: {error}"))
            return False

    def _care(self) -> None:
        """Begin the background jobs that are due, of the lines that have nothing to do."""
        for served in self._lines:
            concluded = served.executors.concluded
            for upkeep in served.upkeeps:
                if upkeep.due(concluded) and served.idle and not served.halted:
                    upkeep.begin(concluded)

    def _last_care(self) -> None:
        """Upkeep before a worker that is done leaves. Raises the last failure: its work is not finished then."""
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
        """Wait for the run that is under way, if there is one, unless the worker is to end at once."""
        while upkeep.running and not self._quitting:
            self._wake.clear()
            if upkeep.running:
                self._sign.give(REST_SECONDS_MAX + self._turn_seconds_max, "waiting for the last upkeep")
                self._clock.wait(self._wake, REST_SECONDS_MAX)
