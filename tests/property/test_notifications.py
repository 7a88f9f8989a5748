"""Notifications under Hypothesis: `parse` refuses or returns, and keys survive byte for byte."""

import json
from typing import Any
from urllib.parse import quote, quote_from_bytes, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage
from penstock.objects.notification import _ANNOUNCED, Notification, announce, parse
from penstock.objects.reference import ObjectRef, decode_key, encode_key

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
NAMES = st.sampled_from(
    [
        *("Records", "Type", "Message", "Event", "detail-type", "detail", "source", "version"),
        *("eventVersion", "eventName", "eventSource", "s3", "bucket", "object", "name", "key", "size"),
        *("eTag", "etag", "versionId", "sequencer"),
    ]
)
VALUES = st.sampled_from(
    [
        *("Notification", "s3:TestEvent", "Object Created", "aws.s3", "2.1", "3.0", "ObjectCreated:Put"),
        *("ObjectRemoved:Delete", "penstock:local", "file", "b", "%", "%00", "s3://x", "", 0, -1, 2**64, [], {}),
    ]
)
NEARLY = st.recursive(
    SCALARS | VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=30
)
VALID: dict[str, Any] = {
    "Records": [
        {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "bucket": {"name": "b"},
                "object": {"key": "a+b%2B", "size": 12, "eTag": "e", "versionId": "v", "sequencer": "0A"},
            },
        }
    ]
}
BRIDGED: dict[str, Any] = {
    "detail-type": "Object Created",
    "source": "aws.s3",
    "detail": {"bucket": {"name": "b"}, "object": {"key": "k", "size": 12, "etag": "e"}},
}
WRAPPED = {"Type": "Notification", "Message": json.dumps(VALID)}
VALID_BODIES = tuple(json.dumps(document).encode() for document in (VALID, BRIDGED, WRAPPED))

S3_KEYS = st.binary(min_size=1, max_size=300).filter(lambda key: b"\0" not in key and b"://" not in key)
PATHS = st.binary(max_size=300).filter(lambda key: b"\0" not in key).map(lambda key: b"/" + key)
TOKENS = st.text(st.characters(min_codepoint=0x23, max_codepoint=0x7E), min_size=1).filter(lambda text: text != "null")
SEQUENCERS = st.text("0123456789ABCDEF", min_size=1, max_size=20)


def check_parsing(body: bytes) -> Notification | None:
    """Parse a body. Fail for exceptions other than `InvalidMessage`, and for a reason that is not one readable line."""
    try:
        notification = parse(body, buckets_allowed=None)
    except InvalidMessage as error:
        check_reason(str(error))
        return None
    if notification.reason is not None:
        check_reason(notification.reason)
    for ref in notification.objects:
        assert len(ref.object_id) == 16
        ref.uri.encode()
    return notification


def check_reason(reason: str) -> None:
    assert reason
    assert reason.isprintable()
    assert len(reason) < 10_000


@given(st.binary())
def test_arbitrary_bytes_are_parsed_or_refused(body: bytes) -> None:
    check_parsing(body)


@given(JSON | NEARLY)
def test_arbitrary_json_is_parsed_or_refused(value: object) -> None:
    check_parsing(json.dumps(value).encode())


@given(st.dictionaries(NAMES, NEARLY), st.booleans())
def test_documents_similar_to_notifications_are_parsed_or_refused(document: dict[str, object], wrapped: bool) -> None:
    text = json.dumps(document)
    check_parsing(json.dumps({"Type": "Notification", "Message": text}).encode() if wrapped else text.encode())


@given(st.sampled_from(VALID_BODIES), st.data())
def test_mutated_bytes_of_a_notification_are_parsed_or_refused(body: bytes, data: st.DataObject) -> None:
    assert check_parsing(body) is not None
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, min(len(body), start + 8)))
    check_parsing(body[:start] + data.draw(st.binary(max_size=8)) + body[end:])


@given(st.sampled_from([VALID, BRIDGED]), st.data())
def test_a_notification_with_a_mutated_value_is_parsed_or_refused(
    document: dict[str, Any], data: st.DataObject
) -> None:
    document = json.loads(json.dumps(document))
    place: Any = document
    while True:
        step = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        if not isinstance(place[step], dict | list) or not place[step] or data.draw(st.booleans()):
            break
        place = place[step]
    place[step] = data.draw(SCALARS | VALUES | JSON)
    check_parsing(json.dumps(document).encode())


@given(st.lists(st.sampled_from([True, False]), min_size=1, max_size=10))
def test_bad_records_do_not_affect_good_ones(good: list[bool]) -> None:
    records = [
        {**VALID["Records"][0], "s3": {"bucket": {"name": "b"}, "object": {"key": f"{number}", "size": 1, "eTag": "e"}}}
        if is_good
        else {"eventVersion": "2.1"}
        for number, is_good in enumerate(good)
    ]
    notification = check_parsing(json.dumps({"Records": records}).encode())
    if not any(good):
        assert notification is None
        return
    assert notification is not None
    assert [ref.key for ref in notification.objects] == [f"{i}" for i, is_good in enumerate(good) if is_good]
    assert len(notification.problems) == good.count(False)


