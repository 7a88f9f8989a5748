"""One call of a user's function, plain or async."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.messaging.function import run_to_its_end, takes_context
from penstock.messaging.own_process import OwnProcess
from penstock.pipeline.objects.context import ObjectContext
from penstock.pipeline.objects.stream import IncomingObject


def call(function: Callable[..., Any], obj: IncomingObject, context: ObjectContext) -> None:
    """Call it to its end. An async function gets an event loop of its own in this thread, for this one call.

    What it answers is of no use to anybody; work that it only made and did not do raises TypeError.
    """
    arguments = (obj, context) if takes_context(function, context.handler, first="object") else (obj,)
    process = OwnProcess()
    with process:
        answer = function(*arguments)
    if inspect.iscoroutine(answer):
        answer = asyncio.run(_cancelled_at_end(answer, context, process))
    run_to_its_end(answer)


async def _cancelled_at_end(answer: Coroutine[Any, Any, Any], context: ObjectContext, process: OwnProcess) -> Any:
    """An async function need not ask: it is cancelled where it waits."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop is closed: the function came to its end
            loop.call_soon_threadsafe(task.cancel)

    context.control.watch(cancel)
    try:
        with process:  # in here: a copy that closed its loop would take descriptors out of its parent's
            return await answer
    finally:
        context.control.watch(None)
