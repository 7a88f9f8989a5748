"""A simulated event source mapping: receives from a queue, calls a function, and deletes the messages that it does not
name.

As AWS documents it: with ReportBatchItemFailures the messages that the function names stay, and all of them if it
raises. A batch's messages are hidden for the queue's own visibility timeout.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.services.aws_server import REGION

Function = Callable[[Any, object], Mapping[str, Any]]


class SourceMapping:
    """One mapping of a queue that ``client`` finds at ``url``."""

    def __init__(self, client: Any, url: str, arn: str, function: Function) -> None:
        self._client = client
        self._url = url
        self._arn = arn
        self.function = function

    def run(self, *, messages_max: int = 10) -> Sequence[str]:
        """Process one batch, if there is any message; return the ids of those that stay. Raise what the function
        raises.
        """
        response = self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=messages_max,
            WaitTimeSeconds=2,  # as Lambda's mappings wait; a message may appear a moment after it was sent
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        raw = response.get("Messages", [])
        if not raw:
            return []
        result = self.function({"Records": [record(each, self._arn) for each in raw]}, object())
        stay = [each["itemIdentifier"] for each in result["batchItemFailures"]]
        for each in raw:
            if each["MessageId"] not in stay:
                self._client.delete_message(QueueUrl=self._url, ReceiptHandle=each["ReceiptHandle"])
        return stay


def record(raw: Mapping[str, Any], arn: str) -> Mapping[str, Any]:
    """Return a message as it is in an event."""
    return {
        "messageId": raw["MessageId"],
        "receiptHandle": raw["ReceiptHandle"],
        "body": raw["Body"],
        "attributes": raw["Attributes"],
        "messageAttributes": {name: _attribute(each) for name, each in raw.get("MessageAttributes", {}).items()},
        "md5OfBody": raw["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": REGION,
    }


def _attribute(value: Mapping[str, Any]) -> Mapping[str, Any]:
    result: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return {**result, "binaryValue": base64.b64encode(value["BinaryValue"]).decode("ascii")}
    return {**result, "stringValue": value["StringValue"]}
