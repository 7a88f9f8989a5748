"""Findings of doctor about the settings and the policy of an SQS queue."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.brokers.sqs.facts import QueueFacts
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.doctor.sqs import bucket_may_send, check_dlq, check_final_dlq, queue

OK, WARNING, FAILED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILED
DAY = 86_400
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"
DLQ_ARN = f"{ARN}-dlq"
ATTEMPTS = 4

QUEUE = QueueFacts(
    name="orders",
    arn=ARN,
    is_fifo=False,
    visible=0,
    visibility_seconds=30,
    retention_seconds=4 * DAY,
    is_encrypted=True,
    kms_key=None,
    dead_letter_arn=DLQ_ARN,
    receives_max=20,
    clock_ahead_seconds=0.0,
)
DLQ = replace(
    QUEUE, name="orders-dlq", arn=DLQ_ARN, dead_letter_arn=None, receives_max=None, retention_seconds=14 * DAY
)


@pytest.mark.parametrize(
    ("changed", "announces", "level", "text"),
    [
        (
            {},
            True,
            OK,
            "its visibility timeout is 30 s, workers request 1 minute with each receive; messages are kept for 4 days",
        ),
        ({}, False, OK, "receiving, extending and deleting were not tried"),
        ({"retention_seconds": 5_400}, True, OK, "kept for 90 minutes"),
        ({"is_encrypted": False}, True, OK, "not encrypted"),
        ({"is_fifo": True}, False, OK, "no delays"),
        ({"is_fifo": True}, True, FAILED, "S3 sends only to standard queues"),
        ({"kms_key": "alias/aws/sqs"}, True, FAILED, "its notifications are lost"),
        ({"kms_key": "alias/aws/sqs"}, False, OK, "encrypted with the KMS key alias/aws/sqs"),
        ({"kms_key": "alias/ours"}, True, WARNING, "kms:GenerateDataKey*"),
    ],
)
def test_the_check_of_a_queue(changed: dict[str, Any], announces: bool, level: FindingLevel, text: str) -> None:
    found = queue(replace(QUEUE, **changed), lease_seconds=60.0, announces=announces)
    assert (found[0], text in found[1]) == (level, True), found


@pytest.mark.parametrize(
    ("changed", "dlq_changed", "level", "text"),
    [
        ({}, {}, OK, "after 20 receives (max_attempts 4 plus 3 for deployments, which cost a receive each, is 7)"),
        ({"receives_max": 7}, {}, OK, "after 7 receives"),
        ({"receives_max": 6}, {}, WARNING, "is 7: set maxReceiveCount to at least that"),
        ({"receives_max": 4}, {}, WARNING, "a few deployments use up"),
        ({"receives_max": 3}, {}, FAILED, "before max_attempts is reached"),
        ({"receives_max": None, "dead_letter_arn": None}, {}, WARNING, "no redrive policy"),
        ({}, {"retention_seconds": 4 * DAY}, WARNING, "kept for 4 days, no longer than in the queue"),
        ({}, {"retention_seconds": 4 * DAY + 1}, OK, "345601 s"),
        ({}, {"receives_max": 20}, WARNING, "a message keeps its count, so the first receive moves it on"),
        (
            {},
            {"receives_max": 5},
            WARNING,
            "the first receive moves it on, and it ends in a queue that is not replayed",
        ),
        ({}, {"receives_max": 21}, WARNING, "only 1 receive is left"),
        ({}, {"receives_max": 30}, WARNING, "only 10 receives are left"),
        ({}, {"receives_max": 119}, WARNING, "set the DLQ's own maxReceiveCount to 1,000"),
        ({}, {"receives_max": 120}, OK, ""),
        ({}, {"receives_max": 1_000}, OK, ""),
    ],
)
def test_the_check_of_the_dlq(
    changed: dict[str, Any], dlq_changed: dict[str, Any], level: FindingLevel, text: str
) -> None:
    found = check_dlq(replace(QUEUE, **changed), replace(DLQ, **dlq_changed), attempts_max=ATTEMPTS)
    assert (found[0], text in found[1]) == (level, True), found


def test_a_missing_dlq_is_a_failure() -> None:
    found = check_dlq(QUEUE, None, attempts_max=ATTEMPTS, why="no such queue")
    assert found == (FAILED, "orders: it has no dead-letter queue: no such queue")


FINAL_DLQ = replace(DLQ, name="orders-dead", arn=f"{ARN}-dead")


@pytest.mark.parametrize(
    ("dlq_changed", "changed", "level", "text"),
    [
        ({}, {}, OK, f"orders-dlq: messages that are not replayed again go to {ARN}-dead, kept there for 14 days"),
        ({}, {"retention_seconds": 4 * DAY}, WARNING, "kept there for 4 days, no longer than in orders"),
        ({}, {"arn": DLQ_ARN}, FAILED, "which is a cycle"),
        ({}, {"arn": ARN}, FAILED, "which is a cycle"),
        ({"is_fifo": True}, {}, FAILED, "from a FIFO queue to a standard queue"),
        ({}, {"is_fifo": True}, FAILED, "from a standard queue to a FIFO queue"),
    ],
)
def test_the_check_of_the_final_dlq(
    dlq_changed: dict[str, Any], changed: dict[str, Any], level: FindingLevel, text: str
) -> None:
    found = check_final_dlq(QUEUE, replace(DLQ, **dlq_changed), replace(FINAL_DLQ, **changed))
    assert (found[0], text in found[1]) == (level, True), found


def test_a_missing_final_dlq_is_a_failure() -> None:
    level, text = check_final_dlq(QUEUE, DLQ, None, why="no such queue")
    assert level is FAILED
    assert text.endswith("there is no final DLQ: no such queue")


def statement(**changed: Any) -> dict[str, Any]:
    return {
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": ARN,
        "Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:s3:::landing"}},
        **changed,
    }


@pytest.mark.parametrize(
    ("statements", "level"),
    [
        ([statement()], OK),
        (statement(), OK),
        ([statement(Action=["SQS:*"], Resource=["*"], Principal="*")], OK),
        ([statement(Principal={"AWS": "*"})], OK),
        ([statement(Principal={"Service": ["sns.amazonaws.com", "s3.amazonaws.com"]})], OK),
        ([statement(Condition={"ArnLike": {"aws:SourceArn": "arn:aws:s3:*:*:landing"}})], OK),
        ([statement(Condition={"ArnLike": {"AWS:SourceArn": ["arn:aws:s3:::other", "arn:aws:s3:::land*"]}})], OK),
        ([statement(Condition={"ArnLike": {"aws:SourceArn": "arn:aws-cn:s3:::landing"}})], OK),
        ([statement(Condition={"ArnEquals": {"aws:SourceArn": "arn:aws:s3:::other"}})], FAILED),
        ([statement(Condition={})], WARNING),
        ([statement(Condition={"StringEquals": {"aws:SourceAccount": "1"}})], WARNING),
        ([statement(Action="sqs:ReceiveMessage")], FAILED),
        ([statement(Resource=f"{ARN}-dlq")], FAILED),
        ([statement(Principal={"Service": "sns.amazonaws.com"})], FAILED),
        ([statement(Principal={"AWS": "arn:aws:iam::123456789012:root"})], FAILED),
        ([statement(), statement(Effect="Deny", Condition={})], FAILED),
        ([statement(), statement(Effect="Deny", Condition={"Bool": {"aws:SecureTransport": "false"}})], OK),
        ([], FAILED),
        ("nonsense", FAILED),
        (None, FAILED),
    ],
)
def test_the_check_of_the_policy_finds_whether_the_bucket_may_send(statements: Any, level: FindingLevel) -> None:
    found = bucket_may_send(replace(QUEUE, policy={"Statement": statements}), "landing")
    assert found[0] is level, found
