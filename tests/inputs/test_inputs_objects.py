"""The rows of INPUTS for the package `objects`: objects that a notification names, and refused ones.

Other tests cover the handling of a refused message (the DLQ) and of an accepted object (its rows).
"""

import json
import pickle
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidMessage, ObjectGone, ObjectSuperseded, ObjectUnreadable
from penstock.ledger.rules import is_later
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import Notification, NotificationKind, announce, parse
from penstock.objects.reference import ObjectRef


def record(
    key: str = "a/b.jsonl",
    *,
    event: str = "ObjectCreated:Put",
    version: str = "2.1",
    bucket: str = "landing",
    **described: object,
) -> dict[str, Any]:
    """Return a record as S3 writes it. ``key`` is encoded as in the JSON."""
    described = {"key": key, "size": 12, "eTag": "0f", "sequencer": "0A"} | described
    return {
        "eventVersion": version,
        "eventSource": "aws:s3",
        "eventName": event,
        "s3": {"bucket": {"name": bucket}, "object": described},
    }


def bridged(key: str) -> bytes:
    detail = {"bucket": {"name": "landing"}, "object": {"key": key, "size": 12, "etag": "0f", "sequencer": "0A"}}
    return json.dumps({"detail-type": "Object Created", "source": "aws.s3", "detail": detail}).encode()


def body(*records: object) -> bytes:
    return json.dumps({"Records": records}).encode()


GOOD = body(record())


def read(message: bytes) -> Notification:
    return parse(message, buckets_allowed=frozenset({"landing"}))


def refusal_of(message: bytes) -> str:
    with pytest.raises(InvalidMessage) as caught:
        read(message)
    return str(caught.value)


def keys_of(*encoded: str) -> list[bytes]:
    objects = read(body(*(record(key) for key in encoded))).objects
    assert len({ref.object_id for ref in objects}) == len(objects)
    return [ref.key_bytes for ref in objects]


def in_unknown_field(text: str) -> bytes:
    """A valid notification with one odd value in an unused field."""
    return GOOD.replace(b'{"Records"', b'{"odd": ' + text.encode() + b', "Records"')


def test_the_sample_notification_is_valid() -> None:
    assert len(read(GOOD).objects) == 1
    assert len(read(in_unknown_field("1")).objects) == 1


def test_row_01_empty_body() -> None:
    assert "empty" in refusal_of(b"")


def test_row_02_not_json() -> None:
    assert "not JSON" in refusal_of(b"hello")


def test_row_03_truncated_json() -> None:
    for end in range(1, len(GOOD)):
        assert "not JSON" in refusal_of(GOOD[:end])


def test_row_04_invalid_utf8() -> None:
    assert "not UTF-8: byte 0xff at offset" in refusal_of(GOOD.replace(b"a/b", b"a\xffb"))


def test_row_05_byte_order_mark() -> None:
    assert "byte order mark" in refusal_of(b"\xef\xbb\xbf" + GOOD)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_row_06_utf16(encoding: str) -> None:
    assert "UTF-16" in refusal_of(GOOD.decode().encode(encoding))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_row_07_nesting(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}"}[opening]
    assert "nested deeper" in refusal_of(in_unknown_field(opening * 100_000 + "1" + closing * 100_000))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_row_08_nan_and_infinity(number: str) -> None:
    assert f"{number} is not a JSON number" in refusal_of(in_unknown_field(number))


def test_row_09_1e400() -> None:
    assert "1e400 is too large" in refusal_of(in_unknown_field("1e400"))


def test_row_10_integer_of_5000_digits() -> None:
    assert "integer of 5000 digits" in refusal_of(in_unknown_field("7" * 5_000))


def test_row_11_duplicate_keys() -> None:
    assert '"Records" appears twice' in refusal_of(GOOD.replace(b'{"Records"', b'{"Records": [], "Records"'))
    assert '"size" appears twice' in refusal_of(GOOD.replace(b'"size"', b'"size": 1, "size"'))


def test_row_12_lone_surrogate() -> None:
    assert "lone surrogate" in refusal_of(GOOD.replace(b"a/b", b"a\\ud800b"))
    assert "lone surrogate" in refusal_of(in_unknown_field('"\\uDFFF"'))


def test_row_13_top_level_a_string() -> None:
    assert 'not "Records"' in refusal_of(b'"Records"')


def test_row_14_top_level_a_list() -> None:
    assert "not a list" in refusal_of(b"[" + GOOD + b"]")


def test_row_15_no_records() -> None:
    assert "Records is missing" in refusal_of(b"{}")
    assert "Records is missing" in refusal_of(b'{"Event": "s3:Other"}')


