"""Measure the cost of the worker: handlers that do nothing, handlers that sleep, and no messages at all.

    python benchmarks/worker.py [--folder DIR] [--messages N] [--only NAME]

Prints messages per second from the first receive to the last ack, on the embedded queue in one process; the duration of
2,000 sleeps of 50 ms at concurrency 100 (at best 1 s); the cost of an idle worker of three queues; and the worker
alone, with a broker that costs nothing: the share of the worker itself.
"""

import argparse
import asyncio
import gc
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.events import Bus
from penstock.handlers.context import Context
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.function_handler import FunctionHandler
from penstock.messaging.broker import Broker, ReceiveRequest, TurnResult
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import BatchHandler, ExecutionPlace, HeldClaim, Settlements
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.schema import Queue
from penstock.messaging.settlement import Ack, Settlement
from penstock.worker.consumer import Consumer
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

BODY = b'{"number": 1}'
CONCURRENCY = 100
SLEEPS = 2_000
SLEEP_SECONDS = 0.05
IDLE_SECONDS = 8.0


class Bare:
    """An execution of one message, on the pool."""

    def __init__(self, delivery: Delivery, seconds: float) -> None:
        self.delivery = delivery
        self.seconds = seconds

    def run(self) -> Settlements | Coroutine[Any, Any, Settlements]:
        if self.seconds:
            time.sleep(self.seconds)
        return {self.delivery.receipt: Ack()}

    def claim(self) -> HeldClaim | None:
        return None

    def loses(self, claim: HeldClaim) -> bool:  # noqa: ARG002 - it holds none
        return False

    def drain(self) -> None:
        pass

    def left_seconds(self, timeout_seconds: float) -> float:
        return timeout_seconds

    def time_out(self) -> Settlements:
        return {}

    def release(self) -> None:
        pass

    def interrupt(self) -> None:
        pass


class BareOnLoop(Bare):
    """An execution of one message, on the event loop."""

    def run(self) -> Coroutine[Any, Any, Settlements]:
        return self._run()

    async def _run(self) -> Settlements:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return {self.delivery.receipt: Ack()}


class BareHandler:
    name = "bench"
    timeout_seconds = 300.0

    def __init__(self, place: ExecutionPlace, seconds: float = 0.0) -> None:
        self.place = place
        self.begun = 0
        self._kind = BareOnLoop if place is ExecutionPlace.LOOP else Bare
        self._seconds = seconds

    def weigh(self, delivery: Delivery) -> int:  # noqa: ARG002 # the protocol's
        return 0

    def begin(self, deliveries: Sequence[Delivery]) -> Bare:
        self.begun += 1
        return self._kind(deliveries[0], self._seconds)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {}


class CostlessBroker(MemoryBroker):
    """A broker that delivers prepared messages and accepts every settlement."""

    def __init__(self, messages: int) -> None:
        super().__init__()
        self.unsettled = messages
        self.done = threading.Event()
        self._ready = [
            Delivery(
                message=Message(id=f"m{n}", body=BODY, enqueued_at=0.0),
                queue="q",
                receipt=f"r{n}",
                attempt=1,
                received_at=0.0,
            )
            for n in range(messages)
        ]
        self._given = 0

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        asks: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,  # noqa: ARG002 # the protocol's, as is the next
        wait_seconds: float = 0.0,  # noqa: ARG002
    ) -> TurnResult:
        self.unsettled -= len(settlements)
        if not self.unsettled:
            self.done.set()
        first, self._given = self._given, self._given + sum(ask.messages_max for ask in asks)
        return TurnResult(deliveries=self._ready[first : self._given])


def plain(body: bytes, context: Context) -> None:
    pass


async def coroutine(body: bytes, context: Context) -> None:
    pass


def worker(broker: Broker, *consumers: Consumer) -> Worker:
    settings = WorkerSettings(concurrency=CONCURRENCY, start_jitter_seconds=0.0)
    return Worker(broker=broker, consumers=consumers, settings=settings, clock=SystemClock(), bus=Bus())


def drained(broker: SqliteBroker, place: ExecutionPlace, messages: int, seconds: float = 0.0) -> float:
    """Send that many messages, process them, and return the seconds of processing."""
    queue = f"{place} {seconds}"
    for first in range(0, messages, 5_000):
        broker.send(queue, [Outgoing(body=BODY)] * min(5_000, messages - first))
    handler = BareHandler(place, seconds)
    started_at = time.perf_counter()
    worker(broker, Consumer(queue=queue, handler=handler)).run(StopSignal(), until=lambda: handler.begun == messages)
    took_seconds = time.perf_counter() - started_at
    stats = broker.stats(queue)
    assert (stats.visible, stats.in_flight) == (0, 0), stats
    return took_seconds


