"""Extending, and the twelve hours after which SQS extends no more."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, KnownQueues, batches, instant_clock, received, succeeded

from penstock.brokers.sqs.leases import CHANGE, MARGIN_SECONDS, SettledDeliveries, SqsLeases
from penstock.brokers.sqs.limits import LEASE_SECONDS_MAX
from penstock.errors import TemporaryError
from penstock.messaging.delivery import Delivery

HOUR = 3_600.0


class Scene:
    def __init__(self, failed: Mapping[str, str] | None = None, message: str = "no") -> None:
        def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            told = succeeded(parameters["Entries"], failed)
            return {**told, "Failed": [{**each, "Message": message} for each in told["Failed"]]}

        self.clock = instant_clock()
        self.api = FakeApi(answer)
        self.settled = SettledDeliveries()
        calls = batches(self.api, self.clock)
        self.leases = SqsLeases(KnownQueues(self.api), calls, self.settled, extending=calls, clock=self.clock)

    def extend(self, *deliveries: Delivery, lease_seconds: float = 60.0) -> Sequence[Delivery]:
        return self.leases.extend(deliveries, lease_seconds)

    def timeouts(self) -> list[int]:
        return [entry["VisibilityTimeout"] for call in self.api.entries(CHANGE) for entry in call]


def test_a_lease_ends_so_many_seconds_from_the_call() -> None:
    scene = Scene()
    scene.clock.advance(5 * HOUR)
    assert not scene.extend(received(1, began_at=0.0), lease_seconds=59.2)
    assert scene.timeouts() == [60]


def test_row_70_near_the_ceiling_it_is_cut_to_what_is_left() -> None:
    scene = Scene()
    scene.clock.advance(LEASE_SECONDS_MAX - 40)
    assert not scene.extend(received(1, began_at=0.0))
    assert scene.timeouts() == [40 - int(MARGIN_SECONDS)]


@pytest.mark.parametrize("left_seconds", [2.5, 0.0, -5_000.0])
def test_row_70_at_the_ceiling_nothing_is_asked_and_nothing_is_lost(left_seconds: float) -> None:
    scene = Scene()
    scene.clock.advance(LEASE_SECONDS_MAX - left_seconds)
    young = received(2, began_at=scene.clock.monotonic())
    assert not scene.extend(received(1, began_at=0.0), young)
    assert [len(call) for call in scene.api.entries(CHANGE)] == [1]
    assert not scene.extend(received(1, began_at=0.0))
    assert scene.api.operations() == [CHANGE]


def test_row_70_if_sqs_sees_the_ceiling_first_it_is_neither_an_error_nor_lost() -> None:
    words = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    scene = Scene(
        {"0": "InvalidParameterValue"}, f"Value 60 for parameter VisibilityTimeout is invalid. Reason: {words}"
    )
    assert not scene.extend(received(1))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ReceiptHandleIsInvalid", "The input receipt handle is invalid."),
        ("AWS.SimpleQueueService.MessageNotInflight", ""),
        (
            "InvalidParameterValue",
            "Value x for parameter ReceiptHandle is invalid. Reason: It has expired.",
        ),
    ],
)
def test_a_handle_that_leads_nowhere_is_lost(code: str, message: str) -> None:
    scene = Scene({"1": code}, message)
    deliveries = [received(n) for n in range(3)]
    assert scene.extend(*deliveries) == [deliveries[1]]


def test_what_this_broker_settled_is_not_extended() -> None:
    scene = Scene()
    released, held = received(1), received(2)
    scene.settled.add(released)
    assert scene.extend(released, held) == [released]
    assert [entry["ReceiptHandle"] for call in scene.api.entries(CHANGE) for entry in call] == ["r2"]


def test_what_cannot_be_asked_for_is_an_error_that_passes() -> None:
    with pytest.raises(TemporaryError, match="1 of 2 leases"):
        Scene({"1": "throttled"}).extend(received(1), received(2))


def test_each_queue_has_a_call_of_its_own() -> None:
    scene = Scene()
    assert not scene.extend(received(1), received(2, queue="other"), received(3))
    assert sorted(queue for queue, _, _ in scene.api.calls) == ["other", "q"]
