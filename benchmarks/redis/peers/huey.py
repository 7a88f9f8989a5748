"""huey: pickled tasks in a list. Reading a message deletes it from Redis."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import time
from collections.abc import Iterator
from contextlib import contextmanager

from huey import RedisHuey

from benchmarks.redis.peer import Many, One, address, concurrency, effects

PACKAGES = ("huey", "redis", "hiredis")

app = RedisHuey("bench", url=address(), results=False)  # results are not read; blocking reads are its default
book = effects()


@app.task(name="work")
def work(number: int, seconds: float) -> None:
    book.started(number)
    if seconds:
        time.sleep(seconds)
        book.ended(number)


def worker() -> None:
    # Threads, since it has no asyncio and greenlets would change nothing for one process. No crontab to look at.
    app.create_consumer(workers=concurrency(), worker_type="thread", periodic=False, check_worker_health=False).run()


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    yield work, None
