"""The executions of one line: begins batches in their place, and ends those that take too long.

A place is taken until the run really ends, whatever was decided about its batch before: the bounds are hard.

Which executions of one line are past the handler's timeout.

An execution counts the time of the user's code itself, so the end of its timeout is known as a lower bound only: it
moves while the execution waits for the ledger. Each execution is asked again when its bound has come.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Sequence

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.settlement import Release
from penstock.messaging.threads import begin_thread_or_do
from penstock.worker.line import Line
from penstock.worker.pools import LOOP_THREAD, ExecutionPools, start_thread
from penstock.worker.running_batch import (
    BatchRuntime,
    Outcomes,
    Result,
    RunFatal,
    RunningBatch,
    RunRaised,
    RunReturned,
    awaited_result_of,
    result_of,
)
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler


class ExecutionTimeouts:
    """The running executions of one line, by the time at which each is to be asked. Called under the line's lock.

    New ones have the same bound after their begin, so they stay in order. Only those that outlived it get to the heap.
    """

    def __init__(self, timeout_seconds: float | None, *, clock: Clock) -> None:
        """``timeout_seconds`` None: no execution is ever overdue."""
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._young: dict[RunningBatch, float] = {}
        self._old: list[tuple[float, int, RunningBatch]] = []
        self._pushed = 0  # tells entries of the heap with equal times apart

    def add(self, flights: Sequence[RunningBatch]) -> None:
        """Watch executions that are about to begin."""
        if self._timeout_seconds is not None:
            self._young.update(dict.fromkeys(flights, self._clock.monotonic() + self._timeout_seconds))

    def remove(self, flight: RunningBatch) -> None:
        """Forget an execution that has returned."""
        self._young.pop(flight, None)

    def next_at(self) -> float | None:
        """When the next one is to be asked (monotonic)."""
        self._forget_ended()
        young = next(iter(self._young.values()), None)
        old = self._old[0][0] if self._old else None
        return min((at for at in (young, old) if at is not None), default=None)

    def overdue(self) -> Sequence[RunningBatch]:
        """Take out the executions whose timeout is over."""
        if self._timeout_seconds is None:
            return ()
        now, found = self._clock.monotonic(), []
        for flight in self._due(now):
            left_seconds = flight.execution.left_seconds(self._timeout_seconds)
            if left_seconds <= 0:
                found.append(flight)
            else:
                self._pushed += 1
                heapq.heappush(self._old, (now + left_seconds, self._pushed, flight))
        return found

    def _due(self, now: float) -> Sequence[RunningBatch]:
        due: list[RunningBatch] = []
        while (at := self.next_at()) is not None and at <= now:
            if self._old and self._old[0][0] == at:
                due.append(heapq.heappop(self._old)[2])
            else:
                flight = next(iter(self._young))
                del self._young[flight]
                due.append(flight)
        return due

    def _forget_ended(self) -> None:
        while self._young and (flight := next(iter(self._young))).ended:
            del self._young[flight]
        while self._old and self._old[0][2].ended:
            heapq.heappop(self._old)


class Slots:
    """The worker's slots, shared by all lines on pool and loop; and the one lock of all that is in flight."""

    def __init__(self, total: int) -> None:
        self.lock = threading.Lock()
        self.taken = 0  # under the lock
        self._total = total

    @property
    def free(self) -> int:
        """How many more executions may begin."""
        return self._total - self.taken


