"""The asyncio task an execution runs in, cancelled from other threads."""

import asyncio
import traceback
from contextlib import suppress
from typing import Any


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
