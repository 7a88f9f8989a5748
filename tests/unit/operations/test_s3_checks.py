"""Findings of doctor about a bucket's notifications and a source."""

import pytest

from penstock.objects.s3_facts import NotificationConfiguration, NotificationRule, SourceFacts
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.doctor.s3 import notifications, source
from penstock.storage.address import S3Address

OK, WARNING, FAILED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILED
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"
HERE = S3Address(bucket="landing", prefix="in/a")
ALL = ("s3:ObjectCreated:*",)


def rule(prefix: str = "", *, suffix: str = "", events: tuple[str, ...] = ALL, arn: str = ARN) -> NotificationRule:
    return NotificationRule(arn=arn, events=events, prefix=prefix, suffix=suffix)


@pytest.mark.parametrize(
    ("rules", "level", "text"),
    [
        ([rule()], OK, "announces new objects in orders"),
        ([rule("in/a/")], OK, "announces new objects"),
        ([rule("in/")], OK, "announces new objects"),
        ([rule("i")], OK, "announces new objects"),
        ([rule("in/a/b/")], WARNING, "announces only in/a/b/*"),
        ([rule("in/a/", suffix=".gz")], WARNING, "announces only in/a/*.gz"),
        ([rule("in/b/")], FAILED, "nothing below this address; set the filter to in/a/"),
        ([rule("in/a/", events=("s3:ObjectCreated:Put",))], WARNING, "Post, Copy, CompleteMultipartUpload"),
        (
            [rule("in/a/", events=tuple(f"s3:ObjectCreated:{kind}" for kind in ("Put", "Post", "Copy")))],
            WARNING,
            "Compl",
        ),
        (
            [
                rule("in/a/", events=("s3:ObjectCreated:Put", "s3:ObjectCreated:Post")),
                rule("in/", events=("s3:ObjectCreated:Copy", "s3:ObjectCreated:CompleteMultipartUpload")),
            ],
            OK,
            "",
        ),
        ([rule("in/a/", events=("s3:ObjectRemoved:*",))], FAILED, "announces nothing in orders"),
        ([rule(arn=f"{ARN}-other")], FAILED, "announces nothing in orders"),
        ([rule(arn="arn:aws:sns:eu-west-1:1:topic")], WARNING, "by arn:aws:sns:eu-west-1:1:topic; whether they reach"),
        ([], FAILED, "announces nothing"),
    ],
)
def test_the_check_of_notifications_compares_rules_with_the_source(
    rules: list[NotificationRule], level: FindingLevel, text: str
) -> None:
    found = notifications(
        HERE, NotificationConfiguration(rules=tuple(rules), to_event_bridge=False), queue="orders", arn=ARN
    )
    assert (found[0], text in found[1]) == (level, True), found


def test_notifications_through_event_bridge_are_a_warning() -> None:
    found = notifications(HERE, NotificationConfiguration(rules=(), to_event_bridge=True), queue="orders", arn=ARN)
    assert found[0] is WARNING
    assert "by EventBridge; whether they reach orders was not checked" in found[1]


def test_an_unreadable_configuration_is_a_warning() -> None:
    assert notifications(HERE, None, queue="orders", arn=ARN)[0] is WARNING


@pytest.mark.parametrize(
    ("versioning", "tried", "text"),
    [
        ("Enabled", "in/a/1", "listed, and an object was requested; versioning is on"),
        ("never", None, "there is no object yet to read; versioning is off"),
        ("Suspended", None, "superseded"),
        (None, None, "versioning is unknown"),
    ],
)
def test_the_check_of_a_source_reports_versioning_and_reads(
    versioning: str | None, tried: str | None, text: str
) -> None:
    facts = SourceFacts(versioning=versioning, notices=None, tried_key=tried, clock_ahead_seconds=None)
    found = source(HERE, facts)
    assert (found[0], text in found[1]) == (OK, True), found
