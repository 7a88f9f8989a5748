"""A worker process for tests: its handler waits until the test lets it continue, and it prints its events.

Arguments: the queue's file, a name, and JSON with the worker's settings and ``stubborn``. A line on stdin lets all work
end. Each line on stdout is one JSON object.
"""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.events import Bus, DeliverySettled, Event
from penstock.messaging.clock import SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, HeldClaim, Settlements
from penstock.messaging.settlement import Ack, Settlement
from penstock.worker.batcher import Limits
from penstock.worker.consumer import Consumer
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

GO_ON = threading.Event()
PRINTING = threading.Lock()


def print_event(event: str, **fields: Any) -> None:
    with PRINTING:
        print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 # the test reads it


def print_bus_event(event: Event) -> None:
    fields = {key: value for key, value in dataclasses.asdict(event).items() if key != "settlement"}
    if isinstance(event, DeliverySettled):
        fields["settlement"] = type(event.settlement).__name__
    print_event(type(event).__name__, **fields)


class PrintingBroker(SqliteBroker):
    """Prints when a receive that may wait begins, and which messages it returned."""

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        if wait_seconds > 0:
            print_event("waiting")
        deliveries = super().receive(
            queue, messages_max=messages_max, lease_seconds=lease_seconds, wait_seconds=wait_seconds
        )
        if deliveries:
            print_event("held", ids=[delivery.message.id for delivery in deliveries])
        return deliveries


class ToyExecution:
    def __init__(self, deliveries: Sequence[Delivery], stubborn: bool) -> None:
        self.deliveries = deliveries
        self.stubborn = stubborn
        self.over = threading.Event()

    def run(self) -> Mapping[str, Settlement]:
        print_event(
            "started", ids=[d.message.id for d in self.deliveries], attempts=[d.attempt for d in self.deliveries]
        )
        while not (GO_ON.wait(0.01) or self.over.is_set()):
            pass
        print_event("ended", interrupted=self.over.is_set())
        return {delivery.receipt: Ack() for delivery in self.deliveries}

    def claim(self) -> HeldClaim | None:
        return None

    def loses(self, claim: HeldClaim) -> bool:
        return False

    def drain(self) -> None:
        print_event("draining")

    def left_seconds(self, timeout_seconds: float) -> float:
        return timeout_seconds

    def time_out(self) -> Settlements:
        return {}

    def release(self) -> None:
        print_event("claim freed")

    def interrupt(self) -> None:
        print_event("interrupted")
        if not self.stubborn:
            self.over.set()


class ToyHandler:
    name = "toy"
    timeout_seconds = None

    def __init__(self, stubborn: bool, place: ExecutionPlace) -> None:
        self.stubborn = stubborn
        self.place = place

    def weigh(self, delivery: Delivery) -> int:
        return 1

    def begin(self, deliveries: Sequence[Delivery]) -> ToyExecution:
        return ToyExecution(deliveries, self.stubborn)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"upkeep": lambda: print_event("upkeep")}


def listen() -> None:
    if sys.stdin.readline():
        GO_ON.set()


def main() -> None:
    path, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    handler = ToyHandler(stubborn=options.pop("stubborn", False), place=ExecutionPlace(options.pop("place", "thread")))
    limits = Limits(messages_max=options.pop("batch_messages_max", 5_000), bytes_max=2**40, wait_seconds=30.0)
    stop = StopSignal()
    stop.install()
    threading.Thread(target=listen, daemon=True).start()
    broker = PrintingBroker(path, holder=name)
    worker = Worker(
        broker=broker,
        consumers=[Consumer(queue="q", handler=handler, limits=limits)],
        settings=WorkerSettings(**options),
        clock=SystemClock(),
        bus=Bus(print_bus_event),
    )
    print_event("ready")
    conclusion = worker.run(stop)
    print_event("outcome", outcome=conclusion.outcome, threads_left=conclusion.threads_left)
    if conclusion.outcome == "forced" or conclusion.threads_left:
        os._exit(0)
    broker.close()


main()
