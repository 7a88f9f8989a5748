"""Listing a prefix on a server that speaks S3: the objects found, and those left out with the reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote_plus

import pytest
from tests.services.aws_server import AwsServer

from penstock.app.sources import source_at
from penstock.errors import UsageError
from penstock.objects.notification import parse
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_listing import S3Listing
from penstock.objects.s3_store import S3Store
from penstock.objects.selection import SkipReason
from penstock.storage.address import S3Address, s3_address

BUCKET = "landing"
ODD_KEYS = [
    "../../etc/passwd",
    "/etc/passwd",
    "in/%252F",
    "in/a b+c",
    "in/Data.csv",
    "in/data.csv",
    "in/a",
    "in/a ",
    "in/😀",
    "in/😁",
    "in/日本/が",
    "in/日本/か\u3099",
    "in//b",
    "in/<script>&amp;",
]


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture
def versioned(s3: Any) -> Any:
    keep_versions(s3)
    return s3


def keep_versions(s3: Any, status: str = "Enabled") -> None:
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": status})


def put(s3: Any, *keys: str, body: bytes = b"x", **options: Any) -> Mapping[str, Any]:
    response: Mapping[str, Any] = {}
    for key in keys:
        response = s3.put_object(Bucket=BUCKET, Key=key, Body=body, **options)
    return response


def listing(moto: AwsServer, address: str = f"s3://{BUCKET}", **options: Any) -> S3Listing:
    return S3Listing(s3_address(address), aws=moto.aws, **options)


def listed(listing: S3Listing) -> list[ObjectRef]:
    return [ref for chunk in listing.chunks() for ref in chunk]


def keys(found: Sequence[ObjectRef]) -> list[str]:
    return [ref.key for ref in found]


def notified(ref: ObjectRef) -> ObjectRef:
    """Return the object as S3's own notification describes it."""
    described = {"key": quote_plus(ref.key, safe="/"), "size": ref.size_bytes, "eTag": ref.etag, "sequencer": "0055AE"}
    if ref.version_id is not None:
        described["versionId"] = ref.version_id
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": ref.bucket}, "object": described},
    }
    return parse(json.dumps({"Records": [record]}).encode(), buckets_allowed=None).objects[0]


@pytest.mark.parametrize("versioning", [None, "Enabled", "Suspended"])
def test_a_listed_object_equals_the_one_in_its_notification(moto: AwsServer, s3: Any, versioning: str | None) -> None:
    put(s3, "in/before")
    if versioning:
        keep_versions(s3, versioning)
    response = put(s3, "in/a b", body=b"12345")
    before, after = listed(listing(moto, f"s3://{BUCKET}/in"))[::-1]
    assert before.version_id is None
    assert after == ObjectRef(
        bucket=BUCKET,
        key="in/a b",
        size_bytes=5,
        etag=response["ETag"].strip('"'),
        version_id=response["VersionId"] if versioning == "Enabled" else None,
    )
    for ref in (before, after):
        assert notified(ref).object_id == ref.object_id
        assert replace(notified(ref), sequencer=None) == ref


def test_only_latest_versions_that_are_not_deleted_are_found(moto: AwsServer, versioned: Any) -> None:
    put(versioned, "in/a", body=b"old")
    latest = put(versioned, "in/a", body=b"newer")
    put(versioned, "in/deleted", "in/back")
    versioned.delete_object(Bucket=BUCKET, Key="in/deleted")
    versioned.delete_object(Bucket=BUCKET, Key="in/back")
    put(versioned, "in/back", body=b"again")
    found = {ref.key: ref for ref in listed(listing(moto))}
    assert sorted(found) == ["in/a", "in/back"]
    assert (found["in/a"].version_id, found["in/a"].size_bytes) == (latest["VersionId"], 5)


@pytest.mark.parametrize("versioning", [None, "Enabled"])
def test_odd_keys_are_found_literally_and_can_be_read(moto: AwsServer, s3: Any, versioning: str | None) -> None:
    if versioning:
        keep_versions(s3, versioning)
    for key in ODD_KEYS:
        put(s3, key, body=key.encode())
    found = listed(listing(moto))
    assert keys(found) == sorted(ODD_KEYS, key=str.encode)
    assert len({ref.object_id for ref in found}) == len(ODD_KEYS)
    store = S3Store(s3_address(f"s3://{BUCKET}"), moto.aws)
    for ref in found:
        with store.open(ref) as reader:
            assert reader.read() == ref.key_bytes


def test_a_prefix_is_a_folder_or_one_object(moto: AwsServer, s3: Any) -> None:
    put(s3, "in", "in/a", "in/b/c", "in-two", "inbound/x", "other")
    assert keys(listed(listing(moto, f"s3://{BUCKET}/in"))) == ["in", "in/a", "in/b/c"]
    assert keys(listed(listing(moto, f"s3://{BUCKET}/in/a"))) == ["in/a"]
    assert keys(listed(listing(moto, f"s3://{BUCKET}/i"))) == []
    assert keys(listed(listing(moto, f"s3://{BUCKET}/none"))) == []


