"""Subtract the known objects from the existing ones in this process: for object handlers, which need no Spark.

The source is listed page by page. The ledger is asked about each page, and unknown objects are written to a spool.
Memory holds one page, and the counts of the first-level folders up to a limit; the spool overflows to disk.

Also the types that both ways of reconciling share, which need neither Spark nor Arrow.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from penstock.ledger import Ledger
from penstock.objects.local_store import LocalStore, modified_at
from penstock.objects.notification import URL
from penstock.objects.reference import S3_KEY_BYTES_MAX, ObjectRef, uri_of
from penstock.objects.s3_listing import PageFilter, S3Pages, is_archived, reference
from penstock.objects.scanner import CHUNK_OBJECTS, PROBLEMS_MAX, Scanner
from penstock.objects.selection import Selection
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws

PREFIXES_MAX = 20
_ALL = Selection()


class LeftOut(StrEnum):
    """Why an existing object that the ledger does not know is not missing."""

    YOUNG = "young"  # younger than the margin: its notification may still be on its way
    EXCLUDED = "excluded"  # a table's file, or below a location that Penstock writes to
    FOLDER_MARKER = "folder_marker"  # empty, and its name ends in a slash
    HIDDEN = "hidden"  # a part of its path begins with a dot
    NOT_SELECTED = "not_selected"  # the last three as in `penstock.objects.selection`
    UNDERSCORE = "underscore"
    OTHER_SUFFIX = "other_suffix"
    ARCHIVED = "archived"  # in a storage class that must be restored before reading
    UNNAMEABLE = "unnameable"  # no notification can name its key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileScope:
    """The bounds of a search. ``excluded`` holds keys that are left out, together with everything below them."""

    bucket: str
    below: str  # prefix of the source's keys
    before: float  # epoch seconds: only objects modified earlier are missing
    selection: Selection = _ALL  # the objects of the source
    excluded: Sequence[str] = ()
    is_local: bool = False  # True: the scanner has already left out files that are no objects


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPrefix:
    """A first-level folder of the source, and the number of missing objects below it."""

    uri: str
    missing: int


SPOOL_BYTES = 8 * 1024 * 1024  # missing objects kept in memory before the spool moves to disk
FOLDERS_MAX = 10_000  # counted; above twice this number, the folders with the fewest missing objects are dropped


class ExistingObject(NamedTuple):
    """One object that exists. ``left_out`` is set if it needs no processing, whether or not the ledger knows it."""

    ref: ObjectRef
    modified_at: float  # epoch seconds
    left_out: LeftOut | None = None


class Listing:
    """One pass over a source: iterate ``pages`` of existing objects first, then call ``problems``."""

    def __init__(self, pages: Iterator[Sequence[ExistingObject]], problems: Callable[[], Sequence[str]]) -> None:
        self.pages = pages
        self.problems = problems


class MissingAlone:
    """The interface of `penstock.pipeline.reconcile.missing.MissingObjects` without Spark. Used by one thread."""

    def __init__(self, scope: ReconcileScope) -> None:
        self.listed = 0
        self.count = 0
        self.problems: Sequence[str] = ()
        self._left_out: Counter[LeftOut] = Counter()
        self._scope = scope
        self._folders: Counter[str] = Counter()
        self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES, "w+", encoding="ascii")  # noqa: SIM115 - `close` does

    @property
    def left_out(self) -> Mapping[LeftOut, int]:
        return self._left_out

    def prefixes(self) -> Sequence[MissingPrefix]:
        """Return the first-level folders with the most missing objects, in descending order."""
        most = sorted(self._folders.items(), key=lambda existing: (-existing[1], existing[0]))[:PREFIXES_MAX]
        scope = self._scope
        return [MissingPrefix(uri=uri_of(scope.bucket, scope.below + folder), missing=count) for folder, count in most]

    def chunks(self, *, limit: int | None = None, objects_max: int = CHUNK_OBJECTS) -> Iterator[Sequence[ObjectRef]]:
        """Yield the missing objects, up to ``limit``, in chunks of ``objects_max``."""
        self._spool.seek(0)
        found = islice((self._read(line) for line in self._spool), limit)
        while chunk := tuple(islice(found, objects_max)):
            yield chunk

    def close(self) -> None:
        """Free the spool."""
        self._spool.close()

    def take(self, existing: ExistingObject) -> None:
        """Count an object that the ledger does not know, and keep it if it is missing."""
        reason = existing.left_out or self._judged(existing)
        if reason is not None:
            self._left_out[reason] += 1
            return
        self.count += 1
        ref = existing.ref
        self._spool.write(json.dumps([ref.key, ref.size_bytes, ref.version_id, ref.etag]) + "\n")
        folder, slash, _ = ref.key.removeprefix(self._scope.below).partition("/")
        self._folders[f"{folder}{slash}" if slash else ""] += 1
        if len(self._folders) > 2 * FOLDERS_MAX:
            self._folders = Counter(dict(self._folders.most_common(FOLDERS_MAX)))

    def _judged(self, existing: ExistingObject) -> LeftOut | None:
        key = existing.ref.key
        if not self._scope.is_local and (
            len(existing.ref.key_bytes) > S3_KEY_BYTES_MAX or URL.match(key) or "\0" in key
        ):
            return LeftOut.UNNAMEABLE
        return LeftOut.YOUNG if existing.modified_at >= self._scope.before else None

    def _read(self, line: str) -> ObjectRef:
        key, size_bytes, version_id, etag = json.loads(line)
        return ObjectRef(bucket=self._scope.bucket, key=key, size_bytes=size_bytes, version_id=version_id, etag=etag)


def find_missing_alone(
    listing: Listing,
    ledger: Ledger,
    pipeline: str,
    scope: ReconcileScope,
    *,
    seen_at: float,
    stopped: Callable[[], bool],
    on_listed: Callable[[int], None],
) -> MissingAlone:
    """List and compare, page by page, until the end or a stop. ``on_listed`` is called with the number listed so far.

    Each version of an object counts for itself, as object handlers have it. The caller closes the result. Errors of the
    listing and of the ledger propagate.
    """
    missing = MissingAlone(scope)
    try:
        for page in listing.pages:
            if stopped():
                break
            missing.listed += len(page)
            known = ledger.known_among(pipeline, [existing.ref.object_id for existing in page], seen_at=seen_at)
            for existing in page:
                if existing.ref.object_id not in known:
                    missing.take(existing)
            on_listed(missing.listed)
        missing.problems = listing.problems()[:PROBLEMS_MAX]
    except BaseException:
        missing.close()
        raise
    return missing


def folder_listing(folder: str, *, excluded: Sequence[str], selection: Selection) -> Listing:
    """List a local folder. Raise `UsageError` if it cannot be listed."""
    scanner = Scanner(folder, store=LocalStore(folder), excluded=excluded, selection=selection)
    pages = ([ExistingObject(ref, modified_at(ref)) for ref in chunk] for chunk in scanner.chunks())
    return Listing(pages, lambda: scanner.report().problems)


def s3_listing(
    address: S3Address, aws: Aws, *, excluded: Sequence[str], selection: Selection, all_versions: bool
) -> Listing:
    """List the objects below an S3 prefix, in key order."""

    def pages() -> Iterator[Sequence[ExistingObject]]:
        found = S3Pages(address, aws, prefix=selection.listed, all_versions=all_versions)
        own = [S3Address(bucket=address.bucket, prefix=prefix) for prefix in excluded]
        judge = PageFilter(found, own, selection)
        for page in found:
            judge.learn(page)
            yield [_listed(address.bucket, entry, judge) for entry in page.entries]

    return Listing(pages(), lambda: ())


def _listed(bucket: str, entry: Mapping[str, object], judge: PageFilter) -> ExistingObject:
    ref, modified_at = reference(bucket, entry), entry["LastModified"].timestamp()  # type: ignore[attr-defined]
    reason = judge.left_out(ref.key, ref.size_bytes)
    left_out = LeftOut(reason.value) if reason is not None else LeftOut.ARCHIVED if is_archived(entry) else None
    return ExistingObject(ref, modified_at, left_out)
