"""Tag, move or delete processed objects in S3, each in exactly the version that was processed.

In a versioned bucket every request names the version. Otherwise each request carries the ETag as a condition, and S3
refuses it if the key holds another object by then ("Conditional deletes" in the Amazon S3 user guide). A store that
ignores the condition could delete an unread object. So before the first delete the condition is tested on a key that
does not exist, and such a store is rejected.

`Copier` copies one version to another key, with metadata and tags, and never overwrites. S3 copies internally: in one
request, or in parts if the object is large. If another object has the requested key, an id of the version is appended
to the key. An existing copy from an earlier try is recognised by its bytes and metadata, or by that id.
"""

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from penstock.errors import ConfigurationError, ObjectDenied, PenstockError, TemporaryError
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.cleanup import ALREADY, ASIDE_PREFIX, CHANGED, DONE, MISSING, CleanupResult, refused, second_name
from penstock.objects.reference import ObjectRef
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3 import RefusalKind, fault_of, is_of_s3, requester, service_client

COPY_BYTES_MAX = 1 << 30  # per request; S3 allows five times that, but then responds late
PART_BYTES = 512 << 20
PARTS_MAX = 10_000

_SYSTEM_METADATA = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Expires",
    "Metadata",
)
_COPIED_HEADERS = ("StorageClass", "WebsiteRedirectLocation")  # a copy in one request keeps all others automatically
Facts = Mapping[str, Any]


