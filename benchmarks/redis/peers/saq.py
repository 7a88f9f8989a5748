"""SAQ: JSON jobs in string keys, ids in a list that the worker's tasks block on."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from saq import Queue, Worker

from benchmarks.redis.peer import Many, One, address, concurrency, effects

PACKAGES = ("saq", "redis", "hiredis")


async def work(context: Any, *, number: int, seconds: float) -> None:
    context["effects"].started(number)
    if seconds:
        await asyncio.sleep(seconds)
        context["effects"].ended(number)


async def startup(context: Any) -> None:
    context["effects"] = effects()


def worker() -> None:
    uvloop.run(_serve())


async def _serve() -> None:
    # As many operations at once as there are jobs at once: its default of 20 keeps the others waiting for enqueues.
    queue = Queue.from_url(address(), name="bench", max_concurrent_ops=concurrency())
    await Worker(queue, functions=[work], concurrency=concurrency(), startup=startup).start()


@asynccontextmanager
async def sender() -> AsyncIterator[tuple[One, Many]]:
    queue = Queue.from_url(address(), name="bench")

    async def one(number: int, seconds: float) -> None:
        # Results are not kept; a job that dies with its worker is tried again, as with the others.
        await queue.enqueue("work", number=number, seconds=seconds, ttl=-1, retries=5, timeout=60)

    yield one, None
    await queue.disconnect()
