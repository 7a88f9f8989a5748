"""Identity, and the order of versions."""

import hashlib

import pytest

from penstock.objects.reference import ObjectRef, decode_key, encode_key, is_older, sequencer_key


def ref(key: str, **changes: str | int | None) -> ObjectRef:
    given: dict[str, object] = {"bucket": "b", "key": key, "size_bytes": 3, "etag": "e"} | changes
    return ObjectRef(**given)  # type: ignore[arg-type]  # the tests below name the fields


def test_the_identity_is_the_documented_hash() -> None:
    assert ref("k", version_id="v").object_id == hashlib.sha256(b"b\0k\0v").digest()[:16]
    assert ref("k").object_id == hashlib.sha256(b"b\0k\0e+3").digest()[:16]


def test_etag_and_size_tell_versions_apart_only_without_a_version_id() -> None:
    assert ref("k").object_id != ref("k", etag="f").object_id
    assert ref("k").object_id != ref("k", size_bytes=4).object_id
    assert ref("k", version_id="v").object_id == ref("k", version_id="v", etag="f", size_bytes=4).object_id


def test_the_sequencer_identifies_nothing() -> None:
    assert ref("k", sequencer="1").object_id == ref("k", sequencer="2").object_id


def test_key_bytes_do_not_hang_on_the_locale() -> None:
    assert encode_key("é\udcff") == b"\xc3\xa9\xff"
    assert decode_key(b"\xc3\xa9\xff") == "é\udcff"


def test_the_uri_is_always_valid_unicode() -> None:
    assert ref("a\udcff/é").uri == "s3://b/a\\xff/é"
    assert ref("/a b", bucket="file").uri == "file:///a b"
    ref("\udc80").uri.encode()


@pytest.mark.parametrize(
    ("one", "other", "older"),
    [
        ("0055AED6DCD90281E5", "0055AED6DCD90281E6", True),
        ("0055AED6DCD90281E6", "0055AED6DCD90281E5", False),
        ("0055", "005501", True),  # the shorter is padded on the right
        ("0055", "005500", False),
        ("005500", "0055", False),
        ("9", "10", False),  # text, not a number
        ("A", "a", True),  # as given
        (None, "1", False),
        ("1", None, False),
        (None, None, False),
    ],
)
def test_sequencers_compare_padded_and_as_text(one: str | None, other: str | None, *, older: bool) -> None:
    assert is_older(one, other) is older


def test_sequencer_keys_sort_by_age() -> None:
    assert sorted(["1010", "1", "101", "2"], key=sequencer_key) == ["1", "1010", "101", "2"]
