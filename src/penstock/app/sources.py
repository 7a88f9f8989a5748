"""Where objects come from: a folder of this machine, or a prefix in S3."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Protocol

from penstock.app.places import Places, real
from penstock.errors import UsageError
from penstock.objects.local import LocalStore
from penstock.objects.local_root import LocalRoot
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.scan_report import ScanReport
from penstock.objects.scanner import Scanner
from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.storage.address import check_address, is_s3, s3_address
from penstock.storage.aws import Aws, require_aws
from penstock.storage.files import Files
from penstock.storage.s3_client import ping_bucket


class Scan(Protocol):
    """One walk through a source."""

    def chunks(self) -> Iterator[Sequence[ObjectRef]]:
        """What is there, bounded numbers at a time."""
        ...

    def report(self) -> ScanReport:
        """Of the walk so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is read, and nothing outside it. ``address``: a folder's real path, or s3://BUCKET/PREFIX."""

    address: str
    aws: Aws

    def __str__(self) -> str:
        return self.address

    @property
    def is_local(self) -> bool:
        """Whether it is a folder."""
        return not is_s3(self.address)

    @property
    def store(self) -> ObjectStore:
        """Reads its objects."""
        return store_at(self.address, self.aws)

    @property
    def buckets(self) -> frozenset[str]:
        """Whose notifications are for us."""
        return frozenset({LOCAL_BUCKET if self.is_local else s3_address(self.address).bucket})

    def holds(self, other: "Source") -> bool:
        """Whether the other one is this one, or in it."""
        return f"{other.address}/".startswith(f"{self.address.rstrip('/')}/")

    def ping(self) -> None:
        """Raise `TemporaryError` while it is away. Any other answer, such as a denied access, counts as present."""
        if self.is_local:
            LocalRoot(os.fsencode(self.address)).check()
        else:
            ping_bucket(s3_address(self.address).bucket, self.aws)

    def scan(self, part: "Source | None" = None, *, own: Sequence[Files] = ()) -> Scan:
        """A walk through it, or through a part of it. ``own``: what Penstock writes itself, which is left out."""
        address = self.address if part is None else part.address
        if self.is_local:
            folders = [str(one) for one in own if one.is_local]
            return Scanner(address, store=LocalStore(self.address), excluded=folders)
        from penstock.objects.s3_listing import S3Listing

        excluded = [s3_address(one.uri) for one in own if not one.is_local]
        return S3Listing(s3_address(address), aws=self.aws, excluded=excluded)


def source_at(source: str | PathLike[str], aws: Aws) -> Source:
    """What a user's address leads to. Raises `UsageError` where it is no folder that is there, and no address in S3."""
    text = check_address("source", source)
    if is_s3(text):
        require_aws()
        return Source(address=str(s3_address(text)), aws=aws)
    folder = real(text)
    if not folder.is_dir():
        what = "is a file; give the folder it lies in" if folder.exists() else "does not exist; give the folder to read"
        raise UsageError(f"The source {folder} {what}.")
    return Source(address=str(folder), aws=aws)


def source_of(source: str | PathLike[str], where: Places) -> Source:
    """The source of a table. Raises `UsageError` as `source_at`, and for a place that Penstock writes itself."""
    found = source_at(source, where.aws)
    for own in where.own:
        if found.address == str(own):
            raise UsageError(
                f"The source {found} is a place that Penstock writes itself; give another table or source."
            )
        if found.address.startswith(f"{own}/"):
            raise UsageError(f"The source {found} lies in {own}, which Penstock writes itself; give another one.")
    return found
