"""How a worker is, for those who look from other threads: when its own threads last moved, and what its lines hold.

The threads leave signs in passing, a write each turn; nothing here waits, locks or asks a server. Whether a broker or
a ledger answers is no part of it: a thread that waits for one moves again when the call's own patience is over.

How late a process comes to what is due: code that holds the interpreter's lock, a machine without time to spare, an
event loop that something blocks.

One thread asks to be woken twice a second and sees by how much later it wakes. Where there is an event loop it leaves a
call there each time, and sees how long the loop takes to come to it. The worse of the two is the lag of that moment.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from penstock.messaging.clock import Clock

CALL_SECONDS_MAX = 120.0  # longer than any single call to a broker or ledger waits before it gives up
ENDING_SECONDS_MAX = 10.0  # from the end of a thread until the worker knows of it


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    PAUSED = "paused"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHealth:
    """How one line of a worker stands now."""

    queue: str
    in_flight: int  # messages whose lease it holds
    slots: int  # executions it may have at once, whatever the other lines do
    polled_at: float | None  # epoch seconds: when the broker last answered for its queue
    halted: bool
    awaits: str | None = None  # what it waits for before its first receive


class LifeSign:
    """Signs of life of one thread: with each one it says how long it may take until the next."""

    def __init__(self, thread: str, clock: Clock) -> None:
        self.thread = thread
        self._clock = clock
        self._given: tuple[float, float, str] | None = None  # this and the next: written by the thread
        self._over = False

    def give(self, seconds_max: float, doing: str, *, since: float | None = None) -> None:
        """Move: the next sign comes within so many seconds, counted from ``since`` (monotonic) or from now."""
        self._given = (self._clock.monotonic() if since is None else since, seconds_max, doing)

    def rest(self) -> None:
        """Have nothing to do, for any time."""
        self._given = None

    def end(self) -> None:
        """The thread is at its end, as the worker will be."""
        self._over = True
        self.give(ENDING_SECONDS_MAX, "ending")

    @property
    def trouble(self) -> str | None:
        """Why no further sign is to be expected; None where all is well, or where the thread has not begun."""
        given = self._given
        if given is None:
            return None
        at, seconds_max, doing = given
        silent_seconds = self._clock.monotonic() - at
        if silent_seconds <= seconds_max:
            return None
        if self._over:
            return f"the thread {self.thread} has ended, and the worker has not"
        return (
            f"the thread {self.thread} has not moved for {silent_seconds:,.0f} s while {doing}, which takes "
            f"{seconds_max:,.0f} s at most"
        )


class Liveness:
    """The pulse of one worker. Made before it, and still there when it has ended."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.io = LifeSign("penstock-io", clock)
        self.heartbeat = LifeSign("penstock-heartbeat", clock)
        self.phase = Phase.STARTING  # this and the rest: written by the shift's thread
        self.lines: Callable[[], Sequence[LineHealth]] = tuple
        self.upkeeps: Sequence[LifeSign] = ()
        self.loop: Callable[[], asyncio.AbstractEventLoop | None] = _no_loop  # while one runs

    @property
    def troubles(self) -> Sequence[str]:
        """What no waiting mends: threads that ended, or did not move for longer than they may. None while the worker
        starts or stops, each of which has a bound of its own."""
        if self.phase in (Phase.STARTING, Phase.STOPPING):
            return ()
        return [trouble for sign in (self.io, self.heartbeat, *self.upkeeps) if (trouble := sign.trouble) is not None]


def _no_loop() -> None:
    return None


SAMPLE_SECONDS = 0.5


class LagSampler:
    """Samples the lag until told to end. ``loop``: the event loop as it is at the moment, if there is one."""

    def __init__(
        self,
        *,
        clock: Clock,
        observe: Callable[[float], None],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        every_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self._clock = clock
        self._observe = observe
        self._loop = loop
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._asked_at: float | None = None  # monotonic; None: nothing was asked of the loop. By the sampling thread
        self._answered_at: float | None = None  # by the loop's thread, and by the sampling one before it asks

    def run(self) -> None:
        """Sample until told to end."""
        while True:
            due_at = self._clock.monotonic() + self._every_seconds
            if self._clock.wait(self._ended, self._every_seconds):
                return
            self._observe(self.sample(due_at))

    def end(self) -> None:
        """Sample no more."""
        self._ended.set()

    def sample(self, due_at: float) -> float:
        """The lag now, of who should have woken at ``due_at``."""
        now = self._clock.monotonic()
        late_seconds = max(now - due_at, self._loop_late_seconds(now), 0.0)
        self._ask()
        return late_seconds

    def _loop_late_seconds(self, now: float) -> float:
        """What it took to answer; while it has not, how long that has been."""
        if self._asked_at is None:
            return 0.0
        return (now if self._answered_at is None else self._answered_at) - self._asked_at

    def _ask(self) -> None:
        """Leave the loop a call, unless one is waiting there."""
        loop = self._loop()
        if loop is None:
            self._asked_at = None
            return
        if self._asked_at is not None and self._answered_at is None:
            return
        self._answered_at = None
        self._asked_at = self._clock.monotonic()
        with suppress(RuntimeError):  # it was closed a moment ago
            loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._answered_at = self._clock.monotonic()
