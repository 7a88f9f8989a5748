"""Locate and scan the sources of objects: a folder, a file or a pattern, on this host or in S3.

`StoreOutages` has the outages of the stores that a worker's queues need: of its sources, and of tables in S3.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Protocol

from penstock.app.paths import TablePaths, real
from penstock.errors import UsageError
from penstock.handlers.outage import OutageWatch, WatchedService, store_service
from penstock.objects.globs import cut, escaped, has_wildcard
from penstock.objects.local_store import LocalRoot, LocalStore
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef, decode_key
from penstock.objects.s3_listing import S3Listing, S3Pages
from penstock.objects.scanner import Scanner, ScanReport
from penstock.objects.selection import Selection, checked_patterns
from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.sinks.registry import TABLE_MARK
from penstock.storage.address import S3, check_address, is_s3, s3_address
from penstock.storage.aws import Aws, require_aws
from penstock.storage.files import Files
from penstock.storage.s3 import ping_bucket

_ALL = Selection()
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
    """A source; nothing outside it is read.

    ``address``: a folder's real path, or s3://BUCKET/PREFIX. ``selection`` has the objects below it, ``name`` the
    address as a person would write it.
    """

    address: str
    aws: Aws
    selection: Selection = _ALL
    name: str = ""

    def __str__(self) -> str:
        """Return the name with its filters, which tells this source from all others."""
        filters = [
            f"{word} {', '.join(patterns)}"
            for word, patterns in (("include", self.selection.include), ("exclude", self.selection.exclude))
            if patterns
        ]
        name = self.name or self.address
        return f"{name} ({'; '.join(filters)})" if filters else name

    def ending_in(self, suffixes: tuple[str, ...]) -> "SourceLocation":
        """Return the same without objects whose names have none of these suffixes."""
        return replace(self, selection=replace(self.selection, suffixes=suffixes))

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
        return bool(S3Pages(address, self.aws).used_prefixes([f"{address.folder}{name}" for name in _TABLE_SIGNS]))

    def contains(self, other: "SourceLocation") -> bool:
        """Return True if the other source's address is this one's or inside it."""
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
        address, selection = self.address, self.selection
        if part is not None:
            address, selection = part.address, replace(part.selection, within=self.selection)
        if self.is_local:
            folders = [str(files) for files in own if files.is_local]
            return Scanner(address, store=LocalStore(self.address), excluded=folders, selection=selection)

        excluded = [s3_address(files.uri) for files in own if not files.is_local]
        return S3Listing(s3_address(address), aws=self.aws, excluded=excluded, selection=selection)


def source_at(
    source: str | PathLike[str],
    aws: Aws,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    skips_underscored: bool = False,
) -> SourceLocation:
    """Return the source at a user's address: a folder, a file, an S3 address, or a pattern of one.

    A local path that exists is taken literally, also if it has wildcards. Raises `UsageError` if there is no such
    folder or file, or if an address or a pattern is invalid.
    """
    text = check_address("source", source)
    patterns = Selection(
        include=checked_patterns(include, "include"),
        exclude=checked_patterns(exclude, "exclude"),
        skips_underscored=skips_underscored,
    )
    return _in_s3(text, aws, patterns) if is_s3(text) else _on_this_host(text, aws, patterns)


def _in_s3(text: str, aws: Aws, selection: Selection) -> SourceLocation:
    require_aws()
    bucket = s3_address(text).bucket
    if has_wildcard(bucket):
        raise UsageError(f"The source {text} has a wildcard in its bucket; name one bucket.")
    found = cut(text.partition("://")[2].partition("/")[2])
    address = s3_address(f"{S3}{bucket}/{found.folder}")
    selection = replace(selection, below=address.folder, pattern=found.pattern)
    name = f"{address}/{found.pattern}" if found.pattern else ""
    return SourceLocation(address=str(address), aws=aws, selection=selection, name=name)


def _on_this_host(text: str, aws: Aws, selection: Selection) -> SourceLocation:
    path, name, pattern = real(text), "", ""
    if not path.exists():
        found = cut(text)
        path, pattern = real(found.folder or ("/" if text.startswith("/") else ".")), found.pattern
        name = f"{str(path).rstrip('/')}/{pattern}" if pattern else ""
        if not path.exists():
            of_pattern = f", in which {text} would look," if pattern else ""
            raise UsageError(f"The source {path}{of_pattern} does not exist; give a folder or file to read.")
        if pattern and not path.is_dir():
            raise UsageError(f"The source {name} looks in {path}, which is no folder.")
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(f"The source {path} is neither a folder nor a file; give a folder or file to read.")
        path, name, pattern = path.parent, str(path), escaped(path.name)
    below = decode_key(os.fsencode(f"{str(path).rstrip('/')}/"))
    selection = replace(selection, below=below, pattern=pattern, in_s3=False)
    return SourceLocation(address=str(path), aws=aws, selection=selection, name=name)


def source_of(
    source: str | PathLike[str], where: TablePaths, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> SourceLocation:
    """Return the source of a table. Raises `UsageError` as `source_at`, and for a place that Penstock itself writes."""
    found = source_at(source, where.aws, include=include, exclude=exclude, skips_underscored=True)
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