def test_left_out_objects_are_reported(moto: AwsServer, s3: Any) -> None:
    put(s3, "in/a", "in/.hidden", "in/.tmp/x", "in/b/.c/d/e", "in/own/data/x", "in/own_quarantine/x", "in/owner")
    put(s3, "in/folder/", "in/", body=b"")
    put(s3, "in/not-empty/")
    excluded = [s3_address(f"s3://{BUCKET}/in/own"), s3_address(f"s3://{BUCKET}/in/own_quarantine")]
    first_listing = listing(
        moto, f"s3://{BUCKET}/in", excluded=[*excluded, S3Address(bucket="elsewhere", prefix="in/a")]
    )
    assert keys(listed(first_listing)) == ["in/a", "in/not-empty/", "in/owner"]
    report = first_listing.report()
    assert report.ignored == {SkipReason.HIDDEN: 3, SkipReason.EXCLUDED: 2, SkipReason.FOLDER_MARKER: 2}
    assert report.excluded == (f"s3://{BUCKET}/in/own", f"s3://{BUCKET}/in/own_quarantine")
    assert (report.found, report.size_bytes, report.problems_count) == (3, 3, 0)


def test_a_dot_above_the_prefix_hides_nothing(moto: AwsServer, s3: Any) -> None:
    put(s3, ".data/in/a")
    assert keys(listed(listing(moto, f"s3://{BUCKET}/.data/in"))) == [".data/in/a"]
    assert keys(listed(listing(moto))) == []


@pytest.mark.parametrize("page_keys", [1, 2, 3, 1_000])
@pytest.mark.parametrize("versioning", [None, "Enabled"])
def test_tables_below_a_source_are_excluded_at_any_page_size(
    moto: AwsServer, s3: Any, page_keys: int, versioning: str | None
) -> None:
    if versioning:
        keep_versions(s3, versioning)
    put(s3, "in/0", "in/t/2024/a.parquet", "in/t/2024/b.parquet", "in/t/2025/c.parquet", "in/t/_delta_log/0.json")
    put(s3, "in/t/z", "in/u/A", "in/u/_penstock/ledger.db", "in/v/_delta_log_of_mine/x", "in/w/x/_delta_log/0", "in/z")
    first_listing = listing(moto, f"s3://{BUCKET}/in", page_keys=page_keys)
    assert keys(listed(first_listing)) == ["in/0", "in/v/_delta_log_of_mine/x", "in/z"]
    assert first_listing.report().ignored == {SkipReason.EXCLUDED: 8}
    assert first_listing.report().excluded == tuple(f"s3://{BUCKET}/in/{name}" for name in ("t", "u", "w/x"))


@pytest.mark.parametrize(
    ("prefix", "is_table"), [("", False), ("/in", False), ("/in/t", True), ("/in/u", True), ("/in/v", False)]
)
def test_a_source_that_is_a_table_is_recognized(moto: AwsServer, s3: Any, prefix: str, is_table: bool) -> None:
    put(s3, "in/0", "in/t/_delta_log/0.json", "in/u/_penstock/table", "in/v/_penstock/ledger.db")
    assert source_at(f"s3://{BUCKET}{prefix}", moto.aws).is_table() is is_table


def test_a_deleted_table_hides_nothing(moto: AwsServer, versioned: Any) -> None:
    put(versioned, "in/t/a", "in/t/_delta_log/0.json", "in/t/b")
    versioned.delete_object(Bucket=BUCKET, Key="in/t/_delta_log/0.json")
    assert keys(listed(listing(moto, page_keys=1))) == ["in/t/a", "in/t/b"]


def test_archived_objects_are_reported_as_problems(moto: AwsServer, s3: Any) -> None:
    put(s3, "in/old", StorageClass="GLACIER")
    put(s3, "in/quick", StorageClass="GLACIER_IR")
    first_listing = listing(moto)
    assert keys(listed(first_listing)) == ["in/quick"]
    assert first_listing.report().problems == (
        f"s3://{BUCKET}/in/old: archived in GLACIER; restore it before it can be read",
    )


def test_many_objects_are_listed_in_chunks_and_pages(moto: AwsServer, versioned: Any) -> None:
    names = [f"in/{number:03}" for number in range(25)]
    put(versioned, *names)
    put(versioned, *names)
    first_listing = listing(moto, chunk_objects=10, page_keys=7)
    chunks = list(first_listing.chunks())
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    assert [ref.key for chunk in chunks for ref in chunk] == names
    assert first_listing.report().found == 25
    assert keys(listed(first_listing)) == names
    assert first_listing.report().found == 25


def test_a_bucket_that_does_not_exist_is_a_usage_error(moto: AwsServer) -> None:
    with pytest.raises(UsageError, match=r"^s3://none/in cannot be listed: the bucket does not exist: .*\.$"):
        listed(listing(moto, "s3://none/in"))
