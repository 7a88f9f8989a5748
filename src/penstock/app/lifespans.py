"""Run the lifespans of a worker: enter them in order, leave them in reverse, each within its share of the time."""

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from penstock.app.handlers import Lifespan
from penstock.errors import UsageError, UserError
from penstock.events import Bus, LifespanFailed
from penstock.messaging.failure import failure_of, location_of
from penstock.messaging.threads import WorkThread

LoopOf = Callable[[], asyncio.AbstractEventLoop]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entered:
    """An entered lifespan and the function that leaves it, which may block."""

    lifespan: Lifespan
    leave: Callable[[], object]


class Lifespans:
    """The lifespans of one worker, opened and closed by the thread that serves it.

    Async ones run on the event loop of the async handlers.
    """

    def __init__(self, lifespans: Sequence[Lifespan], *, loop_of: LoopOf, bus: Bus, close_seconds: float) -> None:
        self._lifespans = lifespans
        self._loop_of = loop_of
        self._bus = bus
        self._close_seconds = close_seconds
        self._entered: list[_Entered] = []

    def open(self) -> Mapping[str, Any]:
        """Enter all lifespans and return their resources as one mapping.

        Raises `UserError` with the error of the first that fails, after leaving those entered before.
        """
        resources: dict[str, Any] = {}
        try:
            for lifespan in self._lifespans:
                self._add(resources, lifespan, self._entered_of(lifespan))
        except BaseException:
            self.close()
            raise
        return MappingProxyType(resources)

    def close(self) -> None:
        """Leave all lifespans in reverse order within ``close_seconds``.

        A failure is emitted as an event and does not stop the others. A lifespan that exceeds its share of the
        remaining time is reported as an event and keeps running in its daemon thread while the others are left.
        """
        ends_at = time.monotonic() + self._close_seconds
        while self._entered:
            share = (ends_at - time.monotonic()) / len(self._entered)
            entered = self._entered.pop()
            thread = WorkThread(self._leave, entered, name="penstock-lifespan")
            thread.start()
            thread.join(max(share, 0.0))
            if thread.is_alive():
                self._report_failure(entered.lifespan, f"it did not end within {share:.2g} s")

    def _entered_of(self, lifespan: Lifespan) -> Any:
        try:
            return self._enter(lifespan)
        except UserError:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            location = location_of(error)
            where = "" if location is None else f" ({location})"
            raise UserError(
                f"The lifespan {lifespan.name} raised {failure_of(error).summary}{where}; nothing is served without it."
            ) from error

    def _enter(self, lifespan: Lifespan) -> Any:
        if inspect.isasyncgenfunction(lifespan.function):
            life = _AsyncLife(lifespan)
            leave: Callable[[], object] = life.leave
            asyncio.run_coroutine_threadsafe(life.live(), self._loop_of())
            found = life.entered.result()
        elif inspect.isgeneratorfunction(lifespan.function):
            managed = contextmanager(lifespan.function)()
            found = managed.__enter__()
            leave = partial(managed.__exit__, None, None, None)
        else:
            raise UsageError(
                f"The lifespan {lifespan.name} is not a generator function: it has to yield its resources."
            )
        self._entered.append(_Entered(lifespan=lifespan, leave=leave))
        return found

    def _leave(self, entered: _Entered) -> None:
        try:
            entered.leave()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            self._report_failure(entered.lifespan, failure_of(error).summary)

    def _report_failure(self, lifespan: Lifespan, error: str) -> None:
        self._bus.emit(LifespanFailed(lifespan=lifespan.name, error=error))

    def _add(self, resources: dict[str, Any], lifespan: Lifespan, found: Any) -> None:
        if found is None:
            return
        if not isinstance(found, Mapping):
            raise UsageError(
                f"The lifespan {lifespan.name} yielded {type(found).__name__}; it yields a mapping of resources, or "
                "nothing."
            )
        twice = sorted(resources.keys() & found.keys())
        if twice:
            raise UsageError(
                f"The lifespan {lifespan.name} yields the resource {twice[0]}, which another lifespan already yields."
            )
        resources.update(found)


class _AsyncLife:
    """An async lifespan, entered and left by the same task, as task groups and cancel scopes require."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.entered: Future[Any] = Future()
        self._left: Future[None] = Future()
        self._function = lifespan.function
        self._over = asyncio.Event()  # this and `_loop` belong to the loop's thread
        self._loop: asyncio.AbstractEventLoop | None = None

    async def live(self) -> None:
        """Enter the lifespan, wait for `leave`, and leave it. This is the task's coroutine."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asynccontextmanager(self._function)() as found:
                self.entered.set_result(found)
                await self._over.wait()
        except BaseException as error:
            (self._left if self.entered.done() else self.entered).set_exception(error)
        else:
            self._left.set_result(None)

    def leave(self) -> None:
        """Leave the lifespan from another thread. Waits until it has ended and raises its exception."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._left.result()
