"""The target of a reconcile: a source, the ledger that knows its objects, and the queue of their notifications."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.app.brokers import open_broker
from penstock.app.naming import object_names
from penstock.app.object_service import ObjectService
from penstock.app.paths import TablePaths, declared_table_paths
from penstock.app.pending import always_add
from penstock.app.pipelines.declaration import change_rule as declared_rule
from penstock.app.pipelines.service import PipelineService
from penstock.app.pipelines.sources import declared_source
from penstock.app.scope import scope_ledger
from penstock.app.sources import SourceLocation, source_at, source_of
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import OnChange
from penstock.messaging.broker import Broker
from penstock.objects.reference import LOCAL_BUCKET
from penstock.objects.s3_facts import INVENTORY_REMEDY, require_no_versions
from penstock.pipeline.reconcile.alone import (
    MissingAlone,
    ReconcileScope,
    find_missing_alone,
    folder_listing,
    s3_listing,
)
from penstock.pipeline.reconcile.manifest import Inventory, find_inventory
from penstock.storage.address import S3Address, s3_address
from penstock.storage.files import Files

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.pipelines.on_change import ChangeRule
    from penstock.app.scope import Scope
    from penstock.app.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileTarget:
    """A source to reconcile, with its ledger and queue.

    ``own``: the places that Penstock itself writes; objects there are left out. ``alone``: the comparison runs in this
    process, because an object handler needs no Spark. ``change_rule`` returns what happens to objects that change: if
    their rows are replaced, an object that changed back is missing.
    """

    pipeline: str
    source: SourceLocation
    own: Sequence[Files]
    queue: str
    ledger: Ledger
    broker: Broker
    alone: bool = False
    change_rule: Callable[[], OnChange] = always_add


def target_in(app: "App", name: str) -> ReconcileTarget:
    """Return the target of a pipeline or object handler of an app.

    Raises `UsageError` if the app has none of that name, and `ConfigurationError` if the ledger holds another app's
    objects under it.
    """
    found = {service.name: service for service in app.services if _has_objects(service)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UsageError(f"The app has no pipeline or object handler {name}; it has: {known}.")
    object_names(app, app.services, only=name).check(app.ledger)
    return _target_of(app, found[name])


def targets_in(app: "App", services: "Sequence[Service]") -> Sequence[ReconcileTarget]:
    """Return the targets of all pipelines and object handlers among these services."""
    return [_target_of(app, service) for service in services if _has_objects(service)]


@contextmanager
def target_of_table(
    scope: "Scope",
    source: str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    on_change: OnChange | None = None,
) -> Iterator[ReconcileTarget]:
    """Yield the target of an ingest's table that is fed from this source, with the ingest's filters and rule."""
    where = scope.table
    assert where is not None, "the scope is a table's"
    found = source_of(source, where, include=include, exclude=exclude)
    with ExitStack() as stack:
        ledger = scope_ledger(scope)
        stack.callback(ledger.close)
        broker = open_broker(scope.settings, holder="")
        stack.callback(broker.close)
        yield ReconcileTarget(
            pipeline=where.pipeline,
            source=_as_ingested(found, ledger, where),
            own=where.own,
            queue=where.queue(found),
            ledger=ledger,
            broker=broker,
            change_rule=lambda: _rule(where.pipeline, ledger, given=on_change).current(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileScan:
    """The input of one reconcile. Times are epoch seconds.

    ``as_of``: only objects stored before it are considered. ``seen_at``: when the listed objects were known to exist.
    """

    target: ReconcileTarget
    inventory: Inventory | None
    all_versions: bool
    as_of: float
    seen_at: float

    @property
    def source(self) -> str:
        """The source or inventory that is read, for people."""
        return str(self.target.source) if self.inventory is None else self.inventory.uri

    def missing_alone(
        self, *, seen_at: float, stopped: Callable[[], bool], on_listed: Callable[[int], None]
    ) -> MissingAlone:
        """Find the missing objects in this process, from the source's own listing. The caller closes the result."""
        target, source, scope = self.target, self.target.source, self.scope()
        if source.is_local:
            own = [str(files) for files in target.own if files.is_local]
            listing = folder_listing(source.address, excluded=own, selection=source.selection)
        else:
            address = s3_address(source.address)
            listing = s3_listing(
                address,
                source.aws,
                excluded=scope.excluded,
                selection=source.selection,
                all_versions=self.all_versions,
            )
        return find_missing_alone(
            listing, target.ledger, target.pipeline, scope, seen_at=seen_at, stopped=stopped, on_listed=on_listed
        )

    def scope(self) -> ReconcileScope:
        """Return the part of the source that is compared."""
        source = self.target.source
        if source.is_local:
            below = f"{source.address.rstrip('/')}/"
            return ReconcileScope(
                bucket=LOCAL_BUCKET, below=below, selection=source.selection, before=self.as_of, is_local=True
            )
        address = s3_address(source.address)
        return ReconcileScope(
            bucket=address.bucket,
            below=address.folder,
            selection=source.selection,
            before=self.as_of,
            excluded=_own_prefixes(self.target, address.bucket),
        )


