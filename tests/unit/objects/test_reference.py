"""Identity, key encoding and URI of object references."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.objects.reference import ObjectRef, decode_key, encode_key, uri_of


def ref(key: str, **changes: str | int | None) -> ObjectRef:
    given: dict[str, object] = {"bucket": "b", "key": key, "size_bytes": 3, "etag": "e"} | changes
    return ObjectRef(**given)  # type: ignore[arg-type]  # the tests below name the fields


def test_the_identity_is_the_documented_hash() -> None:
    assert ref("k", version_id="v").object_id == hashlib.sha256(b"b\0k\0v").digest()[:16]
    assert ref("k").object_id == hashlib.sha256(b"b\0k\0e+3").digest()[:16]


def test_etag_and_size_distinguish_versions_only_without_a_version_id() -> None:
    assert ref("k").object_id != ref("k", etag="f").object_id
    assert ref("k").object_id != ref("k", size_bytes=4).object_id
    assert ref("k", version_id="v").object_id == ref("k", version_id="v", etag="f", size_bytes=4).object_id


def test_the_sequencer_is_not_part_of_the_identity() -> None:
    assert ref("k", sequencer="1").object_id == ref("k", sequencer="2").object_id


def test_key_bytes_do_not_depend_on_the_locale() -> None:
    assert encode_key("é\udcff") == b"\xc3\xa9\xff"
    assert decode_key(b"\xc3\xa9\xff") == "é\udcff"


def test_the_uri_is_always_valid_unicode() -> None:
    assert ref("a\udcff/é").uri == "s3://b/a\\xff/é"
    assert ref("/a b", bucket="file").uri == "file:///a b"
    ref("\udc80").uri.encode()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a\xff", r"a\xff"),
        (rb"a\xff", r"a\\xff"),
        (rb"a\\xff", r"a\\\\xff"),
        (rb"a\xff" + b"\xff", r"a\\xff\xff"),
        (b"\\\xff", r"\\\xff"),
        (rb"a\x41\d\\", r"a\x41\d\\"),
        ("\\é\\xfg".encode(), r"\é\xfg"),
    ],
)
def test_two_keys_never_have_one_uri(name: bytes, shown: str) -> None:
    """A name that is not UTF-8, and one that spells its escapes: the rows of a table are found by this address."""
    assert uri_of("b", decode_key(name)) == f"s3://b/{shown}"


_NAMES = st.lists(st.sampled_from([b"\\", b"x", b"f", b"7", b"\xff", b"\xc3", b"\xa9", b"a"]), max_size=8).map(b"".join)


@given(_NAMES, _NAMES)
def test_any_two_keys_have_different_uris(one: bytes, other: bytes) -> None:
    assert (uri_of("b", decode_key(one)) == uri_of("b", decode_key(other))) is (one == other)


@given(_NAMES)
def test_different_keys_have_different_uris_if_one_spells_the_other(name: bytes) -> None:
    spelled = name.decode("utf-8", "backslashreplace").encode()
    assert (uri_of("b", decode_key(name)) == uri_of("b", decode_key(spelled))) is (name == spelled)
