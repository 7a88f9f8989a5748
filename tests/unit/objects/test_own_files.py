"""Files that Penstock wrote are ignored in notifications of their bucket."""

import json

from penstock.objects.notification import announce, parse_others
from penstock.objects.reference import ObjectRef
from penstock.storage.address import S3Address

OWN = [S3Address(bucket="b", prefix="lake/t"), S3Address(bucket="b", prefix="lake/t_quarantine")]
BUCKETS = frozenset({"b"})


def notification_of(*keys: str) -> bytes:
    records = [json.loads(announce(ObjectRef(bucket="b", key=key, size_bytes=1, etag="e")))["Records"] for key in keys]
    return json.dumps({"Records": [record for one in records for record in one]}).encode()


def test_files_of_own_tables_are_ignored() -> None:
    body = notification_of(
        "lake/t/data/01/p.parquet", "lake/t2/x", "lake/t", "in/a", "lake/t_quarantine/_delta_log/0.json"
    )
    found = parse_others(body, buckets_allowed=BUCKETS, own=OWN)
    assert [ref.key for ref in found.objects] == ["lake/t2/x", "in/a"]
    assert [one.uri for one in found.ignored] == [
        "s3://b/lake/t/data/01/p.parquet",
        "s3://b/lake/t",
        "s3://b/lake/t_quarantine/_delta_log/0.json",
    ]
    assert found.reason is None


def test_the_same_key_in_another_bucket_is_not_ignored() -> None:
    elsewhere = [S3Address(bucket="c", prefix="lake/t")]
    found = parse_others(notification_of("lake/t/x"), buckets_allowed=BUCKETS, own=elsewhere)
    assert [ref.key for ref in found.objects] == ["lake/t/x"]
    assert not found.ignored
