"""Listing a bucket by spans: together they have every key once, with and without versions."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.services.aws_server import AwsServer

from penstock.objects.s3_listing import S3Pages, Span, s3_spans
from penstock.storage.address import s3_address

BUCKET = "landing"
KEYS = [f"in/{folder}/{number:02}" for folder in ("a", "a b", "é", "日本", "z+%2F") for number in range(12)]


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


def put(s3: Any, *keys: str) -> None:
    for key in keys:
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")


def listed(moto: AwsServer, spans: Sequence[Span], *, page_keys: int = 5, all_versions: bool = False) -> list[str]:
    address = s3_address(f"s3://{BUCKET}/in")
    pages = [
        page
        for span in spans
        for page in S3Pages(address, moto.aws, page_keys=page_keys, span=span, all_versions=all_versions)
    ]
    return [entry["Key"] for page in pages for entry in page.entries]


def cut(moto: AwsServer, parts: int) -> Sequence[Span]:
    return s3_spans(s3_address(f"s3://{BUCKET}/in"), moto.aws, parts=parts, whole_keys_max=1)


@pytest.mark.parametrize("versioning", ["Enabled", None])
@pytest.mark.parametrize("parts", [1, 4, 30])
def test_spans_together_equal_the_listing(moto: AwsServer, s3: Any, versioning: str | None, parts: int) -> None:
    if versioning is not None:
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": versioning})
    put(s3, "elsewhere/0", *KEYS, "in", "inside/0")
    spans = cut(moto, parts)
    assert len(spans) >= min(parts, 5)
    assert sorted(listed(moto, spans)) == sorted(["in", *KEYS])


def test_all_versions_are_listed_on_request(moto: AwsServer, s3: Any) -> None:
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put(s3, *KEYS, *KEYS, KEYS[0])
    s3.delete_object(Bucket=BUCKET, Key=KEYS[1])
    spans = cut(moto, 7)
    assert sorted(listed(moto, spans, page_keys=1_000)) == sorted([*KEYS[:1], *KEYS[2:]])
    assert sorted(listed(moto, spans, page_keys=1_000, all_versions=True)) == sorted([*KEYS, *KEYS, KEYS[0]])


def test_few_keys_are_one_span(moto: AwsServer, s3: Any) -> None:
    put(s3, *KEYS)
    assert s3_spans(s3_address(f"s3://{BUCKET}/in"), moto.aws, parts=30) == [Span()]
