"""Tagging, moving and deleting in S3: exactly the processed version, on a server that speaks S3."""

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

MakeCleaner = Callable[..., Cleaner]


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


def put(s3: Any, key: str = "in/a.jsonl", body: bytes = b"one", **options: Any) -> ObjectRef:
    """Store an object, and return the reference that its notification would have."""
    response = s3.put_object(Bucket=LANDING, Key=key, Body=body, **options)
    return ObjectRef(
        bucket=LANDING,
        key=key,
        size_bytes=len(body),
        etag=response["ETag"].strip('"'),
        version_id=response.get("VersionId"),
    )


def keys(s3: Any, bucket: str = LANDING) -> list[str]:
    return sorted(found["Key"] for found in s3.list_objects_v2(Bucket=bucket).get("Contents", ()))


def versions(s3: Any, key: str) -> list[str]:
    response = s3.list_object_versions(Bucket=LANDING, Prefix=key)
    return [found["VersionId"] for found in response.get("Versions", ())]


def markers(s3: Any) -> int:
    return len(s3.list_object_versions(Bucket=LANDING).get("DeleteMarkers", ()))


def tags(s3: Any, ref: ObjectRef, bucket: str = LANDING) -> dict[str, str]:
    version = {"VersionId": ref.version_id} if ref.version_id else {}
    response = s3.get_object_tagging(Bucket=bucket, Key=ref.key, **version)
    return {tag["Key"]: tag["Value"] for tag in response["TagSet"]}


def deleter(moto: AwsServer) -> Cleaner:
    return S3Deleter(SOURCE, moto.aws)


def mover(moto: AwsServer) -> Cleaner:
    return S3Mover(SOURCE, TARGET, moto.aws)


def tagger(moto: AwsServer) -> Cleaner:
    return S3Tagger(SOURCE, {"penstock": "processed"}, moto.aws)


every_cleaner = pytest.mark.parametrize("make_cleaner", [deleter, mover, tagger])
removing_cleaners = pytest.mark.parametrize("make_cleaner", [deleter, mover])


@pytest.mark.parametrize("key", KEYS)
def test_an_object_with_any_key_is_deleted(bucket: Any, moto: AwsServer, key: str) -> None:
    ref, other = put(bucket, key), put(bucket, "in/other")
    assert deleter(moto).clean(ref) is DONE
    assert keys(bucket) == [other.key]
    assert markers(bucket) == 0, "a delete marker would hide later objects"


@removing_cleaners
def test_cleaning_a_second_time_reports_a_missing_object(
    bucket: Any, moto: AwsServer, make_cleaner: MakeCleaner
) -> None:
    ref = put(bucket)
    assert make_cleaner(moto).clean(ref) is DONE
    assert make_cleaner(moto).clean(ref) is MISSING


@every_cleaner
def test_a_newer_object_in_a_bucket_without_versions_is_left_alone(
    s3: Any, moto: AwsServer, make_cleaner: MakeCleaner
) -> None:
    old = put(s3)
    new = put(s3, body=b"two")
    assert make_cleaner(moto).clean(old) is CHANGED
    assert s3.get_object(Bucket=LANDING, Key=new.key)["Body"].read() == b"two"
    assert (tags(s3, new), keys(s3, DONE_BUCKET)) == ({}, [])


@every_cleaner
def test_only_the_processed_version_is_cleaned_up(s3: Any, moto: AwsServer, make_cleaner: MakeCleaner) -> None:
    keep_versions(s3)
    old, new = put(s3), put(s3, body=b"two")
    assert make_cleaner(moto).clean(old) is DONE
    assert tags(s3, new) == {}
    assert s3.get_object(Bucket=LANDING, Key=new.key)["Body"].read() == b"two"
    assert markers(s3) == 0


def test_an_object_from_before_versioning_is_left_alone_if_replaced(s3: Any, moto: AwsServer) -> None:
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


def test_a_source_that_is_one_object_is_moved_by_its_name(s3: Any, moto: AwsServer) -> None:
    ref = put(s3, "in/a.jsonl")
    source = s3_address(f"s3://{LANDING}/in/a.jsonl")
    assert S3Mover(source, TARGET, moto.aws).clean(ref) is DONE
    assert keys(s3, DONE_BUCKET) == ["clicks/a.jsonl"]


def test_moving_never_overwrites(bucket: Any, moto: AwsServer) -> None:
    bucket.put_object(Bucket=DONE_BUCKET, Key="clicks/a.jsonl", Body=b"another's")
    ref = put(bucket)
    assert mover(moto).clean(ref) is DONE
    second = second_name("clicks/a.jsonl", ref)
    assert keys(bucket, DONE_BUCKET) == ["clicks/a.jsonl", second]
    assert bucket.get_object(Bucket=DONE_BUCKET, Key="clicks/a.jsonl")["Body"].read() == b"another's"
    assert bucket.get_object(Bucket=DONE_BUCKET, Key=second)["Body"].read() == b"one"


def test_an_object_stays_if_both_target_names_exist(s3: Any, moto: AwsServer) -> None:
    ref = put(s3)
    for key in ("clicks/a.jsonl", second_name("clicks/a.jsonl", ref)):
        s3.put_object(Bucket=DONE_BUCKET, Key=key, Body=b"another's")
    assert mover(moto).clean(ref).outcome is CleanupOutcome.REFUSED
    assert keys(s3) == ["in/a.jsonl"]


