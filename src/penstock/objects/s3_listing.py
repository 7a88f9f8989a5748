"""The listing: a prefix in S3 -> the objects below it, as references to announce.

Duties: yield bounded chunks of the latest versions, leave out what is hidden, excluded, a table or a mere folder, and
tell in a report what was left out and what cannot be read. It opens no object.

An object has the identity here that its notification gives it: with its version's id where it has one, else the ETag.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from penstock.objects.reference import ObjectRef
from penstock.objects.s3_pages import Entry, Page, S3Pages
from penstock.objects.s3_spans import PAGE_KEYS
from penstock.objects.scan_report import CHUNK_OBJECTS, TABLE_FOLDERS, Reason, ScanReport, Tally
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws

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
        self._tally = Tally()

    def chunks(self) -> Iterator[Sequence[ObjectRef]]:
        """List by name, in chunks of at most ``chunk_objects``; one page of S3's is held at a time.

        The first chunk raises `UsageError` where the prefix cannot be listed; each may raise `TemporaryError`.
        """
        self._tally = Tally()
        objects = self._objects()
        while chunk := tuple(islice(objects, self._chunk_objects)):
            yield chunk

    def report(self) -> ScanReport:
        """Of the listing so far. Each object that was left out counts."""
        return self._tally.report()

    def _objects(self) -> Iterator[ObjectRef]:
        judge = PageJudge(self._pages, self._excluded)
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


class PageJudge:
    """Tells objects of a listing from what is none to work on. Pages are learnt in their order."""

    def __init__(self, pages: S3Pages, excluded: Sequence[S3Address]) -> None:
        self._pages = pages
        self._excluded = excluded
        self._tables = _Tables(pages)

    def learn(self, page: Page) -> None:
        """Know the tables that the keys of this page lie in."""
        self._tables.learn(page)

    def left_out(self, key: str, size_bytes: int) -> Reason | None:
        """Return why a key of the pages learnt so far is no object to work on; None for one that is."""
        bucket = self._pages.bucket
        if any(there.holds(bucket, key) for there in self._excluded) or self._tables.hold(key):
            return Reason.EXCLUDED
        if key.endswith("/") and size_bytes == 0:
            return Reason.FOLDER_MARKER
        parts = key.removeprefix(self._pages.below).split("/")
        return Reason.HIDDEN if any(_is_hidden(part) for part in parts) else None


class _Tables:
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
