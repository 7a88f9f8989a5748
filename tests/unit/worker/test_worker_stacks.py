"""The stacks of threads and tasks, as text."""

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


def test_a_task_is_shown_from_its_function_to_the_line_where_it_waits() -> None:
    async def dump() -> str:
        gate = asyncio.Event()
        task = asyncio.create_task(_outermost(gate), name="the task")
        await asyncio.sleep(0)
        text = await asyncio.to_thread(stacks, asyncio.get_running_loop())
        gate.set()
        await task
        return text

    text = asyncio.run(dump())
    shown = text[text.index("Task the task:") :]
    assert shown.index("in _outermost") < shown.index("in _innermost") < shown.index("in wait")
    assert "await gate.wait()" in shown
    assert "opensesame" not in text, "local variables may be secrets"


def test_threads_are_shown_by_name() -> None:
    gate, waiting = threading.Event(), threading.Event()

    def wait_here() -> None:
        waiting.set()
        gate.wait(DEADLINE_SECONDS)

    thread = threading.Thread(target=wait_here, name="the thread", daemon=True)
    thread.start()
    assert waiting.wait(DEADLINE_SECONDS)
    text = stacks(None)
    gate.set()
    assert "Thread the thread:" in text
    assert "in wait_here" in text
    assert "Task" not in text


def test_threads_are_shown_even_if_tasks_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_fast(loop: object) -> set[Callable[..., None]]:
        raise RuntimeError("Set changed size during iteration")

    monkeypatch.setattr(asyncio, "all_tasks", too_fast)
    loop = asyncio.new_event_loop()
    text = stacks(loop)
    loop.close()
    assert "Thread MainThread:" in text
    assert "too fast" in text
