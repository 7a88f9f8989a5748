"""Which queues are asked, and when: whose turn it is, how long an empty or failing one is left alone.

Whose turn it is: weighted rotation over lines. Values in, values out, whatever a line is.

Each line has a virtual time, which its messages move on by 1/weight each; the line that is furthest behind is asked
first. Lines that are always full thus get messages in proportion to their weights, however many a read brings. A line
that had nothing does not save up turns: when it is served again, its time begins where the others are now (start-time
fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996).

Being told of arrivals, so that an idle worker begins at once what comes.

One line being served: its parts, and when it is asked again.
"""

import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass

from penstock.errors import UserError
from penstock.events import Bus, ReceiveFailed
from penstock.messaging.backoff import Random, backoff_seconds, idle_seconds
from penstock.messaging.broker import Broker, Listening, ReceiveRequest, TurnResult
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.worker.executor import Executor
from penstock.worker.jobs import BackgroundJob
from penstock.worker.line import Line
from penstock.worker.prefetch import PrefetchBuffer
from penstock.worker.settings import WorkerSettings


class Rotation:
    """The turns of lines, by their index. One thread's."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = tuple(weights)
        self._times = [0.0] * len(self._weights)
        self._busy = [False] * len(self._weights)
        self._now = 0.0  # never goes back: the time at which the last turn began
        self._turn = 0
        self._last_turns = [0] * len(self._weights)

    def order(self) -> Sequence[int]:
        """Whom to ask, in order; among equals the one that was served longest ago."""
        return sorted(range(len(self._weights)), key=lambda line: (self._times[line], self._last_turns[line]))

    def passed(self, line: int) -> None:
        """It had nothing to give, or no room to take it."""
        self._busy[line] = False

    def served(self, line: int, messages: int) -> None:
        """It gave that many messages."""
        if not self._busy[line]:
            self._times[line] = max(self._times[line], self._now)
        self._busy[line] = True
        self._now = max(self._now, self._times[line])
        self._times[line] += messages / self._weights[line]
        self._turn += 1
        self._last_turns[line] = self._turn


@dataclass(slots=True, kw_only=True)
class ServedLine:
    """A line with what serves it. The mutable fields are the I/O thread's."""

    line: Line
    intake: PrefetchBuffer
    executors: Executor
    upkeeps: Sequence[BackgroundJob]
    ask_at: float  # monotonic: not before
    polled_at: float | None = None  # monotonic: when the broker last answered for it
    receive_failures: int = 0  # in a row
    unheard: bool = False  # something may have arrived since it was asked last
    halted: bool = False  # set once, by whichever thread meets what nothing can mend
    started: bool = False  # whether what its line waits for is there; set once, by the thread that makes it

    @property
    def idle(self) -> bool:
        """Nothing at work, nothing held."""
        return not self.executors.busy and self.intake.empty

    @property
    def awaits(self) -> str | None:
        """What it waits for before its first receive."""
        return None if self.started or self.line.start is None else self.line.start.awaits

    @property
    def room(self) -> int:
        """How many more messages may be received."""
        if self.halted or self.awaits is not None:
            return 0
        room = self.intake.room(self.executors.free)
        admitted = None if self.line.gate is None else self.line.gate.admits()
        # What is held already counts: a line that waits for others to join a batch is admitted no more than one probe.
        return room if admitted is None else max(min(room, admitted - self.intake.held), 0)

    @property
    def barred(self) -> bool:
        """Whether what is held is not to begin here: the line was halted, or its gate fell shut."""
        if self.halted or self.line.gate is None:
            return self.halted
        admitted = self.line.gate.admits()
        return admitted is not None and self.intake.held > admitted

    @property
    def put_back_seconds(self) -> float:
        """How long what is barred stays invisible."""
        return 0.0 if self.line.gate is None else self.line.gate.put_back_seconds()

    @property
    def opens_at(self) -> float | None:
        """When its gate admits more (monotonic), if that is a matter of time."""
        return None if self.halted or self.line.gate is None else self.line.gate.opens_at()

    @property
    def to_be_heard(self) -> bool:
        """Whether it is to be asked before its time."""
        return self.unheard and not self.receive_failures

    def due_batches(self, now: float) -> Sequence[Sequence[Delivery]]:
        """The batches to begin now: those that share slots as a group, others one at a time and not too soon."""
        free = self.executors.free
        if free < 1 or now < self.executors.not_before or self.barred:
            return ()
        return self.intake.next_batches(free if self.line.shares_slots else 1, now)


