"""A bucket at an AWS server that sends notifications of its objects, and the queue that receives them."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tests.services.aws_server import REGION, AwsServer

Way = Literal["sqs", "sns raw", "sns wrapped", "eventbridge"]

WAYS: Sequence[Way] = ("sqs", "sns raw", "sns wrapped", "eventbridge")
EVENTS = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")
POLL_SECONDS = 10
ARRIVAL_SECONDS = 120.0  # far more than an arrival takes
NOTHING_COMES_SECONDS = 1  # the shortest long poll


class Announced:
    """A bucket, a queue, and the notification path between them, configured as AWS requires, policies included."""

    def __init__(self, server: AwsServer, way: Way, *, versioned: bool = False) -> None:
        self.way = way
        self.s3, self.sqs = server.client("s3"), server.client("sqs")
        self._server = server
        name = f"{way.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"
        self.bucket = f"landing-{name}"
        self.s3.create_bucket(Bucket=self.bucket)
        if versioned:
            self.s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        self.queue_url = str(self.sqs.create_queue(QueueName=name)["QueueUrl"])
        self.queue_arn = f"arn:aws:sqs:{REGION}:{server.account}:{name}"
        _CONNECT[way](self, name)

    # --- objects

    def put(self, key: str, body: bytes = b"x") -> Any:
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def put_in_parts(self, key: str, parts: Sequence[bytes]) -> Any:
        """Upload an object in parts; every part but the last needs at least 5 MiB."""
        where = {"Bucket": self.bucket, "Key": key}
        upload = self.s3.create_multipart_upload(**where)["UploadId"]
        sent = []
        for number, part in enumerate(parts, start=1):
            answer = self.s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=part)
            sent.append({"PartNumber": number, "ETag": answer["ETag"]})
        return self.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": sent})

    # --- received notifications

    def arrived(self, count: int = 1) -> list[bytes]:
        """Receive and delete the next messages, and return their bodies in the order of arrival."""
        bodies: list[bytes] = []
        give_up = time.monotonic() + ARRIVAL_SECONDS
        while len(bodies) < count:
            assert time.monotonic() < give_up, f"{len(bodies)} of {count} notifications arrived by {self.way}"
            bodies += self._receive(count - len(bodies), wait_seconds=POLL_SECONDS)
        return bodies

    def nothing_arrives(self) -> bool:
        return not self._receive(1, wait_seconds=NOTHING_COMES_SECONDS)

    def _receive(self, count: int, *, wait_seconds: int) -> list[bytes]:
        answer = self.sqs.receive_message(
            QueueUrl=self.queue_url, MaxNumberOfMessages=min(count, 10), WaitTimeSeconds=wait_seconds
        )
        messages = answer.get("Messages", [])
        for message in messages:
            self.sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])
        return [message["Body"].encode() for message in messages]

    # --- notification paths

    def _configure(self, **configuration: object) -> None:
        self.s3.put_bucket_notification_configuration(Bucket=self.bucket, NotificationConfiguration=configuration)

    def _allow(self, service: str, source_arn: str) -> None:
        """Let a service of AWS send to the queue, on behalf of that source."""
        policy = allowing(service, "sqs:SendMessage", self.queue_arn, source_arn)
        self.sqs.set_queue_attributes(QueueUrl=self.queue_url, Attributes={"Policy": policy})

    def _connect_queue(self, name: str) -> None:
        self._allow("s3.amazonaws.com", f"arn:aws:s3:::{self.bucket}")
        self._configure(QueueConfigurations=[{"QueueArn": self.queue_arn, "Events": list(EVENTS)}])

    def _connect_topic(self, name: str) -> None:
        sns = self._server.client("sns")
        topic = sns.create_topic(Name=name)["TopicArn"]
        policy = allowing("s3.amazonaws.com", "sns:Publish", topic, f"arn:aws:s3:::{self.bucket}")
        sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)
        self._allow("sns.amazonaws.com", topic)
        raw = {"RawMessageDelivery": "true"} if self.way == "sns raw" else {}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=self.queue_arn, Attributes=raw)
        self._configure(TopicConfigurations=[{"TopicArn": topic, "Events": list(EVENTS)}])

    def _connect_rule(self, name: str) -> None:
        events = self._server.client("events")
        pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [self.bucket]}}}
        rule = events.put_rule(Name=name, EventPattern=json.dumps(pattern))["RuleArn"]
        self._allow("events.amazonaws.com", rule)
        events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": self.queue_arn}])
        self._configure(EventBridgeConfiguration={})


_CONNECT: dict[Way, Callable[[Announced, str], None]] = {
    "sqs": Announced._connect_queue,
    "sns raw": Announced._connect_topic,
    "sns wrapped": Announced._connect_topic,
    "eventbridge": Announced._connect_rule,
}


def allowing(service: str, action: str, resource_arn: str, source_arn: str) -> str:
    """Return a policy as in AWS's user guides."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": action,
        "Resource": resource_arn,
        "Condition": {"ArnLike": {"aws:SourceArn": source_arn}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


# --- fields that AWS sends and moto does not. Sources: "Event message structure" and "Amazon S3 event messages for
# EventBridge" in the Amazon S3 user guide


def as_s3_documents_it(body: bytes, *, version_id: str | None, sequencer: str) -> bytes:
    """Return moto's notification with the version and sequencer that S3 sends and moto omits."""
    document = json.loads(body)
    described = document["Records"][0]["s3"]["object"]
    described["sequencer"] = sequencer
    if version_id is not None:
        described["versionId"] = version_id
    return json.dumps(document).encode()


def as_eventbridge_documents_it(body: bytes) -> bytes:
    """Return moto's notification with the ETag under EventBridge's name: etag, not eTag."""
    document = json.loads(body)
    described = document["detail"]["object"]
    described["etag"] = described.pop("eTag")
    return json.dumps(document).encode()
