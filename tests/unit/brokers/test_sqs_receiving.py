"""How many receive calls are made at once, and that none brings more than was asked for."""

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


class Rounds(ParallelCalls):
    """Tells how many calls were made at once."""

    def __init__(self) -> None:
        super().__init__("test", threads=8)
        self.sizes: list[int] = []

    def run(self, calls: Sequence[Callable[[], Result]]) -> Sequence[Result | Exception]:
        self.sizes.append(len(calls))
        return super().run(calls)


class Line:
    """A queue with so many messages, and a log of the calls."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.failing = 0  # calls that fail from now on
        self.asked: list[int] = []
        self.lock = threading.Lock()
        api = FakeApi(self._answer)
        self.rounds = Rounds()
        self.receiving = ReceiveCalls(api, KnownQueues(api), self.rounds, pollers=5, clock=instant_clock())
        self.api = api

    def take(self, count: int) -> int:
        self.asked.clear()
        return len(self.receiving.take("q", count, 29.5))

    def _answer(self, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | Exception:
        with self.lock:
            self.asked.append(parameters["MaxNumberOfMessages"])
            if self.failing:
                self.failing -= 1
                return TemporaryError("away")
            count = min(parameters["MaxNumberOfMessages"], self.left)
            self.left -= count
            return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}] * count}


@pytest.mark.parametrize(("seconds", "count"), [(49.0, 1), (50.0, 0)])
def test_messages_of_an_answer_that_comes_a_lease_late_are_not_taken(seconds: float, count: int) -> None:
    clock = FakeClock()

    def answer(operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        clock.advance(seconds)
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}

    api = FakeApi(answer)
    receiving = ReceiveCalls(api, KnownQueues(api), ParallelCalls("test", threads=1), pollers=1, clock=clock)
    assert len(receiving.poll("q", 1, 30.0, wait_seconds=20.0)) == count


def test_an_empty_queue_costs_one_call_however_much_is_asked_for() -> None:
    line = Line(0)
    assert line.take(50) == 0
    assert line.asked == [10]


def test_calls_double_while_they_come_full() -> None:
    line = Line(1_000)
    assert line.take(50) == 50
    assert line.take(50) == 50
    assert line.take(23) == 23
    assert line.rounds.sizes == [1, 2, 2, 5, 3]


def test_they_fall_back_to_those_that_came_full() -> None:
    line = Line(75)
    assert line.take(50) == 50
    assert line.take(50) == 25
    assert len(line.asked) <= 5
    line.left = 0
    assert line.take(50) == 0
    assert len(line.asked) <= 2
    assert line.take(50) == 0
    assert line.asked == [10]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 37, 50])
def test_never_more_than_asked(count: int) -> None:
    line = Line(1_000)
    for _ in range(3):
        assert line.take(count) == count
        assert sum(line.asked) == count


def test_what_came_is_answered_though_a_call_beside_it_failed() -> None:
    line = Line(1_000)
    line.take(50)
    line.failing = 1
    assert line.take(50) == 40
    line.failing = 10
    with pytest.raises(TemporaryError):
        line.take(50)


def test_a_lease_is_whole_seconds_never_too_short() -> None:
    line = Line(1)
    line.take(1)
    (_, _, parameters) = line.api.calls[0]
    assert parameters["VisibilityTimeout"] == 30
    assert parameters["WaitTimeSeconds"] == 0


# --- letters that SQS itself moved

SOURCE = "arn:aws:sqs:us-east-1:1:orders"


class Moved:
    """A letter that was received so often in all, in a queue whose source gives up after so many receives."""

    def __init__(self, *, receives: int, policy: Mapping[str, Any] | Exception | None) -> None:
        self._receives, self._policy = receives, policy
        self.api = FakeApi(self._answer)
        queues = SqsQueues(self.api, clock=instant_clock())
        self._receiving = ReceiveCalls(self.api, queues, Rounds(), pollers=1, clock=instant_clock())

    def taken(self) -> SqsDelivery:
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
def test_what_sqs_moved_has_its_attempts_before_it(receives: int, attempt: int) -> None:
    """Its count goes on; ours begins with the first receive here, so no handler gives up on what it never saw."""
    moved = Moved(receives=receives, policy={"deadLetterTargetArn": "arn:x", "maxReceiveCount": "5"})
    delivery = moved.taken()
    assert (delivery.attempt, delivery.moved_from) == (attempt, "orders")
    moved.taken()
    assert moved.api.operations().count("get_queue_attributes") == 1  # it is asked once in a while


@pytest.mark.parametrize("policy", [None, TemporaryError("away"), ConfigurationError("sqs:GetQueueAttributes")])
def test_where_nobody_can_tell_each_attempt_is_the_first(policy: Exception | None) -> None:
    assert Moved(receives=99, policy=policy).taken().attempt == 1


def test_a_message_that_nobody_moved_says_so() -> None:
    line = Line(1)
    (delivery,) = line.receiving.take("q", 1, 30)
    assert (delivery.attempt, delivery.moved_from) == (1, None)
    assert line.api.operations() == ["receive_message"]
