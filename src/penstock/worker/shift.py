"""One life of a worker: serve, drain, give back, close.

What happens in each thread is in its own module; here is who starts when, who waits for whom, and for how long.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from penstock.events import Bus, ThreadLeftBehind, WorkerDraining, WorkerStopped
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import BatchHandler
from penstock.messaging.steps import Probe
from penstock.messaging.waits import Random
from penstock.worker.executors import Executors, Flight
from penstock.worker.heartbeat import Book, Heartbeat
from penstock.worker.intake import Intake
from penstock.worker.loop import Loop, Until
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler
from penstock.worker.shutdown import UNSTARTED, StopSignal, give_back

Outcome = Literal["drained", "given_back", "forced"]

_WAIT_SECONDS_MAX = 60.0  # a bound for waits that an event ends
_UNWIND_SECONDS = 0.5  # of the flush: for threads that were told to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a worker was given, and how its parts are made of it."""

    broker: Broker
    queue: str
    handler: BatchHandler
    settings: WorkerSettings
    clock: Clock
    bus: Bus
    probe: Probe
    random: Random

    def settler(self, book: Book) -> Settler:
        """The place where deliveries end."""
        return Settler(
            broker=self.broker,
            book=book,
            settings=self.settings,
            clock=self.clock,
            bus=self.bus,
            probe=self.probe,
            random=self.random,
        )

    def executors(
        self, settler: Settler, *, freed: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> Executors:
        """The places where batches run."""
        return Executors(
            handler=self.handler,
            settler=settler,
            settings=self.settings,
            clock=self.clock,
            bus=self.bus,
            random=self.random,
            freed=freed,
            fail=fail,
        )

    def intake(self, book: Book) -> Intake:
        """The place where deliveries wait to begin."""
        return Intake(
            broker=self.broker,
            queue=self.queue,
            book=book,
            weigh=self.handler.weigh,
            settings=self.settings,
            probe=self.probe,
        )

    def heartbeat(self, book: Book, executors: Executors) -> Heartbeat:
        """The loop that keeps leases and claims."""
        return Heartbeat(
            broker=self.broker,
            queue=self.queue,
            book=book,
            claims=executors.unended,
            settings=self.settings,
            clock=self.clock,
            bus=self.bus,
            random=self.random,
        )


class Shift:
    """One call of `Worker.run`, from the first receive to the last settlement."""

    def __init__(self, tools: Tools, stop: StopSignal, until: Until | None) -> None:
        self._tools = tools
        self._budget = tools.settings.budget
        self._clock = tools.clock
        self._bus = tools.bus
        self._stop = stop
        self._control = threading.Event()  # wakes the thread that lives this shift
        self._wake = threading.Event()  # wakes the I/O thread
        self._met = False  # written by the I/O thread
        self._error: BaseException | None = None  # written once, by whoever fails first
        self._drain_ends_at: float | None = None  # written by the shift's own thread, as is the outcome
        self._outcome: Outcome = "forced"
        self._book = Book(clock=tools.clock, lease_seconds=tools.settings.lease_seconds)
        self._settler = tools.settler(self._book)
        self._executors = tools.executors(self._settler, freed=self.freed, fail=self.fail)
        self._intake = tools.intake(self._book)
        self._loop = Loop(
            queue=tools.queue,
            handler=tools.handler,
            intake=self._intake,
            executors=self._executors,
            settler=self._settler,
            settings=tools.settings,
            clock=tools.clock,
            bus=tools.bus,
            random=tools.random,
            wake=self._wake,
            until=until,
            until_met=self.until_met,
            fail=self.fail,
        )
        self._heartbeat = tools.heartbeat(self._book, self._executors)
        self._io = _Helper("penstock-io", self._loop.run, self)
        self._beating = _Helper("penstock-heartbeat", self._heartbeat.run, self)

    # Told by other threads

    def freed(self) -> None:
        """An execution came to its end."""
        self._wake.set()
        self._control.set()

    def until_met(self) -> None:
        """The worker has done what it was started for."""
        self._met = True
        self._control.set()

    def fail(self, error: BaseException) -> None:
        """Something that no further try can mend; the first one is raised in the end."""
        self._error = self._error or error
        self._loop.leave()  # at once: nothing more is to begin in the place that a failed batch leaves
        self._control.set()

    def changed(self) -> None:
        """A helper thread is at its end."""
        self._control.set()

    # The order of a life

    def live(self) -> None:
        """Everything, in order."""
        try:
            with self._stop.watched_by(self._control):
                self._serve()
                self._drain()
                given_back = self._give_back()
                self._close(given_back)
        except BaseException as defect:
            self.fail(defect)
        finally:
            self._loop.quit()
            self._heartbeat.end()

    def conclusion(self) -> Outcome:
        """How it ended; raises what ended it."""
        if self._error is not None:
            raise self._error
        return self._outcome

    def _serve(self) -> None:
        self._beating.start()
        self._io.start()
        self._await(lambda: self._reason() is not None, self._never)
        in_flight = sum(len(flight.deliveries) for flight in self._executors.unended())
        self._loop.leave()
        self._bus.emit(WorkerDraining(reason=self._reason() or "", in_flight=in_flight))

    def _drain(self) -> None:
        """Work goes on, heartbeats go on; until all is done, the deadline, a second request or a failure."""
        self._await(lambda: self._io.done or self._stop.urgent or self._error is not None, self._drain_deadline)

    def _give_back(self) -> Sequence[Delivery]:
        """Give back what is unfinished, each batch in a thread of its own: one that hangs must not hold the others.

        Answers the deliveries of the batches that were broken off.
        """
        seconds = self._budget.release_seconds
        deadline = self._clock.monotonic() + seconds
        flights = [flight for flight in self._executors.unended() if flight.end()]
        helpers = [
            _Helper(f"penstock-give-back-{n}", partial(self._give_back_flight, flight, seconds), self)
            for n, flight in enumerate(flights, start=1)
        ]
        if not self._intake.empty:
            helpers.append(_Helper("penstock-give-back-unstarted", partial(self._put_back, deadline), self))
        for helper in helpers:
            helper.start()
        self._await(lambda: all(helper.done for helper in helpers), lambda: deadline)
        self._leave_behind(helpers)
        return [delivery for flight in flights for delivery in flight.deliveries]

    def _close(self, given_back: Sequence[Delivery]) -> None:
        """The last settlements, the last threads, the last word."""
        flush_ends_at = self._clock.monotonic() + self._budget.flush_seconds
        self._await(lambda: self._io.done and not self._executors.running(), lambda: flush_ends_at - _UNWIND_SECONDS)
        unapplied = self._settler.unapplied()
        self._loop.quit()
        self._heartbeat.end()
        self._await(lambda: self._io.done and self._beating.done, lambda: flush_ends_at)
        stuck = self._leave_behind([self._io, self._beating])
        for name in self._executors.running():
            stuck = True
            self._bus.emit(ThreadLeftBehind(thread=name))
        returned = [*given_back, *unapplied]
        self._outcome = "forced" if stuck else "given_back" if returned else "drained"
        ids = tuple(delivery.message.id for delivery in returned)
        self._bus.emit(WorkerStopped(outcome=self._outcome, given_back=ids))

    # Steps of these

    def _reason(self) -> str | None:
        """Why to leave, if there is a reason."""
        if self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        if self._stop.requested:
            return "asked to stop"
        if self._met:
            return "done"
        return None

    def _drain_deadline(self) -> float:
        """A worker that leaves because it is done has all the time it needs, until somebody asks it to stop."""
        if self._drain_ends_at is None and self._stop.requested:
            self._drain_ends_at = self._clock.monotonic() + self._budget.drain_seconds
        return self._never() if self._drain_ends_at is None else self._drain_ends_at

    def _give_back_flight(self, flight: Flight, seconds: float) -> None:
        give_back(
            handler=self._tools.handler.name,
            execution=flight.execution,
            deliveries=flight.deliveries,
            book=self._book,
            settler=self._settler,
            clock=self._clock,
            bus=self._bus,
            seconds=seconds,
        )

    def _put_back(self, deadline: float) -> None:
        """What nobody began, when the I/O thread has not come to it (a poll may hold it)."""
        unstarted = self._intake.take_all()
        self._book.unregister(unstarted, wait_seconds=deadline - self._clock.monotonic())
        self._settler.settle_by([(delivery, UNSTARTED) for delivery in unstarted], deadline=deadline)

    def _leave_behind(self, helpers: "Sequence[_Helper]") -> bool:
        stuck = [helper for helper in helpers if not helper.done]
        for helper in stuck:
            self._bus.emit(ThreadLeftBehind(thread=helper.name))
        return bool(stuck)

    def _await(self, over: Callable[[], bool], deadline: Callable[[], float]) -> bool:
        """Wait until it is over or the deadline (monotonic) has come; answers whether it is over."""
        while True:
            self._control.clear()
            if over():
                return True
            seconds = deadline() - self._clock.monotonic()
            if seconds <= 0:
                return False
            self._clock.wait(self._control, min(seconds, _WAIT_SECONDS_MAX))

    @staticmethod
    def _never() -> float:
        return float("inf")


class _Helper:
    """A thread whose end, and whose failure, the shift hears of."""

    def __init__(self, name: str, work: Callable[[], None], shift: Shift) -> None:
        self.name = name
        self.done = False  # written by the thread itself
        self._work = work
        self._shift = shift

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._shift.fail(error)
        finally:
            self.done = True
            self._shift.changed()
