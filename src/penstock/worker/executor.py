"""Run the batches of one consumer in its execution place: call, conclude, settle, free the slot.

The chain of a message, in order, and the method that does each step:

| step | method | thread |
|---|---|---|
| receive | `BrokerLoop._settle_and_receive` | I/O |
| lease | `PrefetchBuffer.add`, which registers the leases | I/O |
| begin | `Executor.begin`, in free slots only | I/O |
| claim | `Call.open` (`penstock.handlers.call`; the next two steps, too) | the run's |
| call | `Call.call_function` | the run's |
| decide, record | `Call.record_completion`, `Call.record_failure` | the run's |
| conclude | `Executor._conclude` maps each result to one outcome; the only place that does | the run's |
| settle | `Executor.collect` submits the settlements of all ended runs, and applies them in the same turn | I/O |

`Executor._run` is the part of one run, from claim to conclude.

A slot stays taken until the run really ends, even if the outcome of its batch was decided earlier: the limits are hard.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.events import Bus, ExecutionFailed, SettlementMissing
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, Settlements
from penstock.messaging.settlement import UNCOUNTED, Release, Settlement
from penstock.messaging.threads import begin_thread_or_do
from penstock.worker.consumer import Consumer
from penstock.worker.pools import LOOP_THREAD, ExecutionPools, start_thread
from penstock.worker.running_batch import (
    BatchRuntime,
    ExecutionTimeouts,
    Result,
    RunFatal,
    RunningBatch,
    RunRaised,
    RunReturned,
    run_execution,
    run_execution_on_loop,
)
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler

CLAIM_LOST = "the claim was lost: another worker has it, or will claim it"


class Slots:
    """The worker's slots, shared by all consumers on pool and loop, and the lock for everything in flight.

    Thread-safe.
    """

    def __init__(self, total: int) -> None:
        self.lock = threading.Lock()
        self.total = total
        self.taken = 0  # under the lock


class Executor:
    """The running batches of one consumer, and the outcome of each. Only the I/O thread begins batches.

    Any thread may end a batch. Only the caller that ended it (`RunningBatch.end`) settles its deliveries. If it asks
    the ledger first, it settles only if no stop has done so meanwhile (`RunningBatch.begin_settling`).
    """

    def __init__(
        self,
        *,
        consumer: Consumer,
        pools: ExecutionPools,
        slots: Slots,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        on_free: Callable[[], None],
        fail: Callable[[BaseException], None],
        halt: Callable[[BaseException], bool],
    ) -> None:
        """``on_free`` is called whenever slots become free, ``halt`` with an error that only a person can fix.

        ``fail`` is called with a defect, for example an exception of a listener, which must end the worker.
        """
        self._handler = consumer.handler
        self._runtime = BatchRuntime(
            handler=consumer.handler.name,
            queue=consumer.queue,
            lock=slots.lock,
            lost=self._lose_claim,
            thread=LOOP_THREAD if consumer.handler.place is ExecutionPlace.LOOP else "",
        )
        self._place = consumer.handler.place
        self._shares_slots = consumer.shares_slots
        self._running_max = consumer.executions_max(settings)
        self._timeouts = ExecutionTimeouts(consumer.handler.timeout_seconds, clock=clock)  # under the lock
        self._pools = pools
        self._slots = slots
        self._settler = settler
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._on_free = on_free
        self._fail = fail
        self._halt = halt
        self._lock = slots.lock
        self._running: dict[RunningBatch, None] = {}  # under the lock, oldest first; until the run ends
        self._stranded: list[RunningBatch] = []  # under the lock; the run has ended and the batch is not settled
        self._draining = False  # set under the lock, by `drain`
        self._begun = 0  # written by the I/O thread
        # Ended runs whose slots are still taken, with the settlements that they returned, if those count. A run only
        # appends; `collect` handles all of them at once, which costs less than a lock or two for each message.
        self._ended_runs: deque[tuple[RunningBatch, Settlements | None]] = deque()
        # The number of batches with a decided outcome. Under the lock, as are the next two; written by the thread that
        # ends a batch.
        self.concluded = 0
        self._failures_in_a_row = 0
        # The earliest time of the next batch (monotonic): failures in a row delay a consumer of few, long runs.
        self.not_before = 0.0
        # Deliveries released by executions that ended themselves after the worker began to stop; appended to by the
        # thread that ends a batch.
        self.released: list[Delivery] = []

    @property
    def free(self) -> int:
        """The number of batches that may still begin, since the last `collect`."""
        free = self._running_max - len(self._running)
        return min(free, self._slots.total - self._slots.taken) if self._shares_slots else free

    @property
    def is_running(self) -> bool:
        """Return True if a run has not ended, or was not collected since."""
        return bool(self._running)

    @property
    def busy(self) -> bool:
        """Return True if a batch is not settled yet, or a run is still going that was not ended from outside.

        A run that was not collected since it ended is still going.
        """
        with self._lock:
            pending = any(batch.ended and not batch.settled for batch in self._stranded)
            return pending or any(not batch.parted for batch in self._running)

    def unsettled(self) -> Sequence[RunningBatch]:
        """Collect ended runs, then return the batches without settlements.

        Their outcome is open, or is being recorded in the ledger.
        """
        self._collect_for_other_thread()
        with self._lock:
            return [batch for batch in (*self._running, *self._stranded) if not batch.settled]

    def unended(self) -> Sequence[RunningBatch]:
        """Return the batches without an outcome so far."""
        with self._lock:
            return [batch for batch in (*self._running, *self._stranded) if not batch.ended]

    def running(self) -> Sequence[str]:
        """Collect ended runs, then return the names of the working threads.

        Threads of batches that were ended from outside are included.
        """
        self._collect_for_other_thread()
        with self._lock:
            return list(dict.fromkeys(batch.thread or batch.name for batch in self._running))

    def next_deadline(self) -> float | None:
        """Return the earliest time at which a batch may exceed its timeout (monotonic)."""
        with self._lock:
            return self._timeouts.next_at()

    def begin(self, batches: Sequence[Sequence[Delivery]]) -> None:
        """Begin batches, for which slots must be free. Called by the I/O thread only.

        If the handler raises `UserError` or `PublishHalted`, the consumer halts; if that ends the worker, the error is
        raised. Any other exception counts as a failed run.
        """
        begun: list[RunningBatch] = []
        try:
            for number, deliveries in enumerate(batches):
                try:
                    execution = self._handler.begin(deliveries)
                except (UserError, PublishHalted) as error:
                    unstarted = [delivery for rest in batches[number:] for delivery in rest]
                    self._settler.submit((delivery, UNCOUNTED) for delivery in unstarted)
                    if not self._halt(error):
                        raise
                    break
                except Exception as error:
                    self._release_failed(deliveries, f"{type(error).__name__}: {error}")
                else:
                    self._begun += 1
                    begun.append(RunningBatch(self._runtime, execution, deliveries, self._begun))
        finally:
            if begun:
                self._start(begun)

    def collect(self) -> None:
        """Submit the settlements of the runs that have ended, and free their slots. Thread-safe; never raises."""
        ended: list[tuple[RunningBatch, Settlements | None]] = []
        with suppress(IndexError):  # another thread took the last one
            while self._ended_runs:
                ended.append(self._ended_runs.popleft())
        if not ended:
            return
        try:
            returned = [(batch, settlements) for batch, settlements in ended if settlements is not None]
            if returned:
                self._settle(returned)
        except BaseException as defect:
            self._fail(defect)
        finally:
            self._free([batch for batch, _ in ended])

    def end_overdue(self) -> None:
        """End the executions that exceeded the handler's timeout. Called by the I/O thread only."""
        with self._lock:
            overdue = self._timeouts.take_overdue()
        for batch in overdue:
            if batch.end(settles=False):
                # Recording a timeout and interrupting a run may block, and this thread settles for all queues.
                begin_thread_or_do(self._time_out, batch, name="penstock-timeout")

    def drain(self) -> None:
        """Notify every open execution once that the worker has begun to stop, also those begun later."""
        with self._lock:
            self._draining = True
            open_batches = [batch for batch in self._running if not batch.ended]
        for batch in open_batches:
            self._notify_of_drain(batch)

    # -- the chain, in the execution's own thread or on the loop ----------------------------------------------------

    def _start(self, batches: Sequence[RunningBatch]) -> None:
        with self._lock:
            self._running.update(dict.fromkeys(batches))
            self._timeouts.add(batches)
            if self._shares_slots:
                self._slots.taken += len(batches)
            draining = self._draining
        left = list(batches)  # not started yet
        try:
            match self._place:
                case ExecutionPlace.POOL:
                    self._pools.pool.start(self._run, batches)
                case ExecutionPlace.LOOP:
                    self._pools.loop.start(self._run_on_loop, batches)
                case ExecutionPlace.THREAD:
                    while left:
                        start_thread(left[0].name, self._run, left[0])
                        del left[0]
        except TemporaryError as error:  # no thread could be started: nothing is wrong with the messages
            for batch in left:
                if batch.end():
                    self._release_failed(batch.deliveries, str(error), uncounted=True)
            self._free(left)
            self._on_free()
        if draining:
            for batch in batches:
                self._notify_of_drain(batch)

    def _run(self, batch: RunningBatch) -> None:
        """Take a batch through the rest of its chain: claim, call, decide, record; conclude and settle; free the slot.

        The steps up to record are those of the execution, see `PlainCall.run` in `penstock.handlers.call`.
        """
        batch.thread = threading.current_thread().name
        settlements = None
        try:
            settlements = self._conclude(batch, run_execution(batch.execution))
        except BaseException as defect:
            self._fail(defect)
        finally:
            self._ended_runs.append((batch, settlements))
            self._on_free()

    async def _run_on_loop(self, batch: RunningBatch) -> None:
        """Work like `_run`, on the event loop."""
        result = await run_execution_on_loop(batch.execution)
        settlements = None
        try:
            if isinstance(result, RunRaised) and not batch.ended:
                # Freeing the claim of a failed run may block.
                await self._pools.aside.run(self._conclude, batch, result, urgent=True)
            else:
                settlements = self._conclude(batch, result)
        except asyncio.CancelledError:
            pass  # the loop is closing, and the outcome of this batch is decided
        except BaseException as defect:
            self._fail(defect)
        finally:
            self._ended_runs.append((batch, settlements))
            self._on_free()

    def _conclude(self, batch: RunningBatch, result: Result) -> Settlements | None:
        """Turn a result into an outcome; the only place that does.

        Return the settlements for `collect`; None if they do not count, or if the deliveries were released here.
        """
        match result:
            case RunReturned(settlements=settlements):
                return settlements if batch.end() else None
            case RunFatal(error=fatal):
                # If the error ends the worker, the batch stays open: the stop releases it with all others.
                if self._halt(fatal) and batch.end(settles=False):
                    self._release_halted(batch, fatal)
            case RunRaised(error=error):
                if batch.end(settles=False):
                    self._release_raised(batch, error)
        return None

    def _settle(self, returned: Sequence[tuple[RunningBatch, Settlements]], *, failed: bool = False) -> None:
        """Submit the settlements that these batches returned."""
        settlements: list[tuple[Delivery, Settlement]] = []
        defects: list[BaseException] = []
        for batch, settled in returned:
            try:
                settlements += self._settlements(batch, settled)
            except BaseException as defect:  # of a listener; the other batches are settled all the same
                defects.append(defect)
        self._settler.submit(settlements)
        self._count(failed=failed, batches=len(returned))
        if defects:
            raise defects[0]

    def _settlements(self, batch: RunningBatch, settled: Settlements) -> Sequence[tuple[Delivery, Settlement]]:
        """Return a settlement for each delivery of a batch."""
        settlements: list[tuple[Delivery, Settlement]] = []
        for delivery in batch.deliveries:
            settlement = settled.get(delivery.receipt)
            if settlement is None:
                self._bus.emit(SettlementMissing(queue=delivery.queue, message_id=delivery.message.id))
                settlement = self._delayed(delivery)
            if self._draining and settlement == UNCOUNTED:  # the execution ended itself because the worker stops
                self.released.append(delivery)
            settlements.append((delivery, settlement))
        return settlements

    def _collect_for_other_thread(self) -> None:
        """Collect in another thread than the I/O thread, and wake the latter, which applies the settlements."""
        self.collect()
        self._on_free()

    def _free(self, batches: Sequence[RunningBatch]) -> None:
        """Remove runs that have ended, and free their slots."""
        with self._lock:
            self._timeouts.remove(batches)
            for batch in batches:
                del self._running[batch]
                if not batch.settled:
                    self._stranded = [*(stranded for stranded in self._stranded if not stranded.settled), batch]
            if self._shares_slots:
                self._slots.taken -= len(batches)

    # -- the other outcomes: raised, halted, timed out, claim lost --------------------------------------------------

    def _release_raised(self, batch: RunningBatch, error: BaseException) -> None:
        """Handle a run that raised: free its claim, which may block, and release its messages with backoff."""
        self._free_claim(batch)
        if batch.begin_settling():
            self._release_failed(batch.deliveries, f"{type(error).__name__}: {error}")

    def _release_halted(self, batch: RunningBatch, error: BaseException) -> None:
        """Release the messages of a halted consumer, without counting an attempt: nothing is wrong with them."""
        self._free_claim(batch)
        if not batch.begin_settling():
            return
        self._settler.submit([(delivery, UNCOUNTED) for delivery in batch.deliveries])
        self._count(failed=False)
        self._emit_failure(batch.deliveries, f"{type(error).__name__}: {error}")

    def _lose_claim(self, batch: RunningBatch) -> None:
        """End a batch whose claim is lost. Called by the heartbeat thread or by one of its calls.

        The result of the run is already fenced off. The infrastructure failed, not the work, so no attempt is counted:
        a message on its last attempt would be dead-lettered.
        """
        if not batch.end():
            return
        self._release(batch.deliveries, failed=False, why=CLAIM_LOST, uncounted=True)
        batch.parted = True
        # Interrupting may block, and the caller must extend other leases meanwhile.
        begin_thread_or_do(self._interrupt, batch, name="penstock-interrupt")
        self._on_free()

    def _time_out(self, batch: RunningBatch) -> None:
        try:
            self._settle_timed_out(batch)
        except BaseException as defect:
            self._fail(defect)
        batch.parted = True
        self._on_free()
        self._interrupt(batch)

    def _settle_timed_out(self, batch: RunningBatch) -> None:
        """Record the timeout, which may block, and submit the settlements.

        That removes the deliveries from the lease book: a hung run keeps no lease.
        """
        try:
            settled = batch.execution.time_out()
        except Exception as error:
            self._release_raised(batch, error)
            return
        if not batch.begin_settling():
            return
        self._settle([(batch, settled)], failed=True)
        if not self._shares_slots:  # otherwise the handler reports the failure of each message
            self._emit_failure(
                batch.deliveries,
                f"it did not end within its timeout of {self._handler.timeout_seconds:g} s; it was interrupted, and "
                f"keeps its thread {batch.thread} until it ends",
            )

    def _interrupt(self, batch: RunningBatch) -> None:
        """Interrupt the run. May block, for example to cancel a Spark job."""
        try:
            batch.execution.interrupt()
        except Exception as error:
            self._emit_failure(batch.deliveries, f"interrupting failed: {type(error).__name__}: {error}")

    def _notify_of_drain(self, batch: RunningBatch) -> None:
        try:
            batch.execution.drain()
        except Exception as error:
            reason = f"notifying it of the stop failed: {type(error).__name__}: {error}"
            self._emit_failure(batch.deliveries, reason)

    def _free_claim(self, batch: RunningBatch) -> None:
        # A failed run should have freed its claim itself. If it could not, the claim would block the objects of its
        # batch until the lease ends. Freeing it twice does no harm.
        try:
            batch.execution.release()
        except Exception as error:
            self._emit_failure(batch.deliveries, f"freeing the claim failed: {type(error).__name__}: {error}")

    def _release_failed(self, deliveries: Sequence[Delivery], why: str, *, uncounted: bool = False) -> None:
        """Release messages that got no settlement, each with a delay that grows with its attempts."""
        self._release(deliveries, failed=True, why=why, uncounted=uncounted)

    def _release(self, deliveries: Sequence[Delivery], *, failed: bool, why: str, uncounted: bool = False) -> None:
        self._settler.submit([(delivery, self._delayed(delivery, uncounted=uncounted)) for delivery in deliveries])
        self._count(failed=failed)
        self._emit_failure(deliveries, why)

    def _emit_failure(self, deliveries: Sequence[Delivery], error: str) -> None:
        ids = tuple(delivery.message.id for delivery in deliveries)
        self._bus.emit(ExecutionFailed(handler=self._handler.name, message_ids=ids, error=error))

    def _delayed(self, delivery: Delivery, *, uncounted: bool = False) -> Release:
        return Release(
            delay_seconds=self._settings.backoff_seconds(delivery.attempt, self._random), uncounted=uncounted
        )

    def _count(self, *, failed: bool, batches: int = 1) -> None:
        with self._lock:
            self.concluded += batches
            self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
            # A consumer of few, long runs backs off as a whole; otherwise each message has its own backoff.
            if failed and not self._shares_slots:
                wait_seconds = self._settings.backoff_seconds(self._failures_in_a_row, self._random)
                self.not_before = self._clock.monotonic() + wait_seconds
