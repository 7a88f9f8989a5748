"""Penstock as a user has it: an app module, `penstock worker`, `App.send` and `App.send_many`."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from benchmarks.redis.peer import Many, One, concurrency, effects
from penstock import App, Queue

PACKAGES = ("penstock", "redis", "hiredis")


class Work(msgspec.Struct):
    number: int
    seconds: float


plain: Queue[Work] = Queue("plain", Work)
waiting: Queue[Work] = Queue("async", Work)
# Everything is as it comes but for the log: a line a message is as much work again, and the others write none.
app = App.from_config(log_level="warning", fetch_max=100)
book = effects()


@app.handler(plain)
def work(body: Work) -> None:
    book.started(body.number)
    if body.seconds:
        time.sleep(body.seconds)
        book.ended(body.number)


@app.handler(waiting)
async def work_async(body: Work) -> None:
    book.started(body.number)
    if body.seconds:
        await asyncio.sleep(body.seconds)
        book.ended(body.number)


def worker() -> None:
    command = [sys.executable, "-m", "penstock", "worker", "benchmarks.redis.peers.penstock:app"]
    limits = ["--queues", os.environ["BENCH_QUEUE"], "--concurrency", str(concurrency())]
    os.execv(sys.executable, [*command, *limits])


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    queue = plain if os.environ["BENCH_QUEUE"] == "plain" else waiting

    def one(number: int, seconds: float) -> None:
        app.send(queue, Work(number=number, seconds=seconds))

    def many(numbers: range, seconds: float) -> None:
        app.send_many(queue, [Work(number=number, seconds=seconds) for number in numbers])

    yield one, many
