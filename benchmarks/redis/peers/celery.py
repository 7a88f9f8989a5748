"""Celery over kombu's Redis transport, on its pool of threads."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-call,misc"
# (Its library is in no environment that is linted.)

import time
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery

from benchmarks.redis.peer import Many, One, address, concurrency, effects

PACKAGES = ("celery", "kombu", "redis", "hiredis")

app = Celery("bench", broker=address())
app.conf.update(
    task_default_queue="bench",
    task_ignore_result=True,
    # Acked after the handler, so that a worker that dies loses nothing; its default acks before.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # An hour by default, until a message of a dead worker is redelivered; a minute, as for most others.
    broker_transport_options={"visibility_timeout": 60},
    worker_prefetch_multiplier=4,  # its default; more was no faster
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)
book = effects()


@app.task(name="work")
def work(number: int, seconds: float) -> None:
    book.started(number)
    if seconds:
        time.sleep(seconds)
        book.ended(number)


def worker() -> None:
    # Threads, for one process that works on many messages at once. No gossip, mingle or heartbeat: one worker is alone.
    alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    app.worker_main(
        ["worker", "--pool", "threads", "--concurrency", str(concurrency()), "--loglevel", "WARNING", *alone]
    )


@contextmanager
def sender() -> Iterator[tuple[One, Many]]:
    yield work.delay, None
