"""Call a function with one delivery.

- `PlainCall`: a plain function, in a thread of the pool
- `OwnTask`: the asyncio task of an execution, which other threads cancel
- `AsyncCall`: an async function, as a task on the worker's event loop
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
    """One call of a plain function, in a thread of the pool."""

    def __init__(self, delivery: Delivery, around: HandlerRuntime) -> None:
        super().__init__(delivery, around)
        self._thread_id: int | None = None  # written by the running thread

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
        except BaseException as raised:  # SystemExit too: the delivery must be settled, whatever user code raises
            return self.failed(raised)
        return self.finish(result)

    def _where(self) -> str | None:
        frame = sys._current_frames().get(self._thread_id or 0)
        return None if frame is None else "".join(traceback.format_stack(frame))


class OwnTask:
    """The task of one execution, known once it has begun. Cancelling before its begin or after its end does nothing."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None  # this and the next: written by the loop
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Remember the current task. Called by the task itself."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel(self) -> None:
        """Cancel the task. Thread-safe."""
        task, loop = self._task, self._loop
        if task is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)

    def stack(self) -> str | None:
        """Return the stack of the task, without variables."""
        task = self._task
        if task is None:
            return None
        return "".join(line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1))


Result = TypeVar("Result")


class AsyncCall(Call):
    """One call of an async function, as a task on the worker's event loop."""

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
            return await self._aside(self.failed, cancelled, urgent=True)  # the function cancelled itself
        except BaseException as raised:
            return await self._aside(self.failed, raised, urgent=True)
        self.returned()
        return await self._aside(self.finish, result, urgent=True)

    def interrupt(self) -> None:
        super().interrupt()
        self._task.cancel()

    async def _aside(self, step: Callable[..., Result], *arguments: Any, urgent: bool = False) -> Result:
        """Run a step, in another thread if it uses the ledger, which blocks. Steps that end work overtake those that
        start it.
        """
        if self._bookkeeping is None:
            return step(*arguments)
        return await self._bookkeeping.run(step, *arguments, urgent=urgent)

    def _where(self) -> str | None:
        return self._task.stack()


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
