"""Reconcile: find objects that exist but were never processed, enqueue notifications for them, and record the result.

A reconcile only sends messages, so it can be repeated at will. It compares the ledger with the source's own listing or
with an S3 inventory of the source, as of a given time.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ulid import ULID

from penstock.app.context import PipelineTools
from penstock.app.pending import announce_all
from penstock.app.reconcile_target import ReconcileTarget
from penstock.errors import PenstockError, UsageError
from penstock.events import ObjectsMissing, ReconcileFinished, ReconcileProgressed
from penstock.ledger.pipelines import ReconcileResult
from penstock.objects.reference import LOCAL_BUCKET
from penstock.objects.s3_facts import INVENTORY_REMEDY, require_no_versions
from penstock.objects.scanner import CHUNK_OBJECTS
from penstock.pipeline.reconcile.alone import (
    MissingPrefix,
    ReconcileScope,
    find_missing_alone,
    folder_listing,
    s3_listing,
)
from penstock.pipeline.reconcile.manifest import Inventory, find_inventory
from penstock.storage.address import S3Address, s3_address

if TYPE_CHECKING:
    from penstock.pipeline.reconcile.alone import MissingAlone
    from penstock.pipeline.reconcile.missing import MissingObjects
    from penstock.pipeline.spark.session import Session


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
        return self.target.source.address if self.inventory is None else self.inventory.uri

    def missing(self, spark: "Session") -> "MissingObjects":
        """Find the missing objects with Spark. The caller closes the result."""
        from penstock.pipeline.reconcile.missing import find_missing, known_frame

        target = self.target
        known = known_frame(spark, target.ledger, target.pipeline, seen_at=self.seen_at)
        return find_missing(self._existing(spark), known, self._scope())

    def missing_alone(
        self, *, seen_at: float, stopped: Callable[[], bool], on_listed: Callable[[int], None]
    ) -> "MissingAlone":
        """Find the missing objects in this process, from the source's own listing. The caller closes the result."""

        target, source, scope = self.target, self.target.source, self._scope()
        if source.is_local:
            own = [str(one) for one in target.own if one.is_local]
            listing = folder_listing(source.address, excluded=own)
        else:
            address = s3_address(source.address)
            listing = s3_listing(address, source.aws, excluded=scope.excluded, all_versions=self.all_versions)
        return find_missing_alone(
            listing, target.ledger, target.pipeline, scope, seen_at=seen_at, stopped=stopped, on_listed=on_listed
        )

    def _existing(self, spark: "Session") -> Any:
        from penstock.pipeline.reconcile.existing import folder_frame, listing_frame
        from penstock.pipeline.reconcile.inventory import inventory_frame
        from penstock.pipeline.spark.cluster_checks import prove_readable

        source = self.target.source
        if source.is_local:
            prove_readable(spark, source.address)
            return folder_frame(spark, source.address, excluded=[str(one) for one in self.target.own if one.is_local])
        address = s3_address(source.address)
        if self.inventory is None:
            return listing_frame(spark, address, source.aws, all_versions=self.all_versions)
        return inventory_frame(spark, self.inventory, address, all_versions=self.all_versions)

    def _scope(self) -> ReconcileScope:
        source = self.target.source
        if source.is_local:
            below = f"{source.address.rstrip('/')}/"
            return ReconcileScope(bucket=LOCAL_BUCKET, below=below, before=self.as_of, is_local=True)
        address = s3_address(source.address)
        return ReconcileScope(
            bucket=address.bucket, below=address.folder, before=self.as_of, excluded=_keys(self.target, address.bucket)
        )


def scan_of(
    target: ReconcileTarget, *, inventory: str | None, older_than_seconds: float, all_versions: bool, now: float
) -> ReconcileScan:
    """Return the input of a reconcile, with the inventory if one is named.

    Raises `UsageError` or `ConfigurationError` if the inventory does not fit the source.
    """
    source = target.source
    found = None
    if inventory is not None:
        if source.is_local:
            raise UsageError(f"{source} is a folder, and S3 makes inventories of buckets; leave --inventory out.")
        found = find_inventory(inventory, source.aws)
        _check(found, s3_address(source.address), target)
    seen_at = now if found is None else found.manifest.created_at
    as_of = seen_at - older_than_seconds
    return ReconcileScan(target=target, inventory=found, all_versions=all_versions, as_of=as_of, seen_at=seen_at)


