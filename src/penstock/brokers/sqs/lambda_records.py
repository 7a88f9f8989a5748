"""Deliveries from a Lambda event source mapping, which receives messages and calls a function with an event.

The event's records hold the fields of `ReceiveMessage` in another spelling: names begin in lower case, and binary
values are base64. AWS documents the format in "Using Lambda with Amazon SQS".
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.brokers.sqs.envelope import SqsDelivery, received
from penstock.errors import UsageError
from penstock.messaging.clock import Clock

SOURCE = "aws:sqs"
_FIELDS = ("messageId", "receiptHandle", "body", "eventSourceARN")
_TYPES = {"binaryValue": "BinaryValue", "stringValue": "StringValue", "dataType": "DataType"}


def deliveries_of(event: object, clock: Clock) -> Sequence[SqsDelivery]:
    """Return the deliveries of an event in its order; the queue of each is the queue's name. Raise `UsageError` for any
    other kind of event.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list) or not records:
        raise _foreign("it has no list of Records")
    return [_delivery(record, clock) for record in records]


def queue_arn_of(event: Mapping[str, Any]) -> str:
    """Return the ARN of the queue that the records are from. A mapping has one queue, so all records share it."""
    return str(event["Records"][0]["eventSourceARN"])


def _delivery(record: object, clock: Clock) -> SqsDelivery:
    if not isinstance(record, Mapping) or record.get("eventSource") != SOURCE:
        raise _foreign(f"a record of it does not come from {SOURCE}")
    missing = [name for name in _FIELDS if not isinstance(record.get(name), str)]
    if missing:
        raise _foreign(f"a record of it has no {missing[0]}")
    try:
        raw = {
            "MessageId": record["messageId"],
            "ReceiptHandle": record["receiptHandle"],
            "Body": record["body"],
            "Attributes": dict(record.get("attributes") or {}),
            "MessageAttributes": {
                name: _attribute(attribute) for name, attribute in (record.get("messageAttributes") or {}).items()
            },
        }
        return received(record["eventSourceARN"].rpartition(":")[2], raw, clock)
    except (AttributeError, TypeError, ValueError, binascii.Error) as error:
        raise _foreign(f"the attributes of message {record['messageId'][:100]} cannot be read") from error


def _attribute(value: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = {theirs: value[ours] for ours, theirs in _TYPES.items() if value.get(ours) is not None}
    if "BinaryValue" in attributes:
        attributes["BinaryValue"] = base64.b64decode(attributes["BinaryValue"], validate=True)
    return attributes


def _foreign(why: str) -> UsageError:
    return UsageError(
        f"This event is none of an SQS event source mapping: {why}. Let the queue of dead letters invoke the function."
    )
