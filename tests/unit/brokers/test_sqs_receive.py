"""Receive calls: how many run in parallel, and that they return no more messages than requested."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.unit.brokers.sqs_doubles import FakeApi, KnownQueues, instant_clock

from penstock.brokers.sqs.calls import ParallelCalls, Result
from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.brokers.sqs.queues import SqsQueues
from penstock.brokers.sqs.receive import ReceiveCalls
from penstock.errors import ConfigurationError, TemporaryError
from penstock.testing import FakeClock


class CountingCalls(ParallelCalls):
    """Records in `sizes` how many calls were made in parallel each time."""

    def __init__(self) -> None:
        super().__init__("test", threads=8)
        self.sizes: list[int] = []

    def run(self, calls: Sequence[Callable[[], Result]]) -> Sequence[Result | Exception]:
        self.sizes.append(len(calls))
        return super().run(calls)


class FilledQueue:
    """A queue with ``count`` messages. `requested` records the size of each call."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.failing = 0  # calls that fail from now on
        self.requested: list[int] = []
        self.lock = threading.Lock()
        api = FakeApi(self._answer)
        self.calls = CountingCalls()
        self.receiving = ReceiveCalls(api, KnownQueues(api), self.calls, pollers=5, clock=instant_clock())
        self.api = api

    def take(self, count: int) -> int:
        self.requested.clear()
        return len(self.receiving.take("q", count, 29.5))

    def _answer(self, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        with self.lock:
            self.requested.append(parameters["MaxNumberOfMessages"])
            if self.failing:
                self.failing -= 1
                return TemporaryError("away")
            count = min(parameters["MaxNumberOfMessages"], self.left)
            self.left -= count
            return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}] * count}


@pytest.mark.parametrize(("seconds", "count"), [(49.0, 1), (50.0, 0)])
def test_messages_of_a_response_that_is_a_lease_late_are_dropped(seconds: float, count: int) -> None:
    clock = FakeClock()

    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        clock.advance(seconds)
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}

    api = FakeApi(answer)
    receiving = ReceiveCalls(api, KnownQueues(api), ParallelCalls("test", threads=1), pollers=1, clock=clock)
    assert len(receiving.poll("q", 1, 30.0, wait_seconds=20.0)) == count


def test_an_empty_queue_costs_one_call_for_any_requested_number() -> None:
    queue = FilledQueue(0)
    assert queue.take(50) == 0
    assert queue.requested == [10]


def test_the_number_of_parallel_calls_doubles_while_all_return_full() -> None:
    queue = FilledQueue(1_000)
    assert queue.take(50) == 50
    assert queue.take(50) == 50
    assert queue.take(23) == 23
    assert queue.calls.sizes == [1, 2, 2, 5, 3]


def test_the_number_of_parallel_calls_falls_back_to_those_that_returned_full() -> None:
    queue = FilledQueue(75)
    assert queue.take(50) == 50
    assert queue.take(50) == 25
    assert len(queue.requested) <= 5
    queue.left = 0
    assert queue.take(50) == 0
    assert len(queue.requested) <= 2
    assert queue.take(50) == 0
    assert queue.requested == [10]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 37, 50])
def test_no_more_messages_are_received_than_requested(count: int) -> None:
    queue = FilledQueue(1_000)
    for _ in range(3):
        assert queue.take(count) == count
        assert sum(queue.requested) == count


def test_received_messages_are_returned_even_if_a_parallel_call_failed() -> None:
    queue = FilledQueue(1_000)
    queue.take(50)
    queue.failing = 1
    assert queue.take(50) == 40
    queue.failing = 10
    with pytest.raises(TemporaryError):
        queue.take(50)


def test_a_lease_is_rounded_up_to_whole_seconds() -> None:
    queue = FilledQueue(1)
    queue.take(1)
    (_, _, parameters) = queue.api.calls[0]
    assert parameters["VisibilityTimeout"] == 30
    assert parameters["WaitTimeSeconds"] == 0


# --- messages that SQS itself dead-lettered

SOURCE = "arn:aws:sqs:us-east-1:1:orders"


class MovedMessage:
    """A message that SQS moved to a DLQ: its total receives, and the redrive policy of its source queue."""

    def __init__(self, *, receives: int, policy: Mapping[str, Any] | Exception | None) -> None:
        self._receives, self._policy = receives, policy
        self.api = FakeApi(self._answer)
        queues = SqsQueues(self.api, clock=instant_clock())
        self._receiving = ReceiveCalls(self.api, queues, CountingCalls(), pollers=1, clock=instant_clock())

    def receive(self) -> SqsDelivery:
        (delivery,) = self._receiving.take("orders-dlq", 1, 30)
        return delivery

    def _answer(self, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        if operation == "get_queue_url":
            return {"QueueUrl": f"http://sqs/1/{parameters['QueueName']}"}
        if operation == "get_queue_attributes":
            if isinstance(self._policy, Exception):
                return self._policy
            return {"Attributes": {} if self._policy is None else {"RedrivePolicy": json.dumps(self._policy)}}
        system = {"ApproximateReceiveCount": str(self._receives), "DeadLetterQueueSourceArn": SOURCE}
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b", "Attributes": system}]}


@pytest.mark.parametrize(("receives", "attempt"), [(6, 1), (7, 2), (25, 20), (5, 1), (1, 1)])
def test_attempts_of_a_message_moved_by_sqs_start_at_its_receives_in_this_queue(receives: int, attempt: int) -> None:
    """SQS continues its count. Ours begins with the first receive here, so that no handler gives up on a message that
    it never received.
    """
    moved = MovedMessage(receives=receives, policy={"deadLetterTargetArn": "arn:x", "maxReceiveCount": "5"})
    delivery = moved.receive()
    assert (delivery.attempt, delivery.moved_from) == (attempt, "orders")
    moved.receive()
    assert moved.api.operations().count("get_queue_attributes") == 1  # the policy is cached


@pytest.mark.parametrize("policy", [None, TemporaryError("away"), ConfigurationError("sqs:GetQueueAttributes")])
def test_without_a_readable_policy_each_attempt_is_the_first(policy: Exception | None) -> None:
    assert MovedMessage(receives=99, policy=policy).receive().attempt == 1


def test_a_message_that_was_not_moved_has_no_source() -> None:
    queue = FilledQueue(1)
    (delivery,) = queue.receiving.take("q", 1, 30)
    assert (delivery.attempt, delivery.moved_from) == (1, None)
    assert queue.api.operations() == ["receive_message"]
