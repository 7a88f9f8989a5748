"""The replay function for AWS Lambda: documented events, settings, due times of replays."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.brokers.sqs.lambda_records import deliveries_of, queue_arn_of
from penstock.dead_letters.policy import spread
from penstock.errors import ConfigurationError, UsageError
from penstock.integrations.aws_lambda import DELAY_SECONDS_MAX, ReplayFunction, UnrecordedReplays, handler
from penstock.messaging.death import Death, with_death
from penstock.messaging.message import Attributes, Message
from penstock.messaging.replay import Replay, dead_letter_replay_id, replays_so_far
from penstock.monitoring.errors.hook import ErrorContext
from penstock.testing import FakeClock

NOW = 1_700_000_000.0
ARN = "arn:aws:sqs:us-east-2:123456789012:orders-dlq"
URL = "https://sqs.us-east-2.amazonaws.com/123456789012/orders"

# As in AWS's documentation, "Using Lambda with Amazon SQS", with attributes of each type.
EVENT: dict[str, Any] = {
    "Records": [
        {
            "messageId": "059f36b4-87a3-44ab-83d2-661975830a7d",
            "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a",
            "body": "Test message.",
            "attributes": {
                "ApproximateReceiveCount": "1",
                "SentTimestamp": "1545082649183",
                "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                "ApproximateFirstReceiveTimestamp": "1545082649185",
            },
            "messageAttributes": {
                "myAttribute": {
                    "stringValue": "myValue",
                    "stringListValues": [],
                    "binaryListValues": [],
                    "dataType": "String",
                },
                "sqs-dlq-replay-nb": {
                    "stringValue": "2",
                    "stringListValues": [],
                    "binaryListValues": [],
                    "dataType": "Number",
                },
                "blob": {
                    "binaryValue": "AAH/",
                    "stringListValues": [],
                    "binaryListValues": [],
                    "dataType": "Binary",
                },
            },
            "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
            "eventSource": "aws:sqs",
            "eventSourceARN": ARN,
            "awsRegion": "us-east-2",
        },
        {
            "messageId": "2e1424d4-f796-459a-8184-9c92662be6da",
            "receiptHandle": "AQEBzWwaftRI0KuVm4tP+/7q1rGgNqicHq",
            "body": "Test message.",
            "attributes": {
                "ApproximateReceiveCount": "4",
                "SentTimestamp": "1545082650636",
                "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                "ApproximateFirstReceiveTimestamp": "1545082650649",
                "MessageGroupId": "1",
                "MessageDeduplicationId": "1",
                "SequenceNumber": "18849496460467696128",
                "DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-2:123456789012:orders",
            },
            "messageAttributes": {},
            "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
            "eventSource": "aws:sqs",
            "eventSourceARN": ARN,
            "awsRegion": "us-east-2",
        },
    ]
}


# --- events


def test_a_documented_event_is_decoded() -> None:
    first, second = deliveries_of(EVENT, FakeClock(NOW))
    assert first.queue == second.queue == "orders-dlq"
    assert queue_arn_of(EVENT) == ARN
    assert first.receipt == "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a"
    assert (first.message.id, first.message.body) == ("059f36b4-87a3-44ab-83d2-661975830a7d", b"Test message.")
    assert dict(first.message.attributes) == {
        "myAttribute": "myValue",
        "sqs-dlq-replay-nb": "2",
        "blob": b"\x00\x01\xff",
    }
    assert replays_so_far(first.message.attributes) == 2
    assert (first.message.enqueued_at, first.first_received_at) == (1545082649.183, 1545082649.185)
    assert (second.message.group, second.moved_from) == ("1", "orders")


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the event with one value of its first record replaced, or removed if `value` is None."""
    event = copy.deepcopy(EVENT)
    inner = event["Records"][0]
    *parents, last = path.split(".")
    for parent in parents:
        inner = inner[parent]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return event


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({}, "no list of Records"),
        ([], "no list of Records"),
        (None, "no list of Records"),
        ({"Records": []}, "no list of Records"),
        ({"Records": [7]}, "does not come from aws:sqs"),
        ({"version": "0", "source": "aws.events"}, "no list of Records"),
        (changed("eventSource", "aws:s3"), "does not come from aws:sqs"),
        (changed("receiptHandle", None), "has no receiptHandle"),
        (changed("body", 7), "has no body"),
        (changed("messageAttributes.blob.binaryValue", "%%%"), "the attributes of message 059f36b4"),
        (changed("messageAttributes", ["a"]), "the attributes of message"),
        (changed("attributes.SentTimestamp", "soon"), "the attributes of message"),
    ],
)
def test_another_event_is_refused_in_one_line(event: Any, expected: str) -> None:
    with pytest.raises(UsageError, match="none of an SQS event source mapping") as refused:
        deliveries_of(event, FakeClock(NOW))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


