"""Build the parts of a worker from its arguments."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.events import Bus
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.worker.broker_loop import BrokerExchange, BrokerLoop, Until
from penstock.worker.executor import Executor, Slots
from penstock.worker.jobs import BackgroundJob
from penstock.worker.leases import Heartbeat, LeaseBook
from penstock.worker.line import Line
from penstock.worker.liveness import LineHealth, Liveness
from penstock.worker.pools import EventLoop, ExecutionPools
from penstock.worker.prefetch import PrefetchBuffer
from penstock.worker.queue_scheduler import ArrivalFlag, QueueScheduler, ServedLine
from penstock.worker.running_batch import Outcomes, RunningBatch
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTools:
    """The arguments of a `Worker`."""

    broker: Broker
    lines: tuple[Line, ...]
    settings: WorkerSettings
    clock: Clock
    bus: Bus
    probe: Probe
    random: Random
    pulse: Liveness
    event_loop: EventLoop | None = None
    address: str | None = None  # of the broker, without secrets
    metrics_address: str | None = None  # of the worker's HTTP endpoint


Halt = Callable[[str, BaseException], bool]  # stops serving a queue; returns False if that ends the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCallbacks:
    """Functions of the lifecycle that the parts call, from any thread."""

    freed: Callable[[], None]
    changed: Callable[[], None]
    until_met: Callable[[], None]
    fail: Callable[[BaseException], None]
    halt: Halt


class WorkerParts:
    """The parts of one worker run."""

    def __init__(
        self, tools: WorkerTools, calls: WorkerCallbacks, *, wake: threading.Event, until: Until | None
    ) -> None:
        self._tools = tools
        self._calls = calls
        self.book = LeaseBook(clock=tools.clock, lease_seconds=tools.settings.lease_seconds, call_over=calls.freed)
        self.settler = Settler(
            broker=tools.broker,
            book=self.book,
            settings=tools.settings,
            clock=tools.clock,
            bus=tools.bus,
            probe=tools.probe,
            random=tools.random,
        )
        self.places = ExecutionPools(
            concurrency=tools.settings.concurrency, ended=calls.changed, event_loop=tools.event_loop
        )
        slots = Slots(tools.settings.concurrency)
        first_ask_at = tools.clock.monotonic() + tools.settings.start_jitter_seconds * tools.random()
        self.lines = [
            ServedLine(
                line=line,
                intake=self._intake(line),
                executors=self._executors(line, slots),
                upkeeps=self._upkeeps(line, in_a_hurry=until is not None),
                ask_at=first_ask_at,
            )
            for line in tools.lines
        ]
        self.loop = self._loop(wake, until)
        self.heartbeat = Heartbeat(
            broker=tools.broker,
            book=self.book,
            claims=self.unended,
            settings=tools.settings,
            clock=tools.clock,
            bus=tools.bus,
            random=tools.random,
            sign=tools.pulse.heartbeat,
        )

    def unended(self) -> Sequence[RunningBatch]:
        """Return the batches whose outcome is still open."""
        return [flight for served in self.lines for flight in served.executors.unended()]

    def upkeeps(self) -> Sequence[BackgroundJob]:
        """Return the background jobs of all consumers."""
        return [upkeep for served in self.lines for upkeep in served.upkeeps]

    def standings(self) -> Sequence[LineHealth]:
        """Return the current health of each consumer. Thread-safe."""
        held = Counter(delivery.queue for delivery in self.book.deliveries())
        to_wall = self._tools.clock.now() - self._tools.clock.monotonic()
        return [
            LineHealth(
                queue=served.line.queue,
                in_flight=held[served.line.queue],
                slots=served.line.places(self._tools.settings),
                polled_at=None if served.polled_at is None else served.polled_at + to_wall,
                halted=served.halted,
                awaits=served.awaits,
            )
            for served in self.lines
        ]

    def _intake(self, line: Line) -> PrefetchBuffer:
        tools = self._tools
        return PrefetchBuffer(
            line=line,
            receive_max=tools.broker.capabilities.receive_max,
            book=self.book,
            settings=tools.settings,
            bus=tools.bus,
            probe=tools.probe,
        )

    def _executors(self, line: Line, slots: Slots) -> Executor:
        tools = self._tools
        return Executor(
            line=line,
            places=self.places,
            slots=slots,
            endings=Outcomes(
                line=line,
                lock=slots.lock,
                settler=self.settler,
                settings=tools.settings,
                clock=tools.clock,
                bus=tools.bus,
                random=tools.random,
            ),
            settler=self.settler,
            settings=tools.settings,
            clock=tools.clock,
            freed=self._calls.freed,
            fail=self._calls.fail,
            halt=partial(self._calls.halt, line.queue),
        )

    def _upkeeps(self, line: Line, *, in_a_hurry: bool) -> Sequence[BackgroundJob]:
        tools = self._tools
        return [
            BackgroundJob(
                handler=line.handler.name,
                job=name,
                work=work,
                in_a_hurry=in_a_hurry,
                settings=tools.settings,
                clock=tools.clock,
                bus=tools.bus,
                random=tools.random,
                ended=self._calls.freed,
                halt=partial(self._calls.halt, line.queue),
                fail=self._calls.fail,
            )
            for name, work in line.handler.jobs().items()
        ]

    def _loop(self, wake: threading.Event, until: Until | None) -> BrokerLoop:
        tools = self._tools
        return BrokerLoop(
            lines=self.lines,
            exchange=self._exchange(wake),
            settler=self.settler,
            settings=tools.settings,
            clock=tools.clock,
            bus=tools.bus,
            sign=tools.pulse.io,
            wake=wake,
            until=until,
            until_met=self._calls.until_met,
            fail=self._calls.fail,
        )

    def _exchange(self, wake: threading.Event) -> BrokerExchange:
        tools = self._tools
        return BrokerExchange(
            broker=tools.broker,
            settler=self.settler,
            asking=QueueScheduler(
                lines=self.lines,
                settings=tools.settings,
                clock=tools.clock,
                bus=tools.bus,
                random=tools.random,
            ),
            hearing=ArrivalFlag(broker=tools.broker, queues=[line.queue for line in tools.lines], wake=wake),
            settings=tools.settings,
            lines=len(tools.lines),
        )
