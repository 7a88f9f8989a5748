"""The limit: a loop that reads, calls and acknowledges a hundred at a time, and does nothing else.

No leases, no retries, no second worker, no concurrency: the limit of Redis, redis-py and hiredis for one Python thread.
It cannot compete with sleeping handlers.
"""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis, ResponseError

from benchmarks.redis.peer import Many, One, address, chunks, effects

PACKAGES = ("redis", "hiredis")
STREAM, GROUP = "bench", "bench"
AT_ONCE = 100
SEND_AT_ONCE = 1_000
BLOCK_MS = 1_000


def worker() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    redis, book = _open(), effects()
    receipts: list[Any] = []
    while True:
        pipe = redis.pipeline(transaction=False)
        if receipts:
            pipe.xack(STREAM, GROUP, *receipts)
            pipe.xdel(STREAM, *receipts)
        # Block only if there are no acks to send: a blocking read would delay the answers before it.
        pipe.xreadgroup(GROUP, "bench", {STREAM: ">"}, count=AT_ONCE, block=None if receipts else BLOCK_MS)
        answers: Any = pipe.execute()[-1]
        entries = [entry for _, found in answers or () for entry in found]
        for _, fields in entries:
            message = json.loads(fields[b"body"])
            book.started(message["number"])
            if message["seconds"]:
                time.sleep(message["seconds"])
                book.ended(message["number"])
        receipts = [receipt for receipt, _ in entries]


def _open() -> Any:
    redis: Any = Redis.from_url(address())
    try:
        redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    return redis


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    redis = _open()

    def body(number: int, seconds: float) -> dict[str, str]:
        return {"body": json.dumps({"number": number, "seconds": seconds})}

    def one(number: int, seconds: float) -> None:
        redis.xadd(STREAM, body(number, seconds))

    def many(numbers: range, seconds: float) -> None:
        for chunk in chunks(numbers, SEND_AT_ONCE):
            pipe = redis.pipeline(transaction=False)
            for number in chunk:
                pipe.xadd(STREAM, body(number, seconds))
            pipe.execute()

    yield one, many
