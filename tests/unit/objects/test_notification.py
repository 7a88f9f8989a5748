"""Notifications: dialects, ignored records, reasons for refusals. The rows of INPUTS have separate tests."""

import copy
import json
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus

import pytest

from penstock.errors import InvalidMessage
from penstock.objects.notification import BODY_BYTES_MAX, Ignored, Notification, NotificationKind, announce, parse
from penstock.objects.reference import ObjectRef

RECORD: dict[str, Any] = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "eu-west-1",
    "eventTime": "2024-05-01T10:00:00.000Z",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "AWS:X"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "c",
        "bucket": {"name": "landing", "arn": "arn:aws:s3:::landing"},
        "object": {"key": "a/b.jsonl", "size": 12, "eTag": "0f", "sequencer": "0055AED6DCD90281E5"},
    },
}

BRIDGED: dict[str, Any] = {
    "version": "0",
    "id": "17793124-05d4-b198-2fde-7ededc63b103",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "111122223333",
    "time": "2024-05-01T10:00:00Z",
    "resources": ["arn:aws:s3:::landing"],
    "detail": {
        "version": "0",
        "bucket": {"name": "landing"},
        "object": {"key": "a/b.jsonl", "size": 12, "etag": "0f", "sequencer": "0055AED6DCD90281E5"},
        "reason": "PutObject",
    },
}

EXPECTED = ObjectRef(bucket="landing", key="a/b.jsonl", size_bytes=12, etag="0f", sequencer="0055AED6DCD90281E5")


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(document)
    *parents, last = path.split(".")
    node = document
    for name in parents:
        node = node[name]
    node[last] = value
    return document


def without(document: dict[str, Any], path: str) -> dict[str, Any]:
    document = changed(document, path, None)
    *parents, last = path.split(".")
    node = document
    for name in parents:
        node = node[name]
    del node[last]
    return document


def read(document: object, buckets_allowed: frozenset[str] | None = None) -> Notification:
    return parse(json.dumps(document).encode(), buckets_allowed=buckets_allowed)


def read_records(*records: object) -> Notification:
    return read({"Records": records})


def refusal_of(document: object, buckets_allowed: frozenset[str] | None = None) -> str:
    with pytest.raises(InvalidMessage) as caught:
        read(document, buckets_allowed)
    return str(caught.value)


def test_a_notification_of_s3_is_parsed() -> None:
    assert read_records(RECORD) == Notification(kind=NotificationKind.RECORDS, objects=(EXPECTED,))


def test_an_event_of_eventbridge_is_parsed() -> None:
    assert read(BRIDGED) == Notification(kind=NotificationKind.RECORDS, objects=(EXPECTED,))


def test_a_key_of_eventbridge_is_not_decoded() -> None:
    (only,) = read(changed(BRIDGED, "detail.object.key", "a+b%20c.jsonl")).objects
    assert only.key == "a+b%20c.jsonl"


def test_an_event_of_eventbridge_through_sns_is_parsed() -> None:
    assert read({"Type": "Notification", "Message": json.dumps(BRIDGED)}) == read(BRIDGED)


@pytest.mark.parametrize("name", ["Put", "Post", "Copy", "CompleteMultipartUpload", "SomethingNew"])
@pytest.mark.parametrize("prefix", ["", "s3:"])
def test_every_creation_event_is_a_notification(prefix: str, name: str) -> None:
    assert read_records(changed(RECORD, "eventName", f"{prefix}ObjectCreated:{name}")).objects == (EXPECTED,)


@pytest.mark.parametrize(
    "event",
    [
        "ObjectRemoved:Delete",
        "ObjectRemoved:DeleteMarkerCreated",
        "ObjectRestore:Completed",
        "ObjectTagging:Put",
        "LifecycleExpiration:DeleteMarkerCreated",
        "ReducedRedundancyLostObject",
    ],
)
def test_events_without_content_are_ignored(event: str) -> None:
    notification = read_records(without(changed(RECORD, "eventName", event), "s3.object.size"))
    assert notification == Notification(
        kind=NotificationKind.RECORDS, ignored=(Ignored(event=event, uri="s3://landing/a/b.jsonl"),)
    )


def test_eventbridge_deletions_are_ignored() -> None:
    notification = read(without(changed(BRIDGED, "detail-type", "Object Deleted"), "detail.object.size"))
    assert [item.event for item in notification.ignored] == ["Object Deleted"]
    assert notification.objects == ()


def test_an_object_named_twice_counts_once_and_order_is_kept() -> None:
    other = changed(RECORD, "s3.object.key", "other")
    assert [ref.key for ref in read_records(RECORD, other, RECORD).objects] == ["a/b.jsonl", "other"]


def test_the_size_is_the_sum_of_all_objects() -> None:
    assert read_records(RECORD, changed(RECORD, "s3.object.key", "other")).size_bytes == 24


