"""Measure the embedded brokers alone: no worker, no handler.

    python benchmarks/broker.py [--folder DIR] [--messages N]

Prints messages per second for sending, and for receiving and acking in groups; the cost of one call while 100,000
messages of one tenant wait; the wait of a quiet tenant's message then; and the cost of an idle receiver.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, Release

BODY = b'{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "k", "size": 1}}}]}' + b" " * 120
BACKLOG = 100_000


def outgoing(count: int, tenants: int) -> list[Outgoing]:
    return [Outgoing(body=BODY, group=str(n % tenants) if tenants else None) for n in range(count)]


def timed_send(broker: Broker, queue: str, messages: Sequence[Outgoing], at_once: int) -> float:
    started = time.perf_counter()
    for first in range(0, len(messages), at_once):
        broker.send(queue, messages[first : first + at_once])
    return len(messages) / (time.perf_counter() - started)


def timed_drain(broker: Broker, queue: str, at_once: int) -> float:
    started, count = time.perf_counter(), 0
    while deliveries := broker.receive(queue, messages_max=at_once, lease_seconds=60):
        broker.settle([(delivery, Ack()) for delivery in deliveries])
        count += len(deliveries)
    return count / (time.perf_counter() - started)


def throughput(name: str, broker: Broker, count: int) -> None:
    print(f"{name}: messages a second, {count} messages of {len(BODY)} bytes")
    print(f"  {'at once':>8} {'tenants':>8} {'send':>10} {'receive+ack':>12}")
    for at_once, tenants in ((1, 0), (10, 0), (50, 0), (100, 0), (1_000, 0), (100, 10), (100, 1_000)):
        queue, some = f"{at_once} {tenants}", min(count, at_once * 2_000)
        sent = timed_send(broker, queue, outgoing(some, tenants), at_once)
        print(f"  {at_once:>8} {tenants:>8} {sent:>10,.0f} {timed_drain(broker, queue, at_once):>12,.0f}")
    sent = timed_send(broker, "bulk", outgoing(count, 0), count)
    print(f"  all {count} in one send: {sent:,.0f}/s, {count / sent:.3f} s")


def backlog(name: str, broker: Broker) -> None:
    print(f"{name}: with {BACKLOG:,} messages of one tenant waiting, milliseconds a call")
    timed_send(broker, "busy", [Outgoing(body=BODY, group="noisy")] * BACKLOG, 5_000)
    broker.send("busy", [Outgoing(body=b"quiet", group="quiet")])
    first = broker.receive("busy", messages_max=2, lease_seconds=60)
    place = [delivery.message.group for delivery in first].index("quiet") + 1
    print(f"  the quiet tenant's message came as number {place}")
    milliseconds("receive 50", lambda: broker.receive("busy", messages_max=50, lease_seconds=60), 50)
    deliveries = broker.receive("busy", messages_max=1_000, lease_seconds=60)
    milliseconds("extend 1,000", lambda: broker.extend(deliveries, lease_seconds=60), 20)
    milliseconds("stats", lambda: broker.stats("busy"), 20)
    milliseconds("browse 50", lambda: broker.browse("busy", messages_max=50), 20)
    held = list(deliveries)
    while deliveries := broker.receive("busy", messages_max=1_000, lease_seconds=60):
        held += deliveries
    milliseconds(f"release {len(held):,}", lambda: broker.settle([(d, Release()) for d in held]), 1)
    milliseconds("first receive after it", lambda: broker.receive("busy", messages_max=50, lease_seconds=60), 1)


def milliseconds(label: str, call: object, times: int) -> None:
    assert callable(call)
    started = time.perf_counter()
    for _ in range(times):
        call()
    print(f"  {label:>24}: {(time.perf_counter() - started) / times * 1_000:8.2f}")


def idle(name: str, broker: Broker) -> None:
    before = time.process_time()
    broker.receive("empty", messages_max=50, lease_seconds=60, wait_seconds=5)
    print(f"{name}: an idle receiver takes {(time.process_time() - before) / 5:.2%} of a core")


def fsync_milliseconds(folder: Path) -> float:
    with (folder / "probe").open("wb") as file:
        started = time.perf_counter()
        for _ in range(100):
            file.write(b"x" * 4_096)
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - started) * 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to put the file; a temporary folder by default")
    parser.add_argument("--messages", type=int, default=5_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(f"one fsync: {fsync_milliseconds(Path(folder)):.2f} ms; {threading.active_count()} thread")
        sqlite = SqliteBroker(Path(folder) / "queue.db", holder="bench")
        for name, broker in (("sqlite", sqlite), ("memory", MemoryBroker())):
            throughput(name, broker, arguments.messages)
            backlog(name, broker)
            idle(name, broker)
        sqlite.close()


if __name__ == "__main__":
    main()