def _check(inventory: Inventory, address: S3Address, target: ReconcileTarget) -> None:
    manifest = inventory.manifest
    if manifest.source_bucket != address.bucket:
        raise UsageError(
            f"The inventory {inventory.uri} is of the bucket {manifest.source_bucket}, and {target.pipeline} reads "
            f"{address}."
        )
    if not manifest.has_versions:
        require_no_versions(
            address.bucket, target.source.aws, list_name=f"The inventory {inventory.uri}", remedy=INVENTORY_REMEDY
        )


def _keys(target: ReconcileTarget, bucket: str) -> Sequence[str]:
    """Return the prefixes in this bucket that Penstock itself writes."""
    addresses = [s3_address(one.uri) for one in target.own if not one.is_local]
    return [written.prefix for written in addresses if written.bucket == bucket]


OLDER_THAN_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """The options of one reconcile."""

    inventory: str | None = None  # the manifest, or the folder of lists; None: list the source
    older_than_seconds: float = OLDER_THAN_SECONDS  # younger objects may still have a notification in flight
    all_versions: bool = False  # in a versioned bucket: also overwritten versions
    dry_run: bool = False
    limit: int | None = None  # of messages
    rate: float | None = None  # messages per second


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """The result of one reconcile."""

    pipeline: str
    source: str  # a folder, a prefix in S3, or an inventory's manifest
    queue: str
    as_of: float  # epoch seconds: only objects stored before it were considered
    messages_waiting: int  # in the queue beforehand: their objects may be enqueued a second time
    dry_run: bool
    listed: int = 0
    missing: int = 0
    sent: int = 0  # messages, one per object
    prefixes: tuple[MissingPrefix, ...] = ()  # the folders with the most missing objects, in that order
    left_out: Mapping[str, int]  # count by reason: objects that are unknown but not missing
    problems: tuple[str, ...] = ()  # entries that could not be read
    seconds: float = 0.0
    stopped: bool = False  # before everything was compared or sent


def needs_spark(target: ReconcileTarget, request: ReconcileRequest) -> bool:
    """Return False if the comparison runs in this process: for an object handler without an inventory."""
    return not target.alone or request.inventory is not None


def reconcile(
    target: ReconcileTarget, request: ReconcileRequest, *, spark: "Session | None", tools: PipelineTools
) -> ReconcileReport:
    """Compare, send and record; a dry run only compares.

    A stop ends it soon and without a record; messages already sent stay sent. Without ``spark``, the source is listed
    and compared in this process, which is enough unless `needs_spark`. Raises `UserError` for a problem that a person
    has to fix, and `TemporaryError` if a retry may succeed.
    """
    began_at = tools.clock.monotonic()
    scan = scan_of(
        target,
        inventory=request.inventory,
        older_than_seconds=request.older_than_seconds,
        all_versions=request.all_versions,
        now=tools.clock.now(),
    )
    report = ReconcileReport(
        pipeline=target.pipeline,
        source=scan.source,
        queue=target.queue,
        as_of=scan.as_of,
        messages_waiting=_messages(target),
        dry_run=request.dry_run,
        left_out={},
    )
    try:
        if spark is None:
            report = _found_and_sent(_alone(scan, tools), scan, request, report, tools)
        else:
            report = _on_spark(scan, request, report, spark, tools)
    except PenstockError:
        if not tools.stop.requested:  # otherwise the error comes from our own cancellation
            raise
        report = replace(report, stopped=True)
    report = replace(report, seconds=round(tools.clock.monotonic() - began_at, 3))
    if not report.stopped:
        if not request.dry_run:  # a dry run must not hide what the last real one sent
            _record(target, report)
        _emit_finished(report, tools)
    return report


def _on_spark(
    scan: ReconcileScan, request: ReconcileRequest, report: ReconcileReport, spark: "Session", tools: PipelineTools
) -> ReconcileReport:
    from penstock.pipeline.reconcile.missing import jobs

    tag = f"reconcile-{ULID()}"
    with _stoppable(tools, spark, tag), jobs(spark, tag, report.pipeline, tools.bus):
        return _found_and_sent(scan.missing(spark), scan, request, report, tools)


