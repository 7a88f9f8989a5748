"""One Python contestant in its own process.

    python -m benchmarks.redis.peer NAME about                          # the version of its library, as one line
    python -m benchmarks.redis.peer NAME worker                         # work until SIGTERM
    python -m benchmarks.redis.peer NAME send FIRST COUNT SECONDS MODE  # MODE: one, many or paced

Reads BENCH_REDIS (the server's address), BENCH_EFFECTS (see effects.py) and BENCH_CONCURRENCY. A sender prints the
seconds of sending without the first message, which opens connections. Runs in the environment that has the contestant's
library, which may differ from the benchmark's.
"""

import asyncio
import importlib
import importlib.metadata
import inspect
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.redis.effects import Effects

PACE_SECONDS = 0.02

# A sender is (send one message, send many); the second is None if the library cannot send many at once.
One = Callable[[int, float], Any]
Many = Callable[[range, float], Any] | None


def effects() -> Effects:
    return Effects(Path(os.environ["BENCH_EFFECTS"]))


def address() -> str:
    return os.environ["BENCH_REDIS"]


def concurrency() -> int:
    return int(os.environ["BENCH_CONCURRENCY"])


def chunks(numbers: range, size: int) -> list[range]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def main(name: str, verb: str, *arguments: str) -> None:
    peer = importlib.import_module(f"benchmarks.redis.peers.{name}")
    if verb == "about":
        print(" ".join(f"{each} {importlib.metadata.version(each)}" for each in peer.PACKAGES))
    elif verb == "worker":
        peer.worker()
    else:
        first, count, seconds, mode = arguments
        print(_send(peer.sender(), range(int(first), int(first) + int(count)), float(seconds), mode))


def _send(
    opened: AbstractContextManager[tuple[One, Many]] | AbstractAsyncContextManager[tuple[One, Many]],
    numbers: range,
    seconds: float,
    mode: str,
) -> float:
    if not isinstance(opened, AbstractAsyncContextManager):
        with opened as (one, many):
            return asyncio.run(_timed(one, many, numbers, seconds, mode))
    return _with_uvloop(_opened_async(opened, numbers, seconds, mode))


async def _opened_async(
    opened: AbstractAsyncContextManager[tuple[One, Many]], numbers: range, seconds: float, mode: str
) -> float:
    async with opened as (one, many):
        return await _timed(one, many, numbers, seconds, mode)


async def _timed(one: One, many: Many, numbers: range, seconds: float, mode: str) -> float:
    """Send, and await the result if there is one: a sender may be plain or async."""
    book = effects()
    if mode == "paced":
        book.sending(numbers[0])
    await _settled(one(numbers[0], seconds))
    begun, rest = time.perf_counter(), numbers[1:]
    if mode == "many":
        assert many is not None, "there is no way to send many at once"
        await _settled(many(rest, seconds))
        return time.perf_counter() - begun
    awaited = inspect.iscoroutinefunction(one)
    for step, number in enumerate(rest, 1):
        if mode == "paced":
            time.sleep(max(0.0, begun + step * PACE_SECONDS - time.perf_counter()))
            book.sending(number)
        if awaited:
            await one(number, seconds)
        else:
            one(number, seconds)
    return time.perf_counter() - begun


async def _settled(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer


def _with_uvloop(coroutine: Any) -> float:
    import uvloop

    took: float = uvloop.run(coroutine)
    return took


if __name__ == "__main__":
    main(*sys.argv[1:])