def scan_of(
    target: ReconcileTarget, *, inventory: str | None, older_than_seconds: float, all_versions: bool, now: float
) -> ReconcileScan:
    """Return the input of a reconcile, with the inventory if one is named.

    Raises `UsageError` or `ConfigurationError` if the inventory does not fit the source.
    """
    source = target.source
    found = None
    if all_versions and (rule := target.change_rule()) is not OnChange.ADD:
        raise UsageError(
            f"--all-versions finds overwritten versions, and {target.pipeline} reads only current ones "
            f"(on_change={rule}): leave --all-versions out, or write on_change='add' (for a table --on-change add)."
        )
    if inventory is not None:
        if source.is_local:
            raise UsageError(f"{source} is a folder, and only buckets in S3 have inventories; leave --inventory out.")
        found = find_inventory(inventory, source.aws)
        _check(found, s3_address(source.address), target)
    seen_at = now if found is None else found.manifest.created_at
    as_of = seen_at - older_than_seconds
    return ReconcileScan(target=target, inventory=found, all_versions=all_versions, as_of=as_of, seen_at=seen_at)


def _as_ingested(source: SourceLocation, ledger: Ledger, where: TablePaths) -> SourceLocation:
    """Return the source without the objects that the table's ingest skips, since their names tell no format."""
    from penstock.pipeline.spark.source.formats import KNOWN_SUFFIXES  # loads Arrow
    from penstock.pipeline.spark.source.options import is_by_names

    row = ledger.pipeline(where.pipeline)
    if row is None or row.source_options is None or not is_by_names(row.source_options):
        return source
    return source.ending_in(KNOWN_SUFFIXES)


def _has_objects(service: Any) -> bool:
    return isinstance(service, PipelineService | ObjectService)


def _target_of(app: "App", service: Any) -> ReconcileTarget:
    own: Sequence[Files] = ()
    change_rule: Callable[[], OnChange] = always_add
    if isinstance(service, PipelineService):
        declared = service.pipeline.declaration
        where = declared_table_paths(declared.name, declared.sink.address, app.settings)
        source, own = declared_source(declared.source, where), where.own

        rule = _rule(service.name, app.ledger, given=declared_rule(declared.source), provenance=declared.provenance)
        change_rule = rule.current
    else:
        source = source_at(service.source, app.settings.aws)
    app.ledger.ensure_pipeline(service.name)
    return ReconcileTarget(
        pipeline=service.name,
        source=source,
        own=own,
        queue=service.queue_name,
        ledger=app.ledger,
        broker=app.broker,
        alone=isinstance(service, ObjectService),
        change_rule=change_rule,
    )


def _rule(pipeline: str, ledger: Ledger, *, given: OnChange | None, provenance: bool = True) -> "ChangeRule":
    from penstock.app.pipelines.on_change import ChangeRule  # loads Arrow

    # Without a batch no object has changed, whatever the columns of the table.
    return ChangeRule(given=given, provenance=provenance, ledger=ledger, sink=None, pipeline=pipeline)


def _check(inventory: Inventory, address: S3Address, target: ReconcileTarget) -> None:
    manifest = inventory.manifest
    if manifest.source_bucket != address.bucket:
        raise UsageError(
            f"The inventory {inventory.uri} lists the bucket {manifest.source_bucket}, and {target.pipeline} reads "
            f"{address}."
        )
    if not manifest.has_versions:
        require_no_versions(
            address.bucket, target.source.aws, list_name=f"The inventory {inventory.uri}", remedy=INVENTORY_REMEDY
        )


def _own_prefixes(target: ReconcileTarget, bucket: str) -> Sequence[str]:
    """Return the prefixes in this bucket that Penstock itself writes."""
    addresses = [s3_address(files.uri) for files in target.own if not files.is_local]
    return [written.prefix for written in addresses if written.bucket == bucket]
