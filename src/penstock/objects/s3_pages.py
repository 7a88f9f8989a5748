"""S3's listings, a page at a time: the objects that are there now, each with its version where there are versions.

Only ListObjectVersions tells versions. Where it may not be called, or the store knows none, the plain listing does for
a bucket that never kept any.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.errors import ConfigurationError, TemporaryError, UsageError
from penstock.objects.s3_spans import PAGE_KEYS, WHOLE, Span
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3_client import requester, service_client
from penstock.storage.s3_faults import Kind, code_of, fault_of, is_identity, is_of_s3

_VERSIONS = "list_object_versions"
_PLAIN = "list_objects_v2"
_ENTRIES = {_VERSIONS: "Versions", _PLAIN: "Contents"}
_AFTER = {_VERSIONS: "KeyMarker", _PLAIN: "StartAfter"}
_NOT_KNOWN_HERE = ("NotImplemented", "MethodNotAllowed")  # how other stores say that they keep no versions
_RESTORED = {"OptionalObjectAttributes": ["RestoreStatus"]}

Entry = Mapping[str, Any]  # as boto3 has it; no version id in it where there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some keys, in S3's order, which is that of their UTF-8."""

    entries: Sequence[Entry]
    last_key: str | None  # of the page, deleted ones included; None where nothing follows


class S3Pages:
    """Of one prefix: the object of that very name, and all below it; or a span of these keys. ``all_versions``: with
    those that were overwritten.

    Raises `UsageError` where there is no such place, `ConfigurationError` where we may not list it, and
    `TemporaryError`.
    """

    def __init__(
        self,
        address: S3Address,
        aws: Aws,
        *,
        page_keys: int = PAGE_KEYS,
        span: Span = WHOLE,
        all_versions: bool = False,
    ) -> None:
        self._address = address
        self._aws = aws
        self._page_keys = page_keys
        self._span = span
        self._all_versions = all_versions
        self.bucket = address.bucket
        self.below = address.folder  # what keys below the prefix begin with

    def __iter__(self) -> Iterator[Page]:
        operation = self._operation()
        if self._address.prefix and not self._span.after:  # it is the first of all whose names begin so
            found = self._ask(operation, Prefix=self._address.prefix, MaxKeys=self._named_max, **_RESTORED)
            named = [entry for entry in self._present(operation, found) if entry["Key"] == self._address.prefix]
            yield Page(entries=named, last_key=None)
        for page in self._paged(operation):
            last_key = _last_key(operation, page) if page.get("IsTruncated") else None
            entries = self._present(operation, page)
            yield Page(entries=[entry for entry in entries if self._span.holds(entry["Key"])], last_key=last_key)
            if last_key is not None and self._span.until is not None and last_key > self._span.until:
                return

    @property
    def _named_max(self) -> int:
        return self._page_keys if self._all_versions else 1

    def is_any(self, beginning: str) -> bool:
        """Whether there is an object whose key begins so."""
        return bool(self._ask(_PLAIN, Prefix=beginning, MaxKeys=1).get("Contents"))

    def _present(self, operation: str, page: Mapping[str, Any]) -> Sequence[Entry]:
        entries: Sequence[Entry] = page.get(_ENTRIES[operation], ())
        return entries if self._all_versions else [entry for entry in entries if entry.get("IsLatest", True)]

    def _operation(self) -> str:
        try:
            self._client().list_object_versions(**self._asked(Prefix=self.below, MaxKeys=1))
        except Exception as error:
            if not _may_be_asked_otherwise(error):
                self._refuse(error)
            self._check_unversioned()
            return _PLAIN
        return _VERSIONS

    def _check_unversioned(self) -> None:
        # Without its version's id, an object would be taken for another one than its notification announces.
        try:
            status = self._client().get_bucket_versioning(Bucket=self._address.bucket).get("Status")
        except Exception as error:
            if not _may_be_asked_otherwise(error):
                self._refuse(error)
            status = "we may not ask"
        if status is not None:
            raise ConfigurationError(
                f"{self._address} cannot be listed: its bucket may keep versions (versioning: {status}), and they are "
                "not told; grant s3:ListBucketVersions."
            )

    def _paged(self, operation: str) -> Iterator[Mapping[str, Any]]:
        asked = self._asked(Prefix=self.below, MaxKeys=self._page_keys, **_RESTORED)
        if self._span.after:
            asked[_AFTER[operation]] = self._span.after
        pages = iter(self._client().get_paginator(operation).paginate(**asked))
        while True:
            try:
                page = next(pages, None)
            except Exception as error:
                self._refuse(error)
            if page is None:
                return
            yield page

    def _ask(self, operation: str, **asked: Any) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = getattr(self._client(), operation)(**self._asked(**asked))
        except Exception as error:
            self._refuse(error)
        return answer

    def _asked(self, **asked: Any) -> dict[str, Any]:
        return {"Bucket": self._address.bucket, **asked, **requester(self._aws)}

    def _client(self) -> Any:
        return service_client(self._aws)

    def _refuse(self, error: Exception) -> NoReturn:
        if not is_of_s3(error):
            raise error
        fault = fault_of(error)
        if fault.kind is Kind.DENIED and not is_identity(error):
            raise ConfigurationError(
                f"{self._address} cannot be listed: access is denied; grant s3:ListBucket and s3:ListBucketVersions."
            ) from None
        text = f"{self._address} cannot be listed: {fault.text}."
        match fault.kind:
            case Kind.PASSING:
                raise TemporaryError(text) from None
            case Kind.SETTINGS | Kind.DENIED | Kind.LOCKED:
                raise ConfigurationError(text) from None
            case _:
                raise UsageError(text) from None


def _last_key(operation: str, page: Mapping[str, Any]) -> str | None:
    keys = [entry["Key"] for entry in (*page.get(_ENTRIES[operation], ()), *page.get("DeleteMarkers", ()))]
    return max(keys, key=str.encode, default=None)


def _may_be_asked_otherwise(error: Exception) -> bool:
    if not is_of_s3(error) or is_identity(error):
        return False
    return fault_of(error).kind is Kind.DENIED or code_of(error) in _NOT_KNOWN_HERE
