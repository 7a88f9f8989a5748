"""One delivery in the hands of an async function."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.handlers.call import Call, Opened, Surroundings
from penstock.handlers.own_task import OwnTask
from penstock.messaging.delivery import Delivery
from penstock.messaging.function import run_to_its_end
from penstock.messaging.handler import Answer

Result = TypeVar("Result")


class AsyncCall(Call):
    """A task on the worker's event loop."""

    def __init__(self, delivery: Delivery, around: Surroundings) -> None:
        super().__init__(delivery, around)
        self._task = OwnTask()
        self._blocks = around.keys is not None

    async def run(self) -> Answer:
        self._task.begin()
        opened = await self._aside(self.open) if self._blocks else self.open()
        if not isinstance(opened, Opened):
            return opened
        try:
            if opened.cleanup:
                await _awaited(self.cleaned(opened))
            result = run_to_its_end(await self.called(opened))
        except asyncio.CancelledError as cancelled:
            if self._control.over:
                raise
            return await self._aside(self.failed, cancelled)  # the function's own doing
        except BaseException as raised:
            return await self._aside(self.failed, raised)
        return await self._aside(self.finish, result) if self._blocks else self.finish(result)

    def interrupt(self) -> None:
        super().interrupt()
        self._task.cancel()

    async def _aside(self, step: Callable[..., Result], *arguments: Any) -> Result:
        """A step; beside the loop where it talks to the ledger, which blocks."""
        if not self._blocks:
            return step(*arguments)
        return await asyncio.to_thread(step, *arguments)

    def _where(self) -> str | None:
        return self._task.stack()


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