@pytest.mark.parametrize("etag", ['"0f"', "0f"])
@pytest.mark.parametrize("version_id", ["null", "", None])
def test_quotes_of_the_etag_and_a_null_version_are_dropped(etag: str, version_id: str | None) -> None:
    record = changed(changed(RECORD, "s3.object.eTag", etag), "s3.object.versionId", version_id)
    assert read_records(record).objects == (EXPECTED,)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("eventVersion", 2.1, "record 1: eventVersion must be a valid string, not 2.1"),
        ("eventVersion", "20.1", 'record 1: eventVersion must be "2.x", not "20.1"'),
        ("eventName", "Whatever:Put", 'record 1: eventName "Whatever:Put" is not known'),
        ("eventName", None, "record 1: eventName must be a valid string, not null"),
        ("s3", [], "record 1: s3 must be an object, not a list"),
        ("s3.bucket", "landing", 'record 1: s3.bucket must be an object, not "landing"'),
        ("s3.bucket.name", "a/b", 'record 1: s3.bucket.name must be a bucket\'s name, not "a/b"'),
        ("s3.bucket.name", "file", 'bucket "file" and event source "penstock:local" only go together'),
        ("s3.object.key", "", "record 1: the key is empty"),
        ("s3.object.key", 7, "record 1: s3.object.key must be a valid string, not 7"),
        ("s3.object.size", "12 kB", 'record 1: s3.object.size must be a valid integer, not "12 kB"'),
        ("s3.object.size", True, "record 1: s3.object.size must be a valid integer, not true"),
        ("s3.object.size", 12.0, "record 1: s3.object.size must be a valid integer, not 12.0"),
        ("s3.object.size", None, "record 1: the object's size is missing"),
        ("s3.object.size", 2**63, "record 1: s3.object.size must be less than or equal to 9223372036854775807"),
        ("s3.object.eTag", None, "record 1: the object has neither a version id nor an ETag"),
        ("s3.object.eTag", '""', "record 1: the object has neither a version id nor an ETag"),
        ("s3.object.versionId", "a\0b", "record 1: s3.object.versionId must be at most 1,024 visible ASCII characters"),
    ],
)
def test_an_invalid_field_is_named_with_the_expected_value(path: str, value: object, expected: str) -> None:
    assert expected in refusal_of({"Records": [changed(RECORD, path, value)]})


@pytest.mark.parametrize("path", ["eventVersion", "eventName", "s3", "s3.bucket.name", "s3.object", "s3.object.key"])
def test_a_missing_field_is_named(path: str) -> None:
    assert refusal_of({"Records": [without(RECORD, path)]}) == f"record 1: {path} is missing"


@pytest.mark.parametrize("record", [None, 3, "x", [], [RECORD]])
def test_a_record_that_is_not_an_object_is_refused(record: object) -> None:
    assert "record 1: it must be an object, not " in refusal_of({"Records": [record]})


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("source", "aws.ec2", 'source must be "aws.s3", not "aws.ec2"'),
        ("version", "1", 'version must be "0", not "1"'),
        ("detail-type", "AWS API Call via CloudTrail", 'detail-type "AWS API Call via CloudTrail" is not known'),
        ("detail.object.size", -1, "detail.object.size must be greater than or equal to 0, not -1"),
        ("detail.bucket.name", "file", "only go together"),
    ],
)
def test_an_invalid_event_of_eventbridge_is_refused(path: str, value: object, expected: str) -> None:
    assert expected in refusal_of(changed(BRIDGED, path, value))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"Type": "SubscriptionConfirmation", "Message": "x"}, 'must be "Notification"'),
        ({"Type": "Notification"}, "SNS envelope: Message is missing"),
        ({"Type": "Notification", "Message": {}}, "SNS envelope: Message must be a valid string, not an object"),
        ({"Type": "Notification", "Message": "[]"}, "SNS envelope: a notification is a JSON object, not a list"),
        ({"Type": "Notification", "Message": "hello"}, "SNS envelope: not JSON"),
        ({"Type": "Notification", "Message": "\ufeff{}"}, "SNS envelope: the text starts with a byte order mark"),
        ({"Type": "Notification", "Message": '{"a":1,"a":1}'}, 'SNS envelope: the key "a" appears twice'),
        (
            {"Type": "Notification", "Message": json.dumps({"Type": "Notification", "Message": "{}"})},
            "SNS envelope: Message is wrapped once more",
        ),
        (
            {"Type": "Notification", "Message": '{"Records": [3]}'},
            "SNS envelope: record 1: it must be an object",
        ),
    ],
)
def test_an_invalid_sns_envelope_is_refused(document: object, expected: str) -> None:
    assert expected in refusal_of(document)


def test_the_allowlist_applies_to_ignored_records() -> None:
    removed = changed(RECORD, "eventName", "ObjectRemoved:Delete")
    assert "not one this pipeline reads" in refusal_of({"Records": [removed]}, frozenset({"other"}))


