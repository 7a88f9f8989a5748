"""The store for S3 on a server that speaks S3: it reads exactly the notified version, even if the key has changed
since.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.services.aws_server import AwsServer, aws_at
from tests.services.fault_proxy import FaultProxy

from penstock.errors import ObjectDenied, ObjectGone, ObjectSuperseded, ObjectUnreadable
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_store import S3Store
from penstock.storage.address import s3_address

BUCKET = "landing"
MIB = 1 << 20
KEYS = ["in/a b+c%2F.jsonl", "in//../a"]  # one by obstore, one by boto3
both_clients = pytest.mark.parametrize("key", KEYS, ids=["obstore", "boto3"])


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture
def versioned(s3: Any) -> Any:
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return s3


@pytest.fixture
def store(moto: AwsServer) -> S3Store:
    return S3Store(s3_address(f"s3://{BUCKET}/in"), moto.aws)


@pytest.fixture
def proxy(moto: AwsServer) -> Iterator[FaultProxy]:
    proxy = FaultProxy(("127.0.0.1", moto.port))
    yield proxy
    proxy.close()


def put(s3: Any, key: str, body: bytes) -> ObjectRef:
    """Store an object, and return the reference that its notification would have."""
    response: Mapping[str, Any] = s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    return ObjectRef(
        bucket=BUCKET,
        key=key,
        size_bytes=len(body),
        etag=response["ETag"].strip('"'),
        version_id=response.get("VersionId"),
    )


def read_all(store: S3Store, ref: ObjectRef) -> bytes:
    with store.open(ref) as reader:
        data = reader.read()
        reader.verify()
        return data


@both_clients
def test_two_versions_of_a_key_are_two_objects(store: S3Store, versioned: Any, key: str) -> None:
    first, second = put(versioned, key, b"one"), put(versioned, key, b"two!")
    assert first.object_id != second.object_id
    assert (read_all(store, first), read_all(store, second)) == (b"one", b"two!")
    assert store.read_range(first, 1, 5) == b"ne"


@both_clients
def test_a_version_survives_a_delete_marker_and_not_its_own_deletion(store: S3Store, versioned: Any, key: str) -> None:
    ref = put(versioned, key, b"one")
    marker = versioned.delete_object(Bucket=BUCKET, Key=key)["VersionId"]
    assert read_all(store, ref) == b"one"
    with pytest.raises(ObjectGone):
        store.open(replace(ref, version_id=marker))
    versioned.delete_object(Bucket=BUCKET, Key=key, VersionId=ref.version_id)
    with pytest.raises(ObjectGone):
        store.open(ref)


@both_clients
def test_only_the_current_version_of_a_key_passes_the_check_for_it(store: S3Store, versioned: Any, key: str) -> None:
    first = put(versioned, key, b"one")
    store.check_current(first)
    second = put(versioned, key, b"two")
    store.check_current(second)
    with pytest.raises(ObjectSuperseded, match=f"announced as version {first.version_id}, now {second.version_id}"):
        store.check_current(first)
    versioned.delete_object(Bucket=BUCKET, Key=key, VersionId=second.version_id)
    store.check_current(first)
    versioned.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(ObjectGone):
        store.check_current(first)


def test_a_version_before_versioning_was_suspended_is_not_current_any_more(store: S3Store, versioned: Any) -> None:
    before = put(versioned, "in/a", b"one")
    versioned.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    put(versioned, "in/a", b"two")  # this server does not name its version, so the ETag decides
    with pytest.raises(ObjectSuperseded):
        store.check_current(before)


@both_clients
def test_an_object_without_versions_is_superseded_or_deleted(store: S3Store, s3: Any, key: str) -> None:
    ref = put(s3, key, b"one")
    assert read_all(store, ref) == b"one"
    put(s3, key, b"two")
    with pytest.raises(ObjectSuperseded):
        store.open(ref)
    s3.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(ObjectGone):
        store.open(ref)


@both_clients
def test_an_object_replaced_while_it_is_read_is_superseded(store: S3Store, s3: Any, key: str) -> None:
    ref = put(s3, key, bytes(20 * MIB))
    with store.open(ref) as reader:
        reader.pread(10 * MIB, MIB)
        put(s3, key, bytes(20 * MIB - 1) + b"x")
        with pytest.raises(ObjectSuperseded):
            reader.pread(2 * MIB, MIB)


def test_an_object_uploaded_in_parts_is_read_whole(store: S3Store, s3: Any) -> None:
    request = {"Bucket": BUCKET, "Key": "in/parts"}
    upload = s3.create_multipart_upload(**request)["UploadId"]
    bodies = [b"a" * 5 * MIB, b"b" * 5 * MIB]
    etags = [
        s3.upload_part(**request, UploadId=upload, PartNumber=number, Body=body)["ETag"]
        for number, body in enumerate(bodies, start=1)
    ]
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, start=1)]
    response = s3.complete_multipart_upload(**request, UploadId=upload, MultipartUpload={"Parts": parts})
    ref = ObjectRef(bucket=BUCKET, key="in/parts", size_bytes=10 * MIB, etag=response["ETag"].strip('"'))
    assert "-2" in (ref.etag or "")
    assert read_all(store, ref) == b"".join(bodies)


@pytest.mark.parametrize(
    "read",
    [
        lambda reader, at: reader.read(MIB),
        lambda reader, at: reader.pread(at, 3 * MIB),
    ],
    ids=["read", "pread"],
)
@both_clients
def test_reads_resume_after_their_connections_are_killed(
    proxy: FaultProxy, s3: Any, key: str, read: Callable[[Any, int], bytes]
) -> None:
    content = random.Random(7).randbytes(40 * MIB)
    ref = put(s3, key, content)
    waits: list[float] = []
    store = S3Store(s3_address(f"s3://{BUCKET}"), aws_at(proxy.url.replace("redis://", "http://")), pause=waits.append)
    got = b""
    with store.open(ref) as reader:
        for _ in range(4):
            got += read(reader, len(got))
            proxy.cut()
        while data := read(reader, len(got)):
            got += data
        reader.verify()
    assert got == content


def test_a_missing_bucket_is_denied(moto: AwsServer) -> None:
    ref = ObjectRef(bucket="none", key="a", size_bytes=1, etag="0f")
    with pytest.raises(ObjectDenied, match="the bucket does not exist"):
        S3Store(s3_address("s3://none"), moto.aws).open(ref)


def test_an_object_of_another_size_than_notified_is_unreadable(store: S3Store, s3: Any) -> None:
    ref = put(s3, "in/a", b"12345")
    for size_bytes in (0, 4, 6, 20 * MIB):
        with pytest.raises(ObjectUnreadable, match="and has 5"):
            store.open(replace(ref, size_bytes=size_bytes))