CALM_SECONDS = 0.002  # after a false alarm, until the next is believed: a bound for looks, and hardly a delay


class QueueScheduler:
    """One look at the lines at a time, in rotation's order, until one brings something. The I/O thread's alone.

    One idle state for the worker: its waits grow while no line brings anything, and the first message resets them for
    all. While others bring messages, an empty line is asked again after the shortest of these waits. A line whose
    receive failed backs off alone.

    Where an arrival was told of, or may have gone unheard, a line is asked once more before the worker rests, whatever
    its wait. After a false alarm the next one has to wait a moment: what arrives may be others'.
    """

    def __init__(
        self, *, lines: Sequence[ServedLine], settings: WorkerSettings, clock: Clock, bus: Bus, random: Random
    ) -> None:
        self._lines = lines
        self._rotation = Rotation([served.line.weight for served in lines])
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._idle_seconds = settings.idle_floor_seconds
        self._began_at = 0.0  # the last look, as is the next: lines by index in rotation's order, None for no room
        self._looked_at: Sequence[tuple[int, ReceiveRequest | None]] = ()
        self._full: str | None = None  # the queue of which the last look brought all that was asked for
        self._found_empty: Set[str] = frozenset()
        self._alarmed = False  # an arrival was told of, and nothing came so far
        self._calm_until = 0.0  # monotonic

    @property
    def full(self) -> str | None:
        """The queue that has more, it seems: then the next look will hardly be the last before a rest."""
        return self._full

    @property
    def found_empty(self) -> Set[str]:
        """The queues in which the last look found nothing."""
        return self._found_empty

    @property
    def roomy(self) -> Set[str]:
        """The queues with room."""
        return frozenset(served.line.queue for served in self._lines if served.room > 0)

    def asks(self) -> Sequence[ReceiveRequest]:
        """Whom to ask for how much: the lines with room whose time has come; where there is none, the unheard ones.

        What comes of it is to be told by `came`.
        """
        now = self._began_at = self._clock.monotonic()
        rooms = [(index, self._lines[index].room) for index in self._rotation.order()]
        asked = {index for index, room in rooms if room > 0 and self._lines[index].ask_at <= now}
        if not asked and self._calm_until <= now:
            asked = {index for index, room in rooms if room > 0 and self._lines[index].to_be_heard}
        self._looked_at = [
            (index, self._lines[index].intake.ask(room) if room > 0 else None)
            for index, room in rooms
            if room < 1 or index in asked
        ]
        return [ask for _, ask in self._looked_at if ask is not None]

    def came(self, turn: TurnResult, *, heard: Set[str]) -> bool:
        """What the last `asks` came to; answers whether any message arrived.

        ``heard``: the queues of which arrivals since the look are told. Raises `UserError` when a broker never can do
        what was asked.
        """
        empty: list[ServedLine] = []
        self._found_empty = frozenset()
        for index, ask in self._looked_at:
            served = self._lines[index]
            if ask is not None and turn.deliveries and turn.deliveries[0].queue == ask.queue:
                self._arrived(served, turn)
                self._rotation.served(index, len(turn.deliveries))
                self._full = ask.queue if len(turn.deliveries) >= ask.messages_max else None
                return True
            self._rotation.passed(index)
            if ask is None:
                continue
            if turn.receive_error is not None and turn.receive_error[0] == ask.queue:
                self._failed(served, turn.receive_error[1])
                break
            self._was_empty(served, heard=ask.queue in heard)
            empty.append(served)
            self._found_empty |= {ask.queue}
        if empty:
            self._full = None
            self._idle(empty, turn.next_in_seconds)
            self._judge_alarm()
        return False

    def alarmed(self) -> None:
        """An arrival was told of, nobody knows in which line."""
        self._alarmed = True
        self.unheard()

    def unheard(self) -> None:
        """Arrivals may have gone unheard."""
        for served in self._lines:
            served.unheard = True

    def unheard_beside(self, heard: Set[str]) -> None:
        """Arrivals may have gone unheard in all queues but these."""
        for served in self._lines:
            if served.line.queue not in heard:
                served.unheard = True

    def rest_seconds(self) -> float | None:
        """How long until a line is to be asked; None while none has room."""
        roomy = [served for served in self._lines if served.room > 0]
        ask_at = [min(served.ask_at, self._calm_until) if served.to_be_heard else served.ask_at for served in roomy]
        return max(min(ask_at) - self._clock.monotonic(), 0.0) if ask_at else None

    def _judge_alarm(self) -> None:
        """All were asked in vain, so it was a false one."""
        if self._alarmed and not any(served.to_be_heard and served.room > 0 for served in self._lines):
            self._alarmed = False
            self._calm_until = self._clock.monotonic() + CALM_SECONDS

    def _arrived(self, served: ServedLine, turn: TurnResult) -> None:
        self._alarmed, self._calm_until = False, 0.0
        served.receive_failures = 0
        served.polled_at = self._clock.monotonic()
        served.intake.came(turn.deliveries, served.polled_at)
        self._hasten()

    def _was_empty(self, served: ServedLine, *, heard: bool) -> None:
        served.receive_failures = 0
        served.unheard = served.unheard and not heard
        now = served.polled_at = self._clock.monotonic()
        served.intake.came((), now)
        served.ask_at = now + self._settings.idle_floor_seconds

    def _failed(self, served: ServedLine, error: Exception) -> None:
        if isinstance(error, UserError):
            raise error
        served.receive_failures += 1
        self._bus.emit(ReceiveFailed(queue=served.line.queue, error=f"{type(error).__name__}: {error}"))
        wait_seconds = backoff_seconds(
            attempt=served.receive_failures,
            base_seconds=self._settings.retry_base_seconds,
            cap_seconds=self._settings.retry_cap_seconds,
            random=self._random,
        )
        served.ask_at = self._clock.monotonic() + max(wait_seconds, self._settings.idle_floor_seconds)

    def _hasten(self) -> None:
        """Something came: the waits begin anew."""
        if self._idle_seconds == self._settings.idle_floor_seconds:
            return
        self._idle_seconds = self._settings.idle_floor_seconds
        soon = self._clock.monotonic() + self._idle_seconds
        for served in self._lines:
            if not served.receive_failures:
                served.ask_at = min(served.ask_at, soon)

    def _idle(self, empty: Sequence[ServedLine], next_in_seconds: float | None) -> None:
        self._idle_seconds = idle_seconds(
            self._idle_seconds,
            floor_seconds=self._settings.idle_floor_seconds,
            ceiling_seconds=self._settings.idle_ceiling_seconds,
            random=self._random,
        )
        # The time that a poll waited in the broker counts; a broker that answers late still gets a moment's rest.
        now = self._clock.monotonic()
        ask_at = max(self._began_at + self._idle_seconds, now + 0.001)
        if next_in_seconds is not None and next_in_seconds > 0:  # what is due already and did not come is no reason
            ask_at = min(ask_at, now + max(next_in_seconds, 0.001))
        for served in empty:
            served.ask_at = ask_at


