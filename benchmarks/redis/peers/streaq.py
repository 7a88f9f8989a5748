"""streaq: Redis Streams, functions in Lua, and a client of its own (coredis)."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streaq

from benchmarks.redis.peer import Many, One, address, chunks, concurrency, effects

PACKAGES = ("streaq", "coredis")
SEND_AT_ONCE = 500  # more in one of its pipelines was no faster

# anyio uses uvloop only on request; streaq's default prefetch equals the concurrency.
app = streaq.Worker(
    redis_url=address(), queue_name="bench", concurrency=concurrency(), anyio_kwargs={"use_uvloop": True}
)
book = effects()


@app.task(ttl=0)  # results are not kept
async def work(number: int, seconds: float) -> None:
    book.started(number)
    if seconds:
        await asyncio.sleep(seconds)
        book.ended(number)


def worker() -> None:
    app.run_sync()  # and not by its command, which logs every task


@asynccontextmanager
async def sender() -> AsyncIterator[tuple[One, Many]]:
    async def one(number: int, seconds: float) -> None:
        await work.enqueue(number, seconds)

    async def many(numbers: range, seconds: float) -> None:
        for chunk in chunks(numbers, SEND_AT_ONCE):
            await app.enqueue_many([work.enqueue(number, seconds) for number in chunk])

    async with app:
        yield one, many
