"""Test doubles for the parts of the SQS broker: an API with scripted responses, and waits that take no time."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from penstock.brokers.sqs.calls import BatchCalls, ParallelCalls
from penstock.brokers.sqs.client import QueueRef, SqsApi
from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.brokers.sqs.leases import SettledDeliveries, SqsLeases
from penstock.brokers.sqs.limits import MESSAGE_BYTES_MAX
from penstock.brokers.sqs.queues import SqsQueues
from penstock.brokers.sqs.send import SqsSender
from penstock.brokers.sqs.settle import SqsSettler
from penstock.messaging.broker import SettleFailure
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message
from penstock.messaging.settlement import Settlement
from penstock.testing import FakeClock

Q = QueueRef(name="q", url="http://sqs/1/q")
FIFO = QueueRef(name="q.fifo", url="http://sqs/1/q.fifo")
NOW = 1_700_000_000.0

Answers = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | Exception]


class FakeApi(SqsApi):
    """Record calls. Unless ``answers`` decides otherwise, batches succeed and other calls return an empty response."""

    region = "us-east-1"
    endpoint = "here"

    def __init__(self, answers: Answers | None = None) -> None:
        self.calls: list[tuple[str, str, Mapping[str, Any]]] = []  # queue, operation, parameters
        self.answers = answers
        self._guard = threading.Lock()

    def on(self, queue: QueueRef, operation: str, **parameters: Any) -> Mapping[str, Any]:
        return self.call(operation, queue=queue.name, QueueUrl=queue.url, **parameters)

    def call(self, operation: str, *, queue: str = "", **parameters: Any) -> Mapping[str, Any]:
        with self._guard:
            self.calls.append((queue, operation, parameters))
            answer = self.answers(operation, parameters) if self.answers is not None else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        return succeeded(parameters["Entries"]) if operation.endswith("_batch") else {}

    def check_open(self) -> None:
        pass

    def entries(self, operation: str) -> list[Sequence[Mapping[str, Any]]]:
        """Return the entries of each call of a batch operation."""
        return [parameters["Entries"] for _, called, parameters in self.calls if called == operation]

    def operations(self) -> list[str]:
        return [operation for _, operation, _ in self.calls]


def succeeded(entries: Sequence[Mapping[str, Any]], failed: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return the response to a batch call.

    ``failed`` has an error code per entry id. A code that begins with a capital letter is the sender's fault.
    """
    failed = failed or {}
    return {
        "Successful": [
            {"Id": e["Id"], "MessageId": f"m{e.get('MessageBody')}"} for e in entries if e["Id"] not in failed
        ],
        "Failed": [
            {"Id": id, "Code": code, "SenderFault": code[0].isupper(), "Message": "no"} for id, code in failed.items()
        ],
    }


def client_error(code: str, *, status: int = 400, operation: str = "SendMessageBatch") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        operation,
    )


def instant_clock() -> FakeClock:
    return FakeClock(NOW, auto_advance=True)


def batches(api: SqsApi, clock: FakeClock | None = None) -> BatchCalls:
    pool = ParallelCalls("test", threads=2)
    return BatchCalls(api, lambda _: pool, clock=clock or instant_clock(), random=lambda: 0.5)


class KnownQueues(SqsQueues):
    """Every queue exists. ``dead_letters`` is the dead-letter queue of each, or the error of its lookup."""

    def __init__(self, api: SqsApi, *, dead_letters: QueueRef | Exception | None = None) -> None:
        super().__init__(api, clock=instant_clock())
        self._dead_letters = dead_letters
        self.message_bytes_max = MESSAGE_BYTES_MAX

    def find(self, queue: str) -> QueueRef:
        return QueueRef(name=queue, url=f"http://sqs/1/{queue}")

    def bytes_max(self, queue: QueueRef) -> int:
        return self.message_bytes_max

    def dead_letter_queue(self, queue: QueueRef) -> QueueRef:
        if isinstance(self._dead_letters, Exception):
            raise self._dead_letters
        return self._dead_letters or QueueRef(name=f"{queue.name}-dlq", url=f"{queue.url}-dlq")


def received(
    number: int, *, queue: str = "q", attempt: int = 1, began_at: float = 0.0, body: bytes = b"{}", **message: Any
) -> SqsDelivery:
    return SqsDelivery(
        message=Message(id=f"m{number}", body=body, enqueued_at=NOW - 10, **message),
        queue=queue,
        receipt=f"r{number}",
        attempt=attempt,
        received_at=NOW,
        first_received_at=NOW - 5,
        began_at=began_at,
    )


class SettlerSetup:
    """An SqsSettler with a fake API and its other collaborators."""

    def __init__(self, answers: Answers | None = None, *, dead_letters: Any = None) -> None:
        self.clock = instant_clock()
        self.api = FakeApi(answers)
        self.settled = SettledDeliveries()
        queues = self.queues = KnownQueues(self.api, dead_letters=dead_letters)
        calls = batches(self.api, self.clock)
        self.settler = SqsSettler(
            queues=queues,
            batches=calls,
            leases=SqsLeases(queues, calls, self.settled, extending=calls, clock=self.clock),
            sending=SqsSender(self.api, queues, calls),
            settled=self.settled,
            pool=ParallelCalls("test", threads=2),
            holder="worker-7",
            clock=self.clock,
        )

    def settle(self, *settlements: tuple[Delivery, Settlement]) -> Sequence[SettleFailure]:
        return self.settler.settle(settlements)

    def handles(self, operation: str) -> list[str]:
        return sorted(entry["ReceiptHandle"] for call in self.api.entries(operation) for entry in call)
