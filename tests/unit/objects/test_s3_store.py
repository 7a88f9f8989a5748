"""The store for S3 with responses as S3 sends them: requests, and the error raised for each refusal."""

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from urllib.parse import unquote, urlsplit

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import (
    ConfigurationError,
    ObjectDenied,
    ObjectGone,
    ObjectSuperseded,
    ObjectUnreadable,
    TemporaryError,
)
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_store import HEAD_BYTES, RANGE_BYTES, WHOLE_BYTES_MAX, S3Store
from penstock.objects.store import ObjectStore
from penstock.storage.address import S3Address, s3_address
from penstock.storage.aws import Aws

MIB = 1 << 20
ADDRESS = s3_address("s3://landing/in")
SMALL = ObjectRef(bucket="landing", key="in/a.jsonl", size_bytes=10, etag="0f")
CONTENT = b"0123456789"
LARGE_CONTENT = bytes(range(256)) * 4 * 1024 * 20  # 20 MiB
LARGE = replace(SMALL, size_bytes=len(LARGE_CONTENT))
ODD_KEYS = [
    "../../etc/passwd",
    "/etc/passwd",
    "a%2Fb%252F",
    "a b+c",
    "Data.csv",
    "data.csv",
    "a",
    "a ",
    "😀",
    "😁",
    "日本/が",
    "日本/か\u3099",
    "a//b/",
    "./a",
    "a\nb\x1b[31m",
    "-- ; ' \" <script>?versionId=x#y",
]


def serve(content: bytes, *, etag: str = "0f") -> Callable[[Asked], Answered]:
    """Return the responses of a server that has this object."""

    def answer(asked: Asked) -> Answered:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("range", ""))
        if asked.headers.get("if-match", f'"{etag}"') != f'"{etag}"':
            return refusal(412, "PreconditionFailed")
        if not found:
            return Answered(body=content, headers={"ETag": f'"{etag}"'})
        start, stop = int(found[1]), min(int(found[2]) + 1, len(content))
        if start >= len(content):
            return refusal(416, "InvalidRange")
        headers = {"ETag": f'"{etag}"', "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        return Answered(status=206, body=content[start:stop], headers=headers)

    return answer


def cut(answer: Callable[[Asked], Answered], *, after_bytes: int) -> Callable[[Asked], Answered]:
    """Return the same responses with each body cut off."""
    return lambda asked: replace(answer(asked), cut_after_bytes=after_bytes)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Stub]:
    """Share one server among all tests, so that clients are created once."""
    with S3Stub(serve(CONTENT)) as server:
        yield server


@pytest.fixture
def stub(server: S3Stub) -> S3Stub:
    server.answer = serve(CONTENT)
    server.asked.clear()
    return server


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def store(stub: S3Stub, waits: list[float]) -> S3Store:
    return S3Store(ADDRESS, aws_at(stub.url), pause=waits.append)


def read_all(store: ObjectStore, ref: ObjectRef) -> bytes:
    with store.open(ref) as reader:
        data = reader.read()
        reader.verify()
        return data


def test_a_small_object_is_read_with_one_request(store: S3Store, stub: S3Stub) -> None:
    with store.open(SMALL) as reader:
        assert reader.ref == SMALL
        assert reader.read(3) == b"012"
        assert reader.pread(8, 100) == b"89"
        assert reader.pread(10, 1) == b""
        assert reader.read() == b"3456789"
        assert reader.read() == b""
        reader.verify()
    assert len(stub.asked) == 1
    asked = stub.asked[0]
    assert (asked.method, asked.target) == ("GET", "/landing/in/a.jsonl")
    assert (asked.headers["if-match"], asked.headers["range"]) == ('"0f"', "bytes=0-9")
    assert "x-amz-request-payer" not in asked.headers


def test_a_version_is_requested_by_its_id(store: S3Store, stub: S3Stub) -> None:
    assert read_all(store, replace(SMALL, version_id="3/L4+k", etag="other")) == CONTENT
    target = urlsplit(stub.asked[0].target)
    assert unquote(target.query) == "versionId=3/L4+k"
    assert "if-match" not in stub.asked[0].headers


def test_the_current_version_is_asked_for_with_one_request_without_a_version(store: S3Store, stub: S3Stub) -> None:
    stub.answer = lambda asked: Answered(headers={"ETag": '"0f"', "x-amz-version-id": "2"})
    store.check_current(replace(SMALL, version_id="2"))
    with pytest.raises(ObjectSuperseded, match="announced as version 1, now 2"):
        store.check_current(replace(SMALL, version_id="1"))
    assert [(asked.method, asked.target) for asked in stub.asked] == [("HEAD", "/landing/in/a.jsonl")] * 2


