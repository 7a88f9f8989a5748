"""Tagging, moving and deleting objects in S3 that are processed, each in exactly the version that was.

Where the bucket keeps versions, every request names the version. Where it does not, each carries the ETag as a
condition, and S3 itself refuses it once another object is there ("Conditional deletes" in the Amazon S3 user guide). A
store that does not look at the condition would delete what is not read yet: that is tried before the first delete, on a
key that does not exist, and such a store is refused.
"""

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.errors import ConfigurationError, ObjectDenied, PenstockError, TemporaryError
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.cleanup import ALREADY, ASIDE_PREFIX, CHANGED, DONE, GONE, Cleaned, refused
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_copy import Copier, TargetTaken
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3_client import requester, service_client
from penstock.storage.s3_faults import Kind, fault_of, is_of_s3

TAGS_MAX = 10  # of one object
_NO_ETAG = '"00000000000000000000000000000000"'
_LOCKED = "object lock"  # in AWS's message; others say WORM
Facts = Mapping[str, Any]  # what S3 says of an object


class _S3Cleaner(ABC):
    """What all of them share. See `penstock.objects.cleanup.Cleaner`."""

    def __init__(self, source: S3Address, aws: Aws, *, probe: Probe = no_probe) -> None:
        self._source = source
        self._aws = aws
        self._probe = probe
        self._lock = threading.Lock()
        self._conditions_hold = False  # this and the next: found out once, under the lock
        self._bucket_is_there = False

    def clean(self, ref: ObjectRef) -> Cleaned:
        if not self._source.holds(ref.bucket, ref.key):
            return refused("it lies outside the source")
        try:
            facts = self._client.head_object(**self._version(ref), **requester(self._aws))
            return self._cleaned(ref, facts)
        except TargetTaken:
            return refused("both names that it could have below the target are taken")
        except Exception as error:
            if not is_of_s3(error):
                raise
            met = self._met(ref, error)
        if met is GONE:
            self._check_bucket(ref.bucket)
        return met

    @abstractmethod
    def _cleaned(self, ref: ObjectRef, facts: Facts) -> Cleaned:
        """Do it to the object that is there in the right version; raises as boto3 does."""

    def _met(self, ref: ObjectRef, error: Exception) -> Cleaned:
        return outcome_of(ref, error)

    @property
    def _client(self) -> Any:
        return service_client(self._aws)

    def _version(self, ref: ObjectRef) -> dict[str, str]:
        """The arguments of a request for exactly this version."""
        at = {"Bucket": ref.bucket, "Key": ref.key}
        return at | ({"VersionId": ref.version_id} if ref.version_id else {"IfMatch": f'"{ref.etag}"'})

    def _removed(self, ref: ObjectRef) -> Cleaned:
        if not ref.version_id:
            self._check_conditions(ref.bucket)
        self._client.delete_object(**self._version(ref), **requester(self._aws))
        return DONE

    def _check_bucket(self, bucket: str) -> None:
        """Raise `ObjectDenied` where the bucket itself is missing, as it is at a wrong endpoint: a HEAD of an object
        says the same of both."""
        with self._lock:
            if self._bucket_is_there:
                return
            try:
                self._client.head_bucket(Bucket=bucket)
            except Exception as error:
                if is_of_s3(error) and fault_of(error).kind in (Kind.MISSING, Kind.NO_BUCKET):
                    raise ObjectDenied(f"s3://{bucket} cannot be cleaned up: there is no such bucket") from None
                if not is_of_s3(error):
                    raise
                if (fault := fault_of(error)).kind is not Kind.DENIED:  # it is there, and we may not look
                    raise _fault(f"s3://{bucket} cannot be cleaned up: {fault.text}", fault.kind) from None
            self._bucket_is_there = True

    def _check_conditions(self, bucket: str) -> None:
        """Raise `ConfigurationError` where the store deletes without looking at the ETag."""
        with self._lock:
            if self._conditions_hold:
                return
            key = f"{self._source.folder}{ASIDE_PREFIX}{secrets.token_hex(8)}"  # there is no such object
            try:
                self._client.delete_object(Bucket=bucket, Key=key, IfMatch=_NO_ETAG, **requester(self._aws))
            except Exception as error:
                if not is_of_s3(error) or fault_of(error).kind not in (Kind.MISSING, Kind.CHANGED):
                    raise
                self._conditions_hold = True
                return
        raise ConfigurationError(
            f"The store of s3://{bucket} deletes without looking at If-Match, so it could delete an object that came "
            "later under the same key: let the bucket keep versions, or tag the objects and let a rule expire them."
        )


class S3Deleter(_S3Cleaner):
    """Deletes the version that was processed, for good; in a bucket without versions, the object."""

    def _cleaned(self, ref: ObjectRef, facts: Facts) -> Cleaned:
        return _lock_of(facts) or self._removed(ref)


