"""arq: pickled jobs in string keys, their ids in a sorted set that the worker polls."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import arq
import uvloop
from arq.connections import RedisSettings
from arq.worker import run_worker

from benchmarks.redis.peer import Many, One, address, concurrency, effects

PACKAGES = ("arq", "redis", "hiredis")


async def work(context: dict[Any, Any], number: int, seconds: float) -> None:
    context["effects"].started(number)
    if seconds:
        await asyncio.sleep(seconds)
        context["effects"].ended(number)


async def on_startup(context: dict[Any, Any]) -> None:
    context["effects"] = effects()


class WorkerSettings:
    functions = (work,)
    on_startup = on_startup
    max_jobs = concurrency()
    # It polls the queue this often and starts at most max_jobs per poll: with its default of half a second, the poll
    # interval alone would decide the result. Less than 10 ms costs more than it gains.
    poll_delay = 0.01
    keep_result = 0  # results are not read
    log_results = False
    job_timeout = 50  # plus 10 is the lease of a job in progress: a minute, as for most others


def worker() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # its command takes whatever policy is set
    asyncio.set_event_loop(asyncio.new_event_loop())
    run_worker(WorkerSettings, redis_settings=RedisSettings.from_dsn(address()))


@asynccontextmanager
async def sender() -> AsyncIterator[tuple[One, Many]]:
    pool = await arq.create_pool(RedisSettings.from_dsn(address()))

    async def one(number: int, seconds: float) -> None:
        await pool.enqueue_job("work", number, seconds)

    yield one, None
    await pool.aclose()
