"""RQ: pickled calls in hashes, ids in a list, one job at a time a worker."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import time
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks.redis.peer import Many, One, address, chunks, effects

PACKAGES = ("rq", "redis", "hiredis")
SEND_AT_ONCE = 500
WORK = "benchmarks.redis.peers.rq.work"
book = effects()


def work(number: int, seconds: float) -> None:
    book.started(number)
    if seconds:
        time.sleep(seconds)
        book.ended(number)


def worker() -> None:
    # SimpleWorker works in its own process: the default forks for every job, which costs several milliseconds each.
    connection = Redis.from_url(address())
    SimpleWorker([Queue("bench", connection=connection)], connection=connection).work(logging_level="WARNING")


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    queue = Queue("bench", connection=Redis.from_url(address()))

    def one(number: int, seconds: float) -> None:
        queue.enqueue(WORK, number, seconds, result_ttl=0)

    def many(numbers: range, seconds: float) -> None:
        for chunk in chunks(numbers, SEND_AT_ONCE):
            queue.enqueue_many([Queue.prepare_data(WORK, (number, seconds), result_ttl=0) for number in chunk])

    yield one, many