class Executor:
    """One line's executions."""

    def __init__(
        self,
        *,
        line: Line,
        places: ExecutionPools,
        slots: Slots,
        endings: Outcomes,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        freed: Callable[[], None],
        fail: Callable[[BaseException], None],
        halt: Callable[[BaseException], bool],
    ) -> None:
        self._handler = line.handler
        self._course = BatchRuntime(
            handler=line.handler.name,
            queue=line.queue,
            lock=slots.lock,
            lost=self._lose,
            thread=LOOP_THREAD if line.handler.place is ExecutionPlace.LOOP else "",
        )
        self._place = line.handler.place
        self._shares_slots = line.shares_slots
        self._timeouts = ExecutionTimeouts(line.handler.timeout_seconds, clock=clock)  # under the lock
        self._flights_max = line.places(settings)
        self._places = places
        self._slots = slots
        self._endings = endings
        self._settler = settler
        self._clock = clock
        self._freed = freed
        self._fail = fail
        self._halt = halt
        self._lock = slots.lock
        self._running: dict[RunningBatch, None] = {}  # under the lock, oldest first; until the run is at its end
        self._stranded: list[RunningBatch] = []  # under the lock; the run ended and the batch is not settled
        self._draining = False  # under the lock
        self._begun = 0  # written by the I/O thread
        self._answered: list[tuple[RunningBatch, RunReturned]] = []  # this and the next: the loop's thread alone
        self._landing: list[RunningBatch] = []

    @property
    def concluded(self) -> int:
        """How many batches were decided on so far."""
        return self._endings.concluded

    @property
    def gave_back(self) -> Sequence[Delivery]:
        """The deliveries whose executions ended themselves since the worker stops."""
        return self._endings.gave_back

    @property
    def not_before(self) -> float:
        """When the next batch may begin (monotonic)."""
        return self._endings.not_before

    @property
    def free(self) -> int:
        """How many more batches may begin."""
        free = self._flights_max - len(self._running)
        return min(free, self._slots.free) if self._shares_slots else free

    @property
    def busy(self) -> bool:
        """Whether a run is going that somebody waits for."""
        with self._lock:
            pending = any(flight.ended and not flight.settled for flight in self._stranded)
            return pending or any(not flight.parted for flight in self._running)

    def unsettled(self) -> Sequence[RunningBatch]:
        """The batches whose deliveries are not settled: the end is open, or recorded in the ledger at this moment."""
        with self._lock:
            return [flight for flight in (*self._running, *self._stranded) if not flight.settled]

    def unended(self) -> Sequence[RunningBatch]:
        """The batches whose end is open."""
        with self._lock:
            return [flight for flight in (*self._running, *self._stranded) if not flight.ended]

    def running(self) -> Sequence[str]:
        """The names of the threads at work; some may work on a batch that was ended from outside."""
        with self._lock:
            return list(dict.fromkeys(flight.thread or flight.name for flight in self._running))

    def next_deadline(self) -> float | None:
        """Return when a batch may have taken too long, at the earliest (monotonic)."""
        with self._lock:
            return self._timeouts.next_at()

    def begin(self, batches: Sequence[Sequence[Delivery]]) -> None:
        """Begin these, for which there have to be free places. Only the I/O thread calls it.

        What the handler raises halts the line if nothing can mend it, and is raised if that ends the worker; anything
        else counts as a failed run.
        """
        flights: list[RunningBatch] = []
        try:
            for number, deliveries in enumerate(batches):
                try:
                    flights.append(self._flight(deliveries))
                except (UserError, PublishHalted) as error:
                    unstarted = [delivery for rest in batches[number:] for delivery in rest]
                    self._settler.submit((delivery, Release(refund=True)) for delivery in unstarted)
                    if not self._halt(error):
                        raise
                    break
                except Exception as error:
                    self._endings.put_off(deliveries, f"{type(error).__name__}: {error}")
        finally:
            self._start(flights)

    def end_overdue(self) -> None:
        """End what has taken longer than the handler's timeout. Only the I/O thread calls it."""
        with self._lock:
            overdue = self._timeouts.overdue()
        for flight in overdue:
            if flight.end(settles=False):
                # To record a timeout and to interrupt may block, and this thread settles for all queues.
                begin_thread_or_do(self._time_out, flight, name="penstock-timeout")

    def drain(self) -> None:
        """Tell every unended execution, once, that the worker has begun to stop; also those begun from here on."""
        with self._lock:
            self._draining = True
            self._endings.draining = True
            flights = [flight for flight in self._running if not flight.ended]
        for flight in flights:
            self._endings.drain(flight)

    def _flight(self, deliveries: Sequence[Delivery]) -> RunningBatch:
        execution = self._handler.begin(deliveries)
        self._begun += 1
        return RunningBatch(self._course, execution, deliveries, self._begun)

    def _start(self, flights: Sequence[RunningBatch]) -> None:
        if not flights:
            return
        with self._lock:
            self._running.update(dict.fromkeys(flights))
            self._timeouts.add(flights)
            if self._shares_slots:
                self._slots.taken += len(flights)
            draining = self._draining
        left = list(flights)  # those that have not begun
        try:
            match self._place:
                case ExecutionPlace.POOL:
                    self._places.pool.start(self._fly, flights)
                case ExecutionPlace.LOOP:
                    self._places.loop.start(self._fly_async, flights)
                case ExecutionPlace.THREAD:
                    while left:
                        start_thread(left[0].name, self._fly, left[0])
                        del left[0]
        except TemporaryError as error:  # no thread could be started
            for flight in left:
                if flight.end():
                    self._endings.put_back_unbegun(flight, str(error))
            self._land(left)
        if draining:
            for flight in flights:
                self._endings.drain(flight)

    def _fly(self, flight: RunningBatch) -> None:
        flight.thread = threading.current_thread().name
        try:
            self._conclude(flight, result_of(flight.execution))
        except BaseException as defect:  # a listener that raises, say: the worker has to hear of it
            self._fail(defect)
        finally:
            self._land([flight])

    async def _fly_async(self, flight: RunningBatch) -> None:
        result = await awaited_result_of(flight.execution)
        try:
            if isinstance(result, RunReturned):
                if flight.end():
                    self._answered.append((flight, result))
            elif isinstance(result, RunRaised) and not flight.ended:
                # It frees the claim, which may block.
                await self._places.aside.run(self._conclude, flight, result, urgent=True)
            else:
                self._conclude(flight, result)
        except asyncio.CancelledError:
            pass  # the loop is being closed, with the end of this batch decided
        except BaseException as defect:
            self._fail(defect)
        finally:
            self._landing.append(flight)
            if len(self._landing) == 1:
                asyncio.get_running_loop().call_soon(self._land_together)

    def _land_together(self) -> None:
        """All that came to their end in one turn of the loop: many short runs end at once."""
        answered, self._answered = self._answered, []
        landing, self._landing = self._landing, []
        try:
            if answered:
                self._endings.answered([(flight, result.settlements) for flight, result in answered])
        except BaseException as defect:
            self._fail(defect)
        finally:
            self._land(landing)

    def _land(self, flights: Sequence[RunningBatch]) -> None:
        """The runs are over, and their places are free."""
        with self._lock:
            for flight in flights:
                del self._running[flight]
                self._timeouts.remove(flight)
                if not flight.settled:
                    self._stranded = [*(one for one in self._stranded if not one.settled), flight]
            if self._shares_slots:
                self._slots.taken -= len(flights)
        self._freed()

    def _conclude(self, flight: RunningBatch, result: Result) -> None:
        """The one place that turns a result into an ending."""
        if isinstance(result, RunFatal):
            # Where it ends the worker the batch stays unended: stopping gives it back with everything else.
            if self._halt(result.error) and flight.end(settles=False):
                self._endings.halted(flight, result.error)
        elif isinstance(result, RunReturned):
            if flight.end():
                self._endings.answered([(flight, result.settlements)])
        elif flight.end(settles=False):
            self._endings.failed(flight, result.error)

    def _lose(self, flight: RunningBatch) -> None:
        """In the heartbeat's thread."""
        if flight.end():
            self._endings.claim_lost(flight)
            self._part(flight)
            self._freed()

    def _time_out(self, flight: RunningBatch) -> None:
        try:
            self._endings.timed_out(flight)
        except BaseException as defect:  # a listener that raises, say: the worker has to hear of it
            self._fail(defect)
        flight.parted = True
        self._freed()
        self._endings.interrupt(flight)

    def _part(self, flight: RunningBatch) -> None:
        flight.parted = True
        # Interrupting may block, and the caller has other things to keep going.
        begin_thread_or_do(self._endings.interrupt, flight, name="penstock-interrupt")
