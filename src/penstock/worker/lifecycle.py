"""The lifecycle of a worker: serve, drain, release, close.

- `MachineryThread`: a thread of the worker itself, whose end and failure the lifecycle observes
- `stacks`: the current stacks of all threads and tasks, without local variables, which may hold secrets
- `WorkerLifecycle`: starts the threads in order, and bounds each wait for them

The work of each thread is in its own module.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Literal

from penstock.errors import RestartNeeded, TemporaryError, UserError
from penstock.events import (
    LineHalted,
    StacksDumped,
    ThreadLeftBehind,
    UpkeepFailed,
    WorkerDraining,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from penstock.messaging.backoff import backoff_seconds
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import end_of
from penstock.worker.broker_loop import Until
from penstock.worker.liveness import Phase
from penstock.worker.pools import LOOP_THREAD
from penstock.worker.queue_scheduler import ServedLine
from penstock.worker.running_batch import RunningBatch
from penstock.worker.shutdown import BOOK_SHARE, BROKER_SHARE, UNSTARTED, StopSignal, give_back, release_pending
from penstock.worker.wiring import WorkerCallbacks, WorkerParts, WorkerTools


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


def stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return the stacks of all threads by name, and of all tasks of the loop. Works while the loop is blocked."""
    return "\n".join([*_threads(), *(() if loop is None else _tasks(loop))])


def _threads() -> Iterator[str]:
    frames = sys._current_frames()  # the only way to see the stacks of other threads
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield f"Thread {thread.name}:\n" + "".join(traceback.format_stack(frame))


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:  # asyncio gives up after a thousand tries
        yield "Tasks: they come and go too fast to be listed\n"
        return
    for task in tasks:
        lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(task.get_coro())).format()
        yield f"Task {task.get_name()}:\n" + "".join(lines)


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames from the task's own function down to its await; `Task.get_stack` returns only the first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


Outcome = Literal["drained", "given_back", "forced"]

START_THREAD = "penstock-start"

_WAIT_SECONDS_MAX = 60.0  # upper bound for waits that an event ends
_UNWIND_SECONDS = 0.5  # part of the flush: time for interrupted threads to end


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """The outcome of a worker run. If it is forced or names threads left, the process must end with `os._exit`."""

    outcome: Outcome
    threads_left: tuple[str, ...] = ()


