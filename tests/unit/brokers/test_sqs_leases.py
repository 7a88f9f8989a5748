"""Extension of leases, and the limit of twelve hours after which SQS extends no further."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, KnownQueues, batches, instant_clock, received, succeeded

from penstock.brokers.sqs.leases import CHANGE, MARGIN_SECONDS, SettledDeliveries, SqsLeases
from penstock.brokers.sqs.limits import LEASE_SECONDS_MAX
from penstock.errors import TemporaryError
from penstock.messaging.delivery import Delivery

HOUR = 3_600.0


class LeasesSetup:
    """An SqsLeases with a fake API. ``failed`` and ``message`` describe the entries that fail."""

    def __init__(self, failed: Mapping[str, str] | None = None, message: str = "no") -> None:
        def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            response = succeeded(parameters["Entries"], failed)
            return {**response, "Failed": [{**each, "Message": message} for each in response["Failed"]]}

        self.clock = instant_clock()
        self.api = FakeApi(answer)
        self.settled = SettledDeliveries()
        calls = batches(self.api, self.clock)
        self.leases = SqsLeases(KnownQueues(self.api), calls, self.settled, extending=calls, clock=self.clock)

    def extend(self, *deliveries: Delivery, lease_seconds: float = 60.0) -> Sequence[Delivery]:
        return self.leases.extend(deliveries, lease_seconds)

    def timeouts(self) -> list[int]:
        return [entry["VisibilityTimeout"] for call in self.api.entries(CHANGE) for entry in call]


def test_a_lease_is_extended_from_the_time_of_the_call() -> None:
    setup = LeasesSetup()
    setup.clock.advance(5 * HOUR)
    assert not setup.extend(received(1, began_at=0.0), lease_seconds=59.2)
    assert setup.timeouts() == [60]


def test_row_70_an_extension_near_the_limit_is_cut_to_the_time_left() -> None:
    setup = LeasesSetup()
    setup.clock.advance(LEASE_SECONDS_MAX - 40)
    assert not setup.extend(received(1, began_at=0.0))
    assert setup.timeouts() == [40 - int(MARGIN_SECONDS)]


@pytest.mark.parametrize("left_seconds", [2.5, 0.0, -5_000.0])
def test_row_70_at_the_limit_no_extension_is_requested_and_no_lease_is_lost(left_seconds: float) -> None:
    setup = LeasesSetup()
    setup.clock.advance(LEASE_SECONDS_MAX - left_seconds)
    young = received(2, began_at=setup.clock.monotonic())
    assert not setup.extend(received(1, began_at=0.0), young)
    assert [len(call) for call in setup.api.entries(CHANGE)] == [1]
    assert not setup.extend(received(1, began_at=0.0))
    assert setup.api.operations() == [CHANGE]


def test_row_70_a_limit_error_of_sqs_is_neither_raised_nor_a_lost_lease() -> None:
    words = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    setup = LeasesSetup(
        {"0": "InvalidParameterValue"}, f"Value 60 for parameter VisibilityTimeout is invalid. Reason: {words}"
    )
    assert not setup.extend(received(1))


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
def test_a_delivery_with_an_invalid_receipt_handle_is_lost(code: str, message: str) -> None:
    setup = LeasesSetup({"1": code}, message)
    deliveries = [received(n) for n in range(3)]
    assert setup.extend(*deliveries) == [deliveries[1]]


def test_a_settled_delivery_is_not_extended() -> None:
    setup = LeasesSetup()
    released, held = received(1), received(2)
    setup.settled.add(released)
    assert setup.extend(released, held) == [released]
    assert [entry["ReceiptHandle"] for call in setup.api.entries(CHANGE) for entry in call] == ["r2"]


def test_a_failed_extension_raises_a_temporary_error() -> None:
    with pytest.raises(TemporaryError, match="1 of 2 leases"):
        LeasesSetup({"1": "throttled"}).extend(received(1), received(2))


def test_each_queue_has_its_own_extension_call() -> None:
    setup = LeasesSetup()
    assert not setup.extend(received(1), received(2, queue="other"), received(3))
    assert sorted(queue for queue, _, _ in setup.api.calls) == ["other", "q"]
