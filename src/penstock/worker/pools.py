"""Where executions run: threads of their own, a pool of threads, one thread with an event loop.

A place only runs; what becomes of a batch is decided by the `executors`. Pool and loop are made when first needed. All
threads are daemons: a run that does not end is left behind, never waited for without a bound.
"""

import asyncio
import importlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from penstock.errors import TemporaryError
from penstock.messaging.threads import AsideThreads, begin_thread
from penstock.worker.running_batch import RunningBatch

LOOP_THREAD = "penstock-loop"
ASIDE_THREADS_MAX = 8

Fly = Callable[[RunningBatch], None]
FlyAsync = Callable[[RunningBatch], Coroutine[Any, Any, None]]


def start_thread(name: str, fly: Fly, flight: RunningBatch) -> None:
    """Run one in a thread of its own, for few and long runs. Raises `TemporaryError` if no thread can be started."""
    flight.thread = name
    begin_thread(fly, flight, name=name)


class ThreadPool:
    """Threads for `def` handlers: made when needed, never more than ``threads_max``.

    One thread at a time is on its way: before it takes a flight, each calls the next one if more are waiting. So work
    that blocks soon has as many threads as it needs, and a group of short runs is done by one thread or two, where
    waking one for each message would cost more than the runs. What came first begins first.
    """

    def __init__(self, *, threads_max: int) -> None:
        self._threads_max = threads_max
        self._calls: SimpleQueue[None] = SimpleQueue()  # one ends the sleep of one thread
        self._lock = threading.Lock()
        # This and the rest: under the lock. It needs no bound of its own: a flight has its slot before it comes here.
        self._waiting: deque[tuple[Fly, RunningBatch]] = deque()
        self._threads = 0
        self._asleep = 0
        self._coming = False  # a thread is on its way
        self._closed = False

    def start(self, fly: Fly, flights: Sequence[RunningBatch]) -> None:
        """Run these. Only the I/O thread calls it. Raises `TemporaryError`, and runs none, if the pool has no thread
        and cannot start one."""
        with self._lock:
            self._waiting.extend([(fly, flight) for flight in flights])
        self._call_one(comes_too=False)

    def close(self) -> None:
        """Let the threads end that have nothing to do, and the others after their run."""
        with self._lock:
            self._closed = True
            asleep, self._asleep = self._asleep, 0
        for _ in range(asleep):
            self._calls.put(None)

    def _call_one(self, *, comes_too: bool) -> bool:
        """Call a thread, where none is on its way and there may be one more; answers whether that was a new one.

        To begin a thread means to wait for it. Whoever ``comes_too`` is on his way then, and the new one is at work.
        """
        with self._lock:
            if self._coming or not (self._asleep or self._threads < self._threads_max):
                return False
            self._coming = True
            sleeper = self._asleep > 0
            if sleeper:
                self._asleep -= 1
            else:
                self._threads += 1
        if sleeper:
            self._calls.put(None)
            return False
        return self._begin_thread(comes=not comes_too)

    def _begin_thread(self, *, comes: bool) -> bool:
        name = f"penstock-pool-{self._threads}"
        try:
            begin_thread(self._work, comes, name=name)
        except TemporaryError:
            with self._lock:
                self._coming = False
                self._threads -= 1
                if not self._threads:  # then only the caller's flights wait
                    self._waiting.clear()
                    raise
            return False
        return True

    def _work(self, comes: bool) -> None:
        """``comes``: it is the one on its way."""
        while True:
            if comes:
                with self._lock:
                    self._coming = False
            # Asked without the lock: who is on his way looks for himself, and who adds a flight calls somebody.
            comes = len(self._waiting) > 1 and not self._coming and self._call_one(comes_too=True)
            if comes:
                continue
            with self._lock:
                taken = self._waiting.popleft() if self._waiting else None
                if taken is None:
                    if self._closed:
                        return
                    self._asleep += 1
            if taken is None:
                self._calls.get()
                comes = True
                continue
            fly, flight = taken
            fly(flight)
            del fly, flight, taken  # a sleeping thread keeps no message alive


class EventLoop:
    """One thread with an asyncio loop, for `async def` handlers; uvloop's where it is installed."""

    def __init__(self, *, ended: Callable[[], None] | None = None) -> None:
        self._ended = ended
        self._thread: threading.Thread | None = None  # written by the thread that first starts it
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # written by the loop's thread
        self._stop = asyncio.Event()  # set in the loop's thread
        self._over = False  # written by the loop's thread

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop while it runs."""
        return self._loop

    @property
    def done(self) -> bool:
        """Whether its thread has ended, or never was."""
        return self._thread is None or self._over

    def start(self, fly: FlyAsync, flights: Sequence[RunningBatch]) -> None:
        """Run these, handed over in one call. Only the I/O thread calls it. Raises as `started` does."""
        self.started().call_soon_threadsafe(self._take, fly, flights)

    def started(self) -> asyncio.AbstractEventLoop:
        """The loop, started if need be. Not to be called by two threads at once.

        Raises `TemporaryError` if its thread cannot be started.
        """
        if self._thread is None:
            self._thread = begin_thread(self._run, name=LOOP_THREAD)
            self._ready.wait()  # a moment: nothing of a handler runs before
        loop = self._loop
        if loop is None:
            raise RuntimeError("the event loop ended by itself")
        return loop

    def close(self) -> None:
        """Let the thread end. Tasks left over are cancelled; one that ignores it keeps the thread from ending."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed a moment ago
                loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop()) as runner:
                runner.run(self._serve())
        finally:
            self._over = True
            self._ready.set()
            if self._ended is not None:
                self._ended()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        try:
            await self._stop.wait()
        finally:
            self._loop = None

    def _take(self, fly: FlyAsync, flights: Sequence[RunningBatch]) -> None:
        loop = asyncio.get_running_loop()
        for flight in flights:
            # The loop itself keeps tasks by weak references only; the flight is kept until it has landed.
            flight.task = loop.create_task(fly(flight), name=flight.name)


class ExecutionPools:
    """The places that all lines of a worker share. A loop handed in is used, and left as it is at the end."""

    def __init__(self, *, concurrency: int, ended: Callable[[], None], event_loop: EventLoop | None = None) -> None:
        self.pool = ThreadPool(threads_max=concurrency)
        self.loop = event_loop or EventLoop(ended=ended)
        self.aside = AsideThreads("aside", threads_max=ASIDE_THREADS_MAX)  # for what blocks beside the loop
        self._owns_loop = event_loop is None

    @property
    def done(self) -> bool:
        """Whether no thread of a loop of our own is left."""
        return self.loop.done or not self._owns_loop

    def close(self) -> None:
        """Let the threads end; does not wait for them."""
        self.pool.close()
        if self._owns_loop:
            self.loop.close()


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
