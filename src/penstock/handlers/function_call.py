"""One delivery in the hands of a plain function.

One delivery in the hands of an async function.

The asyncio task an execution runs in, cancelled from other threads.
"""

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from penstock.handlers.call import Call, HandlerRuntime, KeyedMessage, OpenedMessage
from penstock.messaging.declarations import run_to_its_end
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer


class PlainCall(Call):
    """On a thread of the pool."""

    def __init__(self, delivery: Delivery, around: HandlerRuntime) -> None:
        super().__init__(delivery, around)
        self._thread_id: int | None = None  # written by the thread that runs

    def run(self) -> Answer:
        self._thread_id = threading.get_ident()
        opened = self.open()
        if not isinstance(opened, OpenedMessage):
            return opened
        try:
            with self._time.counted(), self._process:
                if opened.cleanup:
                    run_to_its_end(self.cleaned(opened))
                result = run_to_its_end(self.called(opened))
        except BaseException as raised:  # SystemExit too: the delivery must not hang on what user code does
            return self.failed(raised)
        return self.finish(result)

    def _where(self) -> str | None:
        frame = sys._current_frames().get(self._thread_id or 0)
        return None if frame is None else "".join(traceback.format_stack(frame))


class OwnTask:
    """Known once the task has begun; cancelling one that was never begun, or has ended, does nothing."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None  # this and the next: written by the loop
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Called by the task itself."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel(self) -> None:
        """Ask the task to end; any thread may."""
        task, loop = self._task, self._loop
        if task is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)

    def stack(self) -> str | None:
        """Where the task is, without variables."""
        task = self._task
        if task is None:
            return None
        return "".join(line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1))


Result = TypeVar("Result")


class AsyncCall(Call):
    """A task on the worker's event loop."""

    def __init__(self, delivery: Delivery, around: HandlerRuntime) -> None:
        super().__init__(delivery, around)
        self._task = OwnTask()
        self._bookkeeping = around.bookkeeping

    async def run(self) -> Answer:
        self._task.begin()
        read = self.read()
        opened = await self._aside(self.claimed, read) if isinstance(read, KeyedMessage) else read
        if not isinstance(opened, OpenedMessage):
            return opened
        try:
            with self._time.counted(), self._process:
                if opened.cleanup:
                    await _awaited(self.cleaned(opened))
                result = run_to_its_end(await self.called(opened))
        except asyncio.CancelledError as cancelled:
            if self._control.over:
                raise
            return await self._aside(self.failed, cancelled, urgent=True)  # the function's own doing
        except BaseException as raised:
            return await self._aside(self.failed, raised, urgent=True)
        self.returned()
        return await self._aside(self.finish, result, urgent=True)

    def interrupt(self) -> None:
        super().interrupt()
        self._task.cancel()

    async def _aside(self, step: Callable[..., Result], *arguments: Any, urgent: bool = False) -> Result:
        """Take a step; beside the loop if it asks the ledger, which blocks. Work that ended overtakes what begins."""
        if self._bookkeeping is None:
            return step(*arguments)
        return await self._bookkeeping.run(step, *arguments, urgent=urgent)

    def _where(self) -> str | None:
        return self._task.stack()


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
