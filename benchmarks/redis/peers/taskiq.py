"""taskiq with the Streams broker of taskiq-redis: XREADGROUP and an XACK a message."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq_redis import RedisStreamBroker

from benchmarks.redis.peer import Many, One, address, concurrency, effects

PACKAGES = ("taskiq", "taskiq-redis", "redis", "hiredis")

# By default it claims unacknowledged messages of others after 10 minutes; a minute, as for most others.

broker = RedisStreamBroker(
    address(), queue_name="bench", consumer_id="0", idle_timeout=60_000, unacknowledged_lock_timeout=10
)
book = effects()


@broker.task(task_name="work")
async def work(number: int, seconds: float) -> None:
    book.started(number)
    if seconds:
        await asyncio.sleep(seconds)
        book.ended(number)


def worker() -> None:
    # One worker below its manager; uvloop is taken because it is there. WHEN_EXECUTED acks after the handler, as its
    # default (WHEN_SAVED, after the result was stored) would: nothing is stored here.
    limits = ("--workers", "1", "--max-async-tasks", str(concurrency()), "--max-prefetch", str(concurrency()))
    quiet = ("--log-level", "WARNING", "--ack-type", "when_executed")
    command = [sys.executable, "-m", "taskiq", "worker", "benchmarks.redis.peers.taskiq:broker", *limits, *quiet]
    os.execv(sys.executable, command)


@asynccontextmanager
async def sender() -> AsyncIterator[tuple[One, Many]]:
    await broker.startup()

    async def one(number: int, seconds: float) -> None:
        await work.kiq(number, seconds)

    yield one, None
    await broker.shutdown()
