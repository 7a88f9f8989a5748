"""Locate and scan the sources of objects: a folder on this host or a prefix in S3.

`StoreOutages` has the outages of the stores that a worker's queues need: of its sources, and of tables in S3.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Protocol

from penstock.app.paths import TablePaths, real
from penstock.errors import UsageError
from penstock.handlers.outage import OutageWatch, WatchedService, store_service
from penstock.objects.local_store import LocalRoot, LocalStore
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.s3_listing import S3Listing, S3Pages
from penstock.objects.scanner import Scanner, ScanReport
from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.sinks.registry import TABLE_MARK
from penstock.storage.address import check_address, is_s3, s3_address
from penstock.storage.aws import Aws, require_aws
from penstock.storage.files import Files
from penstock.storage.s3 import ping_bucket

_TABLE_SIGNS = ("_delta_log/", TABLE_MARK)  # below the root of every table, whichever program wrote it


class SourceScan(Protocol):
    """One scan of a source."""

    def chunks(self) -> Iterator[Sequence[ObjectRef]]:
        """Yield the objects in bounded chunks."""
        ...

    def report(self) -> ScanReport:
        """Return the report of the scan so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLocation:
    """A source; nothing outside it is read. ``address``: a folder's real path, or s3://BUCKET/PREFIX."""

    address: str
    aws: Aws

    def __str__(self) -> str:
        return self.address

    @property
    def is_local(self) -> bool:
        """True for a folder on this host."""
        return not is_s3(self.address)

    @property
    def store(self) -> ObjectStore:
        """The store that reads its objects."""
        return store_at(self.address, self.aws)

    @property
    def buckets(self) -> frozenset[str]:
        """The buckets with accepted notifications."""
        return frozenset({LOCAL_BUCKET if self.is_local else s3_address(self.address).bucket})

    def is_table(self) -> bool:
        """Return True if the source's own folder is a table. Lists a source in S3, as a scan does."""
        if self.is_local:
            return any(os.path.exists(f"{self.address}/{name}") for name in _TABLE_SIGNS)  # noqa: PTH110 - never raises
        address = s3_address(self.address)
        pages = S3Pages(address, self.aws)
        return any(pages.is_any(f"{address.folder}{name}") for name in _TABLE_SIGNS)

    def contains(self, other: "SourceLocation") -> bool:
        """Return True if the other source is this one or inside it."""
        return f"{other.address}/".startswith(f"{self.address.rstrip('/')}/")

    def ping(self) -> None:
        """Raise `TemporaryError` if the source is unavailable.

        Any other response, such as denied access, counts as available.
        """
        if self.is_local:
            LocalRoot(os.fsencode(self.address)).check()
        else:
            ping_bucket(s3_address(self.address).bucket, self.aws)

    def scan(self, part: "SourceLocation | None" = None, *, own: Sequence[Files] = ()) -> SourceScan:
        """Scan the source, or a part of it, without ``own``, the places that Penstock itself writes."""
        address = self.address if part is None else part.address
        if self.is_local:
            folders = [str(files) for files in own if files.is_local]
            return Scanner(address, store=LocalStore(self.address), excluded=folders)

        excluded = [s3_address(files.uri) for files in own if not files.is_local]
        return S3Listing(s3_address(address), aws=self.aws, excluded=excluded)


def source_at(source: str | PathLike[str], aws: Aws) -> SourceLocation:
    """Return the source at a user's address. Raises `UsageError` unless it is an existing folder or an S3 address."""
    text = check_address("source", source)
    if is_s3(text):
        require_aws()
        return SourceLocation(address=str(s3_address(text)), aws=aws)
    folder = real(text)
    if not folder.is_dir():
        subject = (
            "is a file; give the folder it lies in" if folder.exists() else "does not exist; give the folder to read"
        )
        raise UsageError(f"The source {folder} {subject}.")
    return SourceLocation(address=str(folder), aws=aws)


def source_of(source: str | PathLike[str], where: TablePaths) -> SourceLocation:
    """Return the source of a table. Raises `UsageError` as `source_at`, and for a place that Penstock itself writes."""
    found = source_at(source, where.aws)
    for own in where.own:
        if found.address == str(own):
            raise UsageError(
                f"The source {found} is a place that Penstock writes itself; give another table or source."
            )
        if found.address.startswith(f"{own}/"):
            raise UsageError(f"The source {found} lies in {own}, which Penstock writes itself; give another one.")
    return found


class MakeOutage(Protocol):
    """A function that creates the `OutageWatch` of one service for this worker."""

    def __call__(self, *, service: WatchedService, ping: Callable[[], object]) -> OutageWatch: ...


class StoreOutages:
    """One `OutageWatch` for each store or combination of stores, shared by all queues that need it.

    Owned by the worker's `ServiceContext`, and used by the thread that opens the services.
    """

    def __init__(self, make: MakeOutage) -> None:
        self._make = make
        self._made: dict[str, OutageWatch] = {}

    def of(self, *locations: SourceLocation) -> OutageWatch:
        """Return the outage watch of work that needs all these places."""
        name = " and ".join(dict.fromkeys(location.address for location in locations))
        if name not in self._made:
            self._made[name] = self._make(service=store_service(name), ping=partial(_ping, locations))
        return self._made[name]

    def of_pipeline(self, source: SourceLocation, where: TablePaths) -> OutageWatch:
        """Return the outage watch of a pipeline's source, and of its table if it is in S3."""
        table = where.table
        return self.of(source, *(() if table.is_local else (SourceLocation(address=table.uri, aws=where.aws),)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ping all stores inside the block; see `OutageWatch.watching`."""
        with ExitStack() as stack:
            for outage in self._made.values():
                stack.enter_context(outage.watching())
            yield


def _ping(locations: tuple[SourceLocation, ...]) -> None:
    for location in locations:
        location.ping()
