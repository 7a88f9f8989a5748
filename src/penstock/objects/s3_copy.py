"""Copying one version of an object to another key in S3, with its metadata and tags, and over nothing.

S3 copies without the bytes leaving it: in one request, or part by part where the object is large. The copy has the key
that is asked for; where another object has that one, an id of the version is added to it. Whether what is there already
is this copy, of an earlier try, is told by its bytes and metadata, or by that id.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from penstock.errors import PenstockError
from penstock.objects.cleanup import second_name
from penstock.objects.reference import ObjectRef
from penstock.storage.aws import Aws
from penstock.storage.s3_client import requester, service_client
from penstock.storage.s3_faults import Kind, fault_of, is_of_s3

COPY_BYTES_MAX = 1 << 30  # in one request; S3 takes five times that, and answers late then
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
_KEPT = ("StorageClass", "WebsiteRedirectLocation")  # a copy in one request keeps all the rest by itself
Facts = Mapping[str, Any]


class TargetTaken(PenstockError):
    """Other objects have both keys that the copy could get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """One copy to be made."""

    ref: ObjectRef
    facts: Facts  # of the source
    bucket: str
    key: str

    @property
    def at(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key}

    @property
    def source(self) -> dict[str, Any]:
        """What is copied, and the condition that it is still that."""
        named = {"Bucket": self.ref.bucket, "Key": self.ref.key}
        if self.ref.version_id:
            return {"CopySource": {**named, "VersionId": self.ref.version_id}}
        return {"CopySource": named, "CopySourceIfMatch": f'"{self.ref.etag}"'}


@dataclass(frozen=True, slots=True)
class Copier:
    """Makes copies. Any thread may use it."""

    aws: Aws
    copy_bytes_max: int = COPY_BYTES_MAX
    part_bytes: int = PART_BYTES

    def copy(self, ref: ObjectRef, facts: Facts, *, bucket: str, key: str) -> None:
        """See to it that the version is there under the key, or under the one with its id.

        ``facts`` is S3's answer to a HEAD of the version. Raises `TargetTaken`, and as boto3 does.
        """
        for name in (key, second_name(key, ref)):
            wanted = _Copy(ref=ref, facts=facts, bucket=bucket, key=name)
            if self._is_there(wanted, by_id=name != key) or self._copied(wanted):
                return
        raise TargetTaken(f"{ref.uri} has no key left in {bucket}")

    def _copied(self, wanted: _Copy) -> bool:
        """Make it, unless something is there; False where that is another object."""
        if self._head(wanted) is not None:
            return False
        try:
            if wanted.ref.size_bytes <= self.copy_bytes_max:
                self._at_once(wanted)
            else:
                self._in_parts(wanted)
        except Exception as error:
            # Either the source is another one by now, or somebody was at the key before us.
            if not (is_of_s3(error) and fault_of(error).kind is Kind.CHANGED) or self._head(wanted) is None:
                raise
            return False
        return True

    def _is_there(self, wanted: _Copy, *, by_id: bool) -> bool:
        there = self._head(wanted)
        if there is None or there["ContentLength"] != wanted.ref.size_bytes:
            return False
        return by_id or all(there.get(name) == wanted.facts.get(name) for name in ("ETag", *_SYSTEM_METADATA))

    def _head(self, wanted: _Copy) -> Facts | None:
        try:
            found: Facts = self._client.head_object(**wanted.at, **self._payer)
        except Exception as error:
            if is_of_s3(error) and fault_of(error).kind is Kind.MISSING:
                return None
            raise
        return found

    def _at_once(self, wanted: _Copy) -> None:
        kept = {name: wanted.facts[name] for name in _KEPT if wanted.facts.get(name)}
        self._client.copy_object(
            **wanted.at, **wanted.source, **kept, **self._if_nothing_there("CopyObject"), **self._payer
        )

    def _in_parts(self, wanted: _Copy) -> None:
        kept = {name: wanted.facts[name] for name in (*_SYSTEM_METADATA, *_KEPT) if wanted.facts.get(name)}
        tags = self._tags(wanted.ref)
        tagging = {"Tagging": urlencode(tags)} if tags else {}
        upload = self._client.create_multipart_upload(**wanted.at, **kept, **tagging, **self._payer)
        part_of = {**wanted.at, "UploadId": upload["UploadId"], **self._payer}
        try:
            parts = [self._part(wanted, part_of, number, span) for number, span in enumerate(self._spans(wanted), 1)]
            self._client.complete_multipart_upload(
                **part_of, MultipartUpload={"Parts": parts}, **self._if_nothing_there("CompleteMultipartUpload")
            )
        except BaseException:
            self._client.abort_multipart_upload(**part_of)
            raise

    def _part(self, wanted: _Copy, part_of: Mapping[str, Any], number: int, span: str) -> dict[str, Any]:
        answer = self._client.upload_part_copy(**part_of, **wanted.source, PartNumber=number, CopySourceRange=span)
        return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

    def _spans(self, wanted: _Copy) -> list[str]:
        size = wanted.ref.size_bytes
        step = max(self.part_bytes, -(-size // PARTS_MAX))
        return [f"bytes={start}-{min(start + step, size) - 1}" for start in range(0, size, step)]

    def _tags(self, ref: ObjectRef) -> list[tuple[str, str]]:
        version = {"VersionId": ref.version_id} if ref.version_id else {}
        answer = self._client.get_object_tagging(Bucket=ref.bucket, Key=ref.key, **version, **self._payer)
        return [(tag["Key"], tag["Value"]) for tag in answer["TagSet"]]

    def _if_nothing_there(self, operation: str) -> dict[str, str]:
        """The condition, where this boto3 can say it. Without it the look beforehand has to do: two cleaners take the
        versions of a key in the same order, and one after another."""
        known = self._client.meta.service_model.operation_model(operation).input_shape.members
        return {"IfNoneMatch": "*"} if "IfNoneMatch" in known else {}

    @property
    def _client(self) -> Any:
        return service_client(self.aws)

    @property
    def _payer(self) -> Mapping[str, str]:
        return requester(self.aws)
