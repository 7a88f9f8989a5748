"""What a reconcile looks through, and as of when: the source's own listing, or an inventory of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.app.reconcile_target import Target
from penstock.errors import UsageError
from penstock.objects.reference import LOCAL_BUCKET
from penstock.objects.version_ids import INVENTORY_REMEDY, require_no_versions
from penstock.pipeline.reconcile.inventory_files import Inventory, find_inventory
from penstock.pipeline.reconcile.scope import Scope
from penstock.storage.address import S3Address, s3_address

if TYPE_CHECKING:
    from penstock.pipeline.reconcile.alone import MissingAlone
    from penstock.pipeline.reconcile.missing import Missing
    from penstock.pipeline.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """``as_of``: objects that were stored before are looked at; ``seen_at``: what is listed existed then."""

    target: Target
    inventory: Inventory | None
    all_versions: bool
    as_of: float
    seen_at: float

    @property
    def source(self) -> str:
        """What is looked through, for people."""
        return self.target.source.address if self.inventory is None else self.inventory.uri

    def missing(self, spark: "Session") -> "Missing":
        """Look. The answer has to be closed."""
        from penstock.pipeline.reconcile.known import known_frame
        from penstock.pipeline.reconcile.missing import find_missing

        target = self.target
        known = known_frame(spark, target.ledger, target.pipeline, seen_at=self.seen_at)
        return find_missing(self._existing(spark), known, self._scope())

    def missing_alone(
        self, *, seen_at: float, stopped: Callable[[], bool], told: Callable[[int], None]
    ) -> "MissingAlone":
        """Look in this process alone, at the source's own listing. The answer has to be closed."""
        from penstock.pipeline.reconcile.alone import find_missing_alone, folder_listing, s3_listing

        target, source, scope = self.target, self.target.source, self._scope()
        if source.is_local:
            own = [str(one) for one in target.own if one.is_local]
            listing = folder_listing(source.address, excluded=own)
        else:
            address = s3_address(source.address)
            listing = s3_listing(address, source.aws, excluded=scope.excluded, all_versions=self.all_versions)
        return find_missing_alone(
            listing, target.ledger, target.pipeline, scope, seen_at=seen_at, stopped=stopped, told=told
        )

    def _existing(self, spark: "Session") -> Any:
        from penstock.pipeline.reconcile.folder import folder_frame
        from penstock.pipeline.reconcile.inventory import inventory_frame
        from penstock.pipeline.reconcile.listing import listing_frame
        from penstock.pipeline.shared_folders import prove_readable

        source = self.target.source
        if source.is_local:
            prove_readable(spark, source.address)
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
    seen_at = now if found is None else found.manifest.created_at
    as_of = seen_at - older_than_seconds
    return Look(target=target, inventory=found, all_versions=all_versions, as_of=as_of, seen_at=seen_at)


def _check(inventory: Inventory, address: S3Address, target: Target) -> None:
    manifest = inventory.manifest
    if manifest.source_bucket != address.bucket:
        raise UsageError(
            f"The inventory {inventory.uri} is of the bucket {manifest.source_bucket}, and {target.pipeline} reads "
            f"{address}."
        )
    if not manifest.tells_versions:
        require_no_versions(
            address.bucket, target.source.aws, told_by=f"The inventory {inventory.uri}", remedy=INVENTORY_REMEDY
        )


def _keys(target: Target, bucket: str) -> Sequence[str]:
    """The prefixes in this bucket that Penstock writes itself."""
    places = [s3_address(one.uri) for one in target.own if not one.is_local]
    return [place.prefix for place in places if place.bucket == bucket]
