"""List the objects below an S3 prefix as references, without opening any.

`S3Listing` yields bounded chunks of the latest versions. It leaves out hidden and excluded objects, tables and folder
markers, and reports the objects left out or unreadable. An object gets the same identity as from its notification:
by version id if it has one, else by ETag.

`S3Pages` lists page by page, and requests the next page while one is used. Only ListObjectVersions returns version ids.
If it is denied, or the store does not have it, the plain listing is used, but only for a bucket that has never kept
versions.

`s3_spans` cuts a prefix into spans of keys that can be listed in parallel. S3 returns keys in order but no counts. So
the tree of key prefixes is searched breadth-first, each time for the next key beyond all those with a given prefix,
until there are enough branches. The cuts are a guess, but wherever they are, each key is in exactly one span.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NoReturn

from penstock.errors import ConfigurationError, TemporaryError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import CHUNK_OBJECTS, TABLE_FOLDERS, ScanCounts, ScanReport
from penstock.objects.selection import Selection, SkipReason
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3 import RefusalKind, code_of, fault_of, is_identity, is_of_s3, requester, service_client

PAGE_KEYS = 1_000  # S3's maximum
REQUESTS_MAX = 16  # at once, to check prefixes
PROBES_MAX = 600  # requests: a second or two, before thousands of pages are read
_LAST = "\U0010ffff"  # sorts after every continuation of a prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The keys greater than ``after``, up to and including ``until``. None: no upper limit."""

    after: str = ""
    until: str | None = None

    def contains(self, key: str) -> bool:
        """Return True if the key is in the span. S3's order by UTF-8 equals Python's by code points."""
        return key > self.after and (self.until is None or key <= self.until)


WHOLE = Span()

Peek = Callable[[str, str], str | None]
"""``peek(beginning, after)``: the first key that begins so and comes behind ``after``; None where there is none."""


def s3_spans(
    address: S3Address, aws: Aws, *, prefix: str | None = None, parts: int, whole_keys_max: int = PAGE_KEYS
) -> Sequence[Span]:
    """Return about ``parts`` spans of the keys below an address, or of those with a longer prefix; one for few keys.

    Raises the errors of boto3.
    """
    below = address.folder if prefix is None else prefix

    def listed(beginning: str, after: str, keys_max: int) -> Any:
        return service_client(aws).list_objects_v2(
            Bucket=address.bucket, Prefix=beginning, StartAfter=after, MaxKeys=keys_max, **requester(aws)
        )

    def peek(beginning: str, after: str) -> str | None:
        found = listed(beginning, after, 1).get("Contents", ())
        return str(found[0]["Key"]) if found else None

    if not listed(below, "", whole_keys_max).get("IsTruncated"):
        return [WHOLE]
    return spans(peek, below, parts=parts)


def spans(peek: Peek, below: str, *, parts: int, probes_max: int = PROBES_MAX) -> Sequence[Span]:
    """Return spans that together cover all keys with a prefix."""
    cuts = sorted(_branches(_BoundedPeek(peek, probes_max), below, parts))[1:]
    ends = [*cuts, None]
    return [Span(after=after, until=until) for after, until in zip(["", *cuts], ends, strict=True)]


class _BoundedPeek:
    """A `Peek` with a limited number of requests. Afterwards it returns None."""

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
    """Return the first keys of about ``parts`` branches, unordered."""
    first = peek(below, "")
    if first is None:
        return []
    open_ones = deque([(below, first)])
    ended: list[str] = []
    while open_ones and len(open_ones) + len(ended) < parts and not peek.is_spent:
        beginning, first = open_ones.popleft()
        trunk = _trunk(peek, beginning, first)
        children = list(_children(peek, trunk, first))
        if len(children) == 1:  # a single key
            ended.append(first)
        else:
            open_ones.extend(children)
    return [*ended, *(first for _, first in open_ones)]


def _trunk(peek: Peek, beginning: str, first: str) -> str:
    """Return the longest prefix that all keys beginning with ``beginning`` share, by binary search in the first key."""
    common, beyond = len(beginning), len(first) + 1
    while beyond - common > 1:
        middle = common + 1 if common == len(beginning) else (common + beyond) // 2  # keys usually differ at once
        if peek(beginning, first[:middle] + _LAST) is None:
            common = middle
        else:
            beyond = middle
    return first[:common]


