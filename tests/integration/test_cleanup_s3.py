"""Tagging, moving and deleting in S3: exactly the version that was processed, on a server that speaks S3."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.services.aws_server import AwsServer

from penstock.errors import ConfigurationError, ObjectDenied
from penstock.messaging.steps import Step
from penstock.objects.cleanup import ALREADY, CHANGED, DONE, MISSING, Cleaner, CleanupOutcome, second_name
from penstock.objects.cleanup_s3 import Copier, S3Deleter, S3Mover, S3Tagger
from penstock.objects.reference import ObjectRef
from penstock.storage.address import s3_address

LANDING, DONE_BUCKET = "landing", "done"
SOURCE, TARGET = s3_address(f"s3://{LANDING}/in"), s3_address(f"s3://{DONE_BUCKET}/clicks")
MIB = 1 << 20
KEYS = ["in/a.jsonl", "in/a b+c%2F é.jsonl", "in//../x", "in/sub/"]

How = Callable[..., Cleaner]


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    for bucket in (LANDING, DONE_BUCKET):
        client.create_bucket(Bucket=bucket)
    return client


@pytest.fixture(params=[False, True], ids=["plain", "versioned"])
def bucket(request: pytest.FixtureRequest, s3: Any) -> Any:
    if request.param:
        keep_versions(s3)
    return s3


def keep_versions(s3: Any, bucket: str = LANDING) -> Any:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return s3


def put(s3: Any, key: str = "in/a.jsonl", body: bytes = b"one", **more: Any) -> ObjectRef:
    """Store it, and refer to it as its notification would."""
    answer = s3.put_object(Bucket=LANDING, Key=key, Body=body, **more)
    return ObjectRef(
        bucket=LANDING,
        key=key,
        size_bytes=len(body),
        etag=answer["ETag"].strip('"'),
        version_id=answer.get("VersionId"),
    )


def keys(s3: Any, bucket: str = LANDING) -> list[str]:
    return sorted(found["Key"] for found in s3.list_objects_v2(Bucket=bucket).get("Contents", ()))


def versions(s3: Any, key: str) -> list[str]:
    answer = s3.list_object_versions(Bucket=LANDING, Prefix=key)
    return [found["VersionId"] for found in answer.get("Versions", ())]


def markers(s3: Any) -> int:
    return len(s3.list_object_versions(Bucket=LANDING).get("DeleteMarkers", ()))


def tags(s3: Any, ref: ObjectRef, bucket: str = LANDING) -> dict[str, str]:
    version = {"VersionId": ref.version_id} if ref.version_id else {}
    answer = s3.get_object_tagging(Bucket=bucket, Key=ref.key, **version)
    return {tag["Key"]: tag["Value"] for tag in answer["TagSet"]}


def deleter(moto: AwsServer) -> Cleaner:
    return S3Deleter(SOURCE, moto.aws)


def mover(moto: AwsServer) -> Cleaner:
    return S3Mover(SOURCE, TARGET, moto.aws)


def tagger(moto: AwsServer) -> Cleaner:
    return S3Tagger(SOURCE, {"penstock": "processed"}, moto.aws)


every_way = pytest.mark.parametrize("how", [deleter, mover, tagger])
taking_away = pytest.mark.parametrize("how", [deleter, mover])


@pytest.mark.parametrize("key", KEYS)
def test_an_object_is_deleted_whatever_its_key(bucket: Any, moto: AwsServer, key: str) -> None:
    ref, other = put(bucket, key), put(bucket, "in/other")
    assert deleter(moto).clean(ref) is DONE
    assert keys(bucket) == [other.key]
    assert markers(bucket) == 0, "a delete marker would hide what comes later"


@taking_away
def test_a_second_time_it_is_gone(bucket: Any, moto: AwsServer, how: How) -> None:
    ref = put(bucket)
    assert how(moto).clean(ref) is DONE
    assert how(moto).clean(ref) is MISSING


@every_way
def test_a_newer_object_without_versions_is_never_touched(s3: Any, moto: AwsServer, how: How) -> None:
    old = put(s3)
    new = put(s3, body=b"two")
    assert how(moto).clean(old) is CHANGED
    assert s3.get_object(Bucket=LANDING, Key=new.key)["Body"].read() == b"two"
    assert (tags(s3, new), keys(s3, DONE_BUCKET)) == ({}, [])


@every_way
def test_only_the_processed_of_several_versions_is_cleaned_up(s3: Any, moto: AwsServer, how: How) -> None:
    keep_versions(s3)
    old, new = put(s3), put(s3, body=b"two")
    assert how(moto).clean(old) is DONE
    assert tags(s3, new) == {}
    assert s3.get_object(Bucket=LANDING, Key=new.key)["Body"].read() == b"two"
    assert markers(s3) == 0


def test_an_object_of_before_the_bucket_kept_versions(s3: Any, moto: AwsServer) -> None:
    old = put(s3)
    keep_versions(s3)
    new = put(s3, body=b"two")
    assert deleter(moto).clean(old) is CHANGED
    assert s3.get_object(Bucket=LANDING, Key=new.key)["Body"].read() == b"two"


@pytest.mark.parametrize("key", KEYS)
def test_an_object_is_moved_with_its_metadata_and_tags(bucket: Any, moto: AwsServer, key: str) -> None:
    ref = put(bucket, key, Metadata={"team": "shop"}, ContentType="text/x", Tagging="colour=red")
    assert mover(moto).clean(ref) is DONE
    moved = f"clicks/{key.removeprefix('in/')}"
    assert (keys(bucket), keys(bucket, DONE_BUCKET)) == ([], [moved])
    found = bucket.get_object(Bucket=DONE_BUCKET, Key=moved)
    assert (found["Body"].read(), found["Metadata"], found["ContentType"]) == (b"one", {"team": "shop"}, "text/x")
    assert tags(bucket, replace(ref, key=moved, version_id=None), DONE_BUCKET) == {"colour": "red"}


def test_a_source_that_is_one_object_moves_it_by_its_name(s3: Any, moto: AwsServer) -> None:
    ref = put(s3, "in/a.jsonl")
    source = s3_address(f"s3://{LANDING}/in/a.jsonl")
    assert S3Mover(source, TARGET, moto.aws).clean(ref) is DONE
    assert keys(s3, DONE_BUCKET) == ["clicks/a.jsonl"]


def test_moving_never_overwrites(bucket: Any, moto: AwsServer) -> None:
    bucket.put_object(Bucket=DONE_BUCKET, Key="clicks/a.jsonl", Body=b"somebody's")
    ref = put(bucket)
    assert mover(moto).clean(ref) is DONE
    second = second_name("clicks/a.jsonl", ref)
    assert keys(bucket, DONE_BUCKET) == ["clicks/a.jsonl", second]
    assert bucket.get_object(Bucket=DONE_BUCKET, Key="clicks/a.jsonl")["Body"].read() == b"somebody's"
    assert bucket.get_object(Bucket=DONE_BUCKET, Key=second)["Body"].read() == b"one"


def test_with_both_names_taken_the_object_stays(s3: Any, moto: AwsServer) -> None:
    ref = put(s3)
    for key in ("clicks/a.jsonl", second_name("clicks/a.jsonl", ref)):
        s3.put_object(Bucket=DONE_BUCKET, Key=key, Body=b"somebody's")
    assert mover(moto).clean(ref).outcome is CleanupOutcome.REFUSED
    assert keys(s3) == ["in/a.jsonl"]


def test_two_versions_of_a_key_are_both_kept_where_they_move(s3: Any, moto: AwsServer) -> None:
    keep_versions(s3)
    one = put(s3, Metadata={"n": "1"})
    two = put(s3, Metadata={"n": "2"})  # the same bytes
    assert [mover(moto).clean(ref) for ref in (one, two)] == [DONE, DONE]
    found = [s3.head_object(Bucket=DONE_BUCKET, Key=key)["Metadata"]["n"] for key in keys(s3, DONE_BUCKET)]
    assert found == ["1", "2"]


def test_a_crash_between_copy_and_delete_is_made_good(bucket: Any, moto: AwsServer) -> None:
    class Died(BaseException):
        pass

    def die(step: Step) -> None:
        assert step is Step.SET_ASIDE
        raise Died

    ref = put(bucket)
    with pytest.raises(Died):
        S3Mover(SOURCE, TARGET, moto.aws, probe=die).clean(ref)
    assert (keys(bucket), keys(bucket, DONE_BUCKET)) == (["in/a.jsonl"], ["clicks/a.jsonl"])
    assert mover(moto).clean(ref) is DONE
    assert (keys(bucket), keys(bucket, DONE_BUCKET)) == ([], ["clicks/a.jsonl"])


def test_an_object_that_changes_between_copy_and_delete_stays(s3: Any, moto: AwsServer) -> None:
    ref = put(s3)

    def exchange(step: Step) -> None:
        assert step is Step.SET_ASIDE
        put(s3, body=b"two")

    changing = S3Mover(SOURCE, TARGET, moto.aws, probe=exchange)
    assert changing.clean(ref) is CHANGED
    assert s3.get_object(Bucket=LANDING, Key=ref.key)["Body"].read() == b"two"


def test_a_large_object_is_copied_part_by_part(bucket: Any, moto: AwsServer) -> None:
    body = bytes(range(256)) * (11 * MIB // 256)
    ref = put(bucket, body=body, Metadata={"team": "shop"}, Tagging="colour=red")
    facts = bucket.head_object(Bucket=LANDING, Key=ref.key)
    copier = Copier(moto.aws, copy_bytes_max=5 * MIB, part_bytes=5 * MIB)
    for _ in range(2):  # a second time nothing is left to do, although the ETag of a copy in parts is another one
        copier.copy(ref, facts, bucket=DONE_BUCKET, key="large")
    found = bucket.get_object(Bucket=DONE_BUCKET, Key=keys(bucket, DONE_BUCKET)[0])
    assert (found["Body"].read() == body, found["Metadata"]) == (True, {"team": "shop"})
    assert tags(bucket, replace(ref, key="large", version_id=None), DONE_BUCKET) == {"colour": "red"}
    assert "Uploads" not in bucket.list_multipart_uploads(Bucket=DONE_BUCKET)


def test_a_copy_in_parts_that_fails_leaves_no_upload(s3: Any, moto: AwsServer) -> None:
    ref = put(s3, body=b"x" * (6 * MIB))
    facts = s3.head_object(Bucket=LANDING, Key=ref.key)
    s3.delete_object(Bucket=LANDING, Key=ref.key)
    copier = Copier(moto.aws, copy_bytes_max=5 * MIB, part_bytes=5 * MIB)
    with pytest.raises(s3.exceptions.ClientError):
        copier.copy(ref, facts, bucket=DONE_BUCKET, key="large")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=DONE_BUCKET)


def test_tags_are_added_to_those_there_are(bucket: Any, moto: AwsServer) -> None:
    ref = put(bucket, Tagging="colour=red")
    assert tagger(moto).clean(ref) is DONE
    assert tags(bucket, ref) == {"colour": "red", "penstock": "processed"}
    assert tagger(moto).clean(ref) is ALREADY


def test_an_eleventh_tag_is_refused_with_the_reason(bucket: Any, moto: AwsServer) -> None:
    ref = put(bucket, Tagging="&".join(f"t{number}=v" for number in range(10)))
    cleaned = tagger(moto).clean(ref)
    assert (cleaned.outcome, cleaned.reason) == (CleanupOutcome.REFUSED, "it would have more than 10 tags")
    assert len(tags(bucket, ref)) == 10


def test_a_tag_that_met_a_newer_object_is_taken_off(s3: Any, moto: AwsServer) -> None:
    old = put(s3)

    class Slow(S3Tagger):
        def _write(self, ref: ObjectRef, tags: Any) -> None:
            if self._tags.items() <= tags.items():  # exchanged after the first look, before the tag
                put(s3, body=b"two", Tagging="colour=red")
            super()._write(ref, tags)

    assert Slow(SOURCE, {"penstock": "processed"}, moto.aws).clean(old) is CHANGED
    assert "penstock" not in tags(s3, old)


def test_a_wrong_tag_of_a_crash_is_taken_off(s3: Any, moto: AwsServer) -> None:
    old = put(s3)
    new = put(s3, body=b"two", Tagging="colour=red&penstock=processed")
    assert tagger(moto).clean(old) is CHANGED
    assert tags(s3, new) == {"colour": "red"}


@taking_away
@pytest.mark.parametrize("lock", ["retention", "legal hold"])
def test_object_lock_is_reported_and_nothing_copied(s3: Any, moto: AwsServer, how: How, lock: str) -> None:
    s3.delete_bucket(Bucket=LANDING)
    s3.create_bucket(Bucket=LANDING, ObjectLockEnabledForBucket=True)
    locked: dict[str, Any] = {"ObjectLockLegalHoldStatus": "ON"}
    if lock == "retention":
        until = datetime.now(UTC) + timedelta(days=1)
        locked = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
    ref = put(s3, **locked)
    cleaned = how(moto).clean(ref)
    assert (cleaned.outcome, cleaned.reason) == (CleanupOutcome.REFUSED, f"Object Lock protects it ({lock})")
    assert (versions(s3, ref.key), keys(s3, DONE_BUCKET)) == ([ref.version_id], [])


@every_way
def test_objects_outside_the_source_are_never_touched(s3: Any, moto: AwsServer, how: How) -> None:
    ref = put(s3, "inside/a")
    assert how(moto).clean(ref).outcome is CleanupOutcome.REFUSED
    assert (keys(s3), tags(s3, ref)) == (["inside/a"], {})


@every_way
def test_a_bucket_that_does_not_exist_is_no_matter_of_its_objects(s3: Any, moto: AwsServer, how: How) -> None:
    ref = put(s3)
    s3.delete_object(Bucket=LANDING, Key=ref.key)
    s3.delete_bucket(Bucket=LANDING)
    with pytest.raises(ObjectDenied, match="the bucket does not exist"):
        how(moto).clean(ref)


def test_a_store_without_conditional_deletes_is_refused(start_fauxqs: Any) -> None:
    server = start_fauxqs()
    s3 = server.client("s3")
    for bucket in (LANDING, DONE_BUCKET):
        s3.create_bucket(Bucket=bucket)
    ref = put(s3)
    for how in (deleter, mover):
        with pytest.raises(ConfigurationError, match="ignores If-Match"):
            how(server).clean(ref)
    assert (keys(s3), keys(s3, DONE_BUCKET)) == (["in/a.jsonl"], [])