def test_row_16_records_null() -> None:
    assert "Records must be a list, not null" in refusal_of(b'{"Records": null}')


@pytest.mark.parametrize("wrong", ["{}", '"x"', "7", "true"])
def test_row_17_records_of_the_wrong_type(wrong: str) -> None:
    assert "Records must be a list, not " in refusal_of(b'{"Records": %b}' % wrong.encode())


def test_row_18_one_bad_record_among_good_ones() -> None:
    notification = read(body(record("1"), record("2", size=-1), record("3"), record("1")))
    assert [ref.key for ref in notification.objects] == ["1", "3"]
    assert notification.reason == "record 2: s3.object.size must be greater than or equal to 0, not -1"


def test_row_19_record_without_a_key() -> None:
    bad = record()
    del bad["s3"]["object"]["key"]
    assert refusal_of(body(bad)) == "record 1: s3.object.key is missing"


@pytest.mark.parametrize("key", ["a%00b", "a\0b"])
def test_row_20_key_with_nul(key: str) -> None:
    assert "NUL" in refusal_of(body(record(key)))


def test_row_21_key_over_1024_bytes() -> None:
    assert keys_of("%C3%A9" * 512) == [b"\xc3\xa9" * 512]  # 1,024 bytes, 3,072 characters of JSON
    assert "1,025 bytes" in refusal_of(body(record("%C3%A9" * 512 + "a")))


def test_row_22_bucket_not_on_the_allowlist() -> None:
    assert 'bucket "elsewhere" is not one' in refusal_of(body(record(bucket="elsewhere")))
    assert parse(body(record(bucket="elsewhere")), buckets_allowed=None).objects


def test_row_24_negative_size() -> None:
    assert "size must be greater than or equal to 0, not -1" in refusal_of(body(record(size=-1)))


def test_row_25_body_over_the_limit() -> None:
    assert "at most 1,048,576 are read" in refusal_of(in_unknown_field('"' + "x" * 2**20 + '"'))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_row_26_pickle_bytes(protocol: int) -> None:
    assert refusal_of(pickle.dumps({"Records": []}, protocol))


@pytest.mark.parametrize("key", ["https://h/k", "s3://landing/k", "file:///etc/passwd"])
def test_row_27_url_where_a_key_belongs(key: str) -> None:
    assert "the key is a URL" in refusal_of(body(record(key)))


def test_row_32_another_version_is_superseded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    store = LocalStore(tmp_path)
    with pytest.raises(ObjectSuperseded):
        store.open(replace(store.describe(path), etag="0-1"))


@pytest.mark.parametrize("version", ["1.0", "3.0", "22", "two", ""])
def test_row_34_event_version_major_not_2(version: str) -> None:
    assert f'eventVersion must be "2.x", not "{version}"' in refusal_of(body(record(version=version)))
    changed_shape = {"eventVersion": "3.0", "object": {}}
    assert "eventVersion" in refusal_of(body(changed_shape))


def test_row_35_dots_in_a_key_are_just_a_key(tmp_path: Path) -> None:
    (ref,) = read(body(record("../../etc/passwd"))).objects
    assert ref.key == "../../etc/passwd"
    with pytest.raises(ObjectUnreadable, match="outside"):
        LocalStore(tmp_path).open(ref)


def test_row_36_an_absolute_key_is_just_a_key(tmp_path: Path) -> None:
    (ref,) = read(body(record("/etc/passwd"))).objects
    assert (ref.uri, ref.key) == ("s3://landing//etc/passwd", "/etc/passwd")
    for bucket in ("landing", "file"):
        with pytest.raises(ObjectUnreadable, match="outside"):
            LocalStore(tmp_path).open(replace(ref, bucket=bucket))


def test_row_37_percent_252f_is_decoded_once() -> None:
    assert keys_of("a%252Fb") == [b"a%2Fb"]


def test_row_38_plus_and_percent_2b() -> None:
    assert keys_of("a+b%2Bc") == [b"a b+c"]


def test_row_39_eventbridge_keys_are_left_alone() -> None:
    assert [ref.key for ref in read(bridged("a+b%2Bc%2F")).objects] == ["a+b%2Bc%2F"]


def test_row_40_newline_and_ansi_codes() -> None:
    assert keys_of("a%0Ab%1B%5B31m") == [b"a\nb\x1b[31m"]
    assert refusal_of(body(record("s3://a%0Ab%1B%5B31m"))).isprintable()


def test_row_41_sql_metacharacters() -> None:
    assert keys_of("%27%3B+DROP+TABLE+objects%3B--%25_") == [b"'; DROP TABLE objects;--%_"]