class S3Mover(_S3Cleaner):
    """Copies the version below the target, under the key that it has in the source, and deletes it here then."""

    def __init__(self, source: S3Address, target: S3Address, aws: Aws, *, probe: Probe = no_probe) -> None:
        super().__init__(source, aws, probe=probe)
        self._target = target
        self._copier = Copier(aws)

    def _cleaned(self, ref: ObjectRef, facts: Facts) -> Cleaned:
        if locked := _lock_of(facts):
            return locked
        if not ref.version_id:
            self._check_conditions(ref.bucket)  # before there is a copy
        self._copier.copy(ref, facts, bucket=self._target.bucket, key=self._key(ref))
        self._probe(Step.SET_ASIDE)
        return self._removed(ref)

    def _key(self, ref: ObjectRef) -> str:
        below = ref.key.removeprefix(self._source.folder) if ref.key != self._source.prefix else ref.key.split("/")[-1]
        return f"{self._target.folder}{below}"


class S3Tagger(_S3Cleaner):
    """Adds tags to the version, and keeps those that it has.

    S3 tags on no condition, so where there are no versions the object may be exchanged meanwhile: it is looked at again
    afterwards, and a wrong tag taken off, also one that an earlier try left.
    """

    def __init__(self, source: S3Address, tags: Mapping[str, str], aws: Aws, *, probe: Probe = no_probe) -> None:
        super().__init__(source, aws, probe=probe)
        self._tags = dict(tags)

    def _cleaned(self, ref: ObjectRef, facts: Facts) -> Cleaned:  # noqa: ARG002 - the base class's signature
        before = self._read(ref)
        wanted = before | self._tags
        if wanted == before:
            return ALREADY
        if len(wanted) > TAGS_MAX:
            return refused(f"it would have more than {TAGS_MAX} tags")
        self._write(ref, wanted)
        self._probe(Step.SET_ASIDE)
        if not ref.version_id:
            self._client.head_object(**self._version(ref), **requester(self._aws))
        return DONE

    def _met(self, ref: ObjectRef, error: Exception) -> Cleaned:
        met = outcome_of(ref, error)
        if met is CHANGED and not ref.version_id:
            self._take_off(ref)
        return met

    def _take_off(self, ref: ObjectRef) -> None:
        try:
            there = self._read(ref)
            kept = {name: value for name, value in there.items() if self._tags.get(name) != value}
            if kept != there:
                self._write(ref, kept)
        except Exception as error:
            if not is_of_s3(error):
                raise
            outcome_of(ref, error)  # gone meanwhile, or told as a fault

    def _read(self, ref: ObjectRef) -> dict[str, str]:
        answer = self._client.get_object_tagging(**self._tagged(ref), **requester(self._aws))
        return {tag["Key"]: tag["Value"] for tag in answer["TagSet"]}

    def _write(self, ref: ObjectRef, tags: Mapping[str, str]) -> None:
        tag_set = [{"Key": name, "Value": value} for name, value in tags.items()]
        if tag_set:
            self._client.put_object_tagging(**self._tagged(ref), Tagging={"TagSet": tag_set}, **requester(self._aws))
        else:
            self._client.delete_object_tagging(**self._tagged(ref))

    def _tagged(self, ref: ObjectRef) -> dict[str, str]:
        return {name: value for name, value in self._version(ref).items() if name != "IfMatch"}


def outcome_of(ref: ObjectRef, error: Exception) -> Cleaned:
    """What S3's refusal means for the object. Raises what is no matter of this object alone, as `Cleaner` says."""
    fault = fault_of(error)
    match fault.kind:
        case Kind.MISSING:
            return GONE
        case Kind.CHANGED:
            return CHANGED
        case Kind.DENIED if _is_lock(error):
            return refused("Object Lock keeps it")
        case Kind.INVALID if ref.version_id:
            return GONE  # a version id that never was one of this bucket
        case Kind.ARCHIVED | Kind.INVALID | Kind.RANGE:
            return refused(fault.text)
    raise _fault(f"{ref.uri} cannot be cleaned up: {fault.text}", fault.kind) from None


def _fault(text: str, kind: Kind) -> PenstockError:
    if kind in (Kind.DENIED, Kind.LOCKED, Kind.NO_BUCKET):
        return ObjectDenied(text)
    return ConfigurationError(f"{text}.") if kind is Kind.SETTINGS else TemporaryError(text)


def _lock_of(facts: Facts) -> Cleaned | None:
    """Why S3 would refuse to delete the version, as far as we may see it: asked before a copy is made for nothing."""
    until = facts.get("ObjectLockRetainUntilDate")
    if facts.get("ObjectLockLegalHoldStatus") == "ON":
        return refused("Object Lock keeps it (legal hold)")
    if until is not None and until > datetime.now(UTC):
        return refused("Object Lock keeps it (retention)")
    return None


def _is_lock(error: Exception) -> bool:
    response = getattr(error, "response", None) or {}
    message = str(response.get("Error", {}).get("Message", ""))
    return _LOCKED in message.lower() or "WORM" in message