# --- settings


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove all settings from the environment except a region."""
    monkeypatch.chdir(tmp_path)
    for name in ("SQS_MAIN_URL", "BACKOFF_RATE", "MAX_ATTEMPS", "MESSAGE_RETENTION_PERIOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    return monkeypatch


def test_the_lambda_handler_needs_no_settings_at_import() -> None:
    assert isinstance(handler, ReplayFunction)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "set SQS_MAIN_URL to its URL"),
        ({"SQS_MAIN_URL": "orders"}, "it is the URL of a queue on SQS"),
        ({"SQS_MAIN_URL": URL, "MAX_ATTEMPS": "many"}, "MAX_ATTEMPS in the environment is 'many'"),
        ({"SQS_MAIN_URL": URL, "PENSTOCK_BROKER": "redis://127.0.0.1"}, "messages come from SQS: write sqs://"),
        (
            {"SQS_MAIN_URL": URL, "PENSTOCK_LEDGER": "sqlite:///l.db", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            "a file",
        ),
        (
            {"SQS_MAIN_URL": URL, "PENSTOCK_DEAD_LETTERS_REPLAY_QUEUES": '{"orders": {"off": true}}'},
            "turns off replays for orders",
        ),
    ],
)
def test_invalid_settings_are_refused_with_the_reason(
    clean_environment: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name, value in environment.items():
        clean_environment.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        ReplayFunction()(EVENT)
    assert expected in str(refused.value)


def test_an_error_that_ends_a_call_reaches_the_log_and_the_error_hook(
    clean_environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports: list[tuple[BaseException | None, ErrorContext]] = []
    function = ReplayFunction(on_error=lambda error, context: reports.append((error, context)))
    with pytest.raises(UsageError) as refused:
        function({"Records": "none"})
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["event"], line["level"], line["error.type"]) == ("worker.failed", "error", "UsageError")
    assert line["error.message"] == str(refused.value)
    ((error, context),) = reports
    assert error is refused.value
    assert (context.handler, context.final) == ("replayer", True)


# --- due times without a ledger


def dead_letter(
    *, queue: str = "orders-dlq", attributes: Attributes | None = None, first: float = NOW - 500.0
) -> SqsDelivery:
    return SqsDelivery(
        message=Message(id="m1", body=b"x", enqueued_at=NOW - 1_000.0, attributes=attributes or {}),
        queue=queue,
        receipt="r1",
        attempt=1,
        received_at=NOW,
        first_received_at=first,
        began_at=0.0,
    )


def death_attributes(at: float) -> Attributes:
    death = Death(
        reason="bad", attempts=3, last_failed_at=at, worker="w", queue="orders", message_id="m0", enqueued_at=at - 60.0
    )
    return with_death({}, death)


def due_at(one: SqsDelivery, *, wait_seconds: float, now: float = NOW) -> float:
    """Return the due time of a replay planned with this wait."""
    id = dead_letter_replay_id(one.queue, one.message)
    planned = Replay(
        replay_id=id,
        dead_letter_queue=one.queue,
        dead_letter_id="m1",
        queue="orders",
        count=1,
        due_at=now + wait_seconds,
    )
    return UnrecordedReplays([one], now=now).open([planned])[id].due_at


def test_a_dead_letter_with_a_recorded_death_is_due_a_wait_after_it() -> None:
    one = dead_letter(attributes=death_attributes(NOW - 100.0), first=NOW)
    assert [due_at(one, wait_seconds=5_000.0, now=now) for now in (NOW, NOW + 3_000.0)] == [NOW + 4_900.0] * 2


def test_a_death_in_the_future_counts_from_the_first_receive() -> None:
    """Counted from each receive, it would never be due and would block its group."""
    one = dead_letter(attributes=death_attributes(NOW + 86_400.0), first=NOW)
    assert [due_at(one, wait_seconds=10.0, now=now) for now in (NOW, NOW + 5.0)] == [NOW + 10.0] * 2


def test_a_recorded_death_is_ignored_on_a_message_moved_by_sqs() -> None:
    one = replace(
        dead_letter(queue="orders-dlq.fifo", attributes=death_attributes(NOW - 9_000.0)), moved_from="orders.fifo"
    )
    assert due_at(one, wait_seconds=1.0) == NOW - 500.0 + 1.0


def test_a_dead_letter_moved_by_sqs_waits_at_most_the_maximum_delay() -> None:
    share = spread(dead_letter_replay_id("orders-dlq", dead_letter().message))
    for ceiling_seconds in (8.0, 899.0, 900.0, 40_000.0):
        due = due_at(dead_letter(), wait_seconds=share * ceiling_seconds)
        assert due == pytest.approx(NOW + share * min(ceiling_seconds, DELAY_SECONDS_MAX))


def test_in_a_fifo_queue_a_dead_letter_moved_by_sqs_waits_from_its_first_receive() -> None:
    one = dead_letter(queue="orders-dlq.fifo", first=NOW - 500.0)
    share = spread(dead_letter_replay_id("orders-dlq.fifo", one.message))
    for now in (NOW, NOW + 300.0):
        assert due_at(one, wait_seconds=share * 40_000.0, now=now) == pytest.approx(NOW - 500.0 + share * 900.0)
