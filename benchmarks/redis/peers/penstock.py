"""Penstock as a user has it: an app module, `penstock worker`, `App.send` and `App.send_many`."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.redis.peer import Many, One, concurrency, effects
from penstock import App, Message, Queue

PACKAGES = ("penstock", "redis", "hiredis")

# Bodies without a model, as the others have them: checking a contract costs some 5 us more a message.
plain = Queue[Message]("plain")
waiting = Queue[Message]("async")
# All settings are defaults except the log: a line per message doubles the work, and the others write none.
app = App.from_config(log_level="warning")
book = effects()


@app.handler(plain)
def work(message: Message) -> None:
    number, seconds = json.loads(message.body)
    book.started(number)
    if seconds:
        time.sleep(seconds)
        book.ended(number)


@app.handler(waiting)
async def work_async(message: Message) -> None:
    number, seconds = json.loads(message.body)
    book.started(number)
    if seconds:
        await asyncio.sleep(seconds)
        book.ended(number)


def worker() -> None:
    command = [sys.executable, "-m", "penstock", "worker", "benchmarks.redis.peers.penstock:app"]
    limits = ["--queues", os.environ["BENCH_QUEUE"], "--concurrency", str(concurrency())]
    processes = os.environ["BENCH_PROCESSES"]
    if processes != "1":
        limits += ["--processes", processes]
    os.execv(sys.executable, [*command, *limits])


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    queue = plain if os.environ["BENCH_QUEUE"] == "plain" else waiting

    def one(number: int, seconds: float) -> None:
        app.send(queue, [number, seconds])

    def many(numbers: range, seconds: float) -> None:
        app.send_many(queue, [[number, seconds] for number in numbers])

    yield one, many