def test_a_server_that_names_no_current_version_is_asked_for_its_etag(store: S3Store, stub: S3Stub) -> None:
    store.check_current(replace(SMALL, version_id="1", etag="0f"))
    with pytest.raises(ObjectSuperseded, match="now one with the ETag 0f"):
        store.check_current(replace(SMALL, version_id="1", etag="0e"))


def test_an_object_without_a_version_id_costs_no_request_for_its_current_version(store: S3Store, stub: S3Stub) -> None:
    store.check_current(SMALL)
    assert not stub.asked, "its GET has the ETag as a condition"


def test_the_current_version_of_a_key_outside_the_source_is_not_asked_for(store: S3Store, stub: S3Stub) -> None:
    with pytest.raises(ObjectUnreadable, match="outside"):
        store.check_current(replace(SMALL, key="else/a", version_id="1"))
    assert not stub.asked


def test_an_empty_object_is_read_without_a_range(store: S3Store, stub: S3Stub) -> None:
    stub.answer = serve(b"")
    assert read_all(store, replace(SMALL, size_bytes=0)) == b""
    assert "range" not in stub.asked[0].headers
    with pytest.raises(ObjectSuperseded):
        store.open(replace(SMALL, size_bytes=0, etag="other"))


def test_sequential_reads_are_ranges(store: S3Store, stub: S3Stub) -> None:
    stub.answer = serve(LARGE_CONTENT)
    with store.open(LARGE) as reader:
        assert reader.pread(0, 1_000) == LARGE_CONTENT[:1_000]
        read = iter(lambda: reader.read(3 * MIB), b"")
        assert b"".join(read) == LARGE_CONTENT
    edges = [0, RANGE_BYTES, 2 * RANGE_BYTES, len(LARGE_CONTENT)]
    assert sorted(asked.headers["range"] for asked in stub.asked) == sorted(
        [f"bytes=0-{HEAD_BYTES - 1}", *(f"bytes={start}-{stop - 1}" for start, stop in pairwise(edges))]
    )
    assert {asked.headers["if-match"] for asked in stub.asked} == {'"0f"'}


def test_only_adjacent_reads_are_read_ahead(store: S3Store, stub: S3Stub) -> None:
    stub.answer = serve(LARGE_CONTENT)
    with store.open(LARGE) as reader:
        for start in (5 * MIB, 6 * MIB, 7 * MIB, 2 * MIB):
            assert reader.pread(start, MIB) == LARGE_CONTENT[start : start + MIB]
    ranges = [asked.headers["range"] for asked in stub.asked[1:]]
    edge, last = 6 * MIB + RANGE_BYTES, len(LARGE_CONTENT) - 1
    ahead = f"bytes={edge}-{last}"  # may not have begun when the reader is closed
    assert {*ranges, ahead} == {
        f"bytes={5 * MIB}-{6 * MIB - 1}",
        f"bytes={6 * MIB}-{edge - 1}",
        ahead,
        f"bytes={2 * MIB}-{3 * MIB - 1}",
    }


def test_a_single_range_is_one_request(store: S3Store, stub: S3Stub) -> None:
    stub.answer = serve(LARGE_CONTENT)
    assert store.read_range(LARGE, 15 * MIB, 10) == LARGE_CONTENT[15 * MIB : 15 * MIB + 10]
    assert store.read_range(LARGE, len(LARGE_CONTENT) - 3, 10) == LARGE_CONTENT[-3:]
    assert store.read_range(LARGE, len(LARGE_CONTENT), 10) == b""
    assert len(stub.asked) == 2


@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize("version_id", [None, "v1"])
def test_keys_are_used_literally(stub: S3Stub, key: str, version_id: str | None) -> None:
    ref = replace(SMALL, key=key, version_id=version_id)
    assert read_all(S3Store(s3_address("s3://landing"), aws_at(stub.url)), ref) == CONTENT
    target = urlsplit(stub.asked[0].target)
    assert unquote(target.path, errors="strict") == f"/landing/{key}"
    assert target.query == ("versionId=v1" if version_id else "")
    assert stub.asked[0].headers.get("if-match") == (None if version_id else '"0f"')
    assert stub.asked[0].headers["range"] == "bytes=0-9"
    assert len(stub.asked) == 1


