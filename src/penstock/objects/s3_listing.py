"""The listing: a prefix in S3 -> the objects below it, as references to announce.

Duties: yield bounded chunks of the latest versions, leave out what is hidden, excluded, a table or a mere folder, and
tell in a report what was left out and what cannot be read. It opens no object.

An object has the identity here that its notification gives it: with its version's id where it has one, else the ETag.

S3's listings, a page at a time: the objects that are there now, each with its version where there are versions.

Only ListObjectVersions tells versions. Where it may not be called, or the store knows none, the plain listing does for
a bucket that never kept any.

Spans of keys: a prefix in S3, cut into parts that can be listed side by side.

S3 tells keys in order and nothing of how many there are. So the tree of their beginnings is walked, character by
character and the shallow ones first, asking each time for the next key behind all that begin so, until there are enough
branches. Where to cut is a guess; that each key is in exactly one span is not, wherever the cuts are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from penstock.errors import ConfigurationError, TemporaryError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import CHUNK_OBJECTS, TABLE_FOLDERS, ScanReport, ScanTally, SkipReason
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3 import RefusalKind, code_of, fault_of, is_identity, is_of_s3, requester, service_client

PAGE_KEYS = 1_000  # S3 gives no more at once
PROBES_MAX = 600  # requests: a second or two of looking, before thousands of pages are read
_LAST = "\U0010ffff"  # behind every character that comes after a beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The keys behind ``after``, up to and with ``until``; None: to the end."""

    after: str = ""
    until: str | None = None

    def holds(self, key: str) -> bool:
        """In S3's order, which is that of UTF-8: so is Python's, by code points."""
        return key > self.after and (self.until is None or key <= self.until)


WHOLE = Span()

Peek = Callable[[str, str], str | None]
"""``peek(beginning, after)``: the first key that begins so and comes behind ``after``; None where there is none."""


def s3_spans(address: S3Address, aws: Aws, *, parts: int, whole_keys_max: int = PAGE_KEYS) -> Sequence[Span]:
    """Spans of what lies below a prefix, about so many; one where it is few keys. Raises what boto3 does."""

    def listed(beginning: str, after: str, keys_max: int) -> Any:
        return service_client(aws).list_objects_v2(
            Bucket=address.bucket, Prefix=beginning, StartAfter=after, MaxKeys=keys_max, **requester(aws)
        )

    def peek(beginning: str, after: str) -> str | None:
        found = listed(beginning, after, 1).get("Contents", ())
        return str(found[0]["Key"]) if found else None

    if not listed(address.folder, "", whole_keys_max).get("IsTruncated"):
        return [WHOLE]
    return spans(peek, address.folder, parts=parts)


def spans(peek: Peek, below: str, *, parts: int, probes_max: int = PROBES_MAX) -> Sequence[Span]:
    """Spans that together are all keys below a beginning."""
    cuts = sorted(_branches(_BoundedPeek(peek, probes_max), below, parts))[1:]
    ends = [*cuts, None]
    return [Span(after=after, until=until) for after, until in zip(["", *cuts], ends, strict=True)]


class _BoundedPeek:
    """A peek that answers nothing more once it was asked often enough."""

    def __init__(self, peek: Peek, probes_max: int) -> None:
        self._peek = peek
        self._left = probes_max

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def __call__(self, beginning: str, after: str) -> str | None:
        if self.is_spent:
            return None
        self._left -= 1
        return self._peek(beginning, after)


def _branches(peek: _BoundedPeek, below: str, parts: int) -> Sequence[str]:
    """The first keys of about so many branches, in no order."""
    first = peek(below, "")
    if first is None:
        return []
    open_ones = deque([(below, first)])
    ended: list[str] = []
    while open_ones and len(open_ones) + len(ended) < parts and not peek.is_spent:
        beginning, first = open_ones.popleft()
        trunk = _trunk(peek, beginning, first)
        children = list(_children(peek, trunk, first))
        if len(children) == 1:  # one key alone
            ended.append(first)
        else:
            open_ones.extend(children)
    return [*ended, *(first for _, first in open_ones)]


def _trunk(peek: Peek, beginning: str, first: str) -> str:
    """As much of the first key as all keys that begin so have in common, found by halving."""
    common, beyond = len(beginning), len(first) + 1
    while beyond - common > 1:
        middle = common + 1 if common == len(beginning) else (common + beyond) // 2  # mostly they part at once
        if peek(beginning, first[:middle] + _LAST) is None:
            common = middle
        else:
            beyond = middle
    return first[:common]


def _children(peek: Peek, trunk: str, first: str) -> Iterator[tuple[str, str]]:
    """The beginnings that are longer by one character, each with its first key."""
    key: str | None = first
    while key is not None:
        child = key[: len(trunk) + 1]
        yield child, key
        key = peek(trunk, key if child == trunk else child + _LAST)
        if key is not None and key.startswith(child) and child != trunk:  # the last character that there is
            return


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
        if fault.kind is RefusalKind.DENIED and not is_identity(error):
            raise ConfigurationError(
                f"{self._address} cannot be listed: access is denied; grant s3:ListBucket and s3:ListBucketVersions."
            ) from None
        text = f"{self._address} cannot be listed: {fault.text}."
        match fault.kind:
            case RefusalKind.PASSING:
                raise TemporaryError(text) from None
            case RefusalKind.SETTINGS | RefusalKind.DENIED | RefusalKind.LOCKED:
                raise ConfigurationError(text) from None
            case _:
                raise UsageError(text) from None


