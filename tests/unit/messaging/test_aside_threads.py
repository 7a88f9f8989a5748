"""Blocking calls beside the event loop, in threads of their own."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from penstock.messaging import threads as aside
from penstock.messaging.threads import AsideThreads

DEADLINE_SECONDS = 60.0

told: ContextVar[str] = ContextVar("told")


def test_a_call_returns_and_raises_as_if_called_here() -> None:
    async def story() -> None:
        threads = AsideThreads("test", threads_max=2)
        told.set("in the caller's context")
        assert await threads.run(told.get) == "in the caller's context"
        assert await threads.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)

    asyncio.run(story())


def test_there_are_never_more_threads_than_allowed_and_urgent_calls_overtake() -> None:
    order: list[str] = []
    go_on, at_work = threading.Event(), threading.Event()

    def hold() -> None:
        at_work.set()
        assert go_on.wait(DEADLINE_SECONDS)

    async def story() -> None:
        threads = AsideThreads("test", threads_max=1)
        first = asyncio.create_task(threads.run(hold))
        while not at_work.is_set():
            await asyncio.sleep(0)
        late = asyncio.create_task(threads.run(order.append, "begins"))
        await asyncio.sleep(0)
        soon = asyncio.create_task(threads.run(order.append, "ends", urgent=True))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, late, soon)

    asyncio.run(story())
    assert order == ["ends", "begins"]


def test_a_call_runs_even_if_the_task_that_awaits_it_is_cancelled() -> None:
    recorded, at_work, go_on = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        at_work.set()
        assert go_on.wait(DEADLINE_SECONDS)

    async def story() -> None:
        threads = AsideThreads("test", threads_max=1)
        first = asyncio.create_task(threads.run(hold))
        while not at_work.is_set():
            await asyncio.sleep(0)
        record = asyncio.create_task(threads.run(recorded.set))
        await asyncio.sleep(0)
        record.cancel()
        go_on.set()
        await first
        with pytest.raises(asyncio.CancelledError):
            await record

    asyncio.run(story())
    assert recorded.wait(DEADLINE_SECONDS)


def test_idle_threads_end_and_the_next_call_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "IDLE_SECONDS", 0.01)

    async def story() -> None:
        threads = AsideThreads("test", threads_max=1)
        first = await threads.run(threading.current_thread)
        await asyncio.to_thread(first.join, DEADLINE_SECONDS)
        assert not first.is_alive()
        second = await threads.run(threading.current_thread)
        assert second is not first

    asyncio.run(story())