@pytest.mark.parametrize("key", ["in/a.jsonl", "../a"])
def test_requester_pays_is_sent_if_set(stub: S3Stub, key: str) -> None:
    aws = replace(aws_at(stub.url), requester_pays=True)
    assert read_all(S3Store(s3_address("s3://landing"), aws), replace(SMALL, key=key)) == CONTENT
    assert stub.asked[0].headers["x-amz-request-payer"] == "requester"


@pytest.mark.parametrize("key", ["in/a.jsonl", "in//a.jsonl"], ids=["obstore", "boto3"])
@pytest.mark.parametrize(
    ("status", "code", "error", "text"),
    [
        (404, "NoSuchKey", ObjectGone, "the object does not exist"),
        (404, "NoSuchVersion", ObjectGone, "the version does not exist"),
        (405, "MethodNotAllowed", ObjectGone, "delete marker"),
        (412, "PreconditionFailed", ObjectSuperseded, "announced as version 0f"),
        (403, "AccessDenied", ObjectDenied, "without s3:ListBucket also for a missing object"),
        (401, "Unauthorized", ObjectDenied, "credentials"),
        (403, "InvalidAccessKeyId", ObjectDenied, "access key"),
        (404, "NoSuchBucket", ObjectDenied, "the bucket does not exist"),
        (400, "KMS.DisabledException", ObjectDenied, "encryption key"),
        (403, "InvalidObjectState", ObjectUnreadable, "restore it first"),
        (416, "InvalidRange", ObjectUnreadable, "fewer bytes than the 10 announced"),
        (400, "InvalidArgument", ObjectUnreadable, "rejects the request as invalid"),
        (400, "ExpiredToken", TemporaryError, "expired"),
    ],
)
def test_each_refusal_raises_its_error_without_the_servers_text(
    store: S3Store, stub: S3Stub, key: str, status: int, code: str, error: type[Exception], text: str
) -> None:
    stub.answer = lambda asked: refusal(status, code, "SECRET")
    with pytest.raises(error, match=re.escape(text)) as caught:
        store.open(replace(SMALL, key=key))
    assert caught.type is error
    reason = str(caught.value)
    assert f"s3://landing/{key}" in reason
    assert not any(part in reason for part in ("<", "SECRET", "\n", "Error"))
    assert len(reason) < 220


def test_a_bucket_of_another_region_is_a_configuration_error(store: S3Store, stub: S3Stub) -> None:
    stub.answer = lambda asked: refusal(301, "PermanentRedirect")
    with pytest.raises(ConfigurationError, match=r"another region: set aws\.region"):
        store.open(SMALL)


def test_an_object_whose_kms_key_is_not_accessible_is_denied(store: S3Store, stub: S3Stub) -> None:
    stub.answer = lambda asked: refusal(403, "AccessDenied", "not authorized to perform: kms:Decrypt on this resource")
    with pytest.raises(ObjectDenied, match="encryption key"):
        store.open(SMALL)


def test_an_invalid_version_id_is_a_missing_version(store: S3Store, stub: S3Stub) -> None:
    stub.answer = lambda asked: refusal(400, "InvalidArgument", "Invalid version id specified")
    with pytest.raises(ObjectGone, match="no version 'forged'"):
        store.open(replace(SMALL, version_id="forged"))


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError")])
@pytest.mark.parametrize("key", ["in/a.jsonl", "in//a.jsonl"], ids=["obstore", "boto3"])
def test_a_transient_error_is_retried(store: S3Store, stub: S3Stub, key: str, status: int, code: str) -> None:
    good = stub.answer
    stub.answer = lambda asked: refusal(status, code) if len(stub.asked) < 3 else good(asked)
    assert read_all(store, replace(SMALL, key=key)) == CONTENT
    assert len(stub.asked) == 3


def test_a_lasting_transient_error_is_a_temporary_error_after_a_few_tries(store: S3Store, stub: S3Stub) -> None:
    stub.answer = lambda asked: refusal(503, "SlowDown")
    with pytest.raises(TemporaryError, match="slow down") as caught:
        store.open(SMALL)
    assert len(stub.asked) == 4
    assert len(str(caught.value)) < 120


def test_an_unreachable_server_is_a_temporary_error() -> None:
    with S3Stub(serve(CONTENT)) as stub:
        aws = aws_at(stub.url)
    with pytest.raises(TemporaryError, match="no connection"):
        S3Store(ADDRESS, aws).open(SMALL)
    with pytest.raises(TemporaryError, match="no connection"):
        S3Store(ADDRESS, aws).open(replace(SMALL, key="in//x"))