class WorkerLifecycle:
    """One call of `Worker.run`, from the first receive to the last settlement. Its own thread calls `live`."""

    def __init__(self, tools: WorkerTools, stop: StopSignal, until: Until | None) -> None:
        self._tools = tools
        self._budget = tools.settings.budget
        self._clock = tools.clock
        self._bus = tools.bus
        self._pulse = tools.pulse
        self._stop = stop
        self._until = until
        # So that two consumers halted at once do not each count the other as still served.
        self._halting = threading.Lock()
        self._news = threading.Event()  # wakes the lifecycle's thread
        self._wake = threading.Event()  # wakes the I/O thread
        self._left = threading.Event()  # set once the worker stops
        # Written by `penstock-start`: it waits between tries, or ends because the worker stops.
        self._start_rests = False
        self._met = False  # written by the I/O thread
        self._error: BaseException | None = None  # written once, by the thread that fails first
        self._refused: list[Delivery] = []  # deliveries that could not be released; appended to by the release threads
        self._closing = False  # this and the rest: written by the lifecycle's thread
        self._stacks_told = 0
        self._failure_told = False
        self._drain_ends_at: float | None = None
        self._stop_began_at: float | None = None
        self._releasing: Sequence[MachineryThread] = ()
        self._broken_off = False  # whether a run in its own thread was ended by the stop
        self._threads_left: list[str] = []
        self._outcome: Outcome = "forced"
        calls = WorkerCallbacks(
            freed=self.freed, changed=self.changed, until_met=self.until_met, fail=self.fail, halt=self.halt
        )
        self._parts = WorkerParts(tools, calls, wake=self._wake, until=until)
        self._pulse.lines = self._parts.standings
        self._pulse.upkeeps = [upkeep.sign for upkeep in self._parts.upkeeps()]
        self._pulse.loop = lambda: self._parts.places.loop.loop
        self._io = self._helper("penstock-io", self._parts.loop.run)
        self._beating = self._helper("penstock-heartbeat", self._parts.heartbeat.run)
        self._telling = self._helper("penstock-drain", self._tell_drain)
        self._starting = self._helper(START_THREAD, self._start_lines)

    # Called by other threads

    def freed(self) -> None:
        """Wake the I/O thread: a slot is free, or a settlement is due."""
        if not self._wake.is_set():  # cheaper than setting it for each message
            self._wake.set()
        if self._closing:
            self._news.set()

    def until_met(self) -> None:
        """Stop the worker, since ``until`` returned True."""
        self._met = True
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Stop the worker because of an error that no retry can fix; `conclusion` raises the first one.

        The worker releases everything at once, without a drain, unless the error is `RestartNeeded`.
        """
        self._error = self._error or error
        self._parts.loop.leave()  # at once: no batch may begin in the slot that a failed batch frees
        self._news.set()

    def halt(self, queue: str, error: BaseException) -> bool:
        """Stop serving a queue whose handler met an error that no retry can fix.

        Return False if that ends the worker at once: no other queue is served, or the worker runs until done and could
        never finish.
        """
        if isinstance(error, RestartNeeded):
            self.fail(error)
            return True
        with self._halting:
            served = next(served for served in self._parts.lines if served.line.queue == queue)
            if served.halted:
                return True
            if self._until is not None or all(one.halted for one in self._parts.lines if one is not served):
                self.fail(error)
                return False
            served.halted = True
        told = f"{type(error).__name__}: {error}"
        self._bus.emit(LineHalted(queue=queue, handler=served.line.handler.name, error=told))
        self.freed()
        return True

    def changed(self) -> None:
        """Note that a machinery thread has ended."""
        self._news.set()

    # The phases, in order

    def live(self) -> None:
        """Run all phases in order."""
        try:
            with self._stop.watched_by(self._news):
                self._serve()
                self._drain()
                given_back = self._give_back()
                self._close(given_back)
        except BaseException as defect:
            self.fail(defect)
            with suppress(Exception):  # the listener itself may have raised, and would raise again
                self._tell_failure()
        finally:
            self._pulse.phase = Phase.STOPPING
            self._end_threads()

    def conclusion(self) -> WorkerOutcome:
        """Return the outcome; raise the error that ended the worker, if any."""
        if self._error is not None:
            raise self._error
        return WorkerOutcome(outcome=self._outcome, threads_left=tuple(self._threads_left))

    def _serve(self) -> None:
        queues = tuple(line.queue for line in self._tools.lines)
        self._bus.emit(
            WorkerStarted(
                queues=queues,
                concurrency=self._tools.settings.concurrency,
                broker=self._tools.address,
                metrics=self._tools.metrics_address,
            )
        )
        self._beating.start()
        self._io.start()
        if any(served.awaits is not None for served in self._parts.lines):
            self._starting.start()
        else:
            self._starting.done = True
        self._pulse.phase = Phase.SERVING
        self._await(lambda: self._reason() is not None or self._stop.paused, self._never)
        if self._reason() is None:
            self._pulse.phase = Phase.PAUSED
            self._parts.loop.pause()
            self._bus.emit(WorkerDraining(reason="asked to pause", in_flight=self._in_flight()))
            self._await(lambda: self._reason() is not None, self._never)
        self._pulse.phase = Phase.STOPPING
        self._left.set()
        self._stop_began_at = self._clock.monotonic()
        in_flight = self._in_flight()
        self._parts.loop.leave()
        self._tell_failure()
        self._bus.emit(WorkerDraining(reason=self._reason() or "", in_flight=in_flight))

    def _drain(self) -> None:
        """Let work and heartbeats continue until all is done, the deadline passes, or a second request or a failure."""
        self._telling.start()
        told_by = self._clock.monotonic() + self._budget.intake_seconds
        self._await(lambda: self._telling.done or self._stop.urgent, lambda: told_by)
        self._await(lambda: self._io.done or self._skips_drain, self._drain_deadline)

    def _give_back(self) -> Sequence[Delivery]:
        """Release unfinished batches, and return their deliveries.

        Each run with its own thread is released separately, since one that hangs must not block the others. Batches
        that share the slots are released as a group.
        """
        seconds = self._budget.release_seconds
        deadline = self._clock.monotonic() + seconds
        alone: list[RunningBatch] = []
        group: list[RunningBatch] = []
        pending: list[RunningBatch] = []
        for served in self._parts.lines:
            for flight in served.executors.unsettled():
                # False: another thread ended it and waits for the ledger, so only its messages remain to be released.
                mine = flight.end()
                (pending if not mine else group if served.line.shares_slots else alone).append(flight)
        helpers = [
            self._helper(f"penstock-give-back-{n}", partial(self._give_back_flights, [flight], seconds))
            for n, flight in enumerate(alone, start=1)
        ]
        if group:
            helpers.append(self._helper("penstock-give-back-group", partial(self._give_back_flights, group, seconds)))
        if pending:
            helpers.append(self._helper("penstock-give-back-pending", partial(self._release_pending, pending, seconds)))
        if not all(served.intake.empty for served in self._parts.lines):
            helpers.append(self._helper("penstock-give-back-unstarted", partial(self._put_back, seconds)))
        for helper in helpers:
            helper.start()
        self._await(lambda: all(helper.done for helper in helpers), lambda: deadline)
        self._releasing = helpers
        self._broken_off = bool(alone)
        return [delivery for flight in (*alone, *group, *pending) for delivery in flight.deliveries]

    def _close(self, given_back: Sequence[Delivery]) -> None:
        """Apply the last settlements, end the threads, and emit the outcome."""
        flush_ends_at = self._closing_ends_at(self._clock.monotonic())
        self._closing = True
        self._await(lambda: self._io.done and not self._running(), lambda: flush_ends_at - _UNWIND_SECONDS)
        unapplied = self._parts.settler.unapplied()
        self._end_threads()
        own = (self._io, self._beating, self._telling, *self._releasing)
        places = self._parts.places
        upkeeps = self._parts.upkeeps()
        self._await(
            lambda: all(helper.done for helper in own) and places.done and not any(one.running for one in upkeeps),
            lambda: flush_ends_at,
        )
        self._leave_behind(helper.name for helper in own if not helper.done)
        self._leave_behind(self._running(shares_slots=False))
        forced = bool(self._threads_left or self._refused)
        # These threads do not make the outcome "forced": a user's function on a shared slot that continues after the
        # release of its message holds nothing any more.
        self._leave_behind(self._running(shares_slots=True))
        self._leave_behind(() if places.done else (LOOP_THREAD,))
        # Holds no message either.
        self._leave_behind(() if self._starting.done or self._start_rests else (START_THREAD,))
        for upkeep in upkeeps:
            upkeep.end()
        self._leave_behind(upkeep.name for upkeep in upkeeps if upkeep.running)  # holds no message
        gave_back = [delivery for served in self._parts.lines for delivery in served.executors.gave_back]
        returned = {delivery.receipt: delivery for delivery in (*given_back, *unapplied, *gave_back)}
        unsettled = {delivery.receipt: delivery for delivery in (*self._refused, *unapplied)}
        self._outcome = "forced" if forced else "given_back" if returned else "drained"
        self._tell_failure()
        self._bus.emit(
            WorkerStopped(outcome=self._outcome, given_back=_message_ids(returned), unsettled=_message_ids(unsettled))
        )

    # Helpers of the phases

    def _closing_ends_at(self, now: float) -> float:
        """Return the end of the flush.

        If the stop ended runs with their own threads, the flush lasts for the rest of the stop timeout, unless the stop
        is urgent.
        """
        ends_at = now + self._budget.flush_seconds
        if self._stop_began_at is None or not self._broken_off or self._skips_drain:
            return ends_at
        return max(ends_at, self._stop_began_at + self._budget.stop_timeout_seconds - self._budget.margin_seconds)

    def _helper(self, name: str, work: Callable[[], object]) -> MachineryThread:
        return MachineryThread(name, work, changed=self.changed, fail=self.fail)

    def _start_lines(self) -> None:
        """Start the prerequisites of consumers, one after another. Retry with exponential backoff after temporary
        faults.

        Errors are ignored once the worker stops.
        """
        waiting = [served for served in self._parts.lines if served.line.start is not None]
        tries = 0
        while waiting and not self._is_stopping():
            waiting = [served for served in waiting if not (self._is_stopping() or self._try_start(served))]
            tries += 1
            if waiting:
                seconds = backoff_seconds(
                    attempt=tries,
                    base_seconds=self._tools.settings.backoff_base_seconds,
                    cap_seconds=self._tools.settings.backoff_cap_seconds,
                    random=self._tools.random,
                )
                self._start_rests = True
                self._clock.wait(self._left, seconds)
                self._start_rests = self._is_stopping()

    def _try_start(self, served: ServedLine) -> bool:
        """Start the prerequisite of one consumer; return False to try again."""
        assert served.line.start is not None, "the line waits for something"
        try:
            served.line.start.run()
        except TemporaryError as error:
            if not self._is_stopping():
                name = served.line.handler.name
                self._bus.emit(UpkeepFailed(handler=name, error=f"{type(error).__name__}: {error}"))
            return False
        except BaseException as error:
            if self._is_stopping():
                return True
            if not isinstance(error, UserError):
                raise
            self.halt(served.line.queue, error)
        else:
            served.started = True
            self.freed()
        return True

    def _is_stopping(self) -> bool:
        return self._reason() is not None

    def _tell_drain(self) -> None:
        for served in self._parts.lines:
            served.executors.drain()

    def _in_flight(self) -> int:
        return sum(len(flight.deliveries) for flight in self._parts.unended())

    def _running(self, *, shares_slots: bool | None = None) -> Sequence[str]:
        """Return the names of working threads, of all consumers or of one kind."""
        return [
            name
            for served in self._parts.lines
            if shares_slots in (None, served.line.shares_slots)
            for name in served.executors.running()
        ]

    def _reason(self) -> str | None:
        """Return the reason to stop, or None."""
        if self._error is not None:
            return "a failure"  # reported by `_tell_failure`
        if self._stop.requested:
            return self._stop.signal_name or "asked to stop"
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

    def _give_back_flights(self, flights: Sequence[RunningBatch], seconds: float) -> None:
        self._refused += give_back(
            flights=flights,
            book=self._parts.book,
            settler=self._parts.settler,
            clock=self._clock,
            bus=self._bus,
            seconds=seconds,
        )

    def _release_pending(self, flights: Sequence[RunningBatch], seconds: float) -> None:
        """Release the messages of ended batches whose outcome the ledger has not recorded yet, after a short wait for
        it.
        """
        self._refused += release_pending(
            flights=flights, book=self._parts.book, settler=self._parts.settler, clock=self._clock, seconds=seconds
        )

    def _put_back(self, seconds: float) -> None:
        """Release messages that were not begun, if the I/O thread has not done so (a poll may block it)."""
        deadline = self._clock.monotonic() + seconds * BROKER_SHARE
        unstarted = [delivery for served in self._parts.lines for delivery in served.intake.take_all()]
        self._parts.book.unregister(unstarted, wait_seconds=seconds * BOOK_SHARE)
        settlements = [(delivery, UNSTARTED) for delivery in unstarted]
        self._refused += self._parts.settler.settle_by(settlements, deadline=deadline)

    def _end_threads(self) -> None:
        """Ask all threads to end; does not wait."""
        self._left.set()
        self._parts.loop.quit()
        self._parts.heartbeat.end()
        self._parts.places.close()

    def _leave_behind(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._threads_left:
                self._threads_left.append(name)
                self._bus.emit(ThreadLeftBehind(thread=name))

    def _await(self, over: Callable[[], bool], deadline: Callable[[], float]) -> bool:
        """Wait until ``over`` or the deadline (monotonic); return True if it is over."""
        while True:
            self._news.clear()
            self._tell_stacks()
            if over():
                return True
            seconds = deadline() - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._clock.wait(self._news, min(seconds, _WAIT_SECONDS_MAX))

    def _tell_failure(self) -> None:
        """Emit the failure that ends the worker once: when it is noticed, at the latest before the final event."""
        if self._error is None or self._failure_told:
            return
        self._failure_told = True
        failure = end_of(self._error)
        self._bus.emit(WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback))

    def _tell_stacks(self) -> None:
        asked = self._stop.stacks_asked
        if asked != self._stacks_told:
            self._stacks_told = asked
            self._bus.emit(StacksDumped(stacks=stacks(self._parts.places.loop.loop)))

    @staticmethod
    def _never() -> float:
        return float("inf")


def _message_ids(deliveries: Mapping[str, Delivery]) -> tuple[str, ...]:
    return tuple(delivery.message.id for delivery in deliveries.values())