def _children(peek: Peek, trunk: str, first: str) -> Iterator[tuple[str, str]]:
    """Yield the prefixes that are one character longer than ``trunk``, each with its first key."""
    key: str | None = first
    while key is not None:
        child = key[: len(trunk) + 1]
        yield child, key
        key = peek(trunk, key if child == trunk else child + _LAST)
        if key is not None and key.startswith(child) and child != trunk:  # the greatest possible character
            return


_VERSIONS = "list_object_versions"
_PLAIN = "list_objects_v2"
_ENTRIES = {_VERSIONS: "Versions", _PLAIN: "Contents"}
_AFTER = {_VERSIONS: "KeyMarker", _PLAIN: "StartAfter"}
_NOT_KNOWN_HERE = ("NotImplemented", "MethodNotAllowed")  # error codes of other stores without versions
_RESTORED = {"OptionalObjectAttributes": ["RestoreStatus"]}

Entry = Mapping[str, Any]  # as boto3 returns it; without a version id in unversioned buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Consecutive keys in S3's order, which is that of their UTF-8 bytes."""

    entries: Sequence[Entry]
    last_key: str | None  # including deleted keys; None on the last page


class S3Pages:
    """Pages of one prefix: the object of exactly that name and all objects below it, or a span of these keys.

    With ``all_versions``, overwritten versions are included. Raises `UsageError` if the bucket or prefix does not
    exist, `ConfigurationError` if we may not list it, and `TemporaryError`.
    """

    def __init__(
        self,
        address: S3Address,
        aws: Aws,
        *,
        prefix: str | None = None,
        page_keys: int = PAGE_KEYS,
        span: Span = WHOLE,
        all_versions: bool = False,
    ) -> None:
        """``prefix``: list only keys that begin with it, which are below the address."""
        self._address = address
        self._prefix = address.folder if prefix is None else prefix
        self._aws = aws
        self._page_keys = page_keys
        self._span = span
        self._all_versions = all_versions
        self.bucket = address.bucket
        self.below = address.folder  # prefix of the keys below the address

    def __iter__(self) -> Iterator[Page]:
        with ThreadPoolExecutor(2, thread_name_prefix="penstock-s3-listing") as pool:
            named = pool.submit(self._named, _VERSIONS) if self._may_be_named else None
            operation, pages = self._opened(pool)
            if named is not None:  # the object of exactly that name sorts first
                yield Page(entries=named.result() if operation == _VERSIONS else self._named(operation), last_key=None)
            while True:
                with self._refusing():
                    page = next(pages, None)
                if page is None:
                    return
                entries = [entry for entry in self._present(operation, page) if self._span.contains(entry["Key"])]
                yield Page(entries=entries, last_key=_last_key(operation, page) if page.get("IsTruncated") else None)

    def used_prefixes(self, prefixes: Collection[str]) -> Collection[str]:
        """Return those of the prefixes that a key begins with. Sends up to `REQUESTS_MAX` requests at once."""
        if not prefixes:
            return ()
        with ThreadPoolExecutor(min(len(prefixes), REQUESTS_MAX), thread_name_prefix="penstock-s3-listing") as pool:
            found = pool.map(lambda prefix: self._request(_PLAIN, Prefix=prefix, MaxKeys=1), prefixes)
            return [prefix for prefix, response in zip(prefixes, found, strict=True) if response.get("Contents")]

    @property
    def _may_be_named(self) -> bool:
        """True if the object of exactly the address's name is to be listed."""
        return bool(self._address.prefix) and self._prefix == self.below and not self._span.after

    def _named(self, operation: str) -> Sequence[Entry]:
        """Return the entries of the object of exactly the address's name."""
        name = self._address.prefix
        page_keys = self._page_keys if self._all_versions else 1
        found = self._request(operation, Prefix=name, MaxKeys=page_keys, **_RESTORED)
        return [entry for entry in self._present(operation, found) if entry["Key"] == name]

    def _present(self, operation: str, page: Mapping[str, Any]) -> Sequence[Entry]:
        entries: Sequence[Entry] = page.get(_ENTRIES[operation], ())
        return entries if self._all_versions else [entry for entry in entries if entry.get("IsLatest", True)]

    def _opened(self, pool: ThreadPoolExecutor) -> tuple[str, Iterator[Mapping[str, Any]]]:
        """Return the operation that lists this bucket, and its pages, which raise the errors of boto3."""
        pages = self._paged(_VERSIONS, pool)
        try:
            first = next(pages)
        except Exception as error:
            if not _may_retry_otherwise(error):
                self._refuse(error)
            self._check_unversioned()
            return _PLAIN, self._paged(_PLAIN, pool)
        return _VERSIONS, chain([first], pages)

    def _check_unversioned(self) -> None:
        # Without version ids, the listing would identify an object differently than its notification does.
        try:
            status = self._client().get_bucket_versioning(Bucket=self._address.bucket).get("Status")
        except Exception as error:
            if not _may_retry_otherwise(error):
                self._refuse(error)
            status = "unknown"
        if status is not None:
            raise ConfigurationError(
                f"{self._address} cannot be listed: its bucket may keep versions (versioning: {status}), and "
                "they cannot be listed; grant s3:ListBucketVersions."
            )

    def _paged(self, operation: str, pool: ThreadPoolExecutor) -> Iterator[Mapping[str, Any]]:
        """Yield pages as boto3 returns them. Requests the next one while one is used. Raises the errors of boto3."""
        parameters = self._arguments(Prefix=self._prefix, MaxKeys=self._page_keys, **_RESTORED)
        if self._span.after:
            parameters[_AFTER[operation]] = self._span.after
        pages = iter(self._client().get_paginator(operation).paginate(**parameters))
        following: Future[Mapping[str, Any] | None] = pool.submit(next, pages, None)
        while (page := following.result()) is not None:
            if self._is_last(operation, page):
                yield page
                return
            following = pool.submit(next, pages, None)
            yield page

    def _is_last(self, operation: str, page: Mapping[str, Any]) -> bool:
        """Return True if no page behind this one has keys of the span."""
        if not page.get("IsTruncated"):
            return True
        if self._span.until is None:
            return False
        last_key = _last_key(operation, page)
        return last_key is not None and last_key > self._span.until

    def _request(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        with self._refusing():
            response: Mapping[str, Any] = getattr(self._client(), operation)(**self._arguments(**parameters))
        return response

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Convert errors of boto3 to Penstock's; see `_refuse`."""
        try:
            yield
        except Exception as error:
            self._refuse(error)

    def _arguments(self, **parameters: Any) -> dict[str, Any]:
        return {"Bucket": self._address.bucket, **parameters, **requester(self._aws)}

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


def _may_retry_otherwise(error: Exception) -> bool:
    if not is_of_s3(error) or is_identity(error):
        return False
    return fault_of(error).kind is RefusalKind.DENIED or code_of(error) in _NOT_KNOWN_HERE


ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")  # GLACIER_IR can be read like any other class


class S3Listing:
    """The listing of one prefix, or of the one object of that name.

    Each call of `chunks` starts a new listing; `report` describes the latest one.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        aws: Aws,
        excluded: Sequence[S3Address] = (),
        selection: Selection | None = None,
        chunk_objects: int = CHUNK_OBJECTS,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        """``excluded`` prefixes need not exist. Sends no request yet."""
        self._bucket = address.bucket
        self._selection = selection or Selection(below=address.folder)
        self._pages = S3Pages(address, aws, prefix=self._selection.listed, page_keys=page_keys)
        self._excluded = tuple(excluded)
        self._chunk_objects = chunk_objects
        self._counts = ScanCounts()

    def chunks(self) -> Iterator[Sequence[ObjectRef]]:
        """Yield references in key order, in chunks of up to ``chunk_objects``. Holds two pages of S3 in memory.

        The first chunk raises `UsageError` if the prefix cannot be listed; each may raise `TemporaryError`.
        """
        self._counts = ScanCounts()
        objects = self._objects()
        while chunk := tuple(islice(objects, self._chunk_objects)):
            yield chunk

    def report(self) -> ScanReport:
        """Return the report of the listing so far. It counts every object left out."""
        return self._counts.report()

    def _objects(self) -> Iterator[ObjectRef]:
        judge = PageFilter(self._pages, self._excluded, self._selection)
        for page in self._pages:
            judge.learn(page)
            for entry in page.entries:
                reason = judge.left_out(entry["Key"], entry["Size"])
                ref = reference(self._bucket, entry)
                if reason is SkipReason.EXCLUDED:
                    self._counts.add_excluded(judge.excluding(entry["Key"]))
                elif reason is not None:
                    self._counts.add_ignored(reason)
                elif is_archived(entry):
                    self._counts.add_problem(
                        f"{ref.uri}: archived in {entry['StorageClass']}; restore it before it can be read"
                    )
                else:
                    self._counts.add_found(ref)
                    yield ref


class PageFilter:
    """A filter for the objects to process in a listing. Pages must be learned in order."""

    def __init__(self, pages: S3Pages, excluded: Sequence[S3Address], selection: Selection) -> None:
        self._pages = pages
        self._excluded = excluded
        self._selection = selection
        self._tables = _TablePrefixes(pages)

    def learn(self, page: Page) -> None:
        """Record the tables that contain keys of this page."""
        self._tables.learn(page)

    def left_out(self, key: str, size_bytes: int) -> SkipReason | None:
        """Return why a key of the pages learned so far is left out, or None if it is to be processed."""
        bucket = self._pages.bucket
        if any(there.contains(bucket, key) for there in self._excluded) or self._tables.containing(key) is not None:
            return SkipReason.EXCLUDED
        return self._selection.left_out(key, size_bytes)

    def excluding(self, key: str) -> str:
        """Return the address of the table or excluded prefix that contains an excluded key."""
        bucket = self._pages.bucket
        named = next((there for there in self._excluded if there.contains(bucket, key)), None)
        prefix = (self._tables.containing(key) or "").rstrip("/")
        return str(named or S3Address(bucket=bucket, prefix=prefix))


class _TablePrefixes:
    """The tables and pipelines' data below the prefix. Their files are never source objects, no matter the writer.

    S3 lists by name, so ``2024/part`` comes before ``_delta_log/``. But the keys of one folder are consecutive: every
    folder that ends within a page is fully known. Folders that the page cuts off are checked by requests
    of their own, once each.
    """

    def __init__(self, pages: S3Pages) -> None:
        self._pages = pages
        self._found: set[str] = set()  # prefixes that end with a slash
        self._checked: set[str] = set()  # folders in which a page ended

    def learn(self, page: Page) -> None:
        """Record every table that contains a key of this page."""
        for entry in page.entries:
            key = entry["Key"]
            self._found.update(folder for folder in self._folders(key) if key.startswith(_own_folders(folder)))
        cut_off = self._folders(page.last_key) if page.last_key is not None else ()
        new = [folder for folder in cut_off if folder not in self._checked]
        self._checked.update(new)
        own = {name: folder for folder in new for name in _own_folders(folder)}
        self._found.update(own[name] for name in self._pages.used_prefixes(own))

    def containing(self, key: str) -> str | None:
        """Return the outermost table that contains a key; its prefix ends with a slash."""
        if not self._found:
            return None
        return next((folder for folder in self._folders(key) if folder in self._found), None)

    def _folders(self, key: str) -> Iterator[str]:
        """Yield the prefixes that contain a key, from the listing's own downwards, each ending with a slash."""
        below = self._pages.below
        if key.startswith(below):
            yield below
        at = key.find("/", len(below))
        while at >= 0:
            yield key[: at + 1]
            at = key.find("/", at + 1)


def reference(bucket: str, entry: Entry) -> ObjectRef:
    """Return the reference to the object of a listing entry."""
    version_id = entry.get("VersionId")
    return ObjectRef(
        bucket=bucket,
        key=entry["Key"],
        size_bytes=entry["Size"],
        version_id=version_id if version_id not in ("", "null") else None,
        etag=entry.get("ETag", "").strip('"') or None,
    )


def is_archived(entry: Entry) -> bool:
    """Return True if the object must be restored before it can be read."""
    is_restored = entry.get("RestoreStatus", {}).get("RestoreExpiryDate") is not None
    return entry.get("StorageClass") in ARCHIVED and not is_restored


def _own_folders(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}{own}/" for own in TABLE_FOLDERS)
