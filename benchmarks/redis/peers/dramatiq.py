"""dramatiq: ids in a list, bodies in a hash, all through one Lua script; a pool of threads."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.redis.peer import Many, One, address, concurrency, effects

PACKAGES = ("dramatiq", "redis", "hiredis")

# Without the middleware that empty handlers do not need (ages, times, prometheus, callbacks, pipelines); retries stay.
dramatiq.set_broker(RedisBroker(url=address(), middleware=[dramatiq.middleware.Retries()]))
book = effects()


@dramatiq.actor(queue_name="bench")
def work(number: int, seconds: float) -> None:
    book.started(number)
    if seconds:
        time.sleep(seconds)
        book.ended(number)


def worker() -> None:
    limits = ("--processes", "1", "--threads", str(concurrency()))
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "benchmarks.redis.peers.dramatiq", *limits])


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    yield work.send, None
