"""Lifespans: one task for each async one, and one that hangs keeps no other from being left."""

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
    made = EventLoop()
    yield made
    made.close()


Open = Callable[..., Lifespans]


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def lifespans(loop: EventLoop, told: list[Event]) -> Open:
    def make(*functions: Any, close_seconds: float = DEADLINE_SECONDS) -> Lifespans:
        handlers = Handlers()
        for function in functions:
            handlers.lifespan(function)
        return Lifespans(
            handlers.lifespans, loop_of=loop.ensure_started, bus=Bus(told.append), close_seconds=close_seconds
        )

    return make


def test_an_async_lifespan_lives_in_one_task(lifespans: Open, told: list[Event]) -> None:
    tasks: list[object] = []

    async def client() -> AsyncIterator[dict[str, str]]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_SECONDS):
            helper = group.create_task(asyncio.sleep(DEADLINE_SECONDS))
            yield {"client": "http"}
            helper.cancel()
        tasks.append(asyncio.current_task())

    life = lifespans(client)
    assert life.open() == {"client": "http"}
    life.close()
    assert told == []
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_one_that_hangs_keeps_no_other_from_being_left(lifespans: Open, told: list[Event], colour: str) -> None:
    left, gate = threading.Event(), threading.Event()

    def first() -> Iterator[None]:
        yield None
        left.set()

    def hangs() -> Iterator[None]:
        yield None
        gate.wait(DEADLINE_SECONDS)

    async def hangs_async() -> AsyncIterator[None]:
        yield None
        await asyncio.sleep(DEADLINE_SECONDS)

    life = lifespans(first, hangs if colour == "plain" else hangs_async, close_seconds=0.4)
    life.open()
    life.close()
    gate.set()
    assert left.is_set()
    assert [event.lifespan.removesuffix("_async") for event in told if isinstance(event, LifespanFailed)] == ["hangs"]


def test_what_is_raised_at_the_end_is_told_and_at_the_start_comes_through(lifespans: Open, told: list[Event]) -> None:
    left: list[str] = []

    async def raises_late() -> AsyncIterator[None]:
        yield None
        left.append("late")
        raise OSError("cannot close")

    async def raises_early() -> AsyncIterator[None]:
        if not left:
            raise ConnectionError("no database")
        yield None

    with pytest.raises(UserError, match=r"raises_early raised ConnectionError: no database \(test_lifespans.py:"):
        lifespans(raises_late, raises_early).open()
    assert left == ["late"]
    assert [event.error for event in told if isinstance(event, LifespanFailed)] == ["OSError: cannot close"]
