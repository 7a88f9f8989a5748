"""Call a function with several deliveries.

The function returns None (all messages are done) or a list parallel to its argument: None for a message that is done,
an exception (`Reject`, `Retry` or any other) for one that failed, as if the function had raised it for that message
alone. If the function raises, all messages fail.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.errors import Interrupted
from penstock.handlers.breaker import ExecutionDeliveries
from penstock.handlers.call import Call, HandlerRuntime, OpenedMessage, OwnTask
from penstock.handlers.context import BatchContext, Item, item_of
from penstock.messaging.call import CallTime, ExecutionControl
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import HeldClaim, Settlements
from penstock.messaging.settlement import Settlement
from penstock.messaging.wording import counted


class BatchCall:
    """One call of a function with several deliveries: a `penstock.messaging.handler.Execution` without its `run`.

    It opens and settles each delivery on its own, and calls the function once. The executor owns it; ``_begin`` and the
    steps after it run in the executing thread, the other methods in any thread.
    """

    def __init__(self, deliveries: Sequence[Delivery], runtime: HandlerRuntime) -> None:
        self._runtime = runtime
        self._control = ExecutionControl(ends_at_stop=runtime.declaration.on_stop == "release")
        self._together = ExecutionDeliveries(tuple(deliveries))
        self._calls = [Call(delivery, runtime, self._together) for delivery in deliveries]
        self._settled: dict[str, Settlement] = {}  # written by the running thread before it calls the function
        self._open: list[tuple[Call, Item[Any]]] = []  # as above
        self._deliveries = deliveries
        self._time = CallTime(runtime.clock)  # of the user's code
        self._process = runtime.process  # entered around the user's code

    def left_seconds(self, timeout_seconds: float) -> float:
        return self._time.left_seconds(timeout_seconds)

    def claim(self) -> HeldClaim | None:
        return None

    def loses(self, claim: HeldClaim) -> bool:  # noqa: ARG002 - it holds none
        return False

    def drain(self) -> None:
        self._control.stop()

    def time_out(self) -> Settlements:
        settlements = dict(self._settled)
        for delivery, call in zip(self._deliveries, self._calls, strict=True):
            if delivery.receipt not in settlements:
                settlements.update(call.time_out())
        return settlements

    def release(self) -> None:
        settled = dict(self._settled)
        for delivery, call in zip(self._deliveries, self._calls, strict=True):
            if delivery.receipt not in settled:
                call.release()

    def interrupt(self) -> None:
        # In case it was interrupted without `release` or `time_out`, which end the calls.
        self._runtime.breaker.skip(self._together)
        self._control.end()

    def _begin(self) -> Sequence[Item[Any]]:
        for delivery, call in zip(self._deliveries, self._calls, strict=True):
            opened = call.open()
            if isinstance(opened, OpenedMessage):
                self._open.append((call, item_of(delivery, opened.body)))
            else:
                self._settled.update(opened)
        if any(call.ended for call, _ in self._open):  # another thread ended a call meanwhile: do not call the function
            return ()
        return [item for _, item in self._open]

    def _arguments(self, items: Sequence[Item[Any]]) -> tuple[Any, ...]:
        if not self._runtime.wants_context:
            return (items,)
        context = BatchContext(
            queue=self._runtime.declaration.queue.name,
            handler=self._runtime.declaration.name,
            resources=self._runtime.resources,
            control=self._control,
            on_retry=self._open[0][0].emit_retry,
        )
        return (items, context)

    def _record_results(self, result: Any) -> Settlements:
        results = [None] * len(self._open) if result is None else result
        if not _fits(results, len(self._open)):
            return self._record_failure(
                TypeError(
                    f"a function that takes batches returns None, or a list with None or an exception for each of its "
                    f"{counted(len(self._open), 'message')}"
                )
            )
        settlements = dict(self._settled)
        for (call, _), failure in zip(self._open, results, strict=True):
            settlements.update(call.record_completion(None) if failure is None else call.record_failure(failure))
        return settlements

    def _record_failure(self, raised: BaseException) -> Settlements:
        if isinstance(raised, Interrupted) and self._control.over:
            return {}
        settlements = dict(self._settled)
        for call, _ in self._open:
            settlements.update(call.record_failure(raised))
        return settlements


class PlainBatchCall(BatchCall):
    """A batch call of a plain function, in a thread of the pool."""

    def run(self) -> Settlements:
        items = self._begin()
        if not items:
            return self._settled
        try:
            with self._time, self._process:
                result = self._runtime.function(*self._arguments(items))
        except BaseException as raised:
            return self._record_failure(raised)
        return self._record_results(result)


class AsyncBatchCall(BatchCall):
    """A batch call of an async function, as a task on the worker's event loop."""

    def __init__(self, deliveries: Sequence[Delivery], runtime: HandlerRuntime) -> None:
        super().__init__(deliveries, runtime)
        self._task = OwnTask()

    async def run(self) -> Settlements:
        self._task.begin()
        items = self._begin()
        if not items:
            return self._settled
        try:
            with self._time, self._process:
                result = await self._runtime.function(*self._arguments(items))
        except asyncio.CancelledError as cancelled:
            if self._control.over:
                raise
            return self._record_failure(cancelled)
        except BaseException as raised:
            return self._record_failure(raised)
        return self._record_results(result)

    def interrupt(self) -> None:
        super().interrupt()
        self._task.cancel()


def _fits(results: object, count: int) -> bool:
    if not isinstance(results, list | tuple) or len(results) != count:
        return False
    return all(failure is None or isinstance(failure, BaseException) for failure in results)
