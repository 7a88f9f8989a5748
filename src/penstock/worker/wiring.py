"""What a worker was given, and how its parts are made of it."""

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
from penstock.worker.broker_loop import Exchange, Loop, Until
from penstock.worker.executor import Executors, Slots
from penstock.worker.jobs import Upkeep
from penstock.worker.leases import Book, Heartbeat
from penstock.worker.line import Line
from penstock.worker.liveness import LineStanding, Pulse
from penstock.worker.pools import EventLoop, Places
from penstock.worker.prefetch import Intake
from penstock.worker.queue_scheduler import Asking, Hearing, ServedLine
from penstock.worker.running_batch import Endings, Flight
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a worker was given."""

    broker: Broker
    lines: tuple[Line, ...]
    settings: WorkerSettings
    clock: Clock
    bus: Bus
    probe: Probe
    random: Random
    pulse: Pulse
    event_loop: EventLoop | None = None
    address: str | None = None  # the broker's, for people
    metrics_address: str | None = None  # where somebody answers for the worker


Halt = Callable[[str, BaseException], bool]  # a queue is served no more; False: it was the last, so the worker ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Whom the parts tell."""

    freed: Callable[[], None]
    changed: Callable[[], None]
    until_met: Callable[[], None]
    fail: Callable[[BaseException], None]
    halt: Halt


class Parts:
    """The parts of one life."""

    def __init__(self, tools: Tools, calls: Calls, *, wake: threading.Event, until: Until | None) -> None:
        self._tools = tools
        self._calls = calls
        self.book = Book(clock=tools.clock, lease_seconds=tools.settings.lease_seconds, call_over=calls.freed)
        self.settler = Settler(
            broker=tools.broker,
            book=self.book,
            settings=tools.settings,
            clock=tools.clock,
            bus=tools.bus,
            probe=tools.probe,
            random=tools.random,
        )
        self.places = Places(concurrency=tools.settings.concurrency, ended=calls.changed, event_loop=tools.event_loop)
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

    def unended(self) -> Sequence[Flight]:
        """The batches whose end is open."""
        return [flight for served in self.lines for flight in served.executors.unended()]

    def upkeeps(self) -> Sequence[Upkeep]:
        """The background jobs of all lines."""
        return [upkeep for served in self.lines for upkeep in served.upkeeps]

    def standings(self) -> Sequence[LineStanding]:
        """How each line stands now. Any thread may ask."""
        held = Counter(delivery.queue for delivery in self.book.deliveries())
        to_wall = self._tools.clock.now() - self._tools.clock.monotonic()
        return [
            LineStanding(
                queue=served.line.queue,
                in_flight=held[served.line.queue],
                slots=served.line.places(self._tools.settings),
                polled_at=None if served.polled_at is None else served.polled_at + to_wall,
                halted=served.halted,
                awaits=served.awaits,
            )
            for served in self.lines
        ]

    def _intake(self, line: Line) -> Intake:
        tools = self._tools
        return Intake(
            line=line,
            receive_max=tools.broker.capabilities.receive_max,
            book=self.book,
            settings=tools.settings,
            bus=tools.bus,
            probe=tools.probe,
        )

    def _executors(self, line: Line, slots: Slots) -> Executors:
        tools = self._tools
        return Executors(
            line=line,
            places=self.places,
            slots=slots,
            endings=Endings(
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

    def _upkeeps(self, line: Line, *, in_a_hurry: bool) -> Sequence[Upkeep]:
        tools = self._tools
        return [
            Upkeep(
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

    def _loop(self, wake: threading.Event, until: Until | None) -> Loop:
        tools = self._tools
        return Loop(
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

    def _exchange(self, wake: threading.Event) -> Exchange:
        tools = self._tools
        return Exchange(
            broker=tools.broker,
            settler=self.settler,
            asking=Asking(
                lines=self.lines,
                settings=tools.settings,
                clock=tools.clock,
                bus=tools.bus,
                random=tools.random,
            ),
            hearing=Hearing(broker=tools.broker, queues=[line.queue for line in tools.lines], wake=wake),
            settings=tools.settings,
            lines=len(tools.lines),
        )
