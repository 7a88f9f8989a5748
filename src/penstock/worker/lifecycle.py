"""The lifecycle of a worker: serve, drain, release, close.

- `MachineryThread`: a thread of the worker itself; the lifecycle observes its end and its failure
- `WorkerOutcome`, `AppFacts`: the outcome of a run, and the facts about the app in the start event
- `WorkerLifecycle`: starts the threads in order, and bounds each wait for them

The work of each thread is in its own module.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from penstock.errors import RestartNeeded, TemporaryError, UserError
from penstock.events import (
    Bus,
    ConsumerHalted,
    JobFailed,
    StacksDumped,
    ThreadLeftBehind,
    WorkerDraining,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import end_of
from penstock.messaging.settlement import UNCOUNTED
from penstock.messaging.steps import Probe
from penstock.worker.broker_loop import BrokerLoop, Until
from penstock.worker.consumer import Consumer
from penstock.worker.executor import Executor, Slots
from penstock.worker.jobs import BackgroundJob
from penstock.worker.leases import Heartbeat, LeaseBook
from penstock.worker.liveness import ConsumerHealth, Liveness, Phase, stacks
from penstock.worker.pools import LOOP_THREAD, EventLoop, ExecutionPools
from penstock.worker.prefetch import PrefetchBuffer
from penstock.worker.queue_scheduler import ArrivalFlag, QueueScheduler, ServedConsumer
from penstock.worker.running_batch import RunningBatch
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler
from penstock.worker.shutdown import BROKER_SHARE, LEASE_BOOK_SHARE, StopSignal, release_pending, release_running


class MachineryThread:
    """A daemon thread of the worker itself; one that hangs is left behind."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        changed: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.done = False  # written by this thread
        self._work = work
        self._changed = changed
        self._fail = fail

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._fail(error)
        finally:
            self.done = True
            self._changed()


Outcome = Literal["drained", "interrupted", "forced"]

START_THREAD = "penstock-start"

