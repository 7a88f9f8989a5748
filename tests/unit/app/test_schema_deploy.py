"""A rolling deploy from schema version 1 to 2: no message is lost, and no worker reads an unknown version."""

import threading
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from penstock import App, Queue
from penstock.app.serving import serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.events import Event, MessageSkipped
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0


class OrderV1(BaseModel):
    id: int
    name: str


class OrderV2(BaseModel):
    id: int
    first: str
    last: str


def v1_to_v2(body: dict[str, Any]) -> dict[str, Any]:
    first, _, last = body.pop("name").partition(" ")
    return {**body, "first": first, "last": last}


OLD = Queue("orders", OrderV1, type="Order")
NEW = Queue("orders", OrderV2, type="Order", schema=2, upcasts={1: v1_to_v2})


class Deployed:
    """A worker of one version of the code."""

    def __init__(self, broker: MemoryBroker, queue: Queue[Any], name: str) -> None:
        self.app = App(broker=broker.with_holder(name))
        self.handled: list[Any] = []
        self.skipped: list[str] = []
        self.app.handler(queue, newer_wait="1 h")(self.handled.append)
        self._stop = StopSignal()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> "Deployed":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.request()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        serve(self.app, stop=self._stop, listeners=(self._listen,), resident=False)

    def _listen(self, event: Event) -> None:
        if isinstance(event, MessageSkipped):
            self.skipped.append(event.reason)


def test_a_rolling_deploy_of_a_new_schema_loses_and_misreads_nothing() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    old = Deployed(broker, OLD, "old").start()
    old_sender, new_sender = App(broker=broker), App(broker=broker)
    old_sender.send_many(OLD, [OrderV1(id=n, name="Ada Lovelace") for n in range(20)])
    until(lambda: len(old.handled) == 20)

    # The worst order: new senders are deployed before any worker that knows their version.
    new_sender.send_many(NEW, [OrderV2(id=n, first="Ada", last="Lovelace") for n in range(100, 120)])
    until(lambda: len(old.skipped) >= 20)
    new = Deployed(broker, NEW, "new").start()
    old_sender.send_many(OLD, [OrderV1(id=n, name="Ada Lovelace") for n in range(20, 40)])
    until(lambda: done(broker), between=lambda: clock.advance(1.0))
    old.stop()
    old_sender.send_many(OLD, [OrderV1(id=n, name="Ada Lovelace") for n in range(40, 60)])
    until(lambda: done(broker), between=lambda: clock.advance(1.0))
    new.stop()

    assert all(isinstance(order, OrderV1) for order in old.handled)
    assert all(isinstance(order, OrderV2) and order.last == "Lovelace" for order in new.handled)
    assert sorted(order.id for order in (*old.handled, *new.handled)) == [*range(60), *range(100, 120)]
    assert {order.id for order in new.handled} >= {*range(40, 60), *range(100, 120)}
    assert len(broker.browse("orders-dlq", messages_max=10)) == 0


def test_a_message_of_an_unknown_type_is_dead_lettered_if_no_newer_worker_starts() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    old = Deployed(broker, OLD, "old").start()
    App(broker=broker).send(Queue("orders", OrderV1, type="Refund"), OrderV1(id=1, name="x"))
    until(lambda: done(broker), between=lambda: clock.advance(10.0))
    old.stop()
    assert old.handled == []
    assert len(old.skipped) > 10
    assert len(broker.browse("orders-dlq", messages_max=10)) == 1


def done(broker: MemoryBroker) -> bool:
    stats = broker.stats("orders")
    return not (stats.visible or stats.in_flight or stats.delayed)


def until(condition: Callable[[], bool], between: Callable[[], object] = lambda: None) -> None:
    tick = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.01)):
        if condition():
            return
        between()
        tick.wait(0.01)
    raise AssertionError("the condition did not become true in time")
