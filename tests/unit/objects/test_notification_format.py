"""Notifications written by Penstock have the format of S3's."""

import json

from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef

LOCAL = ObjectRef(bucket="file", key="/in/a b+c%2F\udcff", size_bytes=3, etag="1f-3")


def test_the_notification_of_a_local_file() -> None:
    record = json.loads(announce(LOCAL))["Records"][0]
    assert record == {
        "eventVersion": "2.1",
        "eventSource": "penstock:local",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": "file"},
            "object": {"key": "/in/a+b%2Bc%252F%FF", "size": 3, "eTag": "1f-3"},
        },
    }


def test_the_notification_of_an_s3_object() -> None:
    ref = ObjectRef(bucket="b", key="k", size_bytes=0, version_id="v", etag="e", sequencer="0A")
    assert json.loads(announce(ref))["Records"][0]["eventSource"] == "penstock:s3"
    assert parse(announce(ref), buckets_allowed=frozenset({"b"})).objects == (ref,)


def test_equal_objects_have_equal_bodies() -> None:
    assert announce(LOCAL) == announce(ObjectRef(bucket="file", key=LOCAL.key, size_bytes=3, etag="1f-3"))
