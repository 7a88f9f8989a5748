"""Health of a worker as other threads see it: signs of life of its threads, health of its consumers, and its lag.

The threads leave signs of life as they pass, one write per turn; nothing here waits, locks or calls a server. An
unavailable broker or ledger is not a fault here: a thread that waits for one moves again when the call times out.

The lag is how late the process runs its timers, because of code that holds the GIL, an overloaded machine or a blocked
event loop. `LagSampler` wakes twice a second and measures its delay. If there is an event loop, it also schedules a
call there and measures the delay of the call. The larger of the two is the current lag.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Any

from penstock.messaging.clock import Clock

CALL_SECONDS_MAX = 120.0  # longer than the timeout of any single call to a broker or ledger
ENDING_SECONDS_MAX = 10.0  # from the end of a thread until the worker notices


class Phase(StrEnum):
    """The phase of a worker's life."""

    STARTING = "starting"
    SERVING = "serving"
    PAUSED = "paused"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """The current state of one consumer of a worker."""

    queue: str
    in_flight: int  # messages with a lease
    slots: int  # its maximum of concurrent executions, regardless of other consumers
    polled_at: float | None  # epoch seconds: last successful poll of its queue
    halted: bool
    awaits: str | None = None  # its prerequisite, while that is starting


class LifeSign:
    """Signs of life of one thread, given by that thread. Each sign declares how long the next one may take."""

    def __init__(self, thread: str, clock: Clock) -> None:
        self.thread = thread
        self._clock = clock
        self._given: tuple[float, float, str] | None = None  # this and the next: written by the thread itself
        self._over = False

    def give(self, seconds_max: float, doing: str, *, since: float | None = None) -> None:
        """Give a sign; the next is due within ``seconds_max``, counted from ``since`` (monotonic) or from now."""
        self._given = (self._clock.monotonic() if since is None else since, seconds_max, doing)

    def rest(self) -> None:
        """Expect no further sign: the thread has nothing to do."""
        self._given = None

    def end(self) -> None:
        """Record that the thread ends; the worker must end soon after."""
        self._over = True
        self.give(ENDING_SECONDS_MAX, "ending")

    @property
    def trouble(self) -> str | None:
        """A description of the fault if the sign is overdue; None if it is not, or if the thread has not begun."""
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
    """Liveness of one worker, created before the worker and still readable after its end. Any thread may read it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.io = LifeSign("penstock-io", clock)
        self.heartbeat = LifeSign("penstock-heartbeat", clock)
        self.phase = Phase.STARTING  # this and the rest: written by the lifecycle's thread
        self.consumers: Callable[[], Sequence[ConsumerHealth]] = tuple
        self.jobs: Sequence[LifeSign] = ()
        self.loop: Callable[[], asyncio.AbstractEventLoop | None] = _no_loop  # while one runs

    @property
    def troubles(self) -> Sequence[str]:
        """Descriptions of the faults that waiting cannot fix: threads that ended or hang.

        Empty while the worker starts or stops; both phases have their own time limits.
        """
        if self.phase in (Phase.STARTING, Phase.STOPPING):
            return ()
        return [trouble for sign in (self.io, self.heartbeat, *self.jobs) if (trouble := sign.trouble) is not None]


def stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return the stacks of all threads by name, and of all tasks of the loop. Works while the loop is blocked."""
    return "\n".join([*_threads(), *(() if loop is None else _tasks(loop))])


def _no_loop() -> None:
    return None


SAMPLE_SECONDS = 0.5


class LagSampler:
    """A sampler of the lag, in a thread of its own. ``loop`` returns the current event loop, None without one."""

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
        self._scheduled_at: float | None = None  # monotonic; None: no call is scheduled. Written by the sampling thread
        self._called_at: float | None = None  # written by the loop's thread; reset by the sampling thread

    def run(self) -> None:
        """Sample until `end` is called."""
        while True:
            due_at = self._clock.monotonic() + self._every_seconds
            if self._clock.wait(self._ended, self._every_seconds):
                return
            self._observe(self.sample(due_at))

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()

    def sample(self, due_at: float) -> float:
        """Return the current lag of a thread that was to wake at ``due_at`` (monotonic)."""
        now = self._clock.monotonic()
        late_seconds = max(now - due_at, self._loop_late_seconds(now), 0.0)
        self._schedule_probe()
        return late_seconds

    def _loop_late_seconds(self, now: float) -> float:
        """Return the delay of the call on the loop: until it ran, or until now."""
        if self._scheduled_at is None:
            return 0.0
        return (now if self._called_at is None else self._called_at) - self._scheduled_at

    def _schedule_probe(self) -> None:
        """Schedule a call on the loop, unless one is still waiting there."""
        loop = self._loop()
        if loop is None:
            self._scheduled_at = None
            return
        if self._scheduled_at is not None and self._called_at is None:
            return
        self._called_at = None
        self._scheduled_at = self._clock.monotonic()
        with suppress(RuntimeError):  # the loop was closed a moment ago
            loop.call_soon_threadsafe(self._record_call)

    def _record_call(self) -> None:
        self._called_at = self._clock.monotonic()


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
        yield "Tasks: they change too fast to be listed\n"
        return
    for task in tasks:
        entries = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(task.get_coro())).format()
        yield f"Task {task.get_name()}:\n" + "".join(entries)


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames from the task's own function down to its await; `Task.get_stack` returns only the first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
