"""Run the batches of one consumer in its execution place, and end those that take too long.

- `ExecutionTimeouts`: which executions exceeded the handler's timeout. Only the time of the user's code counts, so the
  end of a timeout is known as a lower bound: it moves while the execution waits for the ledger. Each execution is
  checked again when its bound is reached.
- `Slots`: the slots shared by consumers on the thread pool and on the event loop
- `Executor`: begins batches and turns each result into an outcome

A slot stays taken until the run really ends, even if the outcome of its batch was decided earlier: the limits are hard.
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
    """The running executions of one consumer, ordered by their next timeout check. Call under the lock of `Slots`.

    New executions all have the same timeout, so they stay in order of their begin. Only those that outlive their first
    bound move to the heap.
    """

    def __init__(self, timeout_seconds: float | None, *, clock: Clock) -> None:
        """If ``timeout_seconds`` is None, no execution is ever overdue."""
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._young: dict[RunningBatch, float] = {}
        self._old: list[tuple[float, int, RunningBatch]] = []
        self._pushed = 0  # tie-breaker for heap entries with equal times

    def add(self, flights: Sequence[RunningBatch]) -> None:
        """Watch executions that are about to begin."""
        if self._timeout_seconds is not None:
            self._young.update(dict.fromkeys(flights, self._clock.monotonic() + self._timeout_seconds))

    def remove(self, flight: RunningBatch) -> None:
        """Forget an execution that has returned."""
        self._young.pop(flight, None)

    def next_at(self) -> float | None:
        """Return when the next execution must be checked (monotonic)."""
        self._forget_ended()
        young = next(iter(self._young.values()), None)
        old = self._old[0][0] if self._old else None
        return min((at for at in (young, old) if at is not None), default=None)

    def overdue(self) -> Sequence[RunningBatch]:
        """Remove and return the executions that exceeded their timeout."""
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
    """The worker's slots, shared by all consumers on pool and loop, and the lock for everything in flight."""

    def __init__(self, total: int) -> None:
        self.lock = threading.Lock()
        self.taken = 0  # under the lock
        self._total = total

    @property
    def free(self) -> int:
        """The number of executions that may still begin."""
        return self._total - self.taken


class Executor:
    """The running batches of one consumer. Only the I/O thread begins them; any thread may end them."""

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
        self._running: dict[RunningBatch, None] = {}  # under the lock, oldest first; until the run ends
        self._stranded: list[RunningBatch] = []  # under the lock; the run has ended and the batch is not settled
        self._draining = False  # under the lock
        self._begun = 0  # written by the I/O thread
        self._answered: list[tuple[RunningBatch, RunReturned]] = []  # this and the next: loop thread only
        self._landing: list[RunningBatch] = []

    @property
    def concluded(self) -> int:
        """The number of batches with a decided outcome so far."""
        return self._endings.concluded

    @property
    def gave_back(self) -> Sequence[Delivery]:
        """The deliveries released by executions that ended themselves after the worker began to stop."""
        return self._endings.gave_back

    @property
    def not_before(self) -> float:
        """The earliest time at which the next batch may begin (monotonic)."""
        return self._endings.not_before

    @property
    def free(self) -> int:
        """The number of batches that may still begin."""
        free = self._flights_max - len(self._running)
        return min(free, self._slots.free) if self._shares_slots else free

    @property
    def busy(self) -> bool:
        """Return True if a batch is not settled yet, or a run is still going that was not ended from outside."""
        with self._lock:
            pending = any(flight.ended and not flight.settled for flight in self._stranded)
            return pending or any(not flight.parted for flight in self._running)

    def unsettled(self) -> Sequence[RunningBatch]:
        """Return the batches without settlements: the outcome is open, or is being recorded in the ledger."""
        with self._lock:
            return [flight for flight in (*self._running, *self._stranded) if not flight.settled]

    def unended(self) -> Sequence[RunningBatch]:
        """Return the batches whose outcome is still open."""
        with self._lock:
            return [flight for flight in (*self._running, *self._stranded) if not flight.ended]

    def running(self) -> Sequence[str]:
        """Return the names of the working threads, including those whose batch was ended from outside."""
        with self._lock:
            return list(dict.fromkeys(flight.thread or flight.name for flight in self._running))

    def next_deadline(self) -> float | None:
        """Return the earliest time at which a batch may exceed its timeout (monotonic)."""
        with self._lock:
            return self._timeouts.next_at()

    def begin(self, batches: Sequence[Sequence[Delivery]]) -> None:
        """Begin batches, for which slots must be free. Called by the I/O thread only.

        A `UserError` or `PublishHalted` of the handler halts the consumer, and is raised if that ends the worker. Any
        other exception counts as a failed run.
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
        """End the executions that exceeded the handler's timeout. Called by the I/O thread only."""
        with self._lock:
            overdue = self._timeouts.overdue()
        for flight in overdue:
            if flight.end(settles=False):
                # Recording a timeout and interrupting a run may block, and this thread settles for all queues.
                begin_thread_or_do(self._time_out, flight, name="penstock-timeout")

    def drain(self) -> None:
        """Notify every open execution once that the worker has begun to stop, also those begun later."""
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
        left = list(flights)  # not started yet
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
        except BaseException as defect:  # for example a listener that raises: it must end the worker
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
                # `Outcomes.failed` frees the claim, which may block.
                await self._places.aside.run(self._conclude, flight, result, urgent=True)
            else:
                self._conclude(flight, result)
        except asyncio.CancelledError:
            pass  # the loop is closing, and the outcome of this batch is decided
        except BaseException as defect:
            self._fail(defect)
        finally:
            self._landing.append(flight)
            if len(self._landing) == 1:
                asyncio.get_running_loop().call_soon(self._land_together)

    def _land_together(self) -> None:
        """Process all runs that ended in one iteration of the loop together: many short runs end at once."""
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
        """Remove runs that have ended, and free their slots."""
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
        """Turn a result into an outcome; the only place that does."""
        if isinstance(result, RunFatal):
            # If the error ends the worker, the batch stays open: the stop releases it with all others.
            if self._halt(result.error) and flight.end(settles=False):
                self._endings.halted(flight, result.error)
        elif isinstance(result, RunReturned):
            if flight.end():
                self._endings.answered([(flight, result.settlements)])
        elif flight.end(settles=False):
            self._endings.failed(flight, result.error)

    def _lose(self, flight: RunningBatch) -> None:
        """End a batch whose claim is lost. Called by the heartbeat thread or by one of its calls."""
        if flight.end():
            self._endings.claim_lost(flight)
            self._part(flight)
            self._freed()

    def _time_out(self, flight: RunningBatch) -> None:
        try:
            self._endings.timed_out(flight)
        except BaseException as defect:  # for example a listener that raises: it must end the worker
            self._fail(defect)
        flight.parted = True
        self._freed()
        self._endings.interrupt(flight)

    def _part(self, flight: RunningBatch) -> None:
        flight.parted = True
        # Interrupting may block, and the caller must extend other leases meanwhile.
        begin_thread_or_do(self._endings.interrupt, flight, name="penstock-interrupt")