@pytest.mark.parametrize("key", ["in/a.jsonl", "in//a.jsonl"], ids=["obstore", "boto3"])
def test_a_broken_connection_is_resumed_under_the_same_condition(store: S3Store, stub: S3Stub, key: str) -> None:
    stub.answer = cut(serve(LARGE_CONTENT), after_bytes=2 * MIB)
    assert read_all(store, replace(LARGE, key=key)) == LARGE_CONTENT
    assert len(stub.asked) >= 11  # the first bytes, and ten bodies
    assert {asked.headers["if-match"] for asked in stub.asked} == {'"0f"'}


@pytest.mark.parametrize("key", ["in/a.jsonl", "in//a.jsonl"], ids=["obstore", "boto3"])
def test_an_object_that_changes_while_its_connection_breaks_is_superseded(
    store: S3Store, stub: S3Stub, key: str
) -> None:
    before, after = cut(serve(LARGE_CONTENT), after_bytes=2 * MIB), serve(LARGE_CONTENT, etag="10")
    stub.answer = lambda asked: (before if len(stub.asked) <= 2 else after)(asked)
    with store.open(replace(LARGE, key=key)) as reader, pytest.raises(ObjectSuperseded):
        reader.read()


@pytest.mark.parametrize("key", ["in/a.jsonl", "in//a.jsonl"], ids=["obstore", "boto3"])
def test_a_connection_that_always_breaks_at_the_same_byte_is_a_temporary_error(
    store: S3Store, stub: S3Stub, waits: list[float], key: str
) -> None:
    stub.answer = cut(serve(CONTENT), after_bytes=0)
    with pytest.raises(TemporaryError, match="broke at 0 bytes"):
        store.open(replace(SMALL, key=key))
    assert len(waits) == 3
    assert all(0 <= wait <= 5 for wait in waits)


@pytest.mark.parametrize("key", ["in/a.jsonl", "in//a.jsonl"], ids=["obstore", "boto3"])
@pytest.mark.parametrize("size_bytes", [0, 9, 11, WHOLE_BYTES_MAX + 1])
def test_an_object_of_another_size_than_notified_is_not_read(store: S3Store, key: str, size_bytes: int) -> None:
    with pytest.raises(ObjectUnreadable, match=f"announced with {size_bytes:,} bytes and has 10"):
        store.open(replace(SMALL, key=key, size_bytes=size_bytes))


@pytest.mark.parametrize("key", ["in/a", "in//a"])
def test_other_bytes_than_requested_are_not_accepted(store: S3Store, stub: S3Stub, key: str) -> None:
    """A server without support for ranges returns the whole object."""
    stub.answer = lambda asked: Answered(body=CONTENT, headers={"ETag": '"0f"'})
    with pytest.raises(TemporaryError):
        store.read_range(replace(SMALL, key=key), 5, 2)


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        ("landing", "other/a"),
        ("landing", "input/a"),
        ("landing", "/in/a"),
        ("Landing", "in/a"),
        ("file", "/etc/passwd"),
    ],
)
def test_nothing_outside_the_address_is_requested(store: S3Store, stub: S3Stub, bucket: str, key: str) -> None:
    ref = replace(SMALL, bucket=bucket, key=key)
    with pytest.raises(ObjectUnreadable, match="is outside s3://landing/in"):
        store.open(ref)
    with pytest.raises(ObjectUnreadable, match="is outside"):
        store.read_range(ref, 0, 1)
    assert stub.asked == []


def test_an_address_may_be_one_object(stub: S3Stub) -> None:
    store = S3Store(S3Address(bucket="landing", prefix="in/a.jsonl"), aws_at(stub.url))
    assert read_all(store, SMALL) == CONTENT
    with pytest.raises(ObjectUnreadable, match="is outside"):
        store.open(replace(SMALL, key="in/a.jsonl.gz"))


def test_a_closed_reader_reads_nothing(store: S3Store) -> None:
    reader = store.open(SMALL)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)


def test_the_store_can_be_pickled(stub: S3Stub) -> None:
    store = S3Store(ADDRESS, Aws(region="us-east-1", endpoint_url=stub.url))
    read_all(store, SMALL)
    unpickled = pickle.loads(pickle.dumps(store))
    assert unpickled == store
    assert read_all(unpickled, SMALL) == CONTENT
