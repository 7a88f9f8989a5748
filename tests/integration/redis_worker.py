"""A real worker over a broker, whose handler acks everything at once; the test receives its events."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.events import Bus, Event
from penstock.messaging.broker import Broker
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, HeldClaim, Settlements
from penstock.messaging.settlement import Ack
from penstock.worker.consumer import Consumer
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

ACK = Ack()
END_SECONDS = 60.0


class QuickExecution:
    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries

    async def run(self) -> Mapping[str, Ack]:
        return {delivery.receipt: ACK for delivery in self._deliveries}

    def claim(self) -> HeldClaim | None:
        return None

    def loses(self, claim: HeldClaim) -> bool:
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


class QuickHandler:
    name = "quick"
    timeout_seconds = None
    place = ExecutionPlace.LOOP

    def weigh(self, delivery: Delivery) -> int:
        return 1

    def begin(self, deliveries: Sequence[Delivery]) -> "QuickExecution":
        return QuickExecution(deliveries)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {}


@contextmanager
def working(
    broker: Broker, weights: Mapping[str, int], listener: Callable[[Event], None], **settings: Any
) -> Iterator[None]:
    """Run a worker that serves these queues until the block ends."""
    worker = Worker(
        broker=broker,
        consumers=[Consumer(queue=queue, handler=QuickHandler(), weight=weight) for queue, weight in weights.items()],
        settings=WorkerSettings(start_jitter_seconds=0.0, **settings),
        clock=SystemClock(),
        bus=Bus(listener),
    )
    stop = StopSignal()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.request()
        thread.join(END_SECONDS)
        assert not thread.is_alive(), "the worker does not end"