def test_only_local_notifications_may_name_local_files() -> None:
    record = changed(RECORD, "eventSource", "penstock:local")
    assert "only go together" in refusal_of({"Records": [record]})
    local = changed(changed(record, "s3.bucket.name", "file"), "s3.object.key", "/in/a")
    assert read_records(local).objects[0].uri == "file:///in/a"


def test_many_problems_are_listed_up_to_a_maximum_and_counted() -> None:
    notification = read_records(RECORD, *[None] * 50)
    assert len(notification.problems) == 21
    assert notification.problems[0] == "record 2: it must be an object, not null"
    assert notification.problems[-1] == "and 30 more records like these"
    assert read_records(RECORD, *[None] * 21).problems[-1] == "and 1 more record like these"
    assert notification.reason is not None
    assert notification.reason.isprintable()


def test_a_body_larger_than_queues_accept_is_refused() -> None:
    assert "at most 1,048,576" in refusal_of({"Records": [], "x": "y" * BODY_BYTES_MAX})


# -- stores compatible with S3 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequencer", ["Happy Sequencer", "zü", "", 7, None, ["0A"], "0" * 129])
def test_an_invalid_sequencer_is_dropped(sequencer: object) -> None:
    found = read({"Records": [changed(RECORD, "s3.object.sequencer", sequencer)]})
    assert found.objects == (replace(EXPECTED, sequencer=None),)


def minio_record(event: str, **described: object) -> dict[str, object]:
    """Return a record as MinIO sends it: empty fields and a size of 0 are omitted."""
    return {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "awsRegion": "",
        "eventTime": "2026-01-02T03:04:05.678Z",
        "eventName": event,
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": "landing", "arn": "arn:aws:s3:::landing"},
            "object": {"key": "a%2Fb.jsonl", "sequencer": "17A1B2C3D4E5F607"} | described,
        },
        "source": {"host": "10.0.0.1", "port": "", "userAgent": "mc"},
    }


def test_a_missing_size_of_minio_or_with_the_etag_of_no_bytes_is_0() -> None:
    record = minio_record("s3:ObjectCreated:Put", eTag="0f", contentType="text/plain")
    assert [(ref.key, ref.size_bytes) for ref in read({"Records": [record]}).objects] == [("a/b.jsonl", 0)]
    empty = changed(without(RECORD, "s3.object.size"), "s3.object.eTag", "d41d8cd98f00b204e9800998ecf8427e")
    assert [ref.size_bytes for ref in read({"Records": [empty]}).objects] == [0]
    assert "the object's size is missing" in refusal_of({"Records": [without(RECORD, "s3.object.size")]})


@pytest.mark.parametrize(
    "event",
    [
        "s3:ObjectTransition:Complete",
        "s3:ObjectTransition:Failed",
        "s3:Scanner:ManyVersions",
        "s3:Scanner:LargeVersions",
        "s3:Scanner:BigPrefix",
        "s3:LifecycleDelMarkerExpiration:Delete",
        "s3:ObjectCreated:PutTagging",
        "s3:ObjectCreated:DeleteTagging",
        "s3:ObjectCreated:PutRetention",
        "s3:ObjectCreated:PutLegalHold",
    ],
)
def test_events_of_minio_without_content_are_ignored(event: str) -> None:
    found = read({"Records": [minio_record(event, eTag="0f")]})
    assert (found.objects, found.problems) == ((), ())
    assert [item.event for item in found.ignored] == [event.removeprefix("s3:")]


@pytest.mark.parametrize("event", ["s3:BucketCreated:*", "s3:BucketRemoved:*"])
def test_events_of_buckets_are_ignored_without_a_key(event: str) -> None:
    found = read({"Records": [minio_record(event, key="", sequencer="")]})
    assert (found.objects, [item.uri for item in found.ignored]) == ((), ["s3://landing/"])


def test_the_etag_spelling_of_old_ceph_is_accepted() -> None:
    record = changed(without(RECORD, "s3.object.eTag"), "s3.object.etag", "0f")
    assert read({"Records": [record]}).objects == (EXPECTED,)


def test_a_size_may_be_a_string_of_digits() -> None:
    assert read({"Records": [changed(RECORD, "s3.object.size", "12")]}).objects == (EXPECTED,)


@pytest.mark.parametrize("key", ["http%3A//x/y", "s3%3A%2F%2Fb%2Fx.jsonl"])
def test_a_key_that_looks_like_a_url_is_accepted_if_encoded(key: str) -> None:
    """Stores encode the colon. Keys from listings are encoded by `announce` in the same way."""
    (found,) = read({"Records": [changed(RECORD, "s3.object.key", key)]}).objects
    assert found.key == unquote_plus(key)
    assert parse(announce(found), buckets_allowed=None).objects == (found,)
    bridged = changed(BRIDGED, "detail.object.key", found.key)
    assert [ref.key for ref in read(bridged).objects] == [found.key]
    assert "the key is a URL" in refusal_of({"Records": [changed(RECORD, "s3.object.key", found.key)]})
