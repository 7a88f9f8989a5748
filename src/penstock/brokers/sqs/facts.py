"""The attributes of a queue, and the test event of an S3 bucket: for `penstock doctor`.

Only `await_test_event` takes messages away from workers; it runs on request only.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.brokers.sqs.client import QueueRef, SqsApi, is_identity
from penstock.brokers.sqs.queues import SqsQueues
from penstock.errors import ConfigurationError, QueueMissing
from penstock.messaging.clock import Clock
from penstock.storage.aws import Aws, clock_ahead_seconds

POLL_SECONDS = 5
HIDE_SECONDS = 10  # how long another message stays hidden from workers if this process is killed meanwhile
_TEST_EVENT = "s3:TestEvent"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The attributes of a queue."""

    name: str
    arn: str
    is_fifo: bool
    visible: int  # approximate
    visibility_seconds: int
    retention_seconds: int
    is_encrypted: bool
    kms_key: str | None  # the owner's key or the AWS managed one; None: SQS's own key, or no encryption
    dead_letter_arn: str | None  # from the redrive policy
    receives_max: int | None  # likewise
    policy: Mapping[str, Any] = field(default_factory=dict)  # access policy: the permissions to send
    clock_ahead_seconds: float | None


class SqsInspector:
    """Inspection of SQS. Every method raises the broker's errors."""

    def __init__(self, aws: Aws, *, clock: Clock) -> None:
        self._api = SqsApi(aws, pollers=1, poll_seconds=float(POLL_SECONDS))
        self._queues = SqsQueues(self._api, clock=clock)
        self._clock = clock

    @property
    def endpoint(self) -> str:
        """Return the endpoint as shown to people."""
        return self._api.endpoint

    def check_exists(self, name: str) -> None:
        """Raise `QueueMissing` if the queue does not exist, or the error that prevents finding it.

        Workers need no permission to read attributes: without it, a queue given by its URL is assumed to exist.
        """
        queue = self._queues.find(name)
        try:
            self._api.on(queue, "get_queue_attributes", AttributeNames=["QueueArn"])
        except QueueMissing:
            raise
        except ConfigurationError:
            return

    def check_identity(self, name: str) -> None:
        """Raise `ConfigurationError` if SQS rejects our identity, and `TemporaryError` if it does not respond."""
        try:
            self._queues.find(name)
        except ConfigurationError as error:
            if error.__cause__ is not None and is_identity(error.__cause__):
                raise

    def queue(self, name: str) -> QueueFacts:
        """Return the attributes of a queue, given by name, URL or ARN."""
        return self._facts(self._queues.find(name))

    def dead_letters(self, name: str) -> QueueFacts:
        """Return the attributes of the queue's dead-letter queue."""
        return self._facts(self._queues.dead_letter_queue(self._queues.find(name)))

    def await_test_event(self, name: str, *, bucket: str, since: datetime, seconds: float) -> bool:
        """Return True if a test event of that bucket, sent since then, arrives within the seconds; delete it.

        All other messages are made visible again at once. Each of them has then been received once more.
        """
        queue = self._queues.find(name)
        deadline = self._clock.monotonic() + seconds
        found = False
        while not found and self._clock.monotonic() < deadline:
            for raw in self._receive(queue):
                handle = raw["ReceiptHandle"]
                if _is_test_event(raw["Body"], bucket=bucket, since=since):
                    self._api.on(queue, "delete_message", ReceiptHandle=handle)
                    found = True
                else:
                    self._api.on(queue, "change_message_visibility", ReceiptHandle=handle, VisibilityTimeout=0)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _facts(self, queue: QueueRef) -> QueueFacts:
        response = self._api.on(queue, "get_queue_attributes", AttributeNames=["All"])
        attributes: Mapping[str, str] = response.get("Attributes", {})
        redrive = _document(attributes.get("RedrivePolicy"))
        receives_max = redrive.get("maxReceiveCount")
        return QueueFacts(
            name=queue.name,
            arn=attributes.get("QueueArn", ""),
            is_fifo=queue.is_fifo,
            visible=int(attributes.get("ApproximateNumberOfMessages", 0)),
            visibility_seconds=int(attributes.get("VisibilityTimeout", 0)),
            retention_seconds=int(attributes.get("MessageRetentionPeriod", 0)),
            is_encrypted=attributes.get("SqsManagedSseEnabled") == "true" or bool(attributes.get("KmsMasterKeyId")),
            kms_key=attributes.get("KmsMasterKeyId") or None,
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
            receives_max=None if receives_max is None else int(receives_max),
            policy=_document(attributes.get("Policy")),
            clock_ahead_seconds=clock_ahead_seconds(response, now=self._clock.now()),
        )

    def _receive(self, queue: QueueRef) -> Sequence[Mapping[str, Any]]:
        response = self._api.on(
            queue,
            "receive_message",
            MaxNumberOfMessages=10,
            WaitTimeSeconds=POLL_SECONDS,
            VisibilityTimeout=HIDE_SECONDS,
        )
        return tuple(response.get("Messages", ()))


@contextmanager
def inspecting(aws: Aws, *, clock: Clock) -> Iterator[SqsInspector]:
    """Yield an inspector, closed at the end of the block."""
    inspector = SqsInspector(aws, clock=clock)
    try:
        yield inspector
    finally:
        inspector.close()


def _document(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_test_event(body: str, *, bucket: str, since: datetime) -> bool:
    event = _document(body)
    if event.get("Event") != _TEST_EVENT or event.get("Bucket") != bucket:
        return False
    try:
        return datetime.fromisoformat(event["Time"]) >= since
    except (KeyError, TypeError, ValueError):
        return False
