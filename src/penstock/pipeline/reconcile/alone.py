"""What exists without what is known, in this process alone: for object handlers, which need no Spark.

The source is listed a page at a time, and the ledger is asked about each page: what it does not know is written to a
spool. Memory holds a page, and the first folders of the source up to a bound; the spool goes to the disk.

What a reconcile looks for, and how it names what it found. Needs neither Spark nor Arrow.
"""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from penstock.ledger import Ledger
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import S3_KEY_BYTES_MAX, ObjectRef, uri_of
from penstock.objects.s3_listing import PageFilter, S3Pages, is_archived, reference
from penstock.objects.scanner import CHUNK_OBJECTS, PROBLEMS_MAX, Scanner, SkipReason
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws

PREFIXES_MAX = 20


class LeftOut(StrEnum):
    """Why an object that is there and that nobody knows is not missing."""

    YOUNG = "young"  # younger than the margin: it may still be on its way
    EXCLUDED = "excluded"  # a table's file, or in a place that Penstock writes itself
    FOLDER_MARKER = "folder_marker"  # empty, and its name ends in a slash
    HIDDEN = "hidden"  # a part of its name begins with a dot
    ARCHIVED = "archived"  # in a storage class that cannot be read as it is
    UNNAMEABLE = "unnameable"  # no notification can name its key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileScope:
    """What is looked for. ``excluded`` are the keys of places, and what is below them."""

    bucket: str
    below: str  # what keys of the source begin with
    before: float  # epoch seconds: only what was modified earlier
    excluded: Sequence[str] = ()
    is_local: bool = False  # then the scanner has left out what is no object


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPrefix:
    """A folder of the source, and how many are missing below it."""

    uri: str
    missing: int


SPOOL_BYTES = 8 * 1024 * 1024  # of the missing ones, before they go to the disk
FOLDERS_MAX = 10_000  # counted apart; those with the fewest missing ones are forgotten first
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")  # as notifications may not name a key
_REASONS = {
    SkipReason.EXCLUDED: LeftOut.EXCLUDED,
    SkipReason.FOLDER_MARKER: LeftOut.FOLDER_MARKER,
    SkipReason.HIDDEN: LeftOut.HIDDEN,
}


class ExistingObject(NamedTuple):
    """One object that exists. ``left_out`` is for what is none to work on, whoever knows it."""

    ref: ObjectRef
    modified_at: float  # epoch seconds
    left_out: LeftOut | None = None


class Listing:
    """One look at a source: ``pages`` of what exists, and then the ``problems``."""

    def __init__(self, pages: Iterator[Sequence[ExistingObject]], problems: Callable[[], Sequence[str]]) -> None:
        self.pages = pages
        self.problems = problems


class MissingAlone:
    """The same answers as `penstock.pipeline.reconcile.missing.MissingObjects`. One thread uses it."""

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
        """The first folders, those with the most first."""
        most = sorted(self._folders.items(), key=lambda one: (-one[1], one[0]))[:PREFIXES_MAX]
        scope = self._scope
        return [MissingPrefix(uri=uri_of(scope.bucket, scope.below + folder), missing=count) for folder, count in most]

    def chunks(self, *, limit: int | None = None, objects_max: int = CHUNK_OBJECTS) -> Iterator[Sequence[ObjectRef]]:
        """The missing objects, or so many of them; ``objects_max`` at once."""
        self._spool.seek(0)
        found = islice((self._read(line) for line in self._spool), limit)
        while chunk := tuple(islice(found, objects_max)):
            yield chunk

    def close(self) -> None:
        """Give the disk back."""
        self._spool.close()

    def take(self, one: ExistingObject) -> None:
        """Count an object that the ledger does not know, and keep it if it is missing."""
        reason = one.left_out or self._judged(one)
        if reason is not None:
            self._left_out[reason] += 1
            return
        self.count += 1
        ref = one.ref
        self._spool.write(json.dumps([ref.key, ref.size_bytes, ref.version_id, ref.etag]) + "\n")
        folder, slash, _ = ref.key.removeprefix(self._scope.below).partition("/")
        self._folders[f"{folder}{slash}" if slash else ""] += 1
        if len(self._folders) > 2 * FOLDERS_MAX:
            self._folders = Counter(dict(self._folders.most_common(FOLDERS_MAX)))

    def _judged(self, one: ExistingObject) -> LeftOut | None:
        key = one.ref.key
        if not self._scope.is_local and (len(one.ref.key_bytes) > S3_KEY_BYTES_MAX or _URL.match(key) or "\0" in key):
            return LeftOut.UNNAMEABLE
        return LeftOut.YOUNG if one.modified_at >= self._scope.before else None

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
    told: Callable[[int], None],
) -> MissingAlone:
    """List and compare, page by page, until the end or a stop. ``told`` hears how many objects were listed so far.

    The answer has to be closed. Raises what listing and ledger raise.
    """
    missing = MissingAlone(scope)
    try:
        for page in listing.pages:
            if stopped():
                break
            missing.listed += len(page)
            known = ledger.known_among(pipeline, [one.ref.object_id for one in page], seen_at=seen_at)
            for one in page:
                if one.ref.object_id not in known:
                    missing.take(one)
            told(missing.listed)
        missing.problems = listing.problems()[:PROBLEMS_MAX]
    except BaseException:
        missing.close()
        raise
    return missing


def folder_listing(folder: str, *, excluded: Sequence[str]) -> Listing:
    """What a local folder holds. Raises `UsageError` for a folder that cannot be listed."""
    scanner = Scanner(folder, store=LocalStore(folder), excluded=excluded)
    pages = ([ExistingObject(ref, _changed_at(ref)) for ref in chunk] for chunk in scanner.chunks())
    return Listing(pages, lambda: scanner.report().problems)


def s3_listing(address: S3Address, aws: Aws, *, excluded: Sequence[str], all_versions: bool) -> Listing:
    """What S3 lists below a prefix, in the order of its keys."""

    def pages() -> Iterator[Sequence[ExistingObject]]:
        found = S3Pages(address, aws, all_versions=all_versions)
        judge = PageFilter(found, [S3Address(bucket=address.bucket, prefix=prefix) for prefix in excluded])
        for page in found:
            judge.learn(page)
            yield [_listed(address.bucket, entry, judge) for entry in page.entries]

    return Listing(pages(), lambda: ())


def _listed(bucket: str, entry: Mapping[str, object], judge: PageFilter) -> ExistingObject:
    ref, modified_at = reference(bucket, entry), entry["LastModified"].timestamp()  # type: ignore[attr-defined]
    reason = judge.left_out(ref.key, ref.size_bytes)
    left_out = _REASONS[reason] if reason is not None else LeftOut.ARCHIVED if is_archived(entry) else None
    return ExistingObject(ref, modified_at, left_out)


def _changed_at(ref: ObjectRef) -> float:
    return int((ref.etag or "0-").rpartition("-")[0], 16) / 1e9  # a file's etag begins with its time
