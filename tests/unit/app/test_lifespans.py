"""Lifespans: each async one runs in one task, and a hanging one does not prevent others from closing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from penstock.app.handlers import Handlers
from penstock.app.lifespans import Lifespans
from penstock.errors import UserError
from penstock.events import Bus, Event, LifespanFailed
from penstock.worker.pools import EventLoop

DEADLINE_SECONDS = 60.0


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    event_loop = EventLoop()
    yield event_loop
    event_loop.close()


Open = Callable[..., Lifespans]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def lifespans(loop: EventLoop, events: list[Event]) -> Open:
    def make(*functions: Any, close_seconds: float = DEADLINE_SECONDS) -> Lifespans:
        handlers = Handlers()
        for function in functions:
            handlers.lifespan(function)
        return Lifespans(
            handlers.lifespans, loop_of=loop.ensure_started, bus=Bus(events.append), close_seconds=close_seconds
        )

    return make


def test_an_async_lifespan_runs_in_one_task(lifespans: Open, events: list[Event]) -> None:
    tasks: list[object] = []

    async def client() -> AsyncIterator[dict[str, str]]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_SECONDS):
            helper = group.create_task(asyncio.sleep(DEADLINE_SECONDS))
            yield {"client": "http"}
            helper.cancel()
        tasks.append(asyncio.current_task())

    app_lifespans = lifespans(client)
    assert app_lifespans.open() == {"client": "http"}
    app_lifespans.close()
    assert events == []
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_hanging_lifespan_does_not_prevent_others_from_closing(
    lifespans: Open, events: list[Event], kind: str
) -> None:
    closed, gate = threading.Event(), threading.Event()

    def first() -> Iterator[None]:
        yield None
        closed.set()

    def hangs() -> Iterator[None]:
        yield None
        gate.wait(DEADLINE_SECONDS)

    async def hangs_async() -> AsyncIterator[None]:
        yield None
        await asyncio.sleep(DEADLINE_SECONDS)

    app_lifespans = lifespans(first, hangs if kind == "plain" else hangs_async, close_seconds=0.4)
    app_lifespans.open()
    app_lifespans.close()
    gate.set()
    assert closed.is_set()
    assert [event.lifespan.removesuffix("_async") for event in events if isinstance(event, LifespanFailed)] == ["hangs"]


def test_an_error_while_closing_is_reported_and_one_while_opening_is_raised(
    lifespans: Open, events: list[Event]
) -> None:
    closed: list[str] = []

    async def fails_to_close() -> AsyncIterator[None]:
        yield None
        closed.append("closed")
        raise OSError("cannot close")

    async def fails_to_open() -> AsyncIterator[None]:
        if not closed:
            raise ConnectionError("no database")
        yield None

    with pytest.raises(UserError, match=r"fails_to_open raised ConnectionError: no database \(test_lifespans.py:"):
        lifespans(fails_to_close, fails_to_open).open()
    assert closed == ["closed"]
    assert [event.error for event in events if isinstance(event, LifespanFailed)] == ["OSError: cannot close"]