class TargetTaken(PenstockError):
    """Both possible keys of the copy are taken by other objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedCopy:
    """One copy to be made."""

    ref: ObjectRef
    facts: Facts  # the source's HEAD response
    bucket: str
    key: str

    @property
    def at(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key}

    @property
    def source(self) -> dict[str, Any]:
        """The request arguments for the source, with the condition that it has not changed."""
        named = {"Bucket": self.ref.bucket, "Key": self.ref.key}
        if self.ref.version_id:
            return {"CopySource": {**named, "VersionId": self.ref.version_id}}
        return {"CopySource": named, "CopySourceIfMatch": f'"{self.ref.etag}"'}


@dataclass(frozen=True, slots=True)
class Copier:
    """A copier of objects within S3. Thread-safe."""

    aws: Aws
    copy_bytes_max: int = COPY_BYTES_MAX
    part_bytes: int = PART_BYTES

    def copy(self, ref: ObjectRef, facts: Facts, *, bucket: str, key: str) -> None:
        """Ensure that a copy of the version exists under the key, or under the key with the version's id.

        ``facts`` is S3's response to a HEAD of the version. Raises `TargetTaken`, and the errors of boto3.
        """
        for name in (key, second_name(key, ref)):
            wanted = _PlannedCopy(ref=ref, facts=facts, bucket=bucket, key=name)
            if self._is_there(wanted, by_id=name != key) or self._try_copy(wanted):
                return
        raise TargetTaken(f"{ref.uri} cannot be copied: both possible keys in {bucket} are taken")

    def _try_copy(self, wanted: _PlannedCopy) -> bool:
        """Copy unless the key is taken. Return False if another object has it."""
        if self._head(wanted) is not None:
            return False
        try:
            if wanted.ref.size_bytes <= self.copy_bytes_max:
                self._copy_whole(wanted)
            else:
                self._copy_multipart(wanted)
        except Exception as error:
            # Either the source has changed, or another client has written to the key before us.
            if not (is_of_s3(error) and fault_of(error).kind is RefusalKind.CHANGED) or self._head(wanted) is None:
                raise
            return False
        return True

    def _is_there(self, wanted: _PlannedCopy, *, by_id: bool) -> bool:
        there = self._head(wanted)
        if there is None or there["ContentLength"] != wanted.ref.size_bytes:
            return False
        return by_id or all(there.get(name) == wanted.facts.get(name) for name in ("ETag", *_SYSTEM_METADATA))

    def _head(self, wanted: _PlannedCopy) -> Facts | None:
        try:
            found: Facts = self._client.head_object(**wanted.at, **self._payer)
        except Exception as error:
            if is_of_s3(error) and fault_of(error).kind is RefusalKind.MISSING:
                return None
            raise
        return found

    def _copy_whole(self, wanted: _PlannedCopy) -> None:
        kept = {name: wanted.facts[name] for name in _COPIED_HEADERS if wanted.facts.get(name)}
        self._client.copy_object(
            **wanted.at, **wanted.source, **kept, **self._if_none_match("CopyObject"), **self._payer
        )

    def _copy_multipart(self, wanted: _PlannedCopy) -> None:
        kept = {name: wanted.facts[name] for name in (*_SYSTEM_METADATA, *_COPIED_HEADERS) if wanted.facts.get(name)}
        tags = self._tags(wanted.ref)
        tagging = {"Tagging": urlencode(tags)} if tags else {}
        upload = self._client.create_multipart_upload(**wanted.at, **kept, **tagging, **self._payer)
        part_of = {**wanted.at, "UploadId": upload["UploadId"], **self._payer}
        try:
            parts = [self._part(wanted, part_of, number, span) for number, span in enumerate(self._spans(wanted), 1)]
            self._client.complete_multipart_upload(
                **part_of, MultipartUpload={"Parts": parts}, **self._if_none_match("CompleteMultipartUpload")
            )
        except BaseException:
            self._client.abort_multipart_upload(**part_of)
            raise

    def _part(self, wanted: _PlannedCopy, part_of: Mapping[str, Any], number: int, span: str) -> dict[str, Any]:
        response = self._client.upload_part_copy(**part_of, **wanted.source, PartNumber=number, CopySourceRange=span)
        return {"PartNumber": number, "ETag": response["CopyPartResult"]["ETag"]}

    def _spans(self, wanted: _PlannedCopy) -> list[str]:
        size = wanted.ref.size_bytes
        step = max(self.part_bytes, -(-size // PARTS_MAX))
        return [f"bytes={start}-{min(start + step, size) - 1}" for start in range(0, size, step)]

    def _tags(self, ref: ObjectRef) -> list[tuple[str, str]]:
        version = {"VersionId": ref.version_id} if ref.version_id else {}
        response = self._client.get_object_tagging(Bucket=ref.bucket, Key=ref.key, **version, **self._payer)
        return [(tag["Key"], tag["Value"]) for tag in response["TagSet"]]

    def _if_none_match(self, operation: str) -> dict[str, str]:
        """Return the If-None-Match condition if this boto3 version supports it. Otherwise the HEAD before the copy must
        suffice: all cleaners process the versions of a key in the same order, one after another."""
        known = self._client.meta.service_model.operation_model(operation).input_shape.members
        return {"IfNoneMatch": "*"} if "IfNoneMatch" in known else {}

    @property
    def _client(self) -> Any:
        return service_client(self.aws)

    @property
    def _payer(self) -> Mapping[str, str]:
        return requester(self.aws)


TAGS_MAX = 10  # per object
_NO_ETAG = '"00000000000000000000000000000000"'
_LOCKED = "object lock"  # in AWS's message; other stores mention WORM


class _S3Cleaner(ABC):
    """Common part of the cleaners for S3. See `penstock.objects.cleanup.Cleaner`. Thread-safe."""

    def __init__(self, source: S3Address, aws: Aws, *, probe: Probe = no_probe) -> None:
        self._source = source
        self._aws = aws
        self._probe = probe
        self._lock = threading.Lock()
        self._conditions_checked = False  # this field and the next are determined once, under the lock
        self._bucket_checked = False

    def clean(self, ref: ObjectRef) -> CleanupResult:
        if not self._source.contains(ref.bucket, ref.key):
            return refused("it is outside the source")
        try:
            facts = self._client.head_object(**self._version(ref), **requester(self._aws))
            return self._clean(ref, facts)
        except TargetTaken:
            return refused("both possible names below the target are taken")
        except Exception as error:
            if not is_of_s3(error):
                raise
            met = self._result_of(ref, error)
        if met is MISSING:
            self._check_bucket(ref.bucket)
        return met

    @abstractmethod
    def _clean(self, ref: ObjectRef, facts: Facts) -> CleanupResult:
        """Clean up the object, which exists in the right version. Raises the errors of boto3."""

    def _result_of(self, ref: ObjectRef, error: Exception) -> CleanupResult:
        return outcome_of(ref, error)

    @property
    def _client(self) -> Any:
        return service_client(self._aws)

    def _version(self, ref: ObjectRef) -> dict[str, str]:
        """Return the request arguments for exactly this version."""
        at = {"Bucket": ref.bucket, "Key": ref.key}
        return at | ({"VersionId": ref.version_id} if ref.version_id else {"IfMatch": f'"{ref.etag}"'})

    def _delete(self, ref: ObjectRef) -> CleanupResult:
        if not ref.version_id:
            self._check_conditions(ref.bucket)
        self._client.delete_object(**self._version(ref), **requester(self._aws))
        return DONE

    def _check_bucket(self, bucket: str) -> None:
        """Raise `ObjectDenied` if the bucket itself is missing, e.g. at a wrong endpoint. The HEAD of an object does
        not distinguish that from a missing object."""
        with self._lock:
            if self._bucket_checked:
                return
            try:
                self._client.head_bucket(Bucket=bucket)
            except Exception as error:
                if is_of_s3(error) and fault_of(error).kind in (RefusalKind.MISSING, RefusalKind.NO_BUCKET):
                    raise ObjectDenied(f"s3://{bucket} cannot be cleaned up: the bucket does not exist") from None
                if not is_of_s3(error):
                    raise
                if (fault := fault_of(error)).kind is not RefusalKind.DENIED:  # DENIED: the bucket exists
                    raise _fault(f"s3://{bucket} cannot be cleaned up: {fault.text}", fault.kind) from None
            self._bucket_checked = True

    def _check_conditions(self, bucket: str) -> None:
        """Raise `ConfigurationError` if the store ignores If-Match when it deletes."""
        with self._lock:
            if self._conditions_checked:
                return
            key = f"{self._source.folder}{ASIDE_PREFIX}{secrets.token_hex(8)}"  # a key that does not exist
            try:
                self._client.delete_object(Bucket=bucket, Key=key, IfMatch=_NO_ETAG, **requester(self._aws))
            except Exception as error:
                if not is_of_s3(error) or fault_of(error).kind not in (RefusalKind.MISSING, RefusalKind.CHANGED):
                    raise
                self._conditions_checked = True
                return
        raise ConfigurationError(
            f"The store of s3://{bucket} ignores If-Match when it deletes, so it could delete an object that came "
            "later under the same key: let the bucket keep versions, or tag the objects and let a rule expire them."
        )


class S3Deleter(_S3Cleaner):
    """A cleaner that permanently deletes the processed version; in an unversioned bucket, the object."""

    def _clean(self, ref: ObjectRef, facts: Facts) -> CleanupResult:
        return _lock_of(facts) or self._delete(ref)


class S3Mover(_S3Cleaner):
    """A cleaner that copies the version below the target, under its relative key, then deletes it from the source."""

    def __init__(self, source: S3Address, target: S3Address, aws: Aws, *, probe: Probe = no_probe) -> None:
        super().__init__(source, aws, probe=probe)
        self._target = target
        self._copier = Copier(aws)

    def _clean(self, ref: ObjectRef, facts: Facts) -> CleanupResult:
        if locked := _lock_of(facts):
            return locked
        if not ref.version_id:
            self._check_conditions(ref.bucket)  # check before making a copy
        self._copier.copy(ref, facts, bucket=self._target.bucket, key=self._key(ref))
        self._probe(Step.SET_ASIDE)
        return self._delete(ref)

    def _key(self, ref: ObjectRef) -> str:
        below = ref.key.removeprefix(self._source.folder) if ref.key != self._source.prefix else ref.key.split("/")[-1]
        return f"{self._target.folder}{below}"


class S3Tagger(_S3Cleaner):
    """A cleaner that adds tags to the version and keeps its existing tags.

    S3 cannot tag conditionally. So in an unversioned bucket the object may be replaced during the request: it is
    checked again afterwards, and our tags are removed from a wrong object, including those of an earlier try.
    """

    def __init__(self, source: S3Address, tags: Mapping[str, str], aws: Aws, *, probe: Probe = no_probe) -> None:
        super().__init__(source, aws, probe=probe)
        self._tags = dict(tags)

    def _clean(self, ref: ObjectRef, facts: Facts) -> CleanupResult:  # noqa: ARG002 - the base class's signature
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

    def _result_of(self, ref: ObjectRef, error: Exception) -> CleanupResult:
        met = outcome_of(ref, error)
        if met is CHANGED and not ref.version_id:
            self._remove_tags(ref)
        return met

    def _remove_tags(self, ref: ObjectRef) -> None:
        try:
            there = self._read(ref)
            kept = {name: value for name, value in there.items() if self._tags.get(name) != value}
            if kept != there:
                self._write(ref, kept)
        except Exception as error:
            if not is_of_s3(error):
                raise
            outcome_of(ref, error)  # deleted meanwhile, or raised as a fault

    def _read(self, ref: ObjectRef) -> dict[str, str]:
        response = self._client.get_object_tagging(**self._tagged(ref), **requester(self._aws))
        return {tag["Key"]: tag["Value"] for tag in response["TagSet"]}

    def _write(self, ref: ObjectRef, tags: Mapping[str, str]) -> None:
        tag_set = [{"Key": name, "Value": value} for name, value in tags.items()]
        if tag_set:
            self._client.put_object_tagging(**self._tagged(ref), Tagging={"TagSet": tag_set}, **requester(self._aws))
        else:
            self._client.delete_object_tagging(**self._tagged(ref))

    def _tagged(self, ref: ObjectRef) -> dict[str, str]:
        return {name: value for name, value in self._version(ref).items() if name != "IfMatch"}


def outcome_of(ref: ObjectRef, error: Exception) -> CleanupResult:
    """Return the result that S3's error means for this object. Raise errors of a wider cause; see `Cleaner`."""
    fault = fault_of(error)
    match fault.kind:
        case RefusalKind.MISSING:
            return MISSING
        case RefusalKind.CHANGED:
            return CHANGED
        case RefusalKind.DENIED if _is_lock(error):
            return refused("Object Lock protects it")
        case RefusalKind.INVALID if ref.version_id:
            return MISSING  # an id that never was a version in this bucket
        case RefusalKind.ARCHIVED | RefusalKind.INVALID | RefusalKind.RANGE:
            return refused(fault.text)
    raise _fault(f"{ref.uri} cannot be cleaned up: {fault.text}", fault.kind) from None


def _fault(text: str, kind: RefusalKind) -> PenstockError:
    if kind in (RefusalKind.DENIED, RefusalKind.LOCKED, RefusalKind.NO_BUCKET):
        return ObjectDenied(text)
    return ConfigurationError(f"{text}.") if kind is RefusalKind.SETTINGS else TemporaryError(text)


def _lock_of(facts: Facts) -> CleanupResult | None:
    """Return a refusal if Object Lock visibly protects the version. Checked first, to avoid a useless copy."""
    until = facts.get("ObjectLockRetainUntilDate")
    if facts.get("ObjectLockLegalHoldStatus") == "ON":
        return refused("Object Lock protects it (legal hold)")
    if until is not None and until > datetime.now(UTC):
        return refused("Object Lock protects it (retention)")
    return None


def _is_lock(error: Exception) -> bool:
    response = getattr(error, "response", None) or {}
    message = str(response.get("Error", {}).get("Message", ""))
    return _LOCKED in message.lower() or "WORM" in message
