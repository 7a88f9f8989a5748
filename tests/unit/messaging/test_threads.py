"""Blocking calls beside the event loop, in separate threads."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from penstock.messaging import threads as threads_module
from penstock.messaging.threads import AsideThreads

DEADLINE_SECONDS = 60.0

variable: ContextVar[str] = ContextVar("variable")


def test_a_call_returns_and_raises_like_a_direct_call() -> None:
    async def scenario() -> None:
        threads = AsideThreads("test", threads_max=2)
        variable.set("in the caller's context")
        assert await threads.run(variable.get) == "in the caller's context"
        assert await threads.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)

    asyncio.run(scenario())


def test_threads_are_bounded_and_urgent_calls_run_first() -> None:
    order: list[str] = []
    go_on, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go_on.wait(DEADLINE_SECONDS)

    async def scenario() -> None:
        threads = AsideThreads("test", threads_max=1)
        first = asyncio.create_task(threads.run(hold))
        assert await asyncio.to_thread(started.wait, DEADLINE_SECONDS)
        normal = asyncio.create_task(threads.run(order.append, "begins"))
        await asyncio.sleep(0)
        urgent = asyncio.create_task(threads.run(order.append, "ends", urgent=True))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, normal, urgent)

    asyncio.run(scenario())
    assert order == ["ends", "begins"]


def test_a_call_runs_even_if_the_task_that_awaits_it_is_cancelled() -> None:
    recorded, started, go_on = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go_on.wait(DEADLINE_SECONDS)

    async def scenario() -> None:
        threads = AsideThreads("test", threads_max=1)
        first = asyncio.create_task(threads.run(hold))
        assert await asyncio.to_thread(started.wait, DEADLINE_SECONDS)
        record = asyncio.create_task(threads.run(recorded.set))
        await asyncio.sleep(0)
        record.cancel()
        go_on.set()
        await first
        with pytest.raises(asyncio.CancelledError):
            await record

    asyncio.run(scenario())
    assert recorded.wait(DEADLINE_SECONDS)


def test_idle_threads_end_and_the_next_call_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "IDLE_SECONDS", 0.01)

    async def scenario() -> None:
        threads = AsideThreads("test", threads_max=1)
        first = await threads.run(threading.current_thread)
        await asyncio.to_thread(first.join, DEADLINE_SECONDS)
        assert not first.is_alive()
        second = await threads.run(threading.current_thread)
        assert second is not first

    asyncio.run(scenario())
