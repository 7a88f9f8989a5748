"""An SQS that accepts only some messages: the real broker with a client that counts the messages it accepted."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from penstock.brokers.sqs.broker import SqsBroker
from penstock.storage.aws import Aws


class PartialQueue:
    """The boto3 client of one queue. Counts the accepted bodies, and fails as the test configures."""

    def __init__(self) -> None:
        self.meta = SimpleNamespace(region_name="eu-west-1")
        self.taken: Counter[str] = Counter()
        self.order: list[str] = []
        self.calls = 0
        self.refused: set[str] = set()  # bodies that are never accepted
        self.busy: set[str] = set()  # bodies that are not accepted now
        self.before: Callable[[int], None] = lambda call: None  # may raise: no entry of the call is accepted
        self.after: Callable[[int], None] = lambda call: None  # may raise: the call is executed without a response

    def get_queue_url(self, **options: Any) -> Mapping[str, str]:
        return {"QueueUrl": f"https://sqs.eu-west-1.amazonaws.com/1/{options['QueueName']}"}

    def get_queue_attributes(self, **_: Any) -> Mapping[str, Any]:
        return {"Attributes": {"MaximumMessageSize": "1048576"}}

    def send_message_batch(self, **options: Any) -> Mapping[str, Any]:
        self.calls += 1
        self.before(self.calls)
        answer: dict[str, list[Mapping[str, Any]]] = {"Successful": [], "Failed": []}
        for entry in options["Entries"]:
            body = entry["MessageBody"]
            if body in self.refused | self.busy:
                never = body in self.refused
                code = "InvalidParameterValue" if never else "InternalError"
                answer["Failed"].append({"Id": entry["Id"], "SenderFault": never, "Code": code, "Message": "no"})
            else:
                self.taken[body] += 1
                self.order.append(body)
                answer["Successful"].append({"Id": entry["Id"], "MessageId": f"m-{body}"})
        self.after(self.calls)
        return answer

    def close(self) -> None:
        pass

    def broker(self) -> SqsBroker:
        queue = self

        class OneClient(Aws):
            def client(self, *_args: Any, **_options: Any) -> Any:
                return queue

        return SqsBroker(OneClient(region="eu-west-1"), holder="test")


def throttled(_call: int = 0) -> None:
    raise ClientError(
        {"Error": {"Code": "RequestThrottled"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        "SendMessageBatch",
    )


def denied(_call: int = 0) -> None:
    raise ClientError(
        {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}},
        "SendMessageBatch",
    )


def away(_call: int = 0) -> None:
    raise EndpointConnectionError(endpoint_url="https://sqs.eu-west-1.amazonaws.com/")


def unanswered(_call: int = 0) -> None:
    raise ReadTimeoutError(endpoint_url="https://sqs.eu-west-1.amazonaws.com/")
