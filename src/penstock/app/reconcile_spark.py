"""The comparison of a reconcile on Spark. Imported only by a reconcile that needs Spark."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ulid import ULID

from penstock.app.context import PipelineTools
from penstock.app.reconcile_target import ReconcileScan
from penstock.pipeline.reconcile.existing import folder_frame, listing_frame
from penstock.pipeline.reconcile.inventory import inventory_frame
from penstock.pipeline.reconcile.missing import MissingObjects, cancelled_when, find_missing, jobs, known_frame
from penstock.pipeline.spark.probe import require_packages
from penstock.pipeline.spark.requirements import FOR_S3
from penstock.pipeline.spark.runtime import Session
from penstock.pipeline.spark.shared_folders import prove_readable
from penstock.storage.address import s3_address


@contextmanager
def missing_on_spark(scan: ReconcileScan, spark: Session, tools: PipelineTools) -> Iterator[MissingObjects]:
    """Find the missing objects; a stop cancels the Spark jobs inside the block. The caller closes the result."""
    target, tag = scan.target, f"reconcile-{ULID()}"
    with _stoppable(tools, spark, tag), jobs(spark, tag, target.pipeline, tools.bus):
        known = known_frame(spark, target.ledger, target.pipeline, seen_at=scan.seen_at, on_change=target.change_rule())
        yield find_missing(_existing(scan, spark), known, scan.scope())


def _existing(scan: ReconcileScan, spark: Session) -> Any:
    source = scan.target.source
    if source.is_local:
        prove_readable(spark, source.address)
        excluded = [str(files) for files in scan.target.own if files.is_local]
        return folder_frame(spark, source.address, excluded=excluded, selection=source.selection)
    require_packages(spark, FOR_S3, purpose="a reconcile with S3", extra="aws")
    address = s3_address(source.address)
    if scan.inventory is None:
        prefix = source.selection.listed
        return listing_frame(spark, address, source.aws, prefix=prefix, all_versions=scan.all_versions)
    return inventory_frame(spark, scan.inventory, address, all_versions=scan.all_versions)


@contextmanager
def _stoppable(tools: PipelineTools, spark: Session, tag: str) -> Iterator[None]:
    """Cancel the Spark jobs on a stop.

    Other requests, such as for a stack dump, wake the watcher too but change nothing.
    """
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
