"""What lives as long as the worker: lifespans entered in order, left in reverse, each within its time."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any

from penstock.app.handlers import Lifetime
from penstock.errors import UsageError
from penstock.events import Bus, LifespanFailed
from penstock.messaging.failure import failure_of

LoopOf = Callable[[], asyncio.AbstractEventLoop]


class Lifetimes:
    """The lifespans of one worker. Async ones run on the loop that the async handlers run on."""

    def __init__(self, lifetimes: Sequence[Lifetime], *, loop_of: LoopOf, bus: Bus, close_seconds: float) -> None:
        self._lifetimes = lifetimes
        self._loop_of = loop_of
        self._bus = bus
        self._close_seconds = close_seconds
        self._stack = ExitStack()

    def open(self) -> Mapping[str, Any]:
        """Enter all; answers their resources together. What one raises comes through, after the others were left."""
        resources: dict[str, Any] = {}
        try:
            for lifetime in self._lifetimes:
                self._add(resources, lifetime, self._enter(lifetime))
        except BaseException:
            self.close()
            raise
        return MappingProxyType(resources)

    def close(self) -> None:
        """Leave all, in reverse, within the time they have together. One that fails is told and keeps nobody; where
        one does not end, that is told and the process has to leave without it."""
        thread = threading.Thread(target=self._stack.close, name="penstock-lifespans", daemon=True)
        thread.start()
        thread.join(self._close_seconds)
        if thread.is_alive():
            names = ", ".join(lifetime.name for lifetime in self._lifetimes)
            error = f"not all ended within {self._close_seconds:g} s"
            self._bus.emit(LifespanFailed(lifespan=names, error=error))

    def _enter(self, lifetime: Lifetime) -> Any:
        if inspect.isasyncgenfunction(lifetime.function):
            entering = asynccontextmanager(lifetime.function)()
            found = asyncio.run_coroutine_threadsafe(entering.__aenter__(), self._loop_of()).result()
            self._stack.callback(self._guarded, lifetime, lambda: self._left_async(entering))
        elif inspect.isgeneratorfunction(lifetime.function):
            managed = contextmanager(lifetime.function)()
            found = managed.__enter__()
            self._stack.callback(self._guarded, lifetime, lambda: managed.__exit__(None, None, None))
        else:
            raise UsageError(f"The lifespan {lifetime.name} is no generator function: it has to yield its resources.")
        return found

    def _left_async(self, entered: Any) -> None:
        future = asyncio.run_coroutine_threadsafe(entered.__aexit__(None, None, None), self._loop_of())
        try:
            future.result(self._close_seconds)
        except FutureTimeoutError:
            future.cancel()
            raise

    def _guarded(self, lifetime: Lifetime, leave: Callable[[], object]) -> None:
        try:
            leave()
        except Exception as error:
            self._bus.emit(LifespanFailed(lifespan=lifetime.name, error=failure_of(error).summary))

    def _add(self, resources: dict[str, Any], lifetime: Lifetime, found: Any) -> None:
        if found is None:
            return
        if not isinstance(found, Mapping):
            raise UsageError(
                f"The lifespan {lifetime.name} yielded {type(found).__name__}; it yields a mapping of resources, or "
                "nothing."
            )
        twice = sorted(resources.keys() & found.keys())
        if twice:
            raise UsageError(
                f"The lifespan {lifetime.name} yields the resource {twice[0]}, which another one does too."
            )
        resources.update(found)