_WAIT_SECONDS_MAX = 60.0  # upper bound for waits that an event ends
_UNWIND_SECONDS = 0.5  # part of the flush: time for interrupted threads to end


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """The outcome of a worker run. With hanging threads, the process must end with `os._exit`."""

    outcome: Outcome
    threads_left: tuple[str, ...] = ()

    @property
    def has_hanging_threads(self) -> bool:
        """Return True if threads are left that cannot be ended: the process should exit without waiting for them."""
        return bool(self.threads_left) or self.outcome == "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    """Facts about the app that runs a worker, for the start event; None for unknown ones."""

    name: str | None = None
    version: str | None = None  # of Penstock
    ledger: str | None = None  # its address without secrets, if the worker uses one


class WorkerLifecycle:
    """One call of `Worker.run`, from the first receive to the last settlement.

    `Worker.run` creates it and calls `run` in a thread of its own (the lifecycle's thread). The threads that it starts
    call the methods marked below.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        consumers: Sequence[Consumer],
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        probe: Probe,
        random: Random,
        liveness: Liveness,
        event_loop: EventLoop | None,
        address: str | None,
        metrics_address: str | None,
        facts: AppFacts,
        jobs: tuple[str, ...],
        stop: StopSignal,
        until: Until | None,
    ) -> None:
        self._broker = broker
        self._probe = probe
        self._settings = settings
        self._budget = settings.budget
        self._clock = clock
        self._bus = bus
        self._random = random
        self._liveness = liveness
        self._address = address
        self._metrics_address = metrics_address
        self._facts = facts
        self._job_names = jobs
        self._stop = stop
        self._until = until
        self._halting = threading.Lock()  # otherwise two consumers that halt at once count each other as served
        self._changes = threading.Event()  # wakes the lifecycle's thread
        self._wake = threading.Event()  # wakes the I/O thread
        self._left = threading.Event()  # set once the worker stops
        # Written by `penstock-start`: True while it waits between tries, and once it ends because the worker stops.
        self._start_waits = False
        self._met = False  # written by the I/O thread
        self._error: BaseException | None = None  # written once, by the thread that fails first
        self._refused: list[Delivery] = []  # deliveries that could not be released; appended to by the release threads
        self._closing = False  # this and the rest: written by the lifecycle's thread
        self._stacks_dumped = 0
        self._failure_emitted = False
        self._drain_ends_at: float | None = None
        self._stop_began_at: float | None = None
        self._releasing: Sequence[MachineryThread] = ()
        self._has_broken_off = False  # True if the stop ended a run that has its own thread
        self._threads_left: list[str] = []
        self._outcome: Outcome = "forced"

        self._lease_book = LeaseBook(clock=clock, lease_seconds=settings.lease_seconds, call_ended=self.wake_loop)
        self._settler = Settler(
            broker=broker,
            lease_book=self._lease_book,
            settings=settings,
            clock=clock,
            bus=bus,
            probe=probe,
            random=random,
        )
        self._pools = ExecutionPools(concurrency=settings.concurrency, ended=self.note_change, event_loop=event_loop)
        slots = Slots(settings.concurrency)
        first_poll_at = clock.monotonic() + settings.start_jitter_seconds * random()
        self._consumers = [self._served(consumer, slots=slots, poll_at=first_poll_at) for consumer in consumers]
        self._jobs = [job for served in self._consumers for job in served.jobs]
        self._loop = self._new_loop()
        self._heartbeat = self._new_heartbeat()
        liveness.consumers = self._consumer_health
        liveness.jobs = [job.sign for job in self._jobs]
        liveness.loop = lambda: self._pools.loop.loop
        self._io = self._thread("penstock-io", self._loop.run)
        self._beating = self._thread("penstock-heartbeat", self._heartbeat.run)
        self._draining = self._thread("penstock-drain", self._notify_of_drain)
        self._starting = self._thread(START_THREAD, self._start_consumers)

    def _new_loop(self) -> BrokerLoop:
        """Return the loop of the I/O thread, over all consumers."""
        return BrokerLoop(
            broker=self._broker,
            consumers=self._consumers,
            scheduler=QueueScheduler(
                consumers=self._consumers,
                settings=self._settings,
                clock=self._clock,
                bus=self._bus,
                random=self._random,
            ),
            arrivals=ArrivalFlag(
                broker=self._broker,
                queues=[served.consumer.queue for served in self._consumers],
                wake=self._wake,
            ),
            settler=self._settler,
            settings=self._settings,
            clock=self._clock,
            bus=self._bus,
            sign=self._liveness.io,
            wake=self._wake,
            until=self._until,
            on_end_condition=self.stop_at_end_condition,
            fail=self.fail,
        )

    def _new_heartbeat(self) -> Heartbeat:
        """Return the heartbeat, which extends all leases and claims."""
        return Heartbeat(
            broker=self._broker,
            lease_book=self._lease_book,
            claims=self._unended,
            settings=self._settings,
            clock=self._clock,
            bus=self._bus,
            random=self._random,
            sign=self._liveness.heartbeat,
        )

    def _served(self, consumer: Consumer, *, slots: Slots, poll_at: float) -> ServedConsumer:
        """Return a consumer with its buffer, executor and background jobs."""
        return ServedConsumer(
            consumer=consumer,
            prefetch=PrefetchBuffer(
                consumer=consumer,
                receive_max=self._broker.capabilities.receive_max,
                lease_book=self._lease_book,
                settings=self._settings,
                bus=self._bus,
                probe=self._probe,
            ),
            executor=Executor(
                consumer=consumer,
                pools=self._pools,
                slots=slots,
                settler=self._settler,
                settings=self._settings,
                clock=self._clock,
                bus=self._bus,
                random=self._random,
                on_free=self.wake_loop,
                fail=self.fail,
                halt=partial(self.halt, consumer.queue),
            ),
            jobs=[self._job(consumer, name, work) for name, work in consumer.handler.jobs().items()],
            poll_at=poll_at,
        )

    def _job(self, consumer: Consumer, name: str, work: Callable[[], object]) -> BackgroundJob:
        return BackgroundJob(
            handler=consumer.handler.name,
            job=name,
            work=work,
            follows_batches=self._until is not None,
            settings=self._settings,
            clock=self._clock,
            bus=self._bus,
            random=self._random,
            ended=self.wake_loop,
            halt=partial(self.halt, consumer.queue),
            fail=self.fail,
        )

    # Called by other threads

    def wake_loop(self) -> None:
        """Wake the I/O thread: a slot is free, or a settlement is due."""
        if not self._wake.is_set():  # cheaper than setting it for each message
            self._wake.set()
        if self._closing:
            self._changes.set()

    def stop_at_end_condition(self) -> None:
        """Stop the worker, since ``until`` returned True."""
        self._met = True
        self._changes.set()

    def fail(self, error: BaseException) -> None:
        """Stop the worker because of an error that no retry can fix; `conclusion` raises the first one.

        The worker releases everything at once, without a drain, unless the error is `RestartNeeded`.
        """
        self._error = self._error or error
        self._loop.leave()  # at once: no batch may begin in the slot that a failed batch frees
        self._changes.set()

    def halt(self, queue: str, error: BaseException) -> bool:
        """Stop serving a queue whose handler met an error that no retry can fix.

        Return False if that ends the worker at once: no other queue is served, or the worker runs until done and could
        never finish.
        """
        if isinstance(error, RestartNeeded):
            if not self._stop.requested:  # else its end is part of the stop, such as a signal to a group of processes
                self.fail(error)
            return True
        with self._halting:
            served = next(served for served in self._consumers if served.consumer.queue == queue)
            if served.halted:
                return True
            if self._until is not None or all(other.halted for other in self._consumers if other is not served):
                self.fail(error)
                return False
            served.halted = True
        reason = f"{type(error).__name__}: {error}"
        self._bus.emit(ConsumerHalted(queue=queue, handler=served.consumer.handler.name, error=reason))
        self.wake_loop()
        return True

    def note_change(self) -> None:
        """Note that a machinery thread has ended."""
        self._changes.set()

    # The phases, in order

    def run(self) -> None:
        """Run all phases in order."""
        try:
            with self._stop.watched_by(self._changes):
                self._serve()
                self._drain()
                unfinished = self._release_unfinished()
                self._close(unfinished)
        except BaseException as defect:
            self.fail(defect)
            with suppress(Exception):  # the listener itself may have raised, and would raise again
                self._emit_failure()
        finally:
            self._liveness.phase = Phase.STOPPING
            self._end_threads()

    def conclusion(self) -> WorkerOutcome:
        """Return the outcome; raise the error that ended the worker, if any."""
        if self._error is not None:
            raise self._error
        return WorkerOutcome(outcome=self._outcome, threads_left=tuple(self._threads_left))

    def _serve(self) -> None:
        queues = tuple(served.consumer.queue for served in self._consumers)
        self._bus.emit(
            WorkerStarted(
                queues=queues,
                concurrency=self._settings.concurrency,
                broker=self._address,
                metrics=self._metrics_address,
                weights={served.consumer.queue: served.consumer.weight for served in self._consumers},
                app=self._facts.name,
                version=self._facts.version,
                ledger=self._facts.ledger,
                jobs=self._job_names,
            )
        )
        self._beating.start()
        self._io.start()
        if any(served.awaits is not None for served in self._consumers):
            self._starting.start()
        else:
            self._starting.done = True
        self._liveness.phase = Phase.SERVING
        self._await(lambda: self._reason() is not None or self._stop.paused, self._never)
        if self._reason() is None:
            self._liveness.phase = Phase.PAUSED
            self._loop.pause()
            self._bus.emit(WorkerDraining(reason="pause requested", in_flight=self._in_flight()))
            self._await(lambda: self._reason() is not None, self._never)
        self._liveness.phase = Phase.STOPPING
        self._left.set()
        self._stop_began_at = self._clock.monotonic()
        in_flight = self._in_flight()
        self._loop.leave()
        self._emit_failure()
        self._bus.emit(WorkerDraining(reason=self._reason() or "", in_flight=in_flight))

    def _drain(self) -> None:
        """Let work and heartbeats continue until all is done, the deadline, a second stop request, or a failure."""
        self._draining.start()
        notified_by = self._clock.monotonic() + self._budget.intake_seconds
        self._await(lambda: self._draining.done or self._stop.urgent, lambda: notified_by)
        self._await(lambda: self._io.done or self._skips_drain, self._drain_deadline)

    def _release_unfinished(self) -> Sequence[Delivery]:
        """Release unfinished batches, and return their deliveries.

        Each run with its own thread is released separately, since one that hangs must not block the others. Batches
        that share the slots are released as a group.
        """
        seconds = self._budget.release_seconds
        deadline = self._clock.monotonic() + seconds
        alone: list[RunningBatch] = []
        group: list[RunningBatch] = []
        pending: list[RunningBatch] = []
        for served in self._consumers:
            for batch in served.executor.unsettled():
                # False: another thread ended it and waits for the ledger, so only its messages remain to be released.
                decided_here = batch.end()
                (pending if not decided_here else group if served.consumer.shares_slots else alone).append(batch)
        threads = [
            self._thread(f"penstock-release-{n}", partial(self._release_running, [batch], seconds))
            for n, batch in enumerate(alone, start=1)
        ]
        if group:
            threads.append(self._thread("penstock-release-group", partial(self._release_running, group, seconds)))
        if pending:
            threads.append(self._thread("penstock-release-pending", partial(self._release_pending, pending, seconds)))
        if not all(served.prefetch.empty for served in self._consumers):
            threads.append(self._thread("penstock-release-unstarted", partial(self._release_unstarted, seconds)))
        for thread in threads:
            thread.start()
        self._await(lambda: all(thread.done for thread in threads), lambda: deadline)
        self._releasing = threads
        self._has_broken_off = bool(alone)
        return [delivery for batch in (*alone, *group, *pending) for delivery in batch.deliveries]

    def _close(self, unfinished: Sequence[Delivery]) -> None:
        """Apply the last settlements, end the threads, and emit the outcome."""
        flush_ends_at = self._closing_ends_at(self._clock.monotonic())
        self._closing = True
        self._await(lambda: self._io.done and not self._running(), lambda: flush_ends_at - _UNWIND_SECONDS)
        unapplied = self._settler.unapplied()
        self._end_threads()
        own = (self._io, self._beating, self._draining, *self._releasing)
        pools = self._pools
        jobs = self._jobs
        self._await(
            lambda: all(thread.done for thread in own) and pools.done and not any(job.running for job in jobs),
            lambda: flush_ends_at,
        )
        self._leave_behind(thread.name for thread in own if not thread.done)
        self._leave_behind(self._running(shares_slots=False))
        forced = bool(self._threads_left or self._refused)
        # These threads do not make the outcome "forced": a user's function on a shared slot may continue after its
        # message was released, but holds nothing.
        self._leave_behind(self._running(shares_slots=True))
        self._leave_behind(() if pools.done else (LOOP_THREAD,))
        # The thread that starts prerequisites holds no message either.
        self._leave_behind(() if self._starting.done or self._start_waits else (START_THREAD,))
        for job in jobs:
            job.end()
        self._leave_behind(job.name for job in jobs if job.running)  # a background job holds no message
        self_released = [delivery for served in self._consumers for delivery in served.executor.released]
        returned = {delivery.receipt: delivery for delivery in (*unfinished, *unapplied, *self_released)}
        unsettled = {delivery.receipt: delivery for delivery in (*self._refused, *unapplied)}
        self._outcome = "forced" if forced else "interrupted" if returned else "drained"
        self._emit_failure()
        self._bus.emit(
            WorkerStopped(outcome=self._outcome, released=_message_ids(returned), unsettled=_message_ids(unsettled))
        )

    # Helpers of the phases

    def _closing_ends_at(self, now: float) -> float:
        """Return the end of the flush.

        If the stop ended runs with their own threads, the flush lasts for the rest of the stop timeout, unless the stop
        is urgent.
        """
        ends_at = now + self._budget.flush_seconds
        if self._stop_began_at is None or not self._has_broken_off or self._skips_drain:
            return ends_at
        return max(ends_at, self._stop_began_at + self._budget.stop_timeout_seconds - self._budget.margin_seconds)

    def _thread(self, name: str, work: Callable[[], object]) -> MachineryThread:
        return MachineryThread(name, work, changed=self.note_change, fail=self.fail)

    def _start_consumers(self) -> None:
        """Start the prerequisites of consumers, one after another, with backoff after temporary faults.

        Errors are ignored once the worker stops.
        """
        waiting = [served for served in self._consumers if served.consumer.start is not None]
        tries = 0
        while waiting and not self._is_stopping():
            waiting = [served for served in waiting if not (self._is_stopping() or self._try_start(served))]
            tries += 1
            if waiting:
                self._start_waits = True
                self._clock.wait(self._left, self._settings.backoff_seconds(tries, self._random))
                self._start_waits = self._is_stopping()

    def _try_start(self, served: ServedConsumer) -> bool:
        """Start the prerequisite of one consumer; return False to try again."""
        assert served.consumer.start is not None, "the consumer has a prerequisite"
        try:
            served.consumer.start.run()
        except TemporaryError as error:
            if not self._is_stopping():
                name = served.consumer.handler.name
                self._bus.emit(JobFailed(job=name, error=f"{type(error).__name__}: {error}"))
            return False
        except BaseException as error:
            if self._is_stopping():
                return True
            if not isinstance(error, UserError):
                raise
            self.halt(served.consumer.queue, error)
        else:
            served.started = True
            self.wake_loop()
        return True

    def _is_stopping(self) -> bool:
        return self._reason() is not None

    def _notify_of_drain(self) -> None:
        for served in self._consumers:
            served.executor.drain()

    def _unended(self) -> Sequence[RunningBatch]:
        """Return the batches without an outcome so far."""
        return [batch for served in self._consumers for batch in served.executor.unended()]

    def _consumer_health(self) -> Sequence[ConsumerHealth]:
        """Return the current health of each consumer. Thread-safe."""
        leased = Counter(delivery.queue for delivery in self._lease_book.deliveries())
        to_wall = self._clock.now() - self._clock.monotonic()
        return [
            ConsumerHealth(
                queue=served.consumer.queue,
                in_flight=leased[served.consumer.queue],
                slots=served.consumer.executions_max(self._settings),
                polled_at=None if served.polled_at is None else served.polled_at + to_wall,
                halted=served.halted,
                awaits=served.awaits,
            )
            for served in self._consumers
        ]

    def _in_flight(self) -> int:
        return sum(len(batch.deliveries) for batch in self._unended())

    def _running(self, *, shares_slots: bool | None = None) -> Sequence[str]:
        """Return the names of working threads, of all consumers or of one kind."""
        return [
            name
            for served in self._consumers
            if shares_slots in (None, served.consumer.shares_slots)
            for name in served.executor.running()
        ]

    def _reason(self) -> str | None:
        """Return the reason to stop, or None."""
        if self._error is not None:
            return "a failure"  # reported by `_emit_failure`
        if self._stop.requested:
            return self._stop.signal_name or "stop requested"
        if self._met:
            return "done"
        return None

    @property
    def _skips_drain(self) -> bool:
        """Return True if unfinished messages must be released without a drain."""
        return self._stop.urgent or not (self._error is None or isinstance(self._error, RestartNeeded))

    def _drain_deadline(self) -> float:
        """Return the end of the drain. A worker that is done has no deadline until a stop is requested."""
        if self._drain_ends_at is None and (self._stop.requested or self._error is not None):
            self._drain_ends_at = self._clock.monotonic() + self._budget.drain_seconds
        return self._never() if self._drain_ends_at is None else self._drain_ends_at

    def _release_running(self, batches: Sequence[RunningBatch], seconds: float) -> None:
        self._refused += release_running(
            batches=batches,
            lease_book=self._lease_book,
            settler=self._settler,
            clock=self._clock,
            bus=self._bus,
            seconds=seconds,
        )

    def _release_pending(self, batches: Sequence[RunningBatch], seconds: float) -> None:
        """Release the messages of batches that still wait for the ledger, after waiting a short time with them."""
        self._refused += release_pending(
            batches=batches,
            lease_book=self._lease_book,
            settler=self._settler,
            clock=self._clock,
            seconds=seconds,
        )

    def _release_unstarted(self, seconds: float) -> None:
        """Release messages that were not begun, if the I/O thread has not done so (a poll may block it)."""
        deadline = self._clock.monotonic() + seconds * BROKER_SHARE
        unstarted = [delivery for served in self._consumers for delivery in served.prefetch.take_all()]
        self._lease_book.unregister(unstarted, wait_seconds=seconds * LEASE_BOOK_SHARE)
        settlements = [(delivery, UNCOUNTED) for delivery in unstarted]
        self._refused += self._settler.settle_by(settlements, deadline=deadline)

    def _end_threads(self) -> None:
        """Ask all threads to end; does not wait."""
        self._left.set()
        self._loop.quit()
        self._heartbeat.end()
        self._pools.close()

    def _leave_behind(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._threads_left:
                self._threads_left.append(name)
                self._bus.emit(ThreadLeftBehind(thread=name))

    def _await(self, condition: Callable[[], bool], deadline: Callable[[], float]) -> bool:
        """Wait until ``condition`` or the deadline (monotonic); return False if the deadline passed first."""
        while True:
            self._changes.clear()
            self._dump_stacks()
            if condition():
                return True
            seconds = deadline() - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._clock.wait(self._changes, min(seconds, _WAIT_SECONDS_MAX))

    def _emit_failure(self) -> None:
        """Emit the failure that ends the worker, once, when it is noticed and at the latest before the final event."""
        if self._error is None or self._failure_emitted:
            return
        self._failure_emitted = True
        failure = end_of(self._error)
        self._bus.emit(WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback))

    def _dump_stacks(self) -> None:
        requests = self._stop.stacks_requested
        if requests != self._stacks_dumped:
            self._stacks_dumped = requests
            self._bus.emit(StacksDumped(stacks=stacks(self._pools.loop.loop)))

    @staticmethod
    def _never() -> float:
        return float("inf")


def _message_ids(deliveries: Mapping[str, Delivery]) -> tuple[str, ...]:
    return tuple(delivery.message.id for delivery in deliveries.values())