def empty_handlers(broker: SqliteBroker, messages: int) -> None:
    print(f"handlers that do nothing, {messages:,} messages, concurrency {CONCURRENCY}: messages a second")
    for place in (ExecutionPlace.POOL, ExecutionPlace.LOOP):
        cpu_before = time.process_time()
        rate = messages / drained(broker, place, messages)
        microseconds = (time.process_time() - cpu_before) / messages * 1e6
        print(f"  {place:>5}: {rate:10,.0f}, {microseconds:.0f} us of a core each, sending included")


def sleepers(broker: SqliteBroker, _: int) -> None:
    ideal_seconds = SLEEPS * SLEEP_SECONDS / CONCURRENCY
    print(f"{SLEEPS:,} sleeps of {SLEEP_SECONDS * 1_000:g} ms, concurrency {CONCURRENCY}; at best {ideal_seconds:g} s")
    for place in (ExecutionPlace.POOL, ExecutionPlace.LOOP):
        cpu_before = time.process_time()
        took_seconds = drained(broker, place, SLEEPS, SLEEP_SECONDS)
        print(f"  {place:>5}: {took_seconds:10.2f} s, {time.process_time() - cpu_before:.2f} s of a core")


def idle(broker: SqliteBroker, _: int) -> dict[str, float]:
    consumers = [Consumer(queue=f"idle {n}", handler=BareHandler(ExecutionPlace.LOOP)) for n in range(3)]
    for consumer in consumers:
        broker.send(consumer.queue, [Outgoing(body=BODY)])  # creates the queue
    stop, quiet = StopSignal(), threading.Event()
    thread = threading.Thread(target=lambda: worker(broker, *consumers).run(stop))
    thread.start()
    quiet.wait(2.0)
    before = time.process_time()
    quiet.wait(IDLE_SECONDS)
    share = (time.process_time() - before) / IDLE_SECONDS
    stop.request()
    thread.join()
    print(f"an idle worker of {len(consumers)} queues takes {share:.2%} of a core")
    return {"worker idle share of a core": share}


def alone(_: SqliteBroker, messages: int) -> None:
    print(f"the worker alone, {messages:,} messages, concurrency {CONCURRENCY}: messages a second")
    handlers: dict[str, BatchHandler] = {
        "nothing, on the pool": BareHandler(ExecutionPlace.POOL),
        "nothing, on the loop": BareHandler(ExecutionPlace.LOOP),
        "def, with its context": function_handler(plain),
        "async def, likewise": function_handler(coroutine),
    }
    for name, handler in handlers.items():
        broker = CostlessBroker(messages)
        gc.collect()
        gc.freeze()  # excludes the prepared messages from garbage collection

        stop = StopSignal()
        thread = threading.Thread(target=worker(broker, Consumer(queue="q", handler=handler)).run, args=(stop,))
        cpu_before, started_at = time.process_time(), time.perf_counter()
        thread.start()
        assert broker.done.wait(600)
        took_seconds, cpu_seconds = time.perf_counter() - started_at, time.process_time() - cpu_before
        stop.request()
        thread.join()
        gc.unfreeze()
        rate = messages / took_seconds
        print(f"  {name:>22}: {rate:10,.0f}, {cpu_seconds / messages * 1e6:.1f} us of a core each")


def function_handler(function: Callable[..., Any]) -> FunctionHandler:
    declaration = HandlerDeclaration(name="bench", queue=Queue("q"), function=function)
    return FunctionHandler(declaration, bus=Bus(), clock=SystemClock(), random=random.random)


BENCHMARKS: dict[str, Callable[[SqliteBroker, int], dict[str, float] | None]] = {  # figures for `--json`
    "empty": empty_handlers,
    "sleep": sleepers,
    "idle": idle,
    "alone": alone,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to put the queue's file; a temporary folder by default")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--only", choices=BENCHMARKS)
    parser.add_argument("--json", type=Path, help="write the figures that `make bench CHECK=1` compares into this file")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        broker = SqliteBroker(Path(folder) / "queue.db", holder="bench")
        for name, benchmark in BENCHMARKS.items():
            if arguments.only in (None, name):
                figures |= benchmark(broker, arguments.messages) or {}
        broker.close()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
