"""Start threads even if the machine has reached its limit, and run blocking calls of async code.

`AsideThreads` replaces asyncio's default executor. That one has few threads, and any library on the event loop may
fill them; Penstock's own records would then wait for the user's work.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from penstock.errors import TemporaryError
from penstock.messaging.forks import renew_in_copies


class WorkThread(threading.Thread):
    """A daemon thread whose work may be inside a library such as deltalake or Arrow, started once by its creator.

    If one still runs when the interpreter shuts down, the library may crash the process (SIGSEGV). Such a process must
    end with `os._exit`; `penstock.cli.exits.leave` does that for every command.
    """

    def __init__(self, work: Callable[..., object], *arguments: object, name: str) -> None:
        super().__init__(target=work, args=arguments, name=name, daemon=True)


def begin_thread(work: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Run the work in its own daemon thread. Raises `TemporaryError` if no thread can be started."""
    thread = WorkThread(work, *arguments, name=name)
    _start(thread)
    return thread


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise TemporaryError(f"the machine has no more threads for this process ({error})") from error


def begin_thread_or_do(work: Callable[..., object], *arguments: object, name: str) -> None:
    """Run the work in its own thread or, if none can be started, in the calling thread."""
    try:
        begin_thread(work, *arguments, name=name)
    except TemporaryError:
        work(*arguments)


IDLE_SECONDS = 5.0  # a thread without work ends after this time

Result = TypeVar("Result")


class AsideThreads:
    """Threads for the blocking calls of async code: started when needed, at most ``threads_max``, ended when idle.

    Urgent calls overtake the others. A submitted call runs even if the task that awaits it is cancelled. The number
    of waiting calls has no bound of its own: each belongs to a task that awaits it.
    """

    def __init__(self, name: str, *, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self.begin_in_copy()
        renew_in_copies(self)

    def begin_in_copy(self) -> None:
        """Start without threads and calls: the existing ones belong to the parent process."""
        self._changed = threading.Condition()
        # The fields below are written under the condition's lock.
        self._urgent: deque[Callable[[], None]] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self._started = 0

    async def run(self, step: Callable[..., Result], *arguments: Any, urgent: bool = False) -> Result:
        """Call ``step`` in a thread, with the caller's context variables, and return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        context = copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if done.done():  # the awaiting task was cancelled
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def call() -> None:
            result, raised = None, None
            try:
                result = context.run(step, *arguments)
            except BaseException as error:
                raised = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, raised)

        self._enqueue(call, urgent=urgent)
        return await done

    def _enqueue(self, call: Callable[[], None], *, urgent: bool) -> None:
        with self._changed:
            (self._urgent if urgent else self._waiting).append(call)
            if self._idle >= len(self._urgent) + len(self._waiting) or self._threads >= self._threads_max:
                self._changed.notify()
                return
            self._threads += 1
            self._started += 1
            name = f"penstock-{self._name}-{self._started}"
        try:
            # No `WorkThread`: it waits for seconds after its last call, and an exit should not.
            _start(threading.Thread(target=self._work, name=name, daemon=True))
        except TemporaryError:  # running threads take the call
            with self._changed:
                self._threads -= 1
                if not self._threads:
                    (self._urgent if urgent else self._waiting).remove(call)  # the caller gets the error instead
                    raise

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # an idle thread must not keep a message alive

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._urgent or self._waiting, IDLE_SECONDS)
            self._idle -= 1
            if self._urgent:
                return self._urgent.popleft()
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