def _last_key(operation: str, page: Mapping[str, Any]) -> str | None:
    keys = [entry["Key"] for entry in (*page.get(_ENTRIES[operation], ()), *page.get("DeleteMarkers", ()))]
    return max(keys, key=str.encode, default=None)


def _may_be_asked_otherwise(error: Exception) -> bool:
    if not is_of_s3(error) or is_identity(error):
        return False
    return fault_of(error).kind is RefusalKind.DENIED or code_of(error) in _NOT_KNOWN_HERE


ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")  # not GLACIER_IR, which is read like any other


class S3Listing:
    """Lists one prefix, or one object of that name.

    `chunks` may be called again for another listing; `report` tells of the last one.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        aws: Aws,
        excluded: Sequence[S3Address] = (),
        chunk_objects: int = CHUNK_OBJECTS,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        """``excluded`` prefixes need not exist. Nothing is asked yet."""
        self._bucket = address.bucket
        self._pages = S3Pages(address, aws, page_keys=page_keys)
        self._excluded = tuple(excluded)
        self._chunk_objects = chunk_objects
        self._tally = ScanTally()

    def chunks(self) -> Iterator[Sequence[ObjectRef]]:
        """List by name, in chunks of at most ``chunk_objects``; one page of S3's is held at a time.

        The first chunk raises `UsageError` where the prefix cannot be listed; each may raise `TemporaryError`.
        """
        self._tally = ScanTally()
        objects = self._objects()
        while chunk := tuple(islice(objects, self._chunk_objects)):
            yield chunk

    def report(self) -> ScanReport:
        """Of the listing so far. Each object that was left out counts."""
        return self._tally.report()

    def _objects(self) -> Iterator[ObjectRef]:
        judge = PageFilter(self._pages, self._excluded)
        for page in self._pages:
            judge.learn(page)
            for entry in page.entries:
                reason = judge.left_out(entry["Key"], entry["Size"])
                ref = reference(self._bucket, entry)
                if reason is not None:
                    self._tally.ignore(reason)
                elif is_archived(entry):
                    self._tally.note(f"{ref.uri}: archived in {entry['StorageClass']}; restore it to have it read")
                else:
                    self._tally.find(ref)
                    yield ref


class PageFilter:
    """Tells objects of a listing from what is none to work on. Pages are learnt in their order."""

    def __init__(self, pages: S3Pages, excluded: Sequence[S3Address]) -> None:
        self._pages = pages
        self._excluded = excluded
        self._tables = _TablePrefixes(pages)

    def learn(self, page: Page) -> None:
        """Know the tables that the keys of this page lie in."""
        self._tables.learn(page)

    def left_out(self, key: str, size_bytes: int) -> SkipReason | None:
        """Return why a key of the pages learnt so far is no object to work on; None for one that is."""
        bucket = self._pages.bucket
        if any(there.holds(bucket, key) for there in self._excluded) or self._tables.hold(key):
            return SkipReason.EXCLUDED
        if key.endswith("/") and size_bytes == 0:
            return SkipReason.FOLDER_MARKER
        parts = key.removeprefix(self._pages.below).split("/")
        return SkipReason.HIDDEN if any(_is_hidden(part) for part in parts) else None


class _TablePrefixes:
    """The tables and states of pipelines that lie below the prefix: their files are no source, whoever wrote them.

    S3 lists by name, and ``2024/part`` comes before ``_delta_log/``. But a folder's keys come together, so all is known
    of the folders that a page ends. Of those in which it breaks off the rest is asked about, of each once.
    """

    def __init__(self, pages: S3Pages) -> None:
        self._pages = pages
        self._found: set[str] = set()  # prefixes, each with its slash
        self._asked: set[str] = set()

    def learn(self, page: Page) -> None:
        """Know every table that a key of this page lies in."""
        for entry in page.entries:
            key = entry["Key"]
            self._found.update(folder for folder in self._folders(key) if key.startswith(_own_folders(folder)))
        for folder in self._folders(page.last_key) if page.last_key is not None else ():
            if folder not in self._asked:
                self._asked.add(folder)
                if any(self._pages.is_any(own) for own in _own_folders(folder)):
                    self._found.add(folder)

    def hold(self, key: str) -> bool:
        return bool(self._found) and any(folder in self._found for folder in self._folders(key))

    def _folders(self, key: str) -> Iterator[str]:
        """The prefixes a key lies in, from the listing's own down, each with its slash."""
        below = self._pages.below
        if key.startswith(below):
            yield below
        at = key.find("/", len(below))
        while at >= 0:
            yield key[: at + 1]
            at = key.find("/", at + 1)


def reference(bucket: str, entry: Entry) -> ObjectRef:
    """The object that an entry of a listing tells of."""
    version_id = entry.get("VersionId")
    return ObjectRef(
        bucket=bucket,
        key=entry["Key"],
        size_bytes=entry["Size"],
        version_id=version_id if version_id not in ("", "null") else None,
        etag=entry.get("ETag", "").strip('"') or None,
    )


def is_archived(entry: Entry) -> bool:
    """Whether it cannot be read as it is: archived, and not restored for a while."""
    is_restored = entry.get("RestoreStatus", {}).get("RestoreExpiryDate") is not None
    return entry.get("StorageClass") in ARCHIVED and not is_restored


def _own_folders(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}{own}/" for own in TABLE_FOLDERS)


def _is_hidden(part: str) -> bool:
    return part.startswith(".") and part not in (".", "..")  # these hide nothing: to S3 they are names like others