def key_of(encoded: str) -> bytes:
    entity = {"bucket": {"name": "b"}, "object": {"key": encoded, "size": 1, "eTag": "e"}}
    record = {**VALID["Records"][0], "s3": entity}
    (ref,) = parse(json.dumps({"Records": [record]}).encode(), buckets_allowed=None).objects
    return ref.key_bytes


@given(S3_KEYS)
def test_an_encoded_key_is_decoded_byte_for_byte(key: bytes) -> None:
    assert key_of(quote_plus(key)) == key
    assert key_of(quote_plus(key, safe="/")) == key
    assert key_of(quote_from_bytes(key)) == key  # "%20" instead of "+"
    assert key_of("".join(f"%{byte:02x}" for byte in key)) == key


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100))
def test_a_key_is_decoded_once_only(text: str) -> None:
    once = quote(text, safe="")
    assert key_of(quote_plus(once)) == once.encode()


@given(
    st.builds(
        ObjectRef,
        bucket=st.just("file"),
        key=PATHS.map(decode_key),
        size_bytes=st.integers(0, 2**63 - 1),
        etag=TOKENS,
    )
    | st.builds(
        ObjectRef,
        bucket=st.from_regex(r"[a-z0-9][a-z0-9.-]{2,62}", fullmatch=True).filter(lambda name: name != "file"),
        key=S3_KEYS.map(decode_key),
        size_bytes=st.integers(0, 2**63 - 1),
        etag=TOKENS,
        version_id=st.none() | TOKENS,
        sequencer=st.none() | SEQUENCERS,
    )
)
def test_notified_objects_are_read_back(ref: ObjectRef) -> None:
    (back,) = parse(announce(ref), buckets_allowed=frozenset({ref.bucket})).objects
    assert back == ref
    assert back.object_id == ref.object_id


@given(
    bucket=st.sampled_from(["file", "b", 'a"b']),
    key=st.text('aB0/._~-% é"+\\', min_size=1, max_size=8),
    size_bytes=st.integers(0, 2**63 - 1),
    etag=st.none() | st.text('aF09-"\\ é', max_size=6),
    version_id=st.none() | st.just("v"),
    sequencer=st.none() | st.text("0Af?", max_size=3),
)
def test_a_notification_is_compact_json_with_the_key_encoded_as_s3_does_it(
    bucket: str, key: str, size_bytes: int, etag: str | None, version_id: str | None, sequencer: str | None
) -> None:
    described = {
        "key": quote_plus(key.encode(), safe="/"),
        "size": size_bytes,
        "eTag": etag,
        "versionId": version_id,
        "sequencer": sequencer,
    }
    record = {
        "eventVersion": "2.1",
        "eventSource": "penstock:local" if bucket == "file" else "penstock:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": bucket},
            "object": {name: value for name, value in described.items() if value is not None},
        },
    }
    ref = ObjectRef(
        bucket=bucket, key=key, size_bytes=size_bytes, etag=etag, version_id=version_id, sequencer=sequencer
    )
    assert announce(ref) == json.dumps({"Records": [record]}, separators=(",", ":")).encode()


@given(st.binary())
def test_any_bytes_are_a_key(key: bytes) -> None:
    assert encode_key(decode_key(key)) == key


@given(
    source=st.sampled_from(["penstock:local", "penstock:s3", "aws:s3"]),
    bucket=st.sampled_from(["file", "b", "other", "no bucket"]),
    key=st.text('aB0%+/._~-:é"', max_size=12) | st.just("%FF/%2B"),
    size=st.sampled_from([0, 7, -1, 10**17, 2**63, "12"]),
    etag=st.text('aF09-"\\ é', max_size=6),
    more=st.sampled_from([{}, {"sequencer": "0A"}, {"sequencer": "?"}, {"versionId": "v"}]),
)
def test_the_short_way_for_own_notifications_reads_the_same_as_the_long_way(
    source: str, bucket: str, key: str, size: object, etag: str, more: dict[str, str]
) -> None:
    described = {"key": key, "size": size, "eTag": etag, **more}
    record = {
        "eventVersion": "2.1",
        "eventSource": source,
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": described},
    }
    document = {"Records": [record]}
    short = json.dumps(document, separators=(",", ":")).encode()
    long = json.dumps(document).encode()  # the blanks keep it from the short way
    assert parsed_or_refused(short) == parsed_or_refused(long)


def parsed_or_refused(body: bytes) -> Notification | str:
    """Return the notification, or the reason why there is none."""
    try:
        return parse(body, buckets_allowed=frozenset({"file", "b"}))
    except InvalidMessage as refused:
        return str(refused)


@pytest.mark.parametrize("key", ["/in/a b+c.jsonl", "/in/é"])
def test_own_notifications_take_the_short_way(key: str) -> None:
    local = ObjectRef(bucket="file", key=key, size_bytes=7, etag="1a-7")
    for ref in (local, ObjectRef(bucket="b", key=key, size_bytes=7, etag="1a", sequencer="0A")):
        assert _ANNOUNCED.fullmatch(announce(ref)) is not None
