"""What threads and tasks are doing, in words."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from penstock.worker.liveness import stacks

DEADLINE_SECONDS = 60.0


async def _innermost(gate: asyncio.Event) -> None:
    password = "opensesame"
    await gate.wait()
    assert password


async def _outermost(gate: asyncio.Event) -> None:
    await _innermost(gate)


def test_a_task_is_shown_from_its_function_down_to_where_it_waits() -> None:
    async def look() -> str:
        gate = asyncio.Event()
        task = asyncio.create_task(_outermost(gate), name="the task")
        await asyncio.sleep(0)
        told = await asyncio.to_thread(stacks, asyncio.get_running_loop())
        gate.set()
        await task
        return told

    told = asyncio.run(look())
    shown = told[told.index("Task the task:") :]
    assert shown.index("in _outermost") < shown.index("in _innermost") < shown.index("in wait")
    assert "await gate.wait()" in shown
    assert "opensesame" not in told, "local variables hold secrets"


def test_threads_are_shown_by_name() -> None:
    gate, waiting = threading.Event(), threading.Event()

    def wait_here() -> None:
        waiting.set()
        gate.wait(DEADLINE_SECONDS)

    thread = threading.Thread(target=wait_here, name="the thread", daemon=True)
    thread.start()
    assert waiting.wait(DEADLINE_SECONDS)
    told = stacks(None)
    gate.set()
    assert "Thread the thread:" in told
    assert "in wait_here" in told
    assert "Task" not in told


def test_tasks_that_cannot_be_listed_keep_nothing_else_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_fast(loop: object) -> set[Callable[..., None]]:
        raise RuntimeError("Set changed size during iteration")

    monkeypatch.setattr(asyncio, "all_tasks", too_fast)
    loop = asyncio.new_event_loop()
    told = stacks(loop)
    loop.close()
    assert "Thread MainThread:" in told
    assert "too fast" in told
