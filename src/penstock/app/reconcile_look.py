"""What a reconcile looks through, and as of when: the source's own listing, or an inventory of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.app.reconcile_target import Target
from penstock.errors import ConfigurationError, UsageError
from penstock.objects.reference import LOCAL_BUCKET
from penstock.objects.s3_facts import versioning_of
from penstock.pipeline.reconcile.folder import folder_frame
from penstock.pipeline.reconcile.inventory import inventory_frame
from penstock.pipeline.reconcile.inventory_files import Inventory, find_inventory
from penstock.pipeline.reconcile.known import known_frame
from penstock.pipeline.reconcile.listing import listing_frame
from penstock.pipeline.reconcile.missing import Missing, Scope, find_missing
from penstock.storage.address import S3Address, s3_address

if TYPE_CHECKING:
    from penstock.pipeline.session import Session

NEVER_VERSIONED = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """``as_of``: objects that were stored before are looked at."""

    target: Target
    inventory: Inventory | None
    all_versions: bool
    as_of: float

    @property
    def source(self) -> str:
        """What is looked through, for people."""
        return self.target.source.address if self.inventory is None else self.inventory.uri

    def missing(self, spark: "Session") -> Missing:
        """Look. The answer has to be closed."""
        target = self.target
        known = known_frame(spark, target.ledger, target.pipeline)
        return find_missing(self._existing(spark), known, self._scope())

    def _existing(self, spark: "Session") -> Any:
        source = self.target.source
        if source.is_local:
            return folder_frame(spark, source.address, excluded=[str(one) for one in self.target.own if one.is_local])
        address = s3_address(source.address)
        if self.inventory is None:
            return listing_frame(spark, address, source.aws, all_versions=self.all_versions)
        return inventory_frame(spark, self.inventory, address, all_versions=self.all_versions)

    def _scope(self) -> Scope:
        source = self.target.source
        if source.is_local:
            below = f"{source.address.rstrip('/')}/"
            return Scope(bucket=LOCAL_BUCKET, below=below, before=self.as_of, is_local=True)
        address = s3_address(source.address)
        return Scope(
            bucket=address.bucket, below=address.folder, before=self.as_of, excluded=_keys(self.target, address.bucket)
        )


def look_at(
    target: Target, *, inventory: str | None, older_than_seconds: float, all_versions: bool, now: float
) -> Look:
    """Find the inventory, if one is named. Raises `UsageError` and `ConfigurationError` for one that does not do."""
    source = target.source
    found = None
    if inventory is not None:
        if source.is_local:
            raise UsageError(f"{source} is a folder, and S3 makes inventories of buckets; leave --inventory out.")
        found = find_inventory(inventory, source.aws)
        _check(found, s3_address(source.address), target)
    as_of = (now if found is None else found.manifest.created_at) - older_than_seconds
    return Look(target=target, inventory=found, all_versions=all_versions, as_of=as_of)


def _check(inventory: Inventory, address: S3Address, target: Target) -> None:
    manifest = inventory.manifest
    if manifest.source_bucket != address.bucket:
        raise UsageError(
            f"The inventory {inventory.uri} is of the bucket {manifest.source_bucket}, and {target.pipeline} reads "
            f"{address}."
        )
    if manifest.tells_versions:
        return
    versioning = versioning_of(address.bucket, target.source.aws)
    if versioning != NEVER_VERSIONED:  # by their ETags, all objects with a version's id would seem to be missing
        why = "we may not ask whether" if versioning is None else f"versioning is {versioning}, so"
        raise ConfigurationError(
            f"The inventory {inventory.uri} tells no version ids, and {why} the bucket {address.bucket} keeps "
            "versions; have the inventory include all versions, or grant s3:GetBucketVersioning where there are none."
        )


def _keys(target: Target, bucket: str) -> Sequence[str]:
    """The prefixes in this bucket that Penstock writes itself."""
    places = [s3_address(one.uri) for one in target.own if not one.is_local]
    return [place.prefix for place in places if place.bucket == bucket]
