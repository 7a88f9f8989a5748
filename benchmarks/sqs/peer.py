"""One contestant in its own process: `python -m benchmarks.sqs.peer bare|plain|async`.

Reads BENCH_EFFECTS, BENCH_POLLERS, BENCH_CONCURRENCY and BENCH_CORES (the cores to use), and AWS's own environment. Its
queue has the contestant's name. Penstock runs from its own command, as users run it.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.redis.effects import Effects

LEASE_SECONDS = 60
POLL_SECONDS = 5  # as Penstock's


def main(name: str) -> None:
    os.sched_setaffinity(0, map(int, os.environ["BENCH_CORES"].split(",")))
    if name == "bare":
        bare(name)
        return
    command = [sys.executable, "-m", "penstock", "worker", "benchmarks.sqs.app:app", "--queues", name]
    os.execv(sys.executable, [*command, "--concurrency", os.environ["BENCH_CONCURRENCY"]])


def effects() -> Effects:
    return Effects(Path(os.environ["BENCH_EFFECTS"]))


def bare(queue: str) -> None:
    """Run the bare loop, the upper limit: threads receive ten, call, and delete ten, without extensions or retries."""
    import boto3
    from botocore.config import Config

    pollers = int(os.environ["BENCH_POLLERS"])
    config = Config(
        connect_timeout=5,
        read_timeout=10,
        max_pool_connections=32,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    client: Any = boto3.client("sqs", config=config)
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [threading.Thread(target=_poll, args=(client, url, effects(), stop)) for _ in range(pollers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _poll(client: Any, url: str, book: Effects, stop: threading.Event) -> None:
    """No poll is broken off: what comes next would be leased to it, and missing in the next round."""
    while not stop.is_set():
        answer = client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=LEASE_SECONDS, WaitTimeSeconds=POLL_SECONDS
        )
        messages = answer.get("Messages", ())
        for message in messages:
            work(book, message["Body"])
        if messages:
            entries = [
                {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]} for place, message in enumerate(messages)
            ]
            client.delete_message_batch(QueueUrl=url, Entries=entries)


def work(book: Effects, body: str | bytes) -> None:
    """Do the work of every contestant's handler."""
    number, seconds = json.loads(body)
    book.started(number)
    if seconds:
        time.sleep(seconds)
        book.ended(number)


async def work_async(book: Effects, body: str | bytes) -> None:
    number, seconds = json.loads(body)
    book.started(number)
    if seconds:
        await asyncio.sleep(seconds)
        book.ended(number)


if __name__ == "__main__":
    main(*sys.argv[1:])