class ArrivalFlag:
    """Whether the broker is to tell of the next arrival, and whether it did. The I/O thread's, but for the telling."""

    def __init__(self, *, broker: Broker, queues: Sequence[str], wake: threading.Event) -> None:
        self._broker = broker
        self._queues = queues
        self._wake = wake
        self._listening: Listening | None = None
        self._wanted: Set[str] = frozenset()  # said last, and not answered so far
        self._told = False  # set by the broker's thread, unset by the I/O thread

    @property
    def wanted(self) -> Set[str]:
        """The queues of which the next arrival is going to be told, or was."""
        return self._wanted

    def open(self) -> None:
        """Begin to listen."""
        self._listening = self._broker.listen(self._queues, self._tell)

    def want(self, queues: Set[str]) -> None:
        """Of which queues arrivals are to be told from here on; cheap to repeat."""
        if self._wanted != queues and self._listening is not None:
            self._wanted = queues
            self._listening.want(queues)

    def told(self) -> bool:
        """Whether the broker told of an arrival since this was asked last; then `want` has to be said again."""
        if not self._told:
            return False
        self._told, self._wanted = False, frozenset()
        return True

    def close(self) -> None:
        """Listen no more."""
        if self._listening is not None:
            self._listening.close()

    def _tell(self) -> None:
        self._told = True  # before waking: who is awake looks here
        self._wake.set()
