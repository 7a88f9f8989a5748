"""One life of a worker: serve, drain, give back, close.

What happens in each thread is in its own module; here is who starts when, who waits for whom, and for how long.

A thread of the worker's own machinery, whose end and whose failure are heard of.

What every thread and every task is doing, in words. Without local variables: they hold secrets.
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
    """One such thread. A daemon: one that hangs is left behind."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        changed: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.done = False  # written by the thread itself
        self._work = work
        self._changed = changed
        self._fail = fail

    def start(self) -> None:
        """Begin."""
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
    """The stacks of all threads by name, and of all tasks of the loop. May be asked while the loop is blocked."""
    return "\n".join([*_threads(), *(() if loop is None else _tasks(loop))])


def _threads() -> Iterator[str]:
    frames = sys._current_frames()  # the one way to see other threads' stacks
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield f"Thread {thread.name}:\n" + "".join(traceback.format_stack(frame))


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:  # says the library after a thousand tries
        yield "Tasks: they come and go too fast to be listed\n"
        return
    for task in tasks:
        lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(task.get_coro())).format()
        yield f"Task {task.get_name()}:\n" + "".join(lines)


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """From the task's own function down to where it awaits; `Task.get_stack` shows the first of them only."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


Outcome = Literal["drained", "given_back", "forced"]

START_THREAD = "penstock-start"

_WAIT_SECONDS_MAX = 60.0  # a bound for waits that an event ends
_UNWIND_SECONDS = 0.5  # of the flush: for threads that were told to end


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """How a worker ended. With ``threads_left``, or forced, the process has to be left by `os._exit`."""

    outcome: Outcome
    threads_left: tuple[str, ...] = ()


class WorkerLifecycle:
    """One call of `Worker.run`, from the first receive to the last settlement."""

    def __init__(self, tools: WorkerTools, stop: StopSignal, until: Until | None) -> None:
        self._tools = tools
        self._budget = tools.settings.budget
        self._clock = tools.clock
        self._bus = tools.bus
        self._pulse = tools.pulse
        self._stop = stop
        self._until = until
        self._halting = threading.Lock()  # so that two lines halted at once cannot each take the other for living
        self._news = threading.Event()  # wakes the thread that lives this shift
        self._wake = threading.Event()  # wakes the I/O thread
        self._left = threading.Event()  # set once the worker leaves
        self._start_rests = False  # written by the thread that starts lines: it waits, or ends since the worker leaves
        self._met = False  # written by the I/O thread
        self._error: BaseException | None = None  # written once, by whoever fails first
        self._refused: list[Delivery] = []  # what could not be given back; appended to by helpers
        self._closing = False  # this and the rest: written by the shift's own thread
        self._stacks_told = 0
        self._failure_told = False
        self._drain_ends_at: float | None = None
        self._stop_began_at: float | None = None
        self._releasing: Sequence[MachineryThread] = ()
        self._broken_off = False  # a run in a thread of its own
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

    # Told by other threads

    def freed(self) -> None:
        """A place is free, or something is to be settled."""
        if not self._wake.is_set():  # which costs less than setting it, once for each message
            self._wake.set()
        if self._closing:
            self._news.set()

    def until_met(self) -> None:
        """The worker has done what it was started for."""
        self._met = True
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Something that no further try can mend; the first one is raised in the end. The worker releases everything at
        once, without a drain, unless the error is `RestartNeeded`."""
        self._error = self._error or error
        self._parts.loop.leave()  # at once: nothing more is to begin in the place that a failed batch leaves
        self._news.set()

    def halt(self, queue: str, error: BaseException) -> bool:
        """A handler met what no further try can mend: its queue is served no more. False where that ends the worker at
        once: it was the last one, or the worker is to finish and never could."""
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
        """A helper thread is at its end."""
        self._news.set()

    # The order of a life

    def live(self) -> None:
        """Everything, in order."""
        try:
            with self._stop.watched_by(self._news):
                self._serve()
                self._drain()
                given_back = self._give_back()
                self._close(given_back)
        except BaseException as defect:
            self.fail(defect)
            with suppress(Exception):  # it may be the listener that raised, and would again
                self._tell_failure()
        finally:
            self._pulse.phase = Phase.STOPPING
            self._end_threads()

    def conclusion(self) -> WorkerOutcome:
        """How it ended; raises what ended it."""
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
        """Work goes on, heartbeats go on; until all is done, the deadline, a second request or a failure."""
        self._telling.start()
        told_by = self._clock.monotonic() + self._budget.intake_seconds
        self._await(lambda: self._telling.done or self._stop.urgent, lambda: told_by)
        self._await(lambda: self._io.done or self._skips_drain, self._drain_deadline)

    def _give_back(self) -> Sequence[Delivery]:
        """Give back what is unfinished: runs in threads of their own each by itself, since one that hangs must not hold
        the others; what shares the slots as one group. Answers the deliveries of the batches that were broken off.
        """
        seconds = self._budget.release_seconds
        deadline = self._clock.monotonic() + seconds
        alone: list[RunningBatch] = []
        group: list[RunningBatch] = []
        pending: list[RunningBatch] = []
        for served in self._parts.lines:
            for flight in served.executors.unsettled():
                # Ended by somebody who waits for the ledger: all that is left to do is to release its messages.
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
        """The last settlements, the last threads, the last word."""
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
        # A user's function on a shared place that goes on after its message was given back holds nothing any more.
        self._leave_behind(self._running(shares_slots=True))
        self._leave_behind(() if places.done else (LOOP_THREAD,))
        self._leave_behind(() if self._starting.done or self._start_rests else (START_THREAD,))  # as for an upkeep
        for upkeep in upkeeps:
            upkeep.end()
        self._leave_behind(upkeep.name for upkeep in upkeeps if upkeep.running)  # it holds nothing of a message
        gave_back = [delivery for served in self._parts.lines for delivery in served.executors.gave_back]
        returned = {delivery.receipt: delivery for delivery in (*given_back, *unapplied, *gave_back)}
        unsettled = {delivery.receipt: delivery for delivery in (*self._refused, *unapplied)}
        self._outcome = "forced" if forced else "given_back" if returned else "drained"
        self._tell_failure()
        self._bus.emit(
            WorkerStopped(outcome=self._outcome, given_back=_message_ids(returned), unsettled=_message_ids(unsettled))
        )

    # Steps of these

    def _closing_ends_at(self, now: float) -> float:
        """Runs in threads of their own that were broken off get what the stop timeout has left, unless the stop is
        urgent."""
        ends_at = now + self._budget.flush_seconds
        if self._stop_began_at is None or not self._broken_off or self._skips_drain:
            return ends_at
        return max(ends_at, self._stop_began_at + self._budget.stop_timeout_seconds - self._budget.margin_seconds)

    def _helper(self, name: str, work: Callable[[], object]) -> MachineryThread:
        return MachineryThread(name, work, changed=self.changed, fail=self.fail)

    def _start_lines(self) -> None:
        """Start what lines wait for, one after another; try again, with growing waits, after a temporary fault. Errors
        are ignored once the worker stops."""
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
        """Start what one line waits for; return False if it is to be tried again."""
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
        """The names of threads at work, of all lines or of one kind."""
        return [
            name
            for served in self._parts.lines
            if shares_slots in (None, served.line.shares_slots)
            for name in served.executors.running()
        ]

    def _reason(self) -> str | None:
        """Why to leave, if there is a reason."""
        if self._error is not None:
            return "a failure"  # told of by itself
        if self._stop.requested:
            return self._stop.signal_name or "asked to stop"
        if self._met:
            return "done"
        return None

    @property
    def _skips_drain(self) -> bool:
        """Return True if unfinished messages are to be released without a drain."""
        return self._stop.urgent or not (self._error is None or isinstance(self._error, RestartNeeded))

    def _drain_deadline(self) -> float:
        """A worker that leaves because it is done has all the time it needs, until somebody asks it to stop."""
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
        """Release what was ended before and waits for the ledger, with little time left for it to answer."""
        self._refused += release_pending(
            flights=flights, book=self._parts.book, settler=self._parts.settler, clock=self._clock, seconds=seconds
        )

    def _put_back(self, seconds: float) -> None:
        """What nobody began, when the I/O thread has not come to it (a poll may hold it)."""
        deadline = self._clock.monotonic() + seconds * BROKER_SHARE
        unstarted = [delivery for served in self._parts.lines for delivery in served.intake.take_all()]
        self._parts.book.unregister(unstarted, wait_seconds=seconds * BOOK_SHARE)
        settlements = [(delivery, UNSTARTED) for delivery in unstarted]
        self._refused += self._parts.settler.settle_by(settlements, deadline=deadline)

    def _end_threads(self) -> None:
        """Tell all threads to end; waits for none."""
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
        """Wait until it is over or the deadline (monotonic) has come; answers whether it is over."""
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
        """Say once what ends the worker: when it is noticed, and at the latest before the last word."""
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
