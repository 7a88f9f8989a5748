"""S3's notifications, by every way to a queue: each message is read as the object that was put.

The server is moto. Notifications that it does not send, or sends in another form than AWS, are corrected from AWS's
documentation by functions with such names; see tests/services/s3_scene.py.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.services.aws_server import AwsServer
from tests.services.s3_scene import (
    WAYS,
    Announced,
    Way,
    as_eventbridge_documents_it,
    as_s3_documents_it,
)

from penstock.objects.notification import Ignored, Notification, NotificationKind, parse
from penstock.objects.reference import ObjectRef

PART_BYTES_MIN = 5 * 2**20

OpenWay = Callable[..., Announced]

every_notification_way = pytest.mark.parametrize("way", WAYS)
s3_json = pytest.mark.parametrize("way", ["sqs", "sns raw", "sns wrapped"])


@pytest.fixture
def open_way(moto: AwsServer) -> OpenWay:
    """Return a factory of buckets that notify by a given way; the test event, if one is sent, has arrived already."""

    def open_one(way: Way, *, versioned: bool = False) -> Announced:
        opened = Announced(moto, way, versioned=versioned)
        if way != "eventbridge":
            [test_event] = opened.arrived()
            assert parse(test_event, buckets_allowed=frozenset()).kind is NotificationKind.TEST_EVENT
        return opened

    return open_one


def read(announced: Announced, body: bytes) -> Notification:
    return parse(body, buckets_allowed=frozenset({announced.bucket}))


def object_of(announced: Announced, body: bytes) -> ObjectRef:
    [ref] = read(announced, body).objects
    return ref


def put(announced: Announced, key: str, content: bytes = b"x") -> tuple[bytes, Any]:
    """Return the body of the notification and S3's response. moto's EventBridge sends tag events, too, though there are
    no tags.
    """
    response = announced.put(key, content)
    if announced.way != "eventbridge":
        [body] = announced.arrived()
        return body, response
    body, tags = announced.arrived(2)
    assert read(announced, tags).ignored == (Ignored(event="Object Tags Added", uri=f"s3://{announced.bucket}/{key}"),)
    return as_eventbridge_documents_it(body), response


def raw_key(body: bytes) -> str:
    """Return the key as it is in the JSON."""
    document = json.loads(body)
    if "Message" in document:
        document = json.loads(document["Message"])
    described = document["detail"] if "detail" in document else document["Records"][0]["s3"]
    return str(described["object"]["key"])


@every_notification_way
@pytest.mark.parametrize("key", ["a/b.jsonl", "日本/é e\u0301.csv", "🙂", "a ", "<script>", "'; DROP TABLE x --"])
def test_a_notification_is_read_as_the_stored_object(open_way: OpenWay, way: Way, key: str) -> None:
    announced = open_way(way)
    body, response = put(announced, key, b"four")
    ref = object_of(announced, body)
    assert replace(ref, sequencer=None) == ObjectRef(
        bucket=announced.bucket, key=key, size_bytes=4, etag=response["ETag"].strip('"')
    )
    assert announced.s3.get_object(Bucket=ref.bucket, Key=ref.key)["Body"].read() == b"four"


@s3_json
@pytest.mark.parametrize(
    ("key", "in_json"),
    [
        pytest.param("a%2Fb", "a%252Fb", id="row 37: %252F is decoded once"),
        pytest.param("a b+c", "a+b%2Bc", id="row 38: a+b%2Bc is a b+c"),
    ],
)
def test_form_encoded_keys_of_s3_are_decoded(open_way: OpenWay, way: Way, key: str, in_json: str) -> None:
    announced = open_way(way)
    body, _ = put(announced, key)
    assert raw_key(body) == in_json
    assert object_of(announced, body).key == key


@pytest.mark.parametrize("key", ["a%2Bb", "a+b c", "a%252Fb"])
def test_row_39_keys_of_eventbridge_are_not_decoded(open_way: OpenWay, key: str) -> None:
    announced = open_way("eventbridge")
    body, _ = put(announced, key)
    assert raw_key(body) == key
    assert object_of(announced, body).key == key


@pytest.mark.parametrize("way", ["sqs", "sns raw"])
def test_row_48_unknown_fields_of_a_later_minor_version_are_ignored(open_way: OpenWay, way: Way) -> None:
    announced = open_way(way)
    body, _ = put(announced, "a")
    document = json.loads(body)
    record = document["Records"][0]
    record |= {"eventVersion": "2.6", "glacierEventData": {"restoreEventData": {}}, "new": [1]}
    record["s3"]["object"]["new"] = {"a": None}
    assert object_of(announced, json.dumps(document).encode()) == object_of(announced, body)


def test_row_49_an_envelope_changes_nothing(open_way: OpenWay) -> None:
    raw, wrapped = open_way("sns raw"), open_way("sns wrapped")
    bodies = [put(announced, "a b+c%2F")[0] for announced in (raw, wrapped)]
    assert "Records" in json.loads(bodies[0])
    assert json.loads(bodies[1])["Type"] == "Notification"
    plain, opened = object_of(raw, bodies[0]), object_of(wrapped, bodies[1])
    assert replace(opened, bucket=raw.bucket) == plain


@s3_json
def test_row_54_a_multipart_upload_notified_twice_is_one_object(open_way: OpenWay, way: Way) -> None:
    announced = open_way(way)
    response = announced.put_in_parts("big", [b"x" * PART_BYTES_MIN, b"y"])
    one, two = [object_of(announced, body) for body in announced.arrived(2)]
    assert one.object_id == two.object_id
    assert one == ObjectRef(
        bucket=announced.bucket, key="big", size_bytes=PART_BYTES_MIN + 1, etag=response["ETag"].strip('"')
    )


def test_row_54_a_multipart_upload_by_eventbridge_is_one_object(open_way: OpenWay) -> None:
    announced = open_way("eventbridge", versioned=True)
    response = announced.put_in_parts("big", [b"x" * PART_BYTES_MIN, b"y"])
    read_all = [read(announced, as_eventbridge_documents_it(body)) for body in announced.arrived(3)]
    objects = [ref for notification in read_all for ref in notification.objects]
    assert len(objects) == 2
    assert {ref.object_id for ref in objects} == {objects[0].object_id}
    assert objects[0].version_id == response["VersionId"]


@s3_json
def test_row_55_the_test_event_is_the_first_to_arrive(moto: AwsServer, way: Way) -> None:
    announced = Announced(moto, way)
    [body] = announced.arrived()
    assert parse(body, buckets_allowed=frozenset()) == Notification(kind=NotificationKind.TEST_EVENT)


def test_row_55_eventbridge_sends_no_test_event(moto: AwsServer) -> None:
    assert Announced(moto, "eventbridge").nothing_arrives()


def test_row_60_two_versions_of_a_key_are_two_objects_by_eventbridge(open_way: OpenWay) -> None:
    announced = open_way("eventbridge", versioned=True)
    put_twice = [put(announced, "a", content) for content in (b"same", b"same")]
    one, two = [object_of(announced, body) for body, _ in put_twice]
    assert [one.version_id, two.version_id] == [response["VersionId"] for _, response in put_twice]
    assert one.object_id != two.object_id


@pytest.mark.parametrize("way", ["sqs", "sns raw"])
def test_row_60_two_versions_of_a_key_are_two_objects_as_s3_documents_it(open_way: OpenWay, way: Way) -> None:
    announced = open_way(way, versioned=True)
    refs = []
    for sequencer in ("0055AED6DCD90281E5", "0055AED6DCD90281E6"):
        body, response = put(announced, "a", b"same")
        documented = as_s3_documents_it(body, version_id=response["VersionId"], sequencer=sequencer)
        refs.append(object_of(announced, documented))
        assert (refs[-1].version_id, refs[-1].sequencer) == (response["VersionId"], sequencer)
    assert refs[0].object_id != refs[1].object_id


@every_notification_way
@pytest.mark.parametrize("many", [False, True], ids=["alone", "among others"])
def test_row_61_a_removed_object_is_ignored(open_way: OpenWay, way: Way, many: bool) -> None:
    announced = open_way(way)
    put(announced, "a b")
    if many:
        announced.s3.delete_objects(Bucket=announced.bucket, Delete={"Objects": [{"Key": "a b"}]})
    else:
        announced.s3.delete_object(Bucket=announced.bucket, Key="a b")
    [body] = announced.arrived()
    notification = read(announced, body)
    event = "Object Deleted" if way == "eventbridge" else "ObjectRemoved:Delete"
    assert notification.objects == ()
    assert notification.ignored == (Ignored(event=event, uri=f"s3://{announced.bucket}/a b"),)


def test_row_61_a_delete_marker_is_ignored(open_way: OpenWay) -> None:
    """moto sends no notification for delete markers."""
    announced = open_way("sqs", versioned=True)
    body, _ = put(announced, "a")
    marker = announced.s3.delete_object(Bucket=announced.bucket, Key="a")
    assert marker["DeleteMarker"]
    document = json.loads(as_s3_documents_it(body, version_id=marker["VersionId"], sequencer="0055AED6DCD90281E7"))
    document["Records"][0]["eventName"] = "ObjectRemoved:DeleteMarkerCreated"
    del document["Records"][0]["s3"]["object"]["size"]
    notification = read(announced, json.dumps(document).encode())
    assert notification.objects == ()
    assert [ignored.event for ignored in notification.ignored] == ["ObjectRemoved:DeleteMarkerCreated"]