def test_two_versions_of_a_key_are_both_moved(s3: Any, moto: AwsServer) -> None:
    keep_versions(s3)
    one = put(s3, Metadata={"n": "1"})
    two = put(s3, Metadata={"n": "2"})  # the same bytes
    assert [mover(moto).clean(ref) for ref in (one, two)] == [DONE, DONE]
    found = [s3.head_object(Bucket=DONE_BUCKET, Key=key)["Metadata"]["n"] for key in keys(s3, DONE_BUCKET)]
    assert found == ["1", "2"]


def test_the_next_run_completes_a_move_that_crashed_between_copy_and_delete(bucket: Any, moto: AwsServer) -> None:
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


def test_an_object_replaced_between_copy_and_delete_is_not_deleted(s3: Any, moto: AwsServer) -> None:
    ref = put(s3)

    def exchange(step: Step) -> None:
        assert step is Step.SET_ASIDE
        put(s3, body=b"two")

    changing = S3Mover(SOURCE, TARGET, moto.aws, probe=exchange)
    assert changing.clean(ref) is CHANGED
    assert s3.get_object(Bucket=LANDING, Key=ref.key)["Body"].read() == b"two"


def test_a_large_object_is_copied_in_parts(bucket: Any, moto: AwsServer) -> None:
    body = bytes(range(256)) * (11 * MIB // 256)
    ref = put(bucket, body=body, Metadata={"team": "shop"}, Tagging="colour=red")
    facts = bucket.head_object(Bucket=LANDING, Key=ref.key)
    copier = Copier(moto.aws, copy_bytes_max=5 * MIB, part_bytes=5 * MIB)
    for _ in range(2):  # a second run has nothing to do, although the ETag of a multipart copy differs
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


def test_tags_are_added_to_existing_ones(bucket: Any, moto: AwsServer) -> None:
    ref = put(bucket, Tagging="colour=red")
    assert tagger(moto).clean(ref) is DONE
    assert tags(bucket, ref) == {"colour": "red", "penstock": "processed"}
    assert tagger(moto).clean(ref) is ALREADY


def test_an_eleventh_tag_is_refused_with_the_reason(bucket: Any, moto: AwsServer) -> None:
    ref = put(bucket, Tagging="&".join(f"t{number}=v" for number in range(10)))
    cleaned = tagger(moto).clean(ref)
    assert (cleaned.outcome, cleaned.reason) == (CleanupOutcome.REFUSED, "it would have more than 10 tags")
    assert len(tags(bucket, ref)) == 10


def test_a_tag_set_on_a_newer_object_is_removed(s3: Any, moto: AwsServer) -> None:
    old = put(s3)

    class Slow(S3Tagger):
        def _write(self, ref: ObjectRef, tags: Any) -> None:
            if self._tags.items() <= tags.items():  # replaced after the first check, before the tag
                put(s3, body=b"two", Tagging="colour=red")
            super()._write(ref, tags)

    assert Slow(SOURCE, {"penstock": "processed"}, moto.aws).clean(old) is CHANGED
    assert "penstock" not in tags(s3, old)


def test_a_wrong_tag_left_by_a_crash_is_removed(s3: Any, moto: AwsServer) -> None:
    old = put(s3)
    new = put(s3, body=b"two", Tagging="colour=red&penstock=processed")
    assert tagger(moto).clean(old) is CHANGED
    assert tags(s3, new) == {"colour": "red"}


@removing_cleaners
@pytest.mark.parametrize("lock", ["retention", "legal hold"])
def test_an_object_under_object_lock_is_refused_and_not_copied(
    s3: Any, moto: AwsServer, make_cleaner: MakeCleaner, lock: str
) -> None:
    s3.delete_bucket(Bucket=LANDING)
    s3.create_bucket(Bucket=LANDING, ObjectLockEnabledForBucket=True)
    locked: dict[str, Any] = {"ObjectLockLegalHoldStatus": "ON"}
    if lock == "retention":
        until = datetime.now(UTC) + timedelta(days=1)
        locked = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
    ref = put(s3, **locked)
    cleaned = make_cleaner(moto).clean(ref)
    assert (cleaned.outcome, cleaned.reason) == (CleanupOutcome.REFUSED, f"Object Lock protects it ({lock})")
    assert (versions(s3, ref.key), keys(s3, DONE_BUCKET)) == ([ref.version_id], [])


@every_cleaner
def test_objects_outside_the_source_are_never_touched(s3: Any, moto: AwsServer, make_cleaner: MakeCleaner) -> None:
    ref = put(s3, "inside/a")
    assert make_cleaner(moto).clean(ref).outcome is CleanupOutcome.REFUSED
    assert (keys(s3), tags(s3, ref)) == (["inside/a"], {})


@every_cleaner
def test_a_missing_bucket_is_an_error_and_not_a_missing_object(
    s3: Any, moto: AwsServer, make_cleaner: MakeCleaner
) -> None:
    ref = put(s3)
    s3.delete_object(Bucket=LANDING, Key=ref.key)
    s3.delete_bucket(Bucket=LANDING)
    with pytest.raises(ObjectDenied, match="the bucket does not exist"):
        make_cleaner(moto).clean(ref)


def test_a_store_without_conditional_deletes_is_refused(start_fauxqs: Any) -> None:
    server = start_fauxqs()
    s3 = server.client("s3")
    for bucket in (LANDING, DONE_BUCKET):
        s3.create_bucket(Bucket=bucket)
    ref = put(s3)
    for make_cleaner in (deleter, mover):
        with pytest.raises(ConfigurationError, match="ignores If-Match"):
            make_cleaner(server).clean(ref)
    assert (keys(s3), keys(s3, DONE_BUCKET)) == (["in/a.jsonl"], [])
