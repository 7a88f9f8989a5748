"""Runs that ended while the I/O thread was in a call of the broker are settled together."""

import threading
from typing import TYPE_CHECKING

from tests.unit.worker.conftest import eventually

from penstock.events import Event, SettlementMissing
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, Settlement

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life


def test_a_listener_that_raises_for_one_run_leaves_the_settlements_of_the_others(life: "Life") -> None:
    def listen(event: Event) -> None:
        if isinstance(event, SettlementMissing):
            raise RuntimeError("a defect")

    def answer(deliveries: list[Delivery]) -> dict[str, Settlement]:
        return {delivery.receipt: Ack() for delivery in deliveries if delivery.message.id != "m1"}

    life.listeners = (listen,)
    life.handler.blocking = True
    life.handler.answer = answer  # type: ignore[assignment]
    life.broker.put(0, 1, 2)
    life.start(batch_messages_max=1, in_flight_max=5)
    runs = [life.running(number) for number in range(3)]
    life.broker.receive_gate = threading.Event()
    life.broker.receiving.clear()
    assert life.broker.receiving.wait(60)  # the I/O thread is in a receive
    for run in runs:
        run.go_on.set()
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("penstock-run-")])
    life.broker.receive_gate.set()
    life.end()
    assert isinstance(life.error, RuntimeError)
    assert sorted(life.broker.acked()) == ["m0", "m2"]