def test_row_42_script() -> None:
    assert keys_of("%3Cscript%3Ealert(1)%3C%2Fscript%3E") == [b"<script>alert(1)</script>"]


def test_row_43_case_matters() -> None:
    assert keys_of("Data.csv", "data.csv") == [b"Data.csv", b"data.csv"]


def test_row_44_trailing_blanks_matter() -> None:
    assert keys_of("a", "a+", "a%20%20") == [b"a", b"a ", b"a  "]


def test_row_45_emoji_are_different_keys() -> None:
    assert keys_of("%F0%9F%98%80", "%F0%9F%98%81") == ["😀".encode(), "😁".encode()]


def test_row_46_japanese_keys_nfc_and_nfd() -> None:
    nfc, nfd = (unicodedata.normalize(form, "データが") for form in ("NFC", "NFD"))
    assert keys_of(nfc, nfd) == [nfc.encode(), nfd.encode()]


def test_row_47_formula_keys_are_just_keys() -> None:
    assert keys_of("%3Dcmd%7C%27+%2FC+calc%27%21A0") == [b"=cmd|' /C calc'!A0"]


def test_row_48_minor_version_with_unknown_fields() -> None:
    newer = record(version="2.6", annotations=["new"]) | {"glacierEventData": {"x": 1}, "new": None}
    newer["s3"]["bucket"]["tags"] = {}
    assert read(body(newer)) == read(GOOD)


def test_row_49_sns_wrapped_equals_raw() -> None:
    for raw in (GOOD, bridged("a"), body(record("1"), record("2", size=-1))):
        wrapped = {"Type": "Notification", "MessageId": "x", "TopicArn": "arn:x", "Message": raw.decode()}
        assert read(json.dumps(wrapped).encode()) == read(raw)


def test_row_50_an_object_of_0_bytes(tmp_path: Path) -> None:
    (ref,) = read(body(record(size=0))).objects
    assert ref.size_bytes == 0
    path = tmp_path / "empty"
    path.touch()
    store = LocalStore(tmp_path)
    assert store.read_range(store.describe(path), 0, 10) == b""


def test_row_54_multi_part_upload_announced_twice() -> None:
    put, complete = record(), record(event="ObjectCreated:CompleteMultipartUpload", sequencer="0B")
    assert len(read(body(put, complete)).objects) == 1
    assert read(body(put)).objects[0].object_id == read(body(complete)).objects[0].object_id


def test_row_55_test_event() -> None:
    test_event = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "landing", "RequestId": "x", "HostId": "y"}
    assert read(json.dumps(test_event).encode()) == Notification(kind=NotificationKind.TEST_EVENT)
    wrapped = {"Type": "Notification", "Message": json.dumps(test_event)}
    assert read(json.dumps(wrapped).encode()) == Notification(kind=NotificationKind.TEST_EVENT)


def test_row_56_records_empty() -> None:
    assert read(b'{"Records": []}') == Notification(kind=NotificationKind.EMPTY)


def test_row_57_an_object_deleted_meanwhile_raises_object_gone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    store = LocalStore(tmp_path)
    ref = store.describe(path)
    path.unlink()
    with pytest.raises(ObjectGone):
        store.open(ref)


def test_row_59_sequencers_order_versions_of_a_key() -> None:
    newer, older = read(body(record(sequencer="0055B", eTag="2"), record(sequencer="0055AED", eTag="1"))).objects
    assert newer.sequencer is not None
    assert older.sequencer is not None
    assert is_later(newer.sequencer, than=older.sequencer)
    assert not is_later(older.sequencer, than=newer.sequencer)


def test_row_60_same_key_two_versions() -> None:
    objects = read(body(record(versionId="v1"), record(versionId="v2"))).objects
    assert [ref.version_id for ref in objects] == ["v1", "v2"]
    assert len({ref.object_id for ref in objects}) == 2


@pytest.mark.parametrize("event", ["ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated"])
def test_row_61_removals_name_no_object_to_read(event: str) -> None:
    notification = read(body(record(event=event, size=None, eTag=None)))
    assert (notification.objects, notification.reason) == ((), None)
    assert [item.event for item in notification.ignored] == [event]


def test_row_64_the_same_object_has_one_identity_however_it_is_announced() -> None:
    ref = ObjectRef(bucket="landing", key="a/b.jsonl", size_bytes=12, etag="0f", sequencer="0A")
    for message in (GOOD, bridged("a/b.jsonl"), announce(ref)):
        assert read(message).objects[0].object_id == ref.object_id