def _alone(scan: ReconcileScan, tools: PipelineTools) -> "MissingAlone":
    def on_listed(listed: int) -> None:
        tools.bus.emit(ReconcileProgressed(pipeline=scan.target.pipeline, unit="objects", done=listed, total=listed))

    return scan.missing_alone(seen_at=tools.clock.now(), stopped=lambda: tools.stop.requested, on_listed=on_listed)


def _found_and_sent(
    looked: "MissingObjects | MissingAlone",
    scan: ReconcileScan,
    request: ReconcileRequest,
    report: ReconcileReport,
    tools: PipelineTools,
) -> ReconcileReport:
    with closing(looked) as found:
        report = replace(
            report,
            listed=found.listed,
            missing=found.count,
            prefixes=tuple(found.prefixes()),
            left_out={reason.value: number for reason, number in found.left_out.items()},
            problems=tuple(found.problems),
        )
        if tools.stop.requested:  # the result may be incomplete
            return replace(report, stopped=True)
        if report.missing:
            where = tuple(f"{prefix.uri}: {prefix.missing:,}" for prefix in report.prefixes)
            tools.bus.emit(
                ObjectsMissing(
                    pipeline=report.pipeline,
                    source=report.source,
                    as_of=report.as_of,
                    missing=report.missing,
                    folders=where,
                )
            )
        if report.missing and not request.dry_run:
            report = replace(report, sent=_send(scan.target, found, request, tools))
    return replace(report, stopped=tools.stop.requested)


def _send(
    target: ReconcileTarget, found: "MissingObjects | MissingAlone", request: ReconcileRequest, tools: PipelineTools
) -> int:
    """Send the notifications chunk by chunk, at most at the requested rate; return their number."""
    total = found.count if request.limit is None else min(found.count, request.limit)
    chunk_objects = CHUNK_OBJECTS if request.rate is None else max(1, min(CHUNK_OBJECTS, int(request.rate)))
    began_at, sent = tools.clock.monotonic(), 0
    stop_requested = threading.Event()
    with tools.stop.watched_by(stop_requested):
        for chunk in found.chunks(limit=request.limit, objects_max=chunk_objects):
            if tools.stop.requested:
                break
            announce_all(target.broker, target.queue, chunk, probe=tools.probe)
            sent += len(chunk)
            tools.bus.emit(ReconcileProgressed(pipeline=target.pipeline, unit="messages", done=sent, total=total))
            if request.rate is not None and sent < total:
                due_at = began_at + sent / request.rate
                tools.clock.wait(stop_requested, max(0.0, due_at - tools.clock.monotonic()))
    return sent


def _record(target: ReconcileTarget, report: ReconcileReport) -> None:
    target.ledger.record_reconciliation(
        ReconcileResult(
            pipeline=report.pipeline,
            as_of=report.as_of,
            source=report.source,
            listed=report.listed,
            missing=report.missing,
            sent=report.sent,
            seconds=report.seconds,
        )
    )


def _emit_finished(report: ReconcileReport, tools: PipelineTools) -> None:
    tools.bus.emit(
        ReconcileFinished(
            pipeline=report.pipeline,
            source=report.source,
            as_of=report.as_of,
            listed=report.listed,
            missing=report.missing,
            sent=report.sent,
            seconds=report.seconds,
        )
    )


@contextmanager
def _stoppable(tools: PipelineTools, spark: "Session", tag: str) -> Iterator[None]:
    """Cancel the Spark jobs on a stop.

    Other requests, such as for a stack dump, wake the watcher too but change nothing.
    """
    from penstock.pipeline.reconcile.missing import cancelled_when

    cancel = threading.Event()
    stop_requested = threading.Event()
    ended = threading.Event()

    def pass_on() -> None:
        while not ended.is_set():
            stop_requested.wait()
            stop_requested.clear()
            if tools.stop.requested:
                cancel.set()
                return

    with tools.stop.watched_by(stop_requested), cancelled_when(cancel, spark, tag):
        threading.Thread(target=pass_on, name="penstock-reconcile-stop", daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            stop_requested.set()


def _messages(target: ReconcileTarget) -> int:
    return target.broker.stats(target.queue).messages
