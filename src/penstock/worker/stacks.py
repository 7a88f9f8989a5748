"""What every thread and every task is doing, in words. Without local variables: they hold secrets."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """The stacks of all threads by name, and of all tasks of the loop. May be asked while the loop is blocked."""
    return "\n".join([*_threads(), *(() if loop is None else _tasks(loop))])


def _threads() -> Iterator[str]:
    frames = sys._current_frames()  # the one way to see other threads' stacks
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield f"Thread {thread.name}:\n" + "".join(traceback.format_stack(frame))


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:  # says the library after a thousand tries
        yield "Tasks: they come and go too fast to be listed\n"
        return
    for task in tasks:
        lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(task.get_coro())).format()
        yield f"Task {task.get_name()}:\n" + "".join(lines)


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """From the task's own function down to where it awaits; `Task.get_stack` shows the first of them only."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
