"""One delivery in the hands of an async function."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.handlers.call import Call, Keyed, Opened, Surroundings
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
        self._bookkeeping = around.bookkeeping

    async def run(self) -> Answer:
        self._task.begin()
        read = self.read()
        opened = await self._aside(self.claimed, read) if isinstance(read, Keyed) else read
        if not isinstance(opened, Opened):
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
