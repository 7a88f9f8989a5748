"""Run executions, each in its own thread, in a thread pool, or in one thread with an event loop.

The pools only run executions; the `executor` decides the outcome of each batch. Pool and loop start when first needed.
All threads are daemons: a run that does not end is left behind, and no wait for it is unbounded.
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

Run = Callable[[RunningBatch], None]
RunAsync = Callable[[RunningBatch], Coroutine[Any, Any, None]]


def start_thread(name: str, run: Run, batch: RunningBatch) -> None:
    """Run a batch in its own thread, for few and long runs. Raises `TemporaryError` if no thread can be started."""
    batch.thread = name
    begin_thread(run, batch, name=name)


class ThreadPool:
    """Threads for `def` handlers: started when needed, at most ``threads_max``.

    One instance per worker. At most one thread is on its way to the queue of batches at a time. Before it takes a
    batch, it wakes the next thread if more batches wait. So blocking work soon has as many threads as it needs, while
    one or two threads run a group of short batches: waking a thread for each message would cost more than the runs.
    Batches begin in order of arrival.
    """

    def __init__(self, *, threads_max: int) -> None:
        self._threads_max = threads_max
        self._wake_ups: SimpleQueue[None] = SimpleQueue()  # one item wakes one thread
        self._lock = threading.Lock()
        # This and the rest: under the lock. It needs no bound of its own: each batch has a slot before it gets here.
        self._waiting: deque[tuple[Run, RunningBatch]] = deque()
        self._threads = 0
        self._sleeping = 0
        self._waking = False  # a thread is on its way to the queue
        self._closed = False

    def start(self, run: Run, batches: Sequence[RunningBatch]) -> None:
        """Run batches. Called by the I/O thread only.

        Raises `TemporaryError`, and runs none, if the pool has no thread and cannot start one.
        """
        with self._lock:
            self._waiting.extend([(run, batch) for batch in batches])
        self._wake_one(caller_proceeds=False)

    def close(self) -> None:
        """End idle threads now, and the others after their run."""
        with self._lock:
            self._closed = True
            sleeping, self._sleeping = self._sleeping, 0
        for _ in range(sleeping):
            self._wake_ups.put(None)

    def _wake_one(self, *, caller_proceeds: bool) -> bool:
        """Wake or start a thread, unless one is on its way or all are busy; return True if a new one was started.

        Starting a thread blocks until it runs. A pool thread that calls this (``caller_proceeds``) is then itself the
        one on its way, and the new thread takes work at once.
        """
        with self._lock:
            if self._waking or not (self._sleeping or self._threads < self._threads_max):
                return False
            self._waking = True
            sleeper = self._sleeping > 0
            if sleeper:
                self._sleeping -= 1
            else:
                self._threads += 1
        if sleeper:
            self._wake_ups.put(None)
            return False
        return self._begin_thread(is_next=not caller_proceeds)

    def _begin_thread(self, *, is_next: bool) -> bool:
        name = f"penstock-pool-{self._threads}"
        try:
            begin_thread(self._work, is_next, name=name)
        except TemporaryError:
            with self._lock:
                self._waking = False
                self._threads -= 1
                if not self._threads:  # then only the caller's batches wait
                    self._waiting.clear()
                    raise
            return False
        return True

    def _work(self, is_next: bool) -> None:
        """Take and run batches. With ``is_next``, this thread is the one on its way."""
        while True:
            if is_next:
                with self._lock:
                    self._waking = False
            # Checked without the lock: a thread on its way checks the queue itself, and `start` wakes one for each new
            # batch.
            is_next = len(self._waiting) > 1 and not self._waking and self._wake_one(caller_proceeds=True)
            if is_next:
                continue
            taken = self._take()
            if taken is None:
                if self._closed:
                    return
                self._wake_ups.get()
                is_next = True
                continue
            run, batch = taken
            run(batch)
            del run, batch, taken  # a sleeping thread keeps no message alive

    def _take(self) -> tuple[Run, RunningBatch] | None:
        """Return the next batch, or None: then the thread counts as sleeping, unless the pool is closed."""
        with suppress(IndexError):
            return self._waiting.popleft()  # atomic
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._sleeping += not self._closed
        return None


class EventLoop:
    """One thread with an asyncio loop, for `async def` handlers; uses uvloop if installed."""

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
        """Return True if the thread has ended or was never started."""
        return self._thread is None or self._over

    def start(self, run: RunAsync, batches: Sequence[RunningBatch]) -> None:
        """Pass batches to the loop in one call. Called by the I/O thread only.

        Raises `TemporaryError` as `ensure_started`.
        """
        self.ensure_started().call_soon_threadsafe(self._take, run, batches)

    def ensure_started(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if necessary. Not thread-safe.

        Raises `TemporaryError` if its thread cannot be started.
        """
        if self._thread is None:
            self._thread = begin_thread(self._run, name=LOOP_THREAD)
            self._ready.wait()  # short: no code of a handler runs before
        loop = self._loop
        if loop is None:
            raise RuntimeError("the event loop ended unexpectedly")
        return loop

    def close(self) -> None:
        """Cancel the remaining tasks and let the thread end.

        A task that ignores cancellation keeps the thread alive.
        """
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed a moment ago
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

    def _take(self, run: RunAsync, batches: Sequence[RunningBatch]) -> None:
        loop = asyncio.get_running_loop()
        for batch in batches:
            # The loop has only weak references to tasks; the executor keeps the batch, and so its task, until the run
            # ends.
            batch.task = loop.create_task(run(batch), name=batch.name)


class ExecutionPools:
    """The pool, loop and helper threads that all consumers of a worker share. A loop passed in is not closed."""

    def __init__(self, *, concurrency: int, ended: Callable[[], None], event_loop: EventLoop | None = None) -> None:
        self.pool = ThreadPool(threads_max=concurrency)
        self.loop = event_loop or EventLoop(ended=ended)
        # For blocking calls of executions on the loop.
        self.aside = AsideThreads("aside", threads_max=ASIDE_THREADS_MAX)
        self._owns_loop = event_loop is None

    @property
    def done(self) -> bool:
        """Return True if the loop's thread has ended or was never started, or if the loop belongs to other code."""
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
