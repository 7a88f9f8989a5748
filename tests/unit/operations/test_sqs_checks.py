"""What doctor says of a queue's numbers and of its policy."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.brokers.sqs.facts import QueueFacts
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.doctor.sqs import bucket_may_send, check_dlq, check_final_dlq, queue

OK, WARNING, FAILED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILED
DAY = 86_400
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"
LETTERS_ARN = f"{ARN}-dlq"
ATTEMPTS = 4

WELL = QueueFacts(
    name="orders",
    arn=ARN,
    is_fifo=False,
    visible=0,
    visibility_seconds=30,
    retention_seconds=4 * DAY,
    is_encrypted=True,
    kms_key=None,
    dead_letter_arn=LETTERS_ARN,
    receives_max=20,
    clock_ahead_seconds=0.0,
)
LETTERS = replace(
    WELL, name="orders-dlq", arn=LETTERS_ARN, dead_letter_arn=None, receives_max=None, retention_seconds=14 * DAY
)


@pytest.mark.parametrize(
    ("changed", "announces", "verdict", "words"),
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
def test_a_queue_by_itself(changed: dict[str, Any], announces: bool, verdict: FindingLevel, words: str) -> None:
    found = queue(replace(WELL, **changed), lease_seconds=60.0, announces=announces)
    assert (found[0], words in found[1]) == (verdict, True), found


@pytest.mark.parametrize(
    ("changed", "letters_changed", "verdict", "words"),
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
        ({}, {"receives_max": 30}, WARNING, "only 10 receives are left"),
        ({}, {"receives_max": 119}, WARNING, "set the DLQ's own maxReceiveCount to 1,000"),
        ({}, {"receives_max": 120}, OK, ""),
        ({}, {"receives_max": 1_000}, OK, ""),
    ],
)
def test_its_dead_letters(
    changed: dict[str, Any], letters_changed: dict[str, Any], verdict: FindingLevel, words: str
) -> None:
    found = check_dlq(replace(WELL, **changed), replace(LETTERS, **letters_changed), attempts_max=ATTEMPTS)
    assert (found[0], words in found[1]) == (verdict, True), found


def test_dead_letters_without_a_place_to_go() -> None:
    found = check_dlq(WELL, None, attempts_max=ATTEMPTS, why="no such queue")
    assert found == (FAILED, "orders: it has no dead-letter queue: no such queue")


SECOND = replace(LETTERS, name="orders-dead", arn=f"{ARN}-dead")


@pytest.mark.parametrize(
    ("letters_changed", "changed", "verdict", "words"),
    [
        ({}, {}, OK, f"orders-dlq: messages that are not replayed again go to {ARN}-dead, kept there for 14 days"),
        ({}, {"retention_seconds": 4 * DAY}, WARNING, "kept there for 4 days, no longer than in orders"),
        ({}, {"arn": LETTERS_ARN}, FAILED, "which is a circle"),
        ({}, {"arn": ARN}, FAILED, "which is a circle"),
        ({"is_fifo": True}, {}, FAILED, "from a FIFO queue to a standard queue"),
        ({}, {"is_fifo": True}, FAILED, "from a standard queue to a FIFO queue"),
    ],
)
def test_its_second_tier(
    letters_changed: dict[str, Any], changed: dict[str, Any], verdict: FindingLevel, words: str
) -> None:
    found = check_final_dlq(WELL, replace(LETTERS, **letters_changed), replace(SECOND, **changed))
    assert (found[0], words in found[1]) == (verdict, True), found


def test_without_a_second_tier_what_dies_again_has_no_place_to_go() -> None:
    verdict, words = check_final_dlq(WELL, LETTERS, None, why="no such queue")
    assert verdict is FAILED
    assert words.endswith("there is no final DLQ: no such queue")


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
    ("statements", "verdict"),
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
def test_whether_the_bucket_may_send(statements: Any, verdict: FindingLevel) -> None:
    found = bucket_may_send(replace(WELL, policy={"Statement": statements}), "landing")
    assert found[0] is verdict, found
